"""Attribute the similarity of two texts to pairs of their tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stickytoken.attribution.result import AttributionMethod, Part, ReadText, Why
from stickytoken.detection.run import Run, encoder_for, open_run
from stickytoken.encoders.protocol import IdEncoder, require_ids
from stickytoken.encoders.views import mean_similarity
from stickytoken.errors import EncodingError, InputError
from stickytoken.inspection import Contributions, Watch, inspector_of, similarity_matrix
from stickytoken.measurement.engine import Progress, ProgressCallback, ignore_progress
from stickytoken.unit_vectors import exact_unit_vectors
from stickytoken.validation import require_callable, shown

if TYPE_CHECKING:
    from stickytoken.encoders.loading.load import AnyModel

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
    given: tuple[object, ...] = (first, second)
    for name, each in zip(("first", "second"), given, strict=True):
        if not isinstance(each, str) or not each.strip():
            raise InputError(f"the {name} text is {shown(each)}: pass a text with words")
    require_callable("progress", progress)
    try:
        chosen = AttributionMethod(str(method))
    except ValueError:
        raise InputError(f"method is {shown(method)}: pass one of {', '.join(AttributionMethod)}") from None
    opened = None if run is None else open_run(run)
    model = require_ids(encoder_for(encoder, opened, "why"), "why")
    sticky = frozenset[int]() if opened is None else frozenset(opened.sticky["token_id"].to_list())
    texts = [_cut(model, text, sticky, words=words) for text in (first, second)]
    units = exact_unit_vectors(model.encode_ids([_ids(text.parts) for text in texts]))
    similarity = float(units[0] @ units[1])
    if chosen is AttributionMethod.DELETION:
        attribute: Callable[[ReadText, Watch], Contributions] = partial(_shapley_contributions, model)
    else:
        attribute = _by_jacobians(model, texts, similarity)
    contributions: list[Contributions] = []
    for text, stage in zip(texts, ("first text", "second text"), strict=True):
        equal = contributions and text.parts == texts[0].parts
        watch = partial(lambda stage, done, total: progress(Progress(stage, done, total, done)), stage)
        contributions.append(contributions[0] if equal else attribute(text, watch))
    matrix = similarity_matrix(*contributions)
    deleted = []
    for text, other in zip(texts, units[::-1], strict=True):
        parts = text.parts
        if len(parts) > 1:  # delete every part once
            rest = [_ids((*parts[:k], *parts[k + 1 :])) for k in range(len(parts))]
            changes = exact_unit_vectors(model.encode_ids(rest)) @ other - similarity
            parts = tuple(
                replace(part, deletion=float(change)) for part, change in zip(parts, changes, strict=True)
            )
        deleted.append(replace(text, parts=parts))
    kept = [_ids(part for part in text.parts if not part.sticky) for text in texts]
    without_sticky = None
    if all(kept) and any(part.sticky for text in texts for part in text.parts):
        one, other = exact_unit_vectors(model.encode_ids(kept))
        without_sticky = float(one @ other)
    return Why(
        model=model.name,
        method=chosen.value,
        similarity=similarity,
        u=mean_similarity(model, most=_ENTRIES).value if opened is None else opened.plan.mean_similarity,
        first=deleted[0],
        second=deleted[1],
        matrix=matrix[:-1, :-1].astype(np.float32),
        first_reference=matrix[:-1, -1].astype(np.float32),
        second_reference=matrix[-1, :-1].astype(np.float32),
        reference=float(matrix[-1, -1]),
        without_sticky=without_sticky,
        run=None if opened is None else str(opened.path),
    )


def _ids(parts: Iterable[Part]) -> tuple[int, ...]:
    return tuple(token_id for part in parts for token_id in part.token_ids)


def _cut(encoder: IdEncoder, text: str, sticky: frozenset[int], *, words: bool) -> ReadText:
    """Cut a text into tokens or words, and into longer spans if there would be too many."""
    tokenized = encoder.tokenize([text])[0]
    ids = tokenized.ids
    if not ids:
        raise EncodingError(f"{encoder.name}: the text {text[:80]!r} has no tokens: pass a text with words")
    read = len(ids)  # how many the model reads together with what it puts around them
    if encoder.max_length is not None and not encoder.fits(ids):
        low, high = 0, min(len(ids), encoder.max_length)  # a text that fits, the longest that may fit
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if encoder.fits(ids[:middle]) else (low, middle - 1)
        read = low or len(ids)  # an entry without a row, for which the encoder has its own error
    outside = [[(token_id,) for token_id in side] for side in (tokenized.head, tokenized.tail)]
    pieces = [*outside[0], *tokenized.words, *outside[1]] if words else [(token_id,) for token_id in ids]
    parts, taken = [], 0
    for piece in pieces:
        if kept := piece[: read - taken]:
            parts.append(kept)
        taken += len(kept)
    if len(parts) > _MOST_PARTS:
        spans = np.array_split(np.arange(len(parts)), _MOST_PARTS)
        parts = [tuple(token_id for k in span for token_id in parts[k]) for span in spans]
    entries, named = encoder.tokenizer.entries, []
    for part, decoded in zip(parts, encoder.tokenizer.decode_many(parts), strict=True):
        name = decoded.strip()
        # A piece of a character has only its vocabulary string.
        if not name or "\N{REPLACEMENT CHARACTER}" in name:
            name = "".join(entries.get(token_id, str(token_id)) for token_id in part)
        named.append(Part(name, part, not sticky.isdisjoint(part), None))
    return ReadText(text, tuple(named), len(ids) - read)


# Up to this many parts, all sets of parts are encoded, and the values are exact.
_EXACT = 8
# More parts: about this many texts are encoded, in at least so many orders. Each order comes with its
# reverse, which lowers the error of the mean.
_ENCODED, _LEAST_ORDERS = 512, 16
_BATCH = 256


def _shapley_contributions(model: IdEncoder, text: ReadText, watch: Watch) -> Contributions:
    count = len(text.parts)
    # The weight of a part behind a set of others is the share of all orders, or of those drawn, in which
    # exactly that set comes before it.
    if count <= _EXACT:
        steps = {
            (part, frozenset(before)): 1 / (count * comb(count - 1, size))
            for part in range(count)
            for size in range(count)
            for before in combinations([other for other in range(count) if other != part], size)
        }
    else:
        generator = np.random.default_rng((0, count))
        pairs = max(_LEAST_ORDERS, _ENCODED // count) // 2
        drawn = [generator.permutation(count).tolist() for _ in range(pairs)]
        orders = [order for each in drawn for order in (each, each[::-1])]
        times = Counter((part, frozenset(order[:k])) for order in orders for k, part in enumerate(order))
        steps = {step: number / len(orders) for step, number in times.items()}
    subsets = {each for part, before in steps for each in (before, before | {part}) if each}
    ordered = sorted(subsets, key=lambda each: (len(each), sorted(each)))
    found: list[NDArray[np.float64]] = []  # zeros where the model has no direction for a set
    for begin in range(0, len(ordered), _BATCH):
        batch = [_ids(text.parts[k] for k in sorted(each)) for each in ordered[begin : begin + _BATCH]]
        found.extend(exact_unit_vectors(model.encode_ids(batch, allow_zero=True)))
        watch(len(found), len(ordered))
    vectors = {frozenset[int](): np.zeros_like(found[0])} | dict(zip(ordered, found, strict=True))
    whole = vectors[frozenset(range(count))]
    values = np.zeros((count, len(whole)))
    for (part, before), weight in steps.items():
        values[part] += weight * (vectors[before | {part}] - vectors[before])
    return Contributions(whole, np.zeros_like(whole), values)


# Points of the integrals: the fewest with sums that are the unit vectors up to a norm, and with a
# product that is the similarity up to a share of it or an absolute error.
_STEPS = (8, 12, 16, 24, 32, 48, 64, 96)
_MISSED, _MISSED_SHARE, _LEAST_MISSED = 0.01, 0.01, 0.0001
# So many points suffice for the parts if the similarity is right.
_ENOUGH_STEPS = 16


def _by_jacobians(
    model: IdEncoder, texts: Sequence[ReadText], similarity: float
) -> Callable[[ReadText, Watch], Contributions]:
    """Choose the points of the integrals; each text as one part is enough to know how many are needed."""
    from stickytoken.inspection.integrated_jacobians import JacobianIntegrator

    integrator = JacobianIntegrator(inspector_of(model), most=1)
    contents = [_ids(text.parts) for text in texts]
    allowed = max(_MISSED_SHARE * abs(similarity), _LEAST_MISSED)
    for steps in _STEPS:
        wholes = [integrator.contributions(ids, [0] * len(ids), steps) for ids in contents]
        missed = abs(float(similarity_matrix(*wholes).sum()) - similarity)
        close = steps >= _ENOUGH_STEPS or max(each.error for each in wholes) <= _MISSED
        if missed <= allowed and close:
            break

    def attribute(text: ReadText, watch: Watch) -> Contributions:
        labels = [number for number, part in enumerate(text.parts) for _ in part.token_ids]
        return integrator.contributions(_ids(text.parts), labels, steps, watch)

    return attribute
