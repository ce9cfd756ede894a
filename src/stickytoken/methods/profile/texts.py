"""The carriers of a run: the texts into which copies are inserted."""

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
from stickytoken.settings.profile import ProfileSettings

# Key of the random generator that draws carriers.
_CARRIERS_KEY = 0
# How many texts of a group are drawn and tokenized: `_DRAWN_PER_TEXT` for each text that the group may
# contribute, and `_DRAWN_MORE` in addition. Tokenizing all texts of a large group would take long. Many texts
# drop out, and the more remain, the nearer to the wanted length are the best of them. Any generous numbers
# would do.
_DRAWN_PER_TEXT = 20
_DRAWN_MORE = 440
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
    texts_by_topic: dict[str, list[str]] = {}
    if corpus.bundled:
        kinds = _find_readable_kinds(encoder)
        if kinds is not None:
            texts_by_topic["everyday"] = list(corpus.texts)
            corpus = kinds  # its topics are the kinds
    topics = corpus.topics or ("corpus",) * len(corpus)  # one topic if it has none
    for text, topic in zip(corpus.texts, topics, strict=True):
        texts_by_topic.setdefault(topic, []).append(text)
    return [TextGroup(topic, texts_by_topic[topic]) for topic in sorted(texts_by_topic)]


def _find_readable_kinds(encoder: Encoder) -> Sentences | None:
    kinds = drop_indistinguishable(text_kinds(), encoder.tokenizer)
    unknown_share = kinds.unknown or 0.0  # None if the tokenizer does not say which characters it knows
    return kinds if unknown_share <= LARGEST_UNKNOWN else None


def length_of_bundled_carriers(encoder: Encoder, settings: ProfileSettings, needed: int) -> float | None:
    """Return the mean number of tokens of the carriers that a run with the bundled corpus has.

    Copies erase more of a shorter text, and some tokens' copies gain more by it than others'. So the
    thresholds mean the same in other texts only if these are as long. The result is None if the model
    cannot read the bundled texts, or too few of them.
    """
    if _find_readable_kinds(encoder) is None:
        return None
    corpus = bundled_sentences()
    groups = group_texts(encoder, corpus)
    try:
        carriers = choose_carriers(encoder, settings, groups, needed, corpus.source)
    except InputError:  # too few of them leave room for copies
        return None
    return float(np.mean([len(ids) for ids in encoder.content_ids(carriers)]))


def choose_carriers(
    encoder: Encoder,
    settings: ProfileSettings,
    groups: Sequence[TextGroup],
    needed: int,
    source: str,
    length: float | None = None,
) -> list[str]:
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
        The carriers. Those from different groups alternate.

    Raises:
        InputError: The groups have fewer short texts than ``needed``.
    """
    most_of_group = _limit_share_of_group([len(group.texts) for group in groups], needed)
    wanted_length = length or 0.0  # the shortest texts are those nearest to 0 tokens
    pool: list[str] = []
    group_names: list[str] = []  # name of the group of each text in the pool
    for group in groups:
        short_texts = _short_texts_of_group(encoder, settings, group, most_of_group, wanted_length)
        pool += short_texts
        group_names += [group.name] * len(short_texts)
    # Without a limit, `balanced` returns the indices of all texts in the pool, one from each group in turn.
    order = balanced(group_names, len(pool), seed=[settings.seed, _CARRIERS_KEY])
    # Texts of different groups may differ only in their final punctuation.
    carriers = list(dict.fromkeys(open_ended(pool[index]) for index in order))[:needed]
    if len(carriers) < needed:
        limit = encoder.max_length
        room_in = "" if limit is None else f" in the {limit} tokens that {encoder.name} reads"
        raise InputError(
            f"only {len(carriers)} sentences of {source} differ in more than their punctuation "
            f"and leave room for the copies{room_in}, but {needed} are needed: use more or shorter sentences"
        )
    return carriers


def _short_texts_of_group(
    encoder: Encoder, settings: ProfileSettings, group: TextGroup, most: int, length: float
) -> list[str]:
    """Return at most ``most`` texts of a group that leave room for copies, those nearest to ``length`` first.

    Long texts are shortened to their first sentence. Of several texts that differ only in their final
    punctuation, one is returned. Texts that a server returns no vector for are left out.
    """
    drawn_count = _DRAWN_PER_TEXT * most + _DRAWN_MORE
    order = np.random.default_rng([settings.seed, _CARRIERS_KEY]).permutation(len(group.texts))
    short_texts = _shorten_to_first_sentences(encoder, [group.texts[index] for index in order[:drawn_count]])
    ids_of_text = dict(zip(short_texts, encoder.content_ids(short_texts), strict=True))
    room = room_for(encoder, settings.inserted_as, max(settings.copies))
    fitting = [text for text in short_texts if has_room(encoder, ids_of_text[text], room)]
    text_by_open_end: dict[str, str] = {}
    for text in reversed(fitting):
        # Texts that differ only in their final punctuation replace each other, so that the first one stays.
        text_by_open_end[open_ended(text)] = text
    # Both forms are encoded: the text as it is, and without its final punctuation where copies follow.
    refused = refused_texts(encoder)  # by a server that returned no vector
    accepted = [
        text for open_end, text in text_by_open_end.items() if open_end not in refused and text not in refused
    ]
    return sorted(accepted, key=lambda text: abs(len(ids_of_text[text]) - length))[:most]


def _limit_share_of_group(sizes: Sequence[int], needed: int) -> int:
    """How many texts a group contributes at most, so that groups of these ``sizes`` have enough together."""
    most = math.ceil(needed / len(sizes))
    # Where a group has fewer texts, the others contribute more.
    while most < max(sizes) and sum(min(size, most) for size in sizes) < needed:
        most += 1
    return most


def _shorten_to_first_sentences(encoder: Encoder, texts: Sequence[str]) -> list[str]:
    short_texts = []
    for text, ids in zip(texts, encoder.content_ids(texts), strict=True):
        is_long = len(ids) > _SENTENCE_TOKENS
        first_sentence = _FIRST_SENTENCE.match(text) if is_long else None
        short_texts.append(first_sentence.group() if first_sentence else text)
    return list(dict.fromkeys(short_texts))


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
    centred = effects - effects.mean(axis=0)  # in each carrier, the mean over the tokens is 0
    target = centred.mean(axis=1)  # mean effects over all carriers, shape (T,)
    chosen: list[int] = []
    for _ in range(count):
        remaining = np.setdiff1d(candidates, chosen)
        # Of the chosen carriers and one of the remaining, shape (T, remaining). A sum over carriers has the
        # same correlation as the mean, so no division is needed.
        sums = centred[:, chosen].sum(axis=1, keepdims=True) + centred[:, remaining]
        products = target @ sums
        norms = np.sqrt((sums**2).sum(axis=0) * (target**2).sum())
        agreement = np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)
        largest = agreement.max()
        # The standard error of a correlation r over T tokens is about (1 - r^2) / sqrt(T - 1).
        standard_error = (1 - largest**2) / np.sqrt(max(1, len(effects) - 1))
        is_good_enough = agreement >= largest - standard_error
        good_enough = remaining[is_good_enough]
        # `lexsort` sorts by its last key first. Of equally short carriers, the one that agrees best wins.
        order = np.lexsort((-agreement[is_good_enough], lengths[good_enough]))
        chosen.append(int(good_enough[order[0]]))
    return sorted(chosen)
