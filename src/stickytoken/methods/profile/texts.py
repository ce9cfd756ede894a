"""The texts of a run: carriers, into which copies are inserted, and anchors to compare carriers with."""

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
from stickytoken.methods.profile.records import ProfilePlanRecord
from stickytoken.methods.statistics import present_mean
from stickytoken.settings.profile import ProfileSettings
from stickytoken.unit_vectors import unit_vectors

# Keys of the random generators. The keys differ, so that carriers and anchors are drawn independently.
_CARRIERS_KEY = 0
_ANCHORS_KEY = 3
# Maximum number of texts to draw and tokenize, as a multiple of the number needed. This limit saves time with
# a large corpus.
_POOL_FACTOR = 20
# Carriers are drawn from a group's shortest texts. Number of these texts, as a multiple of the number needed.
# The additional texts are a reserve: texts with too few unrelated anchors, which cannot be carriers, are
# removed only later.
_SHORT_FACTOR = 1.5
# Maximum number of tokens in a text that is used as a carrier unchanged. A longer text is shortened to its
# first sentence.
_SENTENCE_TOKENS = 20
_FIRST_SENTENCE = re.compile(r"\S.*?[.!?](?=\s)", re.DOTALL)
# Minimum number of texts per cluster, on average. With fewer texts, a mean over a cluster would be mostly
# noise.
_LEAST_TEXTS_PER_CLUSTER = 4


class TextGroup(NamedTuple):
    """Texts of one kind, on one topic, or of a whole corpus.

    Attributes:
        name: name of the kind or topic.
        texts: the texts, without duplicates.
        weight: weight of the group in the lift; 0 if the group is not part of the lift.
        kind: whether the group is one of the kinds of text that decide between sticky and topical.
    """

    name: str
    texts: list[str]
    weight: float
    kind: bool


def filtered(groups: Sequence[TextGroup], is_allowed: Callable[[str], bool]) -> list[TextGroup]:
    """Keep only the texts that ``is_allowed`` accepts, and drop groups that become empty."""
    filtered_groups = []
    for group in groups:
        allowed_texts = [text for text in group.texts if is_allowed(text)]
        if allowed_texts:
            filtered_groups.append(group._replace(texts=allowed_texts))
    return filtered_groups


def text_groups(encoder: Encoder, corpus: Sentences) -> tuple[list[TextGroup], list[TextGroup]]:
    """Divide the texts that a run may use into groups.

    A group serves one or both of two purposes. The lift of a token is measured on the groups with a positive
    weight. The separate lifts on the kinds of text show whether the token is sticky or topical.

    For the bundled corpus, the lift is measured on the corpus itself (everyday sentences) and on the bundled
    kinds of text, with equal weights. A user's corpus is a single group, and the lift is measured on this
    group alone; the bundled kinds are measured separately. If the model's tokenizer cannot read the bundled
    kinds, the lift is measured on the topics of the corpus.

    Returns:
        The groups to measure the lift on, and the groups that are measured separately.
    """
    kinds = _bundled_kinds(encoder)
    if corpus.bundled and kinds:
        everyday_and_kinds = {"everyday": list(corpus.texts), **kinds}
        weight = 1 / len(everyday_and_kinds)
        lift_groups = [
            TextGroup(name, texts, weight=weight, kind=True) for name, texts in everyday_and_kinds.items()
        ]
        return lift_groups, []
    if kinds:
        whole_corpus = TextGroup("corpus", list(corpus.texts), weight=1.0, kind=False)
        separate_groups = [TextGroup(name, texts, weight=0.0, kind=True) for name, texts in kinds.items()]
        return [whole_corpus], separate_groups
    topics: dict[str, list[str]] = {}
    for text, topic in zip(corpus.texts, corpus.topics or ("corpus",) * len(corpus), strict=True):
        topics.setdefault(topic, []).append(text)
    has_topics = len(topics) > 1
    weight = 1 / len(topics)
    lift_groups = [TextGroup(name, topics[name], weight=weight, kind=has_topics) for name in sorted(topics)]
    return lift_groups, []


