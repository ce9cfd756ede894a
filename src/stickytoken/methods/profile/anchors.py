"""What carriers are compared with: kinds of text, a corpus, vocabulary entries."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from stickytoken.corpora import Sentences
from stickytoken.corpora.choice import LARGEST_UNKNOWN, as_read
from stickytoken.corpora.corpus import open_ended, text_kinds
from stickytoken.encoders.protocol import Encoder
from stickytoken.encoders.views import View
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Token
from stickytoken.measurement.resume import Record
from stickytoken.methods.probes import AnchorPanel, Vector, balanced
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.records import PlanRecord, ResultRecord
from stickytoken.methods.statistics import present_mean


class AnchorGroupRecord(Record):
    """A group of anchors: a kind of text, a topic of the corpus, or vocabulary entries."""

    name: str
    weight: float = Field(description="in the lift; 0 for a group that is measured beside it")
    kind: bool = Field(description="whether universality counts it")
    spread: float = Field(description="standard deviation of carriers' similarities to its anchors")


class AnchorRecord(Record):
    """An anchor that is a text."""

    text: str
    group: int


class ViewRecord(Record):
    """What the plan knows of one view: some first components of the vectors, maybe after an earlier layer."""

    dimension: int
    layer: int | None = Field(description="layers that run; null for the model as it is")
    mean_similarity: float
    mean_similarity_entries: int
    mean_similarity_error: float
    similarity_spread: float
    share_below: float
    spreads: list[float] = Field(description="by group of anchors")


class ProfilePlanRecord(PlanRecord):
    """plan.json of the profile method."""

    similarity_spread: float = Field(
        description="standard deviation of carriers' similarities to the anchors of the lift"
    )
    share_below: float = Field(description="share of those pairs with a similarity below u")
    left_out: int = Field(description="sentences too long for the model")
    groups: list[AnchorGroupRecord] = Field(description="vocabulary entries, if any, are the last")
    anchors: list[AnchorRecord] = Field(description="those that the lift is measured on first")
    vocabulary_anchors: list[int] = Field(description="token ids, each read as a text of its own")
    carriers: list[str]
    reference: list[int] = Field(description="random tokens, to show what is ordinary")
    late_reference: list[int] = Field(description="those of them that are measured on all carriers")
    call_noise: float = Field(
        default=0.0, description="standard deviation of a cosine from one call of the model to the next"
    )
    views: list[ViewRecord] = Field(default=[], description="of all views but the model as it is")

    @model_serializer(mode="wrap")
    def _without_empty_views(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = serialize(self)
        if not self.views:  # so that earlier versions read the plan
            del written["views"]
        return written

    def seen_in(self, view: View) -> ProfilePlanRecord:
        """Return the plan with the numbers of another view."""
        found = next(each for each in self.views if view.is_at(each.dimension, each.layer))
        spreads = zip(self.groups, found.spreads, strict=True)
        numbers = found.model_dump(exclude={"dimension", "layer", "spreads"})
        groups = [group.model_copy(update={"spread": spread}) for group, spread in spreads]
        return self.model_copy(update=numbers | {"groups": groups})


class ProfileResultRecord(ResultRecord):
    """Result of a finished run of the profile method."""

    looked_at: int = Field(description="tokens that the run measured")
    candidates: int = Field(description="those of them that the last round measured")
    topical: int
    ordinary_lift: float = Field(description="lift of the typical token")
    ordinary_spread: float = Field(description="standard deviation of the lifts of ordinary tokens")
    empirical_null: bool = Field(
        description="whether false discoveries are controlled; with too few tokens, intervals decide"
    )
    screening_carriers: list[int] = Field(description="places in the plan of the first round's carriers")
    texts_per_token: float = Field(description="texts that shards encoded, per measured token")


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
    """Draw anchors from all groups, none of them a carrier and none cut off by the model."""
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
    """Encode the anchors of a plan."""
    (panel,) = anchor_panels(encoder, [View(encoder.dimension)], plan, vocabulary, beside)
    return panel


def anchor_panels(
    encoder: Encoder,
    views: Sequence[View],
    plan: ProfilePlanRecord,
    vocabulary: Sequence[Token],
    beside: bool = True,
) -> list[AnchorPanel]:
    """Encode the anchors of a plan, for several views."""
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
    """Cluster unit vectors with k-means; clusters are numbered in order of appearance."""
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


# From a large corpus, draw this many times as many texts as are needed.
# Of each group, draw carriers from this many times as many of the shortest texts.
_SHORT = 1.5
# Texts of up to so many tokens may all be carriers of a corpus of one's own; of longer
# ones, the first sentence may.
_SENTENCE = 20
_FIRST_SENTENCE = re.compile(r"\S.*?[.!?](?=\s)", re.DOTALL)
_TOKENS_PER_TEXT_COPY = 8
_CARRIERS = 0  # key of the generator


def short_texts(
    encoder: Encoder, settings: ProfileSettings, groups: Sequence[TextGroup], needed: int, source: str
) -> dict[str, str]:
    """Choose short texts of all groups in turn that leave room for the copies, more than are needed."""
    share = _share([len(group.texts) for group in groups], needed)
    pools = [(group.name, _shortest(encoder, settings, group, share)) for group in groups]
    texts = [(text, whole) for _, pool in pools for text, whole in pool.items()]
    names = [name for name, pool in pools for _ in pool]
    order = balanced(names, len(texts), [settings.seed, _CARRIERS])
    found = {open_ended(texts[k][0]): texts[k][1] for k in reversed(order)}
    if len(found) < needed:
        limit = encoder.max_length
        room_in = "" if limit is None else f" in the {limit} tokens that {encoder.name} reads"
        raise InputError(
            f"only {len(found)} sentences of {source} differ in more than their punctuation and leave room "
            f"for the copies{room_in}, {needed} are needed: use more or shorter sentences"
        )
    return dict(reversed(found.items()))


def _share(sizes: Sequence[int], needed: int) -> int:
    """Count the carriers of a group: more than an equal share where other groups have fewer texts."""
    share = -(-needed // len(sizes))
    while share < max(sizes) and sum(min(size, share) for size in sizes) < needed:
        share += 1
    return share


def _shortest(encoder: Encoder, settings: ProfileSettings, group: TextGroup, needed: int) -> dict[str, str]:
    """Return short texts of a group that leave room for the copies, each with the text that it begins."""
    generator = np.random.default_rng([settings.seed, _CARRIERS])
    count = _POOL * needed + settings.anchors
    drawn = [group.texts[k] for k in generator.permutation(len(group.texts))[:count]]
    whole = dict(zip(drawn, encoder.content_ids(drawn), strict=True))
    begun = {_beginning(text, len(ids)): text for text, ids in reversed(whole.items())}
    lengths = dict(zip(begun, map(len, encoder.content_ids(list(begun))), strict=True))
    copies = max(settings.copies) * (1 if settings.insertion is Insertion.IDS else _TOKENS_PER_TEXT_COPY)
    limit = encoder.max_length
    room = copies if limit is None else min(copies, limit // 2)
    fitting = [text for text in reversed(begun) if encoder.fits((0,) * (lengths[text] + room))]
    unlike = {open_ended(text): text for text in reversed(fitting)}
    shortest = sorted(unlike.values(), key=lambda text: lengths[text])
    sentences = 0 if group.kind else sum(lengths[text] <= _SENTENCE for text in shortest)
    # Half of a small group stays for the anchors.
    size = min(max(math.ceil(_SHORT * needed), sentences), max(needed, len(group.texts) // 2))
    return {text: begun[text] for text in shortest[:size]}


def _beginning(text: str, tokens: int) -> str:
    """Return a short text whole, and the first sentence of a longer one."""
    found = _FIRST_SENTENCE.match(text) if tokens > _SENTENCE else None
    return text if found is None else found.group()


# Where the choices of real models lie on average, from the shortest texts (0) to the longest (1). They
# vary: in seven runs, the texts of the chosen carriers had 0.74 to 1.10 times the tokens of an average one.
_TYPICAL = 0.3


def representative_carriers(lifts: Vector, weights: Vector, count: int) -> list[int]:
    """Choose carriers whose mean lift predicts the mean over all carriers, one after another.

    Carriers differ in how well a single text in them predicts a token's lift, and neither their length
    nor where the copies stand tells which are good. Lifts of random tokens in all carriers do.
    """
    # Once centred, a missing value is one that says nothing.
    centred = np.nan_to_num(lifts - present_mean(lifts))
    target = centred.mean(axis=1)
    chosen: list[int] = []
    for _ in range(count):
        left = [place for place in range(lifts.shape[1]) if place not in chosen]
        sums = centred[:, chosen].sum(axis=1)
        scores = [float(_correlations(sums + centred[:, place], target) @ weights) for place in left]
        chosen.append(left[int(np.argmax(scores))])
    return sorted(chosen)


def typical_carriers(lengths: NDArray[np.int64], count: int) -> list[int]:
    """Guess the choice of `representative_carriers` from the lengths of texts, before there are any lifts."""
    first = min(max(0, int(_TYPICAL * len(lengths)) - count // 2), len(lengths) - count)
    return sorted(np.argsort(lengths, kind="stable")[first : first + count].tolist())


def _correlations(found: Vector, wanted: Vector) -> Vector:
    """Correlate by group, shape (G,); 0 where one of both does not vary."""
    products = (found * wanted).sum(axis=0)
    lengths = np.sqrt((found**2).sum(axis=0) * (wanted**2).sum(axis=0))
    correlations: Vector = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return correlations
