"""The texts of a run: carriers, into which copies are put, and anchors, with which they are compared."""

from __future__ import annotations

import math
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.data import LARGEST_UNKNOWN, Sentences, as_read, open_ended, text_kinds
from stickytoken.encoders.protocol import Encoder, refused_texts
from stickytoken.errors import InputError
from stickytoken.methods.probes import AnchorPanel, Vector, balanced, room_for
from stickytoken.methods.profile.settings import ProfilePlanRecord, ProfileSettings
from stickytoken.methods.statistics import present_mean
from stickytoken.unit_vectors import unit_vectors

# Keys of the generators, which make the draws independent.
_CARRIERS_KEY = 0
_ANCHORS_KEY = 3
# From a large corpus, draw this many times as many texts as are needed.
_POOL_FACTOR = 20
# Of each group, draw carriers from this many times as many of the shortest texts.
_SHORT_FACTOR = 1.5
# Texts of up to so many tokens may all be carriers of a corpus of one's own; of longer ones, the first
# sentence may.
_SENTENCE_TOKENS = 20
_FIRST_SENTENCE = re.compile(r"\S.*?[.!?](?=\s)", re.DOTALL)
# A cluster of fewer texts would say little about its group.
_LEAST_TEXTS_PER_CLUSTER = 4


class TextGroup(NamedTuple):
    """A kind of text, a topic, or a whole corpus."""

    name: str
    texts: list[str]  # distinct
    weight: float  # in the lift
    kind: bool  # whether it is a kind of text, which decides between sticky and topical


def filtered(groups: Sequence[TextGroup], keep: Callable[[str], bool]) -> list[TextGroup]:
    """Keep the texts that a function accepts, and the groups that have any."""
    kept_groups = [group._replace(texts=[*filter(keep, group.texts)]) for group in groups]
    return [group for group in kept_groups if group.texts]


def sources(encoder: Encoder, corpus: Sentences) -> tuple[list[TextGroup], list[TextGroup]]:
    """Return the groups that the lift is measured on, and those measured beside it.

    The bundled corpus is one kind of text among the others, which weigh the same. A corpus of the user's own
    is one group, and the kinds stand beside it. For a model that cannot read the kinds, the topics of the
    corpus take their place.
    """
    kinds: dict[str, list[str]] = {}
    bundled = as_read(text_kinds(), encoder.tokenizer)
    if (bundled.unknown or 0.0) <= LARGEST_UNKNOWN:
        for text, kind in zip(bundled.texts, bundled.topics or (), strict=True):
            kinds.setdefault(kind, []).append(text)
    if corpus.bundled and kinds:
        named = {"everyday": list(corpus.texts), **kinds}
        return [TextGroup(name, texts, 1 / len(named), True) for name, texts in named.items()], []
    if kinds:
        beside = [TextGroup(name, texts, 0.0, True) for name, texts in kinds.items()]
        return [TextGroup("corpus", list(corpus.texts), 1.0, False)], beside
    topics: dict[str, list[str]] = {}
    for text, topic in zip(corpus.texts, corpus.topics or ("corpus",) * len(corpus), strict=True):
        topics.setdefault(topic, []).append(text)
    has_topics = len(topics) > 1
    return [TextGroup(name, topics[name], 1 / len(topics), has_topics) for name in sorted(topics)], []


