"""Attribute the similarity of two texts to pairs of their tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.attribution.result import AttributionMethod, Part, ReadText, Why
from stickytoken.detection.run import Run, open_run
from stickytoken.encoders.protocol import IdEncoder, require_ids
from stickytoken.encoders.views import mean_similarity
from stickytoken.errors import EncodingError, InputError
from stickytoken.inspection import Contributions, Watch, inspector_of, similarity_matrix
from stickytoken.measurement.stage import Progress, ProgressCallback, ignore_progress
from stickytoken.unit_vectors import exact_unit_vectors
from stickytoken.validation import require_callable, shown

if TYPE_CHECKING:
    from stickytoken.encoders.loading.load import AnyModel


_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class CutText:
    """A text as the model reads it, in parts.

    Attributes:
        text: the whole text.
        parts: content ids of each part, in order.
        names: each part as text.
        left_out: tokens beyond what the model reads.
    """

    text: str
    parts: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    left_out: int

    @property
    def ids(self) -> tuple[int, ...]:
        """All content ids."""
        return tuple(token_id for part in self.parts for token_id in part)

    @property
    def labels(self) -> list[int]:
        """The part of each id."""
        return [place for place, part in enumerate(self.parts) for _ in part]

    def only(self, places: Collection[int]) -> tuple[int, ...]:
        """Content ids of some parts, in their order."""
        return tuple(
            token_id for place, part in enumerate(self.parts) if place in places for token_id in part
        )

    def without(self, places: Collection[int]) -> tuple[int, ...]:
        """Content ids without some parts."""
        return self.only(set(range(len(self.parts))).difference(places))


def cut_text(encoder: IdEncoder, text: str, *, words: bool, most: int) -> CutText:
    """Cut a text into tokens or words, and into longer spans if there would be too many."""
    tokenized = encoder.tokenize([text])[0]
    ids = tokenized.ids
    if not ids:
        raise EncodingError(f"{encoder.name}: the text {text[:80]!r} has no tokens: pass a text with words")
    read = _readable(encoder, ids)
    pieces: list[tuple[int, ...]] = [(token_id,) for token_id in ids]
    if words:
        outside = [[(token_id,) for token_id in side] for side in (tokenized.head, tokenized.tail)]
        pieces = [*outside[0], *tokenized.words, *outside[1]]
    parts, taken = [], 0
    for piece in pieces:
        if kept := piece[: read - taken]:
            parts.append(kept)
        taken += len(kept)
    if len(parts) > most:
        parts = [
            tuple(token_id for place in span for token_id in parts[place])
            for span in np.array_split(np.arange(len(parts)), most)
        ]
    return CutText(text, tuple(parts), tuple(_names(encoder, parts)), len(ids) - read)


def _readable(encoder: IdEncoder, ids: Sequence[int]) -> int:
    """Return how many of the ids the model reads together with what it puts around them."""
    if encoder.max_length is None or encoder.fits(ids):
        return len(ids)
    low, high = 0, min(len(ids), encoder.max_length)  # a text that fits, the longest that may fit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if encoder.fits(ids[:middle]) else (low, middle - 1)
    return low or len(ids)  # an entry without a row, for which the encoder has its own error


def _names(encoder: IdEncoder, parts: Sequence[tuple[int, ...]]) -> list[str]:
    """Return parts as text; a piece of a character has only its vocabulary string."""
    entries = encoder.tokenizer.entries
    return [
        text
        if (text := decoded.strip()) and _REPLACEMENT not in text
        else "".join(entries.get(token_id, str(token_id)) for token_id in part)
        for part, decoded in zip(parts, encoder.tokenizer.decode_many(parts), strict=True)
    ]


# Up to this many parts, all sets of parts are encoded, and the values are exact.
_EXACT = 8
# More parts: about this many texts are encoded, in at least so many orders. Each order comes with its
# reverse, which lowers the error of the mean.
_ENCODED, _LEAST_ORDERS = 512, 16
_BATCH = 256
_SEED = 0

Parts = frozenset[int]


def shapley_contributions(model: IdEncoder, text: CutText, watch: Watch) -> Contributions:
    """Divide the unit vector of a text among its parts."""
    count = len(text.parts)
    steps = _all_steps(count) if count <= _EXACT else _random_steps(count)
    subsets = {each for part, before in steps for each in (before, before | {part}) if each}
    ordered = sorted(subsets, key=lambda each: (len(each), sorted(each)))
    vectors = _vectors(model, text, ordered, watch)
    whole = vectors[frozenset(range(count))]
    values = np.zeros((count, len(whole)))
    for (part, before), weight in steps.items():
        values[part] += weight * (vectors[before | {part}] - vectors[before])
    return Contributions(whole, np.zeros_like(whole), values)


def _all_steps(count: int) -> dict[tuple[int, Parts], float]:
    """Return each part with each set of others, and the share of all orders with that set before it."""
    return {
        (part, frozenset(before)): 1 / (count * comb(count - 1, size))
        for part in range(count)
        for size in range(count)
        for before in combinations([other for other in range(count) if other != part], size)
    }


def _random_steps(count: int) -> dict[tuple[int, Parts], float]:
    """Return the same for random orders, which depend on the number of parts alone."""
    generator = np.random.default_rng((_SEED, count))
    pairs = max(_LEAST_ORDERS, _ENCODED // count) // 2
    drawn = [generator.permutation(count).tolist() for _ in range(pairs)]
    orders = [order for each in drawn for order in (each, each[::-1])]
    steps = Counter((part, frozenset(order[:place])) for order in orders for place, part in enumerate(order))
    return {step: times / len(orders) for step, times in steps.items()}


def _vectors(
    model: IdEncoder, text: CutText, subsets: Sequence[Parts], watch: Watch
) -> dict[Parts, NDArray[np.float64]]:
    """Return the unit vectors of sets of parts; zeros where the model has no direction, and for no parts."""
    found: list[NDArray[np.float64]] = []
    for begin in range(0, len(subsets), _BATCH):
        batch = subsets[begin : begin + _BATCH]
        vectors = model.encode_ids([text.only(each) for each in batch], allow_zero=True)
        found.extend(exact_unit_vectors(vectors))
        watch(begin + len(batch), len(subsets))
    return {frozenset(): np.zeros_like(found[0])} | dict(zip(subsets, found, strict=True))


# Points of the integrals: the fewest with sums that are the unit vectors up to a norm, and with a
# product that is the similarity up to a share of it or an absolute error.
_STEPS = (8, 12, 16, 24, 32, 48, 64, 96)
_MISSED, _MISSED_SHARE, _LEAST_MISSED = 0.01, 0.01, 0.0001
# So many points suffice for the parts if the similarity is right.
_ENOUGH_STEPS = 16

_Attribute: TypeAlias = Callable[[CutText, Watch], Contributions]


def attributed(
    model: IdEncoder,
    texts: Sequence[CutText],
    similarity: float,
    method: AttributionMethod,
    progress: ProgressCallback,
) -> NDArray[np.float64]:
    """Return contributions of pairs of parts, the references last."""
    attribute = _method(model, texts, similarity, method)
    found: list[Contributions] = []
    for name, text in zip(("first text", "second text"), texts, strict=True):
        equal = found and text.parts == texts[0].parts
        found.append(found[0] if equal else attribute(text, partial(_told, progress, name)))
    return similarity_matrix(*found)


def _method(
    model: IdEncoder, texts: Sequence[CutText], similarity: float, method: AttributionMethod
) -> _Attribute:
    if method is AttributionMethod.DELETION:
        return partial(shapley_contributions, model)
    return _by_jacobians(model, texts, similarity)


def _by_jacobians(model: IdEncoder, texts: Sequence[CutText], similarity: float) -> _Attribute:
    """Choose the points of the integrals; each text as one part is enough to know how many are needed."""
    from stickytoken.inspection.integrated_jacobians import JacobianIntegrator

    integrator = JacobianIntegrator(inspector_of(model), most=1)
    allowed = max(_MISSED_SHARE * abs(similarity), _LEAST_MISSED)
    for steps in _STEPS:
        wholes = [integrator.contributions(text.ids, [0] * len(text.ids), steps) for text in texts]
        missed = abs(float(similarity_matrix(*wholes).sum()) - similarity)
        close = steps >= _ENOUGH_STEPS or max(each.error for each in wholes) <= _MISSED
        if missed <= allowed and close:
            break

    def attribute(text: CutText, watch: Watch) -> Contributions:
        return integrator.contributions(text.ids, text.labels, steps, watch)

    return attribute


def _told(progress: ProgressCallback, stage: str, done: int, total: int) -> None:
    progress(Progress(stage, done, total, done))


# More parts than this are joined to spans: the time grows with their number.
_MOST_PARTS = 48
# Vocabulary entries that u is estimated from without a run.
_ENTRIES = 256


def why(
    encoder: AnyModel,
    first: str,
    second: str,
    *,
    method: AttributionMethod | str = AttributionMethod.DELETION,
    run: Run | str | Path | None = None,
    words: bool = False,
    progress: ProgressCallback = ignore_progress,
) -> Why:
    """Say which pairs of tokens make two texts similar.

    Each part is also deleted on its own, and the similarity computed again. The order of the texts does not
    matter. Texts of more than 48 parts are cut into 48 spans.

    Args:
        encoder: anything that `load_encoder` takes and that reads token ids: a SentenceTransformer or a
            prompted language model.
        first: one text.
        second: the other text.
        method: how the similarity is divided among pairs: ``deletion`` (Shapley values) or ``jacobians``
            (integrated Jacobians).
        run: a finished run of this model, or its folder, whose sticky tokens are marked.
        words: attribute to words in place of tokens.
        progress: called after every batch; a stage for each text.

    Raises:
        InputError: a text is empty or not a text, or an argument cannot be used.
        ModelError: the method needs the inside of the model, and cannot look into this one.
        EncodingError: a text has no tokens or no usable vector.
        RunError: the run is of another model.
    """
    from stickytoken.detection.model_files import encoder_for

    _require_text("first", first)
    _require_text("second", second)
    require_callable("progress", progress)
    chosen = _chosen(method)
    opened = None if run is None else open_run(run)
    model = require_ids(encoder_for(encoder, opened, "why"), "why")
    texts = [cut_text(model, text, words=words, most=_MOST_PARTS) for text in (first, second)]
    units = _unit_vectors(model, [text.ids for text in texts])
    similarity = float(units[0] @ units[1])
    matrix = attributed(model, texts, similarity, chosen, progress)
    sticky = frozenset[int]() if opened is None else frozenset(opened.sticky["token_id"].to_list())
    left, right = (_read(model, texts[side], units[1 - side], similarity, sticky) for side in (0, 1))
    return Why(
        model=model.name,
        method=chosen.value,
        similarity=similarity,
        u=mean_similarity(model, most=_ENTRIES).value if opened is None else opened.plan.mean_similarity,
        first=left,
        second=right,
        matrix=matrix[:-1, :-1].astype(np.float32),
        first_reference=matrix[:-1, -1].astype(np.float32),
        second_reference=matrix[-1, :-1].astype(np.float32),
        reference=float(matrix[-1, -1]),
        without_sticky=_without_sticky(model, texts, (left, right)),
        run=None if opened is None else str(opened.path),
    )


def _require_text(name: str, text: object) -> None:
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"the {name} text is {shown(text)}: pass a text with words")


def _chosen(method: object) -> AttributionMethod:
    try:
        return AttributionMethod(str(method))
    except ValueError:
        raise InputError(f"method is {shown(method)}: pass one of {', '.join(AttributionMethod)}") from None


def _read(
    model: IdEncoder, text: CutText, other: NDArray[np.float64], similarity: float, sticky: frozenset[int]
) -> ReadText:
    """Delete every part once, and mark the sticky ones; ``other`` is the unit vector of the other text."""
    deletions: list[float | None] = [None] * len(text.parts)
    if len(text.parts) > 1:
        vectors = _unit_vectors(model, [text.without([place]) for place in range(len(text.parts))])
        deletions = (vectors @ other - similarity).tolist()
    parts = tuple(
        Part(name, ids, not sticky.isdisjoint(ids), deletion)
        for name, ids, deletion in zip(text.names, text.parts, deletions, strict=True)
    )
    return ReadText(text.text, parts, text.left_out)


def _without_sticky(model: IdEncoder, texts: Sequence[CutText], read: Sequence[ReadText]) -> float | None:
    """Return the similarity without sticky parts; None if there are none, or nothing else."""
    sticky = [[place for place, part in enumerate(side.parts) if part.sticky] for side in read]
    rest = [text.without(places) for text, places in zip(texts, sticky, strict=True)]
    if not any(sticky) or not all(rest):
        return None
    one, other = _unit_vectors(model, rest)
    return float(one @ other)


def _unit_vectors(model: IdEncoder, contents: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    return exact_unit_vectors(model.encode_ids(contents))
