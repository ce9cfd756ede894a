"""The texts of a run: carriers, into which copies are inserted, and anchors to compare carriers with."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.data import Sentences, bundled_sentences, open_ended, text_kinds
from stickytoken.data.readability import LARGEST_UNKNOWN, drop_indistinguishable
from stickytoken.encoders.protocol import Encoder, refused_texts
from stickytoken.errors import InputError
from stickytoken.methods.probes import Floats, balanced, has_room, room_for
from stickytoken.methods.profile.records import ProfilePlanRecord
from stickytoken.methods.symptoms import AnchorPanel
from stickytoken.settings.profile import ProfileSettings
from stickytoken.unit_vectors import unit_vectors

# Keys of the random generators. The keys differ, so that carriers and anchors are drawn independently.
_CARRIERS_KEY = 0
_ANCHORS_KEY = 3
# Maximum number of texts to draw and tokenize, as a multiple of the number needed. This limit saves time with
# a large corpus.
_POOL_FACTOR = 20
# Maximum number of tokens in a text that is used as a carrier unchanged. A longer text is shortened to its
# first sentence.
_SENTENCE_TOKENS = 20
_FIRST_SENTENCE = re.compile(r"\S.*?[.!?](?=\s)", re.DOTALL)


class TextGroup(NamedTuple):
    """Texts of one kind, on one topic, or of a whole corpus, without duplicates."""

    name: str
    texts: list[str]


def keep_allowed(groups: Sequence[TextGroup], is_allowed: Callable[[str], bool]) -> list[TextGroup]:
    """Keep only the texts that ``is_allowed`` accepts, and drop groups that become empty."""
    kept = []
    for group in groups:
        allowed_texts = [text for text in group.texts if is_allowed(text)]
        if allowed_texts:
            kept.append(group._replace(texts=allowed_texts))
    return kept


def group_texts(encoder: Encoder, corpus: Sentences) -> list[TextGroup]:
    """Divide the texts that a run may use into groups, so that all kinds of text are represented.

    The bundled corpus of everyday sentences is joined by the bundled kinds of text, if the tokenizer can read
    them: if it knows all but `LARGEST_UNKNOWN` of their characters. Another corpus is divided by its topics.
    """
    topics: dict[str, list[str]] = {}
    if corpus.bundled:
        kinds = drop_indistinguishable(text_kinds(), encoder.tokenizer)
        if (kinds.unknown or 0.0) <= LARGEST_UNKNOWN:
            topics["everyday"] = list(corpus.texts)
            corpus = kinds
    for text, topic in zip(corpus.texts, corpus.topics or ("corpus",) * len(corpus), strict=True):
        topics.setdefault(topic, []).append(text)
    return [TextGroup(name, topics[name]) for name in sorted(topics)]


class Anchors(NamedTuple):
    """Texts that carriers are compared with in the evidence for reports.

    Attributes:
        texts: the anchors, sorted by group.
        left_out: number of texts drawn as anchors that the model does not read in full or gives no vector.
    """

    texts: list[str]
    left_out: int


class _TextOfGroup(NamedTuple):
    text: str
    group: str  # name of the group


def choose_anchors(
    encoder: Encoder, groups: Sequence[TextGroup], needed: int, seed: int, taken: set[str]
) -> Anchors:
    """Draw anchors as evenly as possible from all groups, but none of the texts in ``taken``."""
    key = [seed, _ANCHORS_KEY]
    candidates = [_TextOfGroup(text, group.name) for group in groups for text in group.texts]
    order = np.random.default_rng(key).permutation(len(candidates))[: _POOL_FACTOR * needed]
    pool = [candidates[index] for index in order if candidates[index].text not in taken]
    ids_of_texts = encoder.content_ids([candidate.text for candidate in pool])
    refused = refused_texts(encoder)
    readable = [
        candidate
        for candidate, ids in zip(pool, ids_of_texts, strict=True)
        if encoder.fits(ids) and candidate.text not in refused
    ]
    indices = balanced([candidate.group for candidate in readable], needed, key)
    drawn = {readable[index] for index in indices}
    # In the order of the groups. A text may be in several.
    texts = dict.fromkeys(candidate.text for candidate in candidates if candidate in drawn)
    return Anchors(list(texts), left_out=len(pool) - len(readable))


def anchor_panel(encoder: Encoder, plan: ProfilePlanRecord) -> AnchorPanel:
    """Encode a plan's anchors."""
    return AnchorPanel(unit_vectors(encoder.encode(plan.anchors)))