def _bundled_kinds(encoder: Encoder) -> dict[str, list[str]]:
    """Return the bundled texts, keyed by kind of text, or an empty dict if the tokenizer cannot read them.

    The tokenizer cannot read the texts if it does not know more than `LARGEST_UNKNOWN` of their characters.
    """
    bundled = as_read(text_kinds(), encoder.tokenizer)
    share_of_unknown_characters = bundled.unknown or 0.0
    if share_of_unknown_characters > LARGEST_UNKNOWN:
        return {}
    kinds: dict[str, list[str]] = {}
    for text, kind in zip(bundled.texts, bundled.topics or (), strict=True):
        kinds.setdefault(kind, []).append(text)
    return kinds


def choose_anchors(
    encoder: Encoder,
    settings: ProfileSettings,
    group_lists: Iterable[Sequence[TextGroup]],
    taken: set[str],
) -> tuple[list[TextGroup], int]:
    """Draw anchors from each list of groups, as evenly as possible from all groups of the list.

    Args:
        encoder: the model.
        settings: provides the number of anchors to draw from each list, and the seed.
        group_lists: the groups of the lift, and the groups that are measured separately.
        taken: texts that may not be drawn, because carriers were taken from them.

    Returns:
        The groups, reduced to the drawn anchors, with weights that sum to 1, and the number of texts that
        were left out because the model does not read them in full or gives them no vector.
    """
    groups_with_anchors: list[TextGroup] = []
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
        anchor_indices = balanced([name for _, name in readable], settings.anchors, key)
        anchors = {readable[index] for index in anchor_indices}
        for group in groups:
            texts = [text for text in group.texts if (text, group.name) in anchors]
            if texts:
                groups_with_anchors.append(group._replace(texts=texts))
    total_weight = sum(group.weight for group in groups_with_anchors) or 1.0
    weighted = [group._replace(weight=group.weight / total_weight) for group in groups_with_anchors]
    return weighted, left_out


def clustered(
    texts: Sequence[str], vectors: NDArray[np.float32], settings: ProfileSettings
) -> list[TextGroup]:
    """Group texts by k-means clustering of their vectors.

    If a corpus has neither kinds of text nor topics, the clusters serve as groups instead. A cluster's weight
    is its share of the texts. The clusters count as kinds of text if there are at least two.
    """
    labels = cluster(vectors, settings.topics, settings.seed)
    cluster_count = int(labels.max()) + 1
    groups = []
    for label in range(cluster_count):
        members = [text for text, label_of_text in zip(texts, labels, strict=True) if label_of_text == label]
        weight = len(members) / len(texts)
        groups.append(TextGroup(f"cluster {label}", members, weight=weight, kind=cluster_count > 1))
    return groups


_WARNING_FILTERS = threading.Lock()


