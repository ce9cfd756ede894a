"""What carriers are compared with: kinds of text, a corpus, vocabulary entries."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.corpora import Sentences
from stickytoken.corpora.corpus import text_kinds
from stickytoken.corpora.readability import LARGEST_UNKNOWN, as_read
from stickytoken.encoders.protocol import Encoder
from stickytoken.encoders.views import View
from stickytoken.insertion import Token
from stickytoken.methods.panel import AnchorPanel, balanced
from stickytoken.methods.profile.record import ProfilePlanRecord
from stickytoken.methods.profile.settings import ProfileSettings

_EVERYDAY = "everyday"
_OWN = "corpus"
# From a large corpus, draw this many times as many texts as are needed.
_POOL = 20
_ANCHORS, _VOCABULARY = 3, 1  # keys of the generators, which make the draws independent
# A much smaller cluster would say little about its group.
_LEAST_MEMBERS = 4


class TextGroup(NamedTuple):
    """Texts of one group.

    Attributes:
        name: of the group.
        texts: distinct texts.
        weight: in the lift.
        kind: whether universality counts the group.
    """

    name: str
    texts: list[str]
    weight: float
    kind: bool


WORDS = TextGroup("vocabulary entries", [], 0.0, False)
"""The group of the vocabulary entries."""


class Sources(NamedTuple):
    """Where carriers and anchors come from.

    Attributes:
        own: groups that the lift is measured on; carriers come from them too.
        beside: kinds of text that show whether a lift is universal, if not in ``own``.
    """

    own: list[TextGroup]
    beside: list[TextGroup]

    def chosen(self, keep: Callable[[str], bool]) -> Sources:
        """Keep some of the texts; a group that is left without any is dropped."""
        kept = (
            [group._replace(texts=texts) for group in groups if (texts := [*filter(keep, group.texts)])]
            for groups in self
        )
        return Sources(*kept)


def sources(encoder: Encoder, corpus: Sentences) -> Sources:
    """Choose what the lift is measured on.

    Without a corpus of the user's own, that is the bundled kinds of text, which weigh the same, everyday
    sentences among them. A corpus of the user's own is one group, and the kinds stand beside it. A model
    that cannot read the kinds has the topics of the corpus in their place, if there are any.
    """
    kinds = _kinds(encoder)
    if corpus.bundled and kinds:
        named = {_EVERYDAY: list(corpus.texts), **kinds}
        return Sources([TextGroup(name, texts, 1 / len(named), True) for name, texts in named.items()], [])
    if kinds:
        beside = [TextGroup(name, texts, 0.0, True) for name, texts in kinds.items()]
        return Sources([TextGroup(_OWN, list(corpus.texts), 1.0, False)], beside)
    topics: dict[str, list[str]] = {}
    for text, topic in zip(corpus.texts, corpus.topics or (_OWN,) * len(corpus), strict=True):
        topics.setdefault(topic, []).append(text)
    return Sources(
        [TextGroup(name, topics[name], 1 / len(topics), len(topics) > 1) for name in sorted(topics)], []
    )


def _kinds(encoder: Encoder) -> dict[str, list[str]]:
    """Return the bundled texts by kind; nothing if the model cannot read them."""
    found = as_read(text_kinds(), encoder.tokenizer)
    if (found.unknown or 0.0) > LARGEST_UNKNOWN:
        return {}
    named: dict[str, list[str]] = {}
    for text, kind in zip(found.texts, found.topics or (), strict=True):
        named.setdefault(kind, []).append(text)
    return named


class Anchors(NamedTuple):
    """Chosen texts, the groups of the lift first.

    Attributes:
        chosen: the groups, with the texts that were chosen.
        left_out: number of texts that the model does not read whole.
    """

    chosen: list[TextGroup]
    left_out: int

    @property
    def texts(self) -> list[str]:
        """All texts, group by group."""
        return [text for group in self.chosen for text in group.texts]

    @property
    def places(self) -> NDArray[np.intp]:
        """Group of each text, shape (n,)."""
        sizes = [len(group.texts) for group in self.chosen]
        return np.repeat(np.arange(len(sizes), dtype=np.intp), sizes)


def choose_anchors(encoder: Encoder, settings: ProfileSettings, found: Sources, taken: set[str]) -> Anchors:
    """Draw anchors from all groups, none of them a carrier and none cut off by the model.

    Args:
        encoder: the model.
        settings: with the number of anchors.
        found: groups of texts.
        taken: texts that are carriers.
    """
    chosen: list[TextGroup] = []
    left_out = 0
    for groups in found:
        pool = _drawn(settings, [(text, group.name) for group in groups for text in group.texts], taken)
        tokenized = encoder.content_ids([text for text, _ in pool])
        kept = [each for each, ids in zip(pool, tokenized, strict=True) if encoder.fits(ids)]
        left_out += len(pool) - len(kept)
        names = [name for _, name in kept]
        anchors = {kept[k] for k in balanced(names, settings.anchors, [settings.seed, _ANCHORS])}
        for group in groups:
            texts = [text for text in group.texts if (text, group.name) in anchors]
            chosen += [group._replace(texts=texts)] if texts else []
    total = sum(group.weight for group in chosen) or 1.0
    chosen = [group._replace(weight=group.weight / total) for group in chosen]
    return Anchors(chosen, left_out)


def _drawn(settings: ProfileSettings, texts: list[tuple[str, str]], taken: set[str]) -> list[tuple[str, str]]:
    """Draw more texts than are needed from a large corpus."""
    generator = np.random.default_rng([settings.seed, _ANCHORS])
    order = generator.permutation(len(texts))[: _POOL * settings.anchors]
    return [texts[k] for k in order if texts[k][0] not in taken]


def clustered(encoder: Encoder, settings: ProfileSettings, group: TextGroup, view: View) -> list[TextGroup]:
    """Group texts of unknown topics by their vectors in a view; every text keeps its weight."""
    labels = cluster(view.units(encoder.encode(group.texts)), settings.topics, settings.seed)
    found = []
    for label in range(int(labels.max()) + 1):
        texts = [text for text, own in zip(group.texts, labels, strict=True) if own == label]
        found.append(TextGroup(f"cluster {label}", texts, len(texts) / len(group.texts), labels.max() > 0))
    return found


def vocabulary_anchors(
    encoder: Encoder, settings: ProfileSettings, vocabulary: Sequence[Token]
) -> list[Token]:
    """Draw available tokens that have a vector as texts of their own, by ascending id."""
    count = settings.vocabulary_anchors
    order = np.random.default_rng([settings.seed, _VOCABULARY]).permutation(len(vocabulary))
    drawn = [vocabulary[k] for k in order[: 2 * count]]
    nothing, *tokenized = encoder.content_ids(["", *(token.text for token in drawn)])
    usable = [
        token for token, ids in zip(drawn, tokenized, strict=True) if ids != nothing and encoder.fits(ids)
    ]
    return sorted(usable[:count], key=lambda token: token.id)


def anchor_panel(
    encoder: Encoder, plan: ProfilePlanRecord, vocabulary: Sequence[Token], beside: bool = True
) -> AnchorPanel:
    """Encode the anchors of a plan.

    Args:
        encoder: the model.
        plan: the plan.
        vocabulary: available tokens.
        beside: also those that are measured beside the lift.
    """
    (panel,) = anchor_panels(encoder, [View(encoder.dimension)], plan, vocabulary, beside)
    return panel


def anchor_panels(
    encoder: Encoder,
    views: Sequence[View],
    plan: ProfilePlanRecord,
    vocabulary: Sequence[Token],
    beside: bool = True,
) -> list[AnchorPanel]:
    """Encode the anchors of a plan, for several views.

    Args:
        encoder: from `whole_vectors`.
        views: of its vectors.
        plan: the plan.
        vocabulary: available tokens.
        beside: also those that are measured beside the lift.
    """
    weights = [group.weight for group in plan.groups]
    anchors = [anchor for anchor in plan.anchors if beside or weights[anchor.group] > 0]
    texts = [anchor.text for anchor in anchors]
    groups = [anchor.group for anchor in anchors]
    if beside and plan.vocabulary_anchors:
        named = {token.id: token.text for token in vocabulary}
        texts += [named[token_id] for token_id in plan.vocabulary_anchors]
        groups += [len(weights) - 1] * len(plan.vocabulary_anchors)
    vectors = encoder.encode(texts)
    places, of_groups = np.array(groups, dtype=np.intp), np.array(weights[: max(groups) + 1])
    return [AnchorPanel(view.units(vectors), places, of_groups) for view in views]


def cluster(vectors: NDArray[np.float32], groups: int, seed: int) -> NDArray[np.intp]:
    """Cluster unit vectors with k-means; clusters are numbered in order of appearance.

    Args:
        vectors: unit vectors, shape (n, d).
        groups: largest number of clusters; fewer if they would be tiny.
        seed: seed of the choice of the first centers among the vectors.

    Returns:
        Group of each vector, shape (n,).
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    distinct = np.unique(vectors, axis=0)
    count = min(groups, len(distinct), max(1, len(vectors) // _LEAST_MEMBERS))
    if count <= 1:
        return np.zeros(len(vectors), dtype=np.intp)
    chosen = np.random.default_rng(seed).choice(len(distinct), size=count, replace=False)
    with warnings.catch_warnings():
        # Vectors that differ only in their last bits give fewer clusters than requested.
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = KMeans(count, init=distinct[chosen], n_init=1).fit(vectors).labels_
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return np.asarray(rank[inverse], dtype=np.intp)