class _ShortText(NamedTuple):
    """A short text, and the corpus text that it comes from."""

    text: str
    source: str


def length_of_bundled_carriers(encoder: Encoder, settings: ProfileSettings, needed: int) -> float | None:
    """Return the mean number of tokens of the carriers that a run with the bundled corpus has.

    Copies erase more of a shorter text, and some tokens' copies gain more by it than others'. So the
    thresholds mean the same in other texts only if these are as long. The result is None if the model
    cannot read the bundled texts, or too few of them.
    """
    kinds = drop_indistinguishable(text_kinds(), encoder.tokenizer)
    if (kinds.unknown or 0.0) > LARGEST_UNKNOWN:
        return None
    corpus = bundled_sentences()
    groups = group_texts(encoder, corpus)
    try:
        carriers = choose_carriers(encoder, settings, groups, needed, corpus.source)
    except InputError:
        return None
    return float(np.mean([len(ids) for ids in encoder.content_ids(list(carriers))]))


def choose_carriers(
    encoder: Encoder,
    settings: ProfileSettings,
    groups: Sequence[TextGroup],
    needed: int,
    source: str,
    length: float | None = None,
) -> dict[str, str]:
    """Draw short texts from all groups in turn.

    A short text is a text of the corpus, or the first sentence of a longer text, without final punctuation.
    Each leaves room for the copies, and no two of them are equal.

    Args:
        encoder: the model.
        settings: provides the insertion, the numbers of copies and the seed.
        groups: the groups to draw from.
        needed: number of carriers.
        source: name of the corpus, for the error message.
        length: number of tokens that carriers should have. If None, the shortest texts are used.

    Returns:
        The corpus text from which each carrier was taken, keyed by the carrier. Carriers from different
        groups alternate.

    Raises:
        InputError: The groups have fewer short texts than ``needed``.
    """
    most_of_group = _most_of_group([len(group.texts) for group in groups], needed)
    pool: list[_ShortText] = []
    group_names: list[str] = []  # name of the group of each text in the pool
    for group in groups:
        short_texts = _short_texts_of_group(encoder, settings, group, most_of_group, length or 0.0)
        pool += short_texts
        group_names += [group.name] * len(short_texts)
    source_of_carrier: dict[str, str] = {}
    # Without a limit, `balanced` returns the indices of all texts in the pool, one from each group in turn.
    for index in balanced(group_names, len(pool), seed=[settings.seed, _CARRIERS_KEY]):
        if len(source_of_carrier) < needed:
            source_of_carrier.setdefault(open_ended(pool[index].text), pool[index].source)
    if len(source_of_carrier) < needed:
        limit = encoder.max_length
        room_in = "" if limit is None else f" in the {limit} tokens that {encoder.name} reads"
        raise InputError(
            f"only {len(source_of_carrier)} sentences of {source} differ in more than their punctuation "
            f"and leave room for the copies{room_in}, but {needed} are needed: use more or shorter sentences"
        )
    return source_of_carrier