def choose_anchors(
    encoder: Encoder,
    settings: ProfileSettings,
    group_lists: Iterable[Sequence[TextGroup]],
    taken: set[str],
) -> tuple[list[TextGroup], int]:
    """Draw anchors evenly from the groups of each list, without the texts that are taken.

    Returns:
        The groups with their anchors, weights summing to 1, and the number of texts that the model does not
        read in full.
    """
    chosen_groups: list[TextGroup] = []
    left_out = 0
    key = [settings.seed, _ANCHORS_KEY]
    for groups in group_lists:
        candidates = [(text, group.name) for group in groups for text in group.texts]
        order = np.random.default_rng(key).permutation(len(candidates))[: _POOL_FACTOR * settings.anchors]
        pool = [candidates[index] for index in order if candidates[index][0] not in taken]
        tokenized = encoder.content_ids([text for text, _ in pool])
        refused = refused_texts(encoder)
        readable = [
            candidate
            for candidate, ids in zip(pool, tokenized, strict=True)
            if encoder.fits(ids) and candidate[0] not in refused
        ]
        left_out += len(pool) - len(readable)
        drawn_indices = balanced([name for _, name in readable], settings.anchors, key)
        anchors = {readable[index] for index in drawn_indices}
        for group in groups:
            texts = [text for text in group.texts if (text, group.name) in anchors]
            if texts:
                chosen_groups.append(group._replace(texts=texts))
    total = sum(group.weight for group in chosen_groups) or 1.0
    return [group._replace(weight=group.weight / total) for group in chosen_groups], left_out


def clustered(
    texts: Sequence[str], vectors: NDArray[np.float32], settings: ProfileSettings
) -> list[TextGroup]:
    """Group texts by k-means of their vectors, where neither kinds nor topics are known."""
    labels = cluster(vectors, settings.topics, settings.seed)
    has_several = bool(labels.max() > 0)
    groups = []
    for label in range(int(labels.max()) + 1):
        members = [text for text, own_label in zip(texts, labels, strict=True) if own_label == label]
        groups.append(TextGroup(f"cluster {label}", members, len(members) / len(texts), has_several))
    return groups


_WARNING_FILTERS = threading.Lock()