def cluster(vectors: NDArray[np.float32], largest_count: int, seed: int) -> NDArray[np.intp]:
    """Cluster vectors by k-means.

    Args:
        vectors: the vectors of N texts, shape (N, d).
        largest_count: maximum number of clusters. With few texts or few distinct vectors, there are fewer
            clusters.
        seed: seed for choosing the initial centres.

    Returns:
        The cluster number of each text, shape (N,). Clusters are numbered in order of first occurrence.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    distinct = np.unique(vectors, axis=0)
    count = min(largest_count, len(distinct), max(1, len(vectors) // _LEAST_TEXTS_PER_CLUSTER))
    if count <= 1:
        return np.zeros(len(vectors), dtype=np.intp)
    centre_rows = np.random.default_rng(seed).choice(len(distinct), size=count, replace=False)
    # The warning filters belong to the whole process, so two threads must not change them at the same time.
    with _WARNING_FILTERS, warnings.catch_warnings():
        # If vectors differ only in their last bits, k-means finds fewer clusters than requested and warns.
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = KMeans(count, init=distinct[centre_rows], n_init=1).fit(vectors).labels_
    _, first_positions, label_indices = np.unique(labels, return_index=True, return_inverse=True)
    rank_by_occurrence = np.argsort(np.argsort(first_positions))
    return np.asarray(rank_by_occurrence[label_indices], dtype=np.intp)


def anchor_panel(encoder: Encoder, plan: ProfilePlanRecord, *, lift_only: bool = False) -> AnchorPanel:
    """Encode a plan's anchors, and return them as a panel.

    If ``lift_only``, only the anchors from which the lift is computed are encoded.
    """
    weights = [group.weight for group in plan.groups]
    anchors = [anchor for anchor in plan.anchors if not lift_only or weights[anchor.group] > 0]
    vectors = unit_vectors(encoder.encode([anchor.text for anchor in anchors]))
    groups = np.array([anchor.group for anchor in anchors], dtype=np.intp)
    return AnchorPanel(vectors, groups, np.array(weights[: int(groups.max()) + 1]))


class _ShortText(NamedTuple):
    """A short text, and the corpus text that it comes from."""

    text: str
    source: str


def short_texts(
    encoder: Encoder,
    settings: ProfileSettings,
    groups: Sequence[TextGroup],
    needed: int,
    source: str,
    wanted: int | None = None,
) -> dict[str, str]:
    """Draw short texts from all groups in turn, as candidates for carriers.

    A short text is a text of the corpus, or the first sentence of a longer text, without final punctuation.
    Each short text leaves room for the copies, and no two of them are equal. The result usually has more
    texts than needed.

    Args:
        encoder: the model.
        settings: provides the insertion, the numbers of copies and the seed.
        groups: the groups to draw from.
        needed: minimum number of texts.
        source: name of the corpus, for the error message.
        wanted: number of texts that are of use, if the groups have enough. If ``wanted`` is None, it is
            ``needed``.

    Returns:
        The corpus text from which each short text was taken, keyed by the short text. Texts from different
        groups alternate.

    Raises:
        InputError: The groups have fewer short texts than ``needed``.
    """
    # Number of carriers that each group must contribute, or all of its texts if the group is smaller.
    sizes = [len(group.texts) for group in groups]
    share = _share_per_group(sizes, needed)
    wanted_share = share if wanted is None else _share_per_group(sizes, wanted)
    pool: list[_ShortText] = []
    group_names: list[str] = []  # name of the group of each text in the pool
    for group in groups:
        shortest = _shortest_of_group(encoder, settings, group, share, wanted_share)
        pool += shortest
        group_names += [group.name] * len(shortest)
    source_by_short_text: dict[str, str] = {}
    # Without a limit, `balanced` returns the indices of all texts in the pool, one from each group in turn.
    for index in balanced(group_names, len(pool), seed=[settings.seed, _CARRIERS_KEY]):
        source_by_short_text.setdefault(open_ended(pool[index].text), pool[index].source)
    if len(source_by_short_text) < needed:
        limit = encoder.max_length
        room_in = "" if limit is None else f" in the {limit} tokens that {encoder.name} reads"
        raise InputError(
            f"only {len(source_by_short_text)} sentences of {source} differ in more than their punctuation "
            f"and leave room for the copies{room_in}, but {needed} are needed: use more or shorter sentences"
        )
    return source_by_short_text


def _shortest_of_group(
    encoder: Encoder, settings: ProfileSettings, group: TextGroup, share: int, wanted_share: int
) -> list[_ShortText]:
    """Return the shortest texts of a group that leave room for the copies, shortest first.

    Long texts are shortened to their first sentence. Of several texts that differ only in their final
    punctuation, one is returned. Texts that a server returns no vector for are left out.

    Args:
        encoder: the model.
        settings: provides the way copies are inserted, the numbers of copies, the number of anchors and the
            seed.
        group: the group to draw from.
        share: number of carriers that must come from the group.
        wanted_share: number of carriers that should come from the group. More texts than this are returned if
            the group is large enough.
    """
    # Tokenizing all texts of a large group would take long, so draw enough of them at random.
    order = np.random.default_rng([settings.seed, _CARRIERS_KEY]).permutation(len(group.texts))
    pool_size = _POOL_FACTOR * wanted_share + settings.anchors
    source_of_text = _first_sentences(encoder, [group.texts[index] for index in order[:pool_size]])
    tokenized = encoder.content_ids(list(source_of_text))
    lengths = {text: len(ids) for text, ids in zip(source_of_text, tokenized, strict=True)}
    room = room_for(encoder, settings.insertion, max(settings.copies))
    fitting = [text for text in source_of_text if encoder.fits((0,) * (lengths[text] + room))]
    # Keep the first of several texts that differ only in their final punctuation: in reversed order, the
    # first text is stored last and replaces the others.
    text_by_open_end = {open_ended(text): text for text in reversed(fitting)}
    refused = refused_texts(encoder)  # texts that a server returns no vector for
    accepted = [
        text for open_end, text in text_by_open_end.items() if open_end not in refused and text not in refused
    ]
    shortest = sorted(accepted, key=lengths.__getitem__)
    # Return more texts than the group should contribute, because some texts may prove unusable as carriers.
    count = math.ceil(_SHORT_FACTOR * wanted_share)
    if not group.kind:
        # A single corpus may be narrow: many of its texts may have too few unrelated anchors to be carriers.
        # Keep a larger reserve, of all texts that are as short as a sentence.
        sentence_count = sum(lengths[text] <= _SENTENCE_TOKENS for text in shortest)
        count = max(count, sentence_count)
    # Leave at least half of a small group for the anchors, unless the carriers need more than half.
    count = min(count, max(share, len(group.texts) // 2))
    return [_ShortText(text, source_of_text[text]) for text in shortest[:count]]


def _share_per_group(sizes: Sequence[int], needed: int) -> int:
    """Return the maximum number of texts to take from each group to get ``needed`` texts in total.

    The maximum per group is an equal share of ``needed``, or more if some groups have fewer texts than an
    equal share.
    """
    share = math.ceil(needed / len(sizes))
    while share < max(sizes) and sum(min(size, share) for size in sizes) < needed:
        share += 1
    return share


def _first_sentences(encoder: Encoder, texts: Sequence[str]) -> dict[str, str]:
    """Shorten long texts to their first sentence. Return the original texts, keyed by the shortened texts.

    A text is long if it has more than `_SENTENCE_TOKENS` tokens. A long text without punctuation between
    sentences is not shortened. A text that is not shortened is its own key.
    """
    source_of_text: dict[str, str] = {}
    for text, ids in zip(texts, encoder.content_ids(texts), strict=True):
        sentence = _FIRST_SENTENCE.match(text) if len(ids) > _SENTENCE_TOKENS else None
        source_of_text.setdefault(sentence.group() if sentence else text, text)
    return source_of_text


def representative_carriers(
    effects: Vector, lengths: NDArray[np.int64], candidates: NDArray[np.intp], count: int
) -> list[int]:
    """Choose short carriers whose mean effects agree well with the mean effects over all carriers.

    Carriers are chosen greedily. Agreement is the sum of the correlations of all measures. The correlation of
    a measure is computed over tokens, between the mean over the chosen carriers and the mean over all
    carriers; it is 0 if the measure does not vary. Each step adds the shortest carrier whose agreement is at
    most one standard error below the largest agreement, because short texts are encoded faster. This is the
    one-standard-error rule (Breiman et al., "Classification and Regression Trees", 1984, section 3.4.3).

    Args:
        effects: M measures of T random tokens in K carriers, shape (T, K, M); NaN where missing.
        lengths: number of tokens in each carrier, including the copies, shape (K,).
        candidates: indices of the carriers to choose from, at least ``count``.
        count: number of carriers to choose.

    Returns:
        Indices of the chosen carriers, in ascending order.
    """
    # Subtract the mean over tokens from the effects in each carrier, and replace missing values by the mean,
    # which is 0 after centring.
    centred = np.nan_to_num(effects - present_mean(effects))
    target = centred.mean(axis=1)  # shape (T, M)
    chosen: list[int] = []
    for _ in range(count):
        remaining = np.setdiff1d(candidates, chosen)
        # A sum over carriers has the same correlation as the mean, so no division is needed.
        sums = centred[:, chosen].sum(axis=1, keepdims=True) + centred[:, remaining]
        products = (sums * target[:, None]).sum(axis=0)
        norms = np.sqrt((sums**2).sum(axis=0) * (target**2).sum(axis=0))
        # Shape (remaining carriers, M).
        correlations = np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)
        agreement = correlations.sum(axis=1)
        best = int(np.argmax(agreement))
        # The standard error of a correlation r over T tokens is about (1 - r^2) / sqrt(T - 1). The errors of
        # the measures are treated as independent.
        correlation_errors = (1 - correlations[best] ** 2) / np.sqrt(max(1, len(effects) - 1))
        standard_error = float(np.sqrt((correlation_errors**2).sum()))
        good_enough = np.flatnonzero(agreement >= agreement[best] - standard_error)
        # If several carriers are equally short, the one that agrees best is chosen.
        order = np.lexsort((-agreement[good_enough], lengths[remaining[good_enough]]))
        chosen.append(int(remaining[good_enough[order[0]]]))
    return sorted(chosen)