def _short_texts_of_group(
    encoder: Encoder, settings: ProfileSettings, group: TextGroup, most: int, length: float
) -> list[_ShortText]:
    """Return at most so many texts of a group that leave room for copies, those nearest to a length first.

    Long texts are shortened to their first sentence. Of several texts that differ only in their final
    punctuation, one is returned. Texts that a server returns no vector for are left out.
    """
    # Tokenizing all texts of a large group would take long, so only some are drawn: many, because texts drop
    # out below, and the more remain, the nearer to the length are the best. Any generous number would do.
    drawn_count = _POOL_FACTOR * most + settings.anchors
    order = np.random.default_rng([settings.seed, _CARRIERS_KEY]).permutation(len(group.texts))
    source_of_text = _first_sentences(encoder, [group.texts[index] for index in order[:drawn_count]])
    ids_of_text = dict(zip(source_of_text, encoder.content_ids(list(source_of_text)), strict=True))
    room = room_for(encoder, settings.inserted_as, max(settings.copies))
    fitting = [text for text in source_of_text if has_room(encoder, ids_of_text[text], room)]
    text_by_open_end: dict[str, str] = {}
    for text in reversed(fitting):
        # Texts that differ only in their final punctuation replace each other, so that the first one stays.
        text_by_open_end[open_ended(text)] = text
    # Both forms are encoded: the text as it is, and without its final punctuation where copies follow.
    refused = refused_texts(encoder)  # by a server that returned no vector
    accepted = [
        text for open_end, text in text_by_open_end.items() if open_end not in refused and text not in refused
    ]
    nearest = sorted(accepted, key=lambda text: abs(len(ids_of_text[text]) - length))
    return [_ShortText(text, source_of_text[text]) for text in nearest[:most]]


def _most_of_group(sizes: Sequence[int], needed: int) -> int:
    """Return how many texts a group contributes at most, so that all together have as many as needed.

    ``sizes`` has the number of texts in each group.
    """
    most = math.ceil(needed / len(sizes))
    while most < max(sizes) and sum(min(size, most) for size in sizes) < needed:
        most += 1
    return most


def _first_sentences(encoder: Encoder, texts: Sequence[str]) -> dict[str, str]:
    source_of_text: dict[str, str] = {}
    for text, ids in zip(texts, encoder.content_ids(texts), strict=True):
        sentence = _FIRST_SENTENCE.match(text) if len(ids) > _SENTENCE_TOKENS else None
        source_of_text.setdefault(sentence.group() if sentence else text, text)
    return source_of_text


def representative_carriers(
    effects: Floats, lengths: NDArray[np.int64], candidates: NDArray[np.intp], count: int
) -> list[int]:
    """Choose short carriers whose mean effects agree well with the mean effects over all carriers.

    Carriers are chosen greedily. Agreement is the correlation, over tokens, between the mean over the chosen
    carriers and the mean over all carriers; it is 0 if the effect does not vary. Each step adds the shortest
    carrier whose agreement is at most one standard error below the largest, because short texts are encoded
    faster. This is the one-standard-error rule (Breiman et al., "Classification and Regression Trees", 1984,
    section 3.4.3).

    Args:
        effects: effects of T random tokens in K carriers, shape (T, K).
        lengths: number of tokens in each carrier, including the copies, shape (K,).
        candidates: indices of the carriers to choose from, at least ``count``.
        count: number of carriers to choose.

    Returns:
        Indices of the chosen carriers, in ascending order.
    """
    centred = effects - effects.mean(axis=0)
    target = centred.mean(axis=1)  # shape (T,)
    chosen: list[int] = []
    for _ in range(count):
        remaining = np.setdiff1d(candidates, chosen)
        # A sum over carriers has the same correlation as the mean, so no division is needed.
        sums = centred[:, chosen].sum(axis=1, keepdims=True) + centred[:, remaining]
        products = target @ sums
        norms = np.sqrt((sums**2).sum(axis=0) * (target**2).sum())
        agreement = np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)
        best = agreement.max()
        # The standard error of a correlation r over T tokens is about (1 - r^2) / sqrt(T - 1).
        standard_error = (1 - best**2) / np.sqrt(max(1, len(effects) - 1))
        good_enough = np.flatnonzero(agreement >= best - standard_error)
        # If several carriers are equally short, the one that agrees best is chosen.
        order = np.lexsort((-agreement[good_enough], lengths[remaining[good_enough]]))
        chosen.append(int(remaining[good_enough[order[0]]]))
    return sorted(chosen)