def cluster(vectors: NDArray[np.float32], groups: int, seed: int) -> NDArray[np.intp]:
    """Label vectors by k-means, numbered in order of first occurrence."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    distinct = np.unique(vectors, axis=0)
    count = min(groups, len(distinct), max(1, len(vectors) // _LEAST_TEXTS_PER_CLUSTER))
    if count <= 1:
        return np.zeros(len(vectors), dtype=np.intp)
    chosen = np.random.default_rng(seed).choice(len(distinct), size=count, replace=False)
    # Filters of warnings are those of the whole process: threads that change them must not overlap.
    with _WARNING_FILTERS, warnings.catch_warnings():
        # Vectors that differ only in their last bits give fewer clusters than requested.
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = KMeans(count, init=distinct[chosen], n_init=1).fit(vectors).labels_
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return np.asarray(rank[inverse], dtype=np.intp)


def anchor_panel(encoder: Encoder, plan: ProfilePlanRecord, *, lift_only: bool = False) -> AnchorPanel:
    """Encode the anchors of a plan; with ``lift_only``, those that the lift is measured on."""
    weights = [group.weight for group in plan.groups]
    anchors = [anchor for anchor in plan.anchors if not lift_only or weights[anchor.group] > 0]
    vectors = unit_vectors(encoder.encode([anchor.text for anchor in anchors]))
    groups = np.array([anchor.group for anchor in anchors], dtype=np.intp)
    return AnchorPanel(vectors, groups, np.array(weights[: int(groups.max()) + 1]))


def short_texts(
    encoder: Encoder, settings: ProfileSettings, groups: Sequence[TextGroup], needed: int, source: str
) -> dict[str, str]:
    """Draw short texts as carriers from all groups in turn, more than are needed.

    Returns:
        Each carrier with the text that it is, or begins.

    Raises:
        InputError: The groups have too few texts that differ and leave room for the copies.
    """
    share = _share_per_group([len(group.texts) for group in groups], needed)
    key = [settings.seed, _CARRIERS_KEY]
    room = room_for(encoder, settings.insertion, max(settings.copies))
    refused = frozenset(refused_texts(encoder))  # a server gives no vector for them
    names: list[str] = []
    pool: list[tuple[str, str]] = []
    for group in groups:
        order = np.random.default_rng(key).permutation(len(group.texts))
        drawn_texts = [group.texts[index] for index in order[: _POOL_FACTOR * share + settings.anchors]]
        begun_by = _first_sentences(encoder, drawn_texts)
        tokenized = encoder.content_ids(list(begun_by))
        lengths = {text: len(ids) for text, ids in zip(begun_by, tokenized, strict=True)}
        fitting = [text for text in begun_by if encoder.fits((0,) * (lengths[text] + room))]
        # Of texts that differ only in their last punctuation, keep the first.
        distinct = {open_ended(text): text for text in reversed(fitting)}
        distinct = {end: text for end, text in distinct.items() if refused.isdisjoint((end, text))}
        shortest = sorted(distinct.values(), key=lengths.__getitem__)
        single_sentences = sum(lengths[text] <= _SENTENCE_TOKENS for text in shortest)
        count_needed = max(math.ceil(_SHORT_FACTOR * share), 0 if group.kind else single_sentences)
        # Half of a small group stays for the anchors.
        size = min(count_needed, max(share, len(group.texts) // 2))
        pool += [(text, begun_by[text]) for text in shortest[:size]]
        names += [group.name] * len(shortest[:size])
    indices = balanced(names, len(pool), key)
    carriers: dict[str, str] = {}
    seen_endings: set[str] = set()
    for index in indices:
        text, origin = pool[index]
        if open_ended(text) not in seen_endings:
            seen_endings.add(open_ended(text))
            carriers[open_ended(text)] = origin
    if len(carriers) < needed:
        limit = encoder.max_length
        room_in = "" if limit is None else f" in the {limit} tokens that {encoder.name} reads"
        raise InputError(
            f"only {len(carriers)} sentences of {source} differ in more than their punctuation and leave "
            f"room for the copies{room_in}, {needed} are needed: use more or shorter sentences"
        )
    return carriers


def _share_per_group(sizes: Sequence[int], needed: int) -> int:
    """Return how many texts each group gives; more than an equal share where other groups have fewer."""
    share = math.ceil(needed / len(sizes))
    while share < max(sizes) and sum(min(size, share) for size in sizes) < needed:
        share += 1
    return share


def _first_sentences(encoder: Encoder, texts: Sequence[str]) -> dict[str, str]:
    """Map each short text, or the first sentence of a long one, to the text that it is from."""
    begun_by: dict[str, str] = {}
    for text, ids in zip(texts, encoder.content_ids(texts), strict=True):
        first = _FIRST_SENTENCE.match(text) if len(ids) > _SENTENCE_TOKENS else None
        begun_by.setdefault(first.group() if first else text, text)
    return begun_by


def representative_carriers(values: Vector, count: int) -> list[int]:
    """Choose carriers, one by one, in which the mean of random tokens predicts that over all carriers.

    Args:
        values: what each token does in each carrier, by measure, shape (T, K, M). All measures count alike.
        count: number of carriers to choose.

    Returns:
        Their places, ascending. Each added carrier has the largest mean correlation over the measures; a
        measure that does not vary counts 0.
    """
    # Once centred, a missing value is one that says nothing.
    centred = np.nan_to_num(values - present_mean(values))
    target = centred.mean(axis=1)
    chosen: list[int] = []
    for _ in range(count):
        remaining = [candidate for candidate in range(values.shape[1]) if candidate not in chosen]
        sums = centred[:, chosen].sum(axis=1)
        scores = []
        for place in remaining:
            candidate = sums + centred[:, place]
            products = (candidate * target).sum(axis=0)
            lengths = np.sqrt((candidate**2).sum(axis=0) * (target**2).sum(axis=0))
            correlations = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
            scores.append(float(correlations.sum()))
        chosen.append(remaining[int(np.argmax(scores))])
    return sorted(chosen)


def typical_carriers(lengths: NDArray[np.int64], count: int) -> list[int]:
    """Choose carriers of the length that representative ones have on average, to price a run."""
    # 0.3 is where choices of real models lie on average, from the shortest texts (0) to the longest (1). They
    # vary: in seven runs, texts of chosen carriers had 0.74 to 1.10 times the tokens of an average one.
    first = min(max(0, int(0.3 * len(lengths)) - count // 2), len(lengths) - count)
    return sorted(np.argsort(lengths, kind="stable")[first : first + count].tolist())
