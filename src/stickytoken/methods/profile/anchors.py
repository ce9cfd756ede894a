"""Settings and plan of the profile method; what carriers are compared with, and which texts are carriers."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from stickytoken.data import LARGEST_UNKNOWN, Sentences, as_read, open_ended, text_kinds
from stickytoken.encoders.protocol import Encoder
from stickytoken.encoders.views import View
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Token
from stickytoken.machine import Precision
from stickytoken.measurement.resume import LATER, Record
from stickytoken.methods.base import PlanRecord, ResultRecord
from stickytoken.methods.probes import AnchorPanel, Vector, balanced, room_for
from stickytoken.methods.statistics import present_mean
from stickytoken.validation import (
    distinct_numbers,
    proportion,
    real_number,
    require_switch,
    set_choices,
    set_whole_numbers,
    whole_number,
)

# With fewer texts per token, nothing would be left for the last round.
_LEAST_BUDGET = 3


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """Settings of the profile method.

    Attributes:
        budget: texts per available token, on average over the vocabulary.
        confidence: coverage of the intervals.
        fdr: false discovery rate of the verdicts.
        smallest_effect: smallest lift above the typical token's that must not be missed, in standard
            deviations of the model's own similarities of texts.
        adaptive: spend what the first round leaves on the tokens that lift most; otherwise spend the
            same on every token.
        insertion: copies as token ids or as text.
        copies: numbers of copies; the carriers take turns.
        anchors: largest number of texts to compare carriers with, shared by the kinds of text; as many
            sentences of a corpus of one's own.
        vocabulary_anchors: largest number of vocabulary entries, each a text of its own, to measure
            `lift_words` on.
        topics: number of groups of anchors if the model cannot read the bundled kinds of text and the
            corpus does not name its topics.
        confirming_texts: number of texts per token in the last round; verdicts on its tokens rest on
            them alone.
        reference: number of random tokens that show what is ordinary if only a part of the
            vocabulary is measured.
        screen_precision: precision of the model in the round of all tokens; None is its own,
            which the pilot and the last round always use.
        seed: seed of all random sampling.
        dimensions: also judge the tokens by so many first components of the vectors.
        layers: also judge them by the vectors after so many layers.

    Raises:
        InputError: a value is out of range, or two settings contradict each other.
    """

    budget: float = 4.0
    confidence: float = 0.9
    fdr: float = 0.05
    smallest_effect: float = 0.5
    adaptive: bool = True
    insertion: Insertion = Insertion.IDS
    copies: tuple[int, ...] = (8, 4)
    anchors: int = 440
    vocabulary_anchors: int = 200
    topics: int = 24
    confirming_texts: int = 48
    reference: int = 400
    screen_precision: Precision | None = None
    seed: int = 42
    dimensions: tuple[int, ...] = field(default=(), metadata=LATER)
    layers: tuple[int, ...] = field(default=(), metadata=LATER)

    def __post_init__(self) -> None:
        def change(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        least = {"anchors": 2, "vocabulary_anchors": 0, "topics": 1, "confirming_texts": 4, "reference": 2}
        set_whole_numbers(self, least | {"seed": 0})
        for name in ("dimensions", "layers"):
            change(name, distinct_numbers(name, getattr(self, name), 1))
        given: Any = self.copies
        copies = given if isinstance(given, (tuple, list)) else (given,)
        change("copies", tuple(whole_number("copies", count, 1) for count in copies))
        texts = f"a finite number of texts per available token, at least {_LEAST_BUDGET}"
        bounds = {"budget": (_LEAST_BUDGET, texts), "smallest_effect": (0, "a finite number of at least 0")}
        for name, (bound, wanted) in bounds.items():
            number = real_number(name, getattr(self, name))
            if not bound <= number < math.inf:
                raise InputError(f"{name} is {number}: it must be {wanted}")
            change(name, number)
        for name in ("confidence", "fdr"):
            change(name, proportion(name, getattr(self, name)))
        if not self.copies:
            raise InputError("copies is empty: name at least one number of copies")
        set_choices(self, {"insertion": Insertion})
        require_switch("adaptive", self.adaptive)
        if (precision := self.screen_precision) is None:
            return
        if precision not in tuple(Precision):
            raise InputError(f"screen_precision is {precision!r}: it must be one of {', '.join(Precision)}")
        if not self.adaptive:
            raise InputError(
                f"screen_precision is {precision}, but without adaptive rounds there is nothing to screen "
                "for: leave one of them out"
            )
        change("screen_precision", Precision(precision))


class AnchorGroupRecord(Record):
    name: str
    weight: float  # in the lift; 0 for a group that is measured beside it
    kind: bool  # whether universality counts it
    spread: float  # standard deviation of carriers' similarities to its anchors


class AnchorRecord(Record):
    text: str
    group: int


class ViewRecord(Record):
    dimension: int
    layer: int | None  # layers that run; null for the model as it is
    mean_similarity: float
    mean_similarity_entries: int
    mean_similarity_error: float
    similarity_spread: float
    share_below: float
    narrow_limit: float | None = None
    spreads: list[float]  # by group of anchors


class ProfilePlanRecord(PlanRecord):
    similarity_spread: float  # standard deviation of carriers' similarities to the anchors of the lift
    share_below: float  # share of those pairs that count for the lift
    # Median similarity of a corpus with too few pairs below u: pairs below it count instead.
    narrow_limit: float | None = None
    left_out: int  # sentences too long for the model
    groups: list[AnchorGroupRecord]  # vocabulary entries, if any, are the last
    anchors: list[AnchorRecord]  # those that the lift is measured on first
    vocabulary_anchors: list[int]  # token ids, each read as a text of its own
    carriers: list[str]
    reference: list[int]  # random tokens, to show what is ordinary
    late_reference: list[int]  # those of them that are measured on all carriers
    call_noise: float = 0.0  # standard deviation of a cosine from one call of the model to the next
    views: list[ViewRecord] = Field(default=[])  # of all views but the model as it is

    @model_serializer(mode="wrap")
    def _without_empty_views(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = serialize(self)
        for name in ("views", "narrow_limit", "isoscore"):
            if not getattr(self, name):  # so that earlier versions read the plan
                del written[name]
        return written

    @property
    def unrelated_below(self) -> float:
        """The similarity below which pairs count for the lift: u, unless the corpus is a narrow one."""
        return self.mean_similarity if self.narrow_limit is None else self.narrow_limit

    def seen_in(self, view: View | None) -> ProfilePlanRecord:
        found = next((each for each in self.views if view and view.is_at(each.dimension, each.layer)), None)
        if found is None:
            return self
        spreads = zip(self.groups, found.spreads, strict=True)
        numbers = found.model_dump(exclude={"dimension", "layer", "spreads"})
        groups = [group.model_copy(update={"spread": spread}) for group, spread in spreads]
        return self.model_copy(update=numbers | {"groups": groups})


class ProfileResultRecord(ResultRecord):
    looked_at: int  # tokens that the run measured
    candidates: int  # those of them that the last round measured
    topical: int
    ordinary_lift: float  # lift of the typical token
    ordinary_spread: float  # standard deviation of the lifts of ordinary tokens
    # Contraction of the typical token; null in runs of earlier versions.
    ordinary_contraction: float | None = None
    erasing: int | None = None  # sticky tokens that erase texts; null in runs of earlier versions
    empirical_null: bool  # whether false discoveries are controlled; with too few tokens, intervals decide
    screening_carriers: list[int]  # places in the plan of the first round's carriers
    texts_per_token: float  # texts that shards encoded, per measured token


# Keys of the generators, which make the draws independent.
_CARRIERS, _VOCABULARY, _ANCHORS = 0, 1, 3
# From a large corpus, draw this many times as many texts as are needed.
_POOL = 20


class TextGroup(NamedTuple):
    name: str
    texts: list[str]  # distinct
    weight: float  # in the lift
    kind: bool  # whether universality counts the group


WORDS = TextGroup("vocabulary entries", [], 0.0, False)


def filtered(groups: Sequence[TextGroup], keep: Callable[[str], bool]) -> list[TextGroup]:
    kept = [group._replace(texts=[*filter(keep, group.texts)]) for group in groups]
    return [group for group in kept if group.texts]


def sources(encoder: Encoder, corpus: Sentences) -> tuple[list[TextGroup], list[TextGroup]]:
    # The bundled corpus is one kind among the others, which weigh the same. A corpus of the user's own is one
    # group, and the kinds stand beside it, or its topics for a model that cannot read the kinds.
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
    return [TextGroup(name, topics[name], 1 / len(topics), len(topics) > 1) for name in sorted(topics)], []


def choose_anchors(
    encoder: Encoder, settings: ProfileSettings, found: Iterable[Sequence[TextGroup]], taken: set[str]
) -> tuple[list[TextGroup], int]:
    chosen: list[TextGroup] = []
    left_out, key = 0, [settings.seed, _ANCHORS]
    for groups in found:
        every = [(text, group.name) for group in groups for text in group.texts]
        order = np.random.default_rng(key).permutation(len(every))[: _POOL * settings.anchors]
        pool = [every[k] for k in order if every[k][0] not in taken]
        tokenized = encoder.content_ids([text for text, _ in pool])
        kept = [each for each, ids in zip(pool, tokenized, strict=True) if encoder.fits(ids)]
        left_out += len(pool) - len(kept)
        anchors = {kept[k] for k in balanced([name for _, name in kept], settings.anchors, key)}
        for group in groups:
            texts = [text for text in group.texts if (text, group.name) in anchors]
            chosen += [group._replace(texts=texts)] if texts else []
    total = sum(group.weight for group in chosen) or 1.0
    return [group._replace(weight=group.weight / total) for group in chosen], left_out


def clustered(
    texts: Sequence[str], vectors: NDArray[np.float32], settings: ProfileSettings
) -> list[TextGroup]:
    labels = cluster(vectors, settings.topics, settings.seed)
    found = []
    for label in range(int(labels.max()) + 1):
        own = [text for text, each in zip(texts, labels, strict=True) if each == label]
        found.append(TextGroup(f"cluster {label}", own, len(own) / len(texts), bool(labels.max() > 0)))
    return found


def cluster(vectors: NDArray[np.float32], groups: int, seed: int) -> NDArray[np.intp]:
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    distinct = np.unique(vectors, axis=0)
    # A cluster of a few texts would say little about its group.
    count = min(groups, len(distinct), max(1, len(vectors) // 4))
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


def vocabulary_anchors(
    encoder: Encoder, settings: ProfileSettings, vocabulary: Sequence[Token]
) -> list[Token]:
    count = settings.vocabulary_anchors
    order = np.random.default_rng([settings.seed, _VOCABULARY]).permutation(len(vocabulary))
    drawn = [vocabulary[k] for k in order[: 2 * count]]
    nothing, *tokenized = encoder.content_ids(["", *(token.text for token in drawn)])
    usable = [
        token for token, ids in zip(drawn, tokenized, strict=True) if ids != nothing and encoder.fits(ids)
    ]
    return sorted(usable[:count], key=lambda token: token.id)


def anchor_panels(
    encoder: Encoder,
    plan: ProfilePlanRecord,
    vocabulary: Sequence[Token],
    beside: bool = True,
    views: Sequence[View] = (),
) -> list[AnchorPanel]:
    weights = [group.weight for group in plan.groups]
    anchors = [anchor for anchor in plan.anchors if beside or weights[anchor.group] > 0]
    texts, groups = [anchor.text for anchor in anchors], [anchor.group for anchor in anchors]
    if beside and plan.vocabulary_anchors:
        named = {token.id: token.text for token in vocabulary}
        texts += [named[token_id] for token_id in plan.vocabulary_anchors]
        groups += [len(weights) - 1] * len(plan.vocabulary_anchors)
    vectors = encoder.encode(texts)
    places, of_groups = np.array(groups, dtype=np.intp), np.array(weights[: max(groups) + 1])
    views = views or [View(encoder.dimension)]
    return [AnchorPanel(view.units(vectors), places, of_groups) for view in views]


def anchor_panel(
    encoder: Encoder, plan: ProfilePlanRecord, vocabulary: Sequence[Token], beside: bool = True
) -> AnchorPanel:
    return anchor_panels(encoder, plan, vocabulary, beside)[0]


# Of each group, draw carriers from this many times as many of the shortest texts.
_SHORT = 1.5
# Texts of up to so many tokens may all be carriers of a corpus of one's own; of longer
# ones, the first sentence may.
_SENTENCE = 20
_FIRST_SENTENCE = re.compile(r"\S.*?[.!?](?=\s)", re.DOTALL)


def short_texts(
    encoder: Encoder, settings: ProfileSettings, groups: Sequence[TextGroup], needed: int, source: str
) -> dict[str, str]:
    # More than are needed, from all groups in turn; each has the text that it is, or begins, as its value.
    # The share of a group is more than an equal one where other groups have fewer texts.
    sizes, share = [len(group.texts) for group in groups], -(-needed // len(groups))
    while share < max(sizes) and sum(min(size, share) for size in sizes) < needed:
        share += 1
    names, pool, key = [], [], [settings.seed, _CARRIERS]
    room = room_for(encoder, settings.insertion, max(settings.copies))
    for group in groups:
        order = np.random.default_rng(key).permutation(len(group.texts))
        drawn = [group.texts[k] for k in order[: _POOL * share + settings.anchors]]
        whole, begun = dict(zip(drawn, encoder.content_ids(drawn), strict=True)), {}
        for text, ids in reversed(whole.items()):
            first = _FIRST_SENTENCE.match(text) if len(ids) > _SENTENCE else None
            begun[first.group() if first else text] = text
        lengths = dict(zip(begun, map(len, encoder.content_ids(list(begun))), strict=True))
        fitting = [text for text in reversed(begun) if encoder.fits((0,) * (lengths[text] + room))]
        unlike = {open_ended(text): text for text in reversed(fitting)}
        shortest = sorted(unlike.values(), key=lengths.__getitem__)
        sentences = 0 if group.kind else sum(lengths[text] <= _SENTENCE for text in shortest)
        # Half of a small group stays for the anchors.
        size = min(max(math.ceil(_SHORT * share), sentences), max(share, len(group.texts) // 2))
        pool += [(text, begun[text]) for text in shortest[:size]]
        names += [group.name] * len(shortest[:size])
    places = balanced(names, len(pool), key)
    found = {open_ended(pool[k][0]): pool[k][1] for k in reversed(places)}
    if len(found) < needed:
        limit = encoder.max_length
        room_in = "" if limit is None else f" in the {limit} tokens that {encoder.name} reads"
        raise InputError(
            f"only {len(found)} sentences of {source} differ in more than their punctuation and leave room "
            f"for the copies{room_in}, {needed} are needed: use more or shorter sentences"
        )
    return dict(reversed(found.items()))


def representative_carriers(lifts: Vector, weights: Vector, count: int) -> list[int]:
    """Choose carriers, one by one, whose mean lift of random tokens predicts that over all carriers."""
    # How well is a correlation by group, 0 where one side does not vary, weighted over the groups.
    # Once centred, a missing value is one that says nothing.
    centred = np.nan_to_num(lifts - present_mean(lifts))
    target = centred.mean(axis=1)
    chosen: list[int] = []
    for _ in range(count):
        left = [place for place in range(lifts.shape[1]) if place not in chosen]
        sums, scores = centred[:, chosen].sum(axis=1), []
        for place in left:
            found = sums + centred[:, place]
            products = (found * target).sum(axis=0)
            lengths = np.sqrt((found**2).sum(axis=0) * (target**2).sum(axis=0))
            shares = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
            scores.append(float(shares @ weights))
        chosen.append(left[int(np.argmax(scores))])
    return sorted(chosen)


def typical_carriers(lengths: NDArray[np.int64], count: int) -> list[int]:
    # 0.3 is where choices of real models lie on average, from the shortest texts (0) to the longest (1). They
    # vary: in seven runs, texts of chosen carriers had 0.74 to 1.10 times the tokens of an average one.
    first = min(max(0, int(0.3 * len(lengths)) - count // 2), len(lengths) - count)
    return sorted(np.argsort(lengths, kind="stable")[first : first + count].tolist())
