"""Why two texts are similar: their similarity as a sum over pairs of tokens, and without each token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations, groupby
from math import comb
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.detection.run import Run, encoder_for, open_run
from stickytoken.encoders.mean_similarity import mean_similarity
from stickytoken.encoders.protocol import IdEncoder, require_ids
from stickytoken.errors import EncodingError, InputError
from stickytoken.inspection import AttributionMethod, Contributions, Watch, inspector_of, similarity_matrix
from stickytoken.measurement.engine import Progress, ProgressCallback, ignore_progress
from stickytoken.unit_vectors import exact_unit_vectors
from stickytoken.validation import require_callable, shown

if TYPE_CHECKING:
    from stickytoken.encoders.loading import AnyModel


@dataclass(frozen=True, slots=True)
class Part:
    text: str
    token_ids: tuple[int, ...]
    sticky: bool  # whether the run calls one of its tokens sticky; False without a run
    deletion: float | None  # change of the similarity without this part; None if nothing is left of the text


@dataclass(frozen=True, slots=True)
class ReadText:
    text: str
    parts: tuple[Part, ...]  # what the model reads of it, in order
    left_out: int  # tokens beyond what the model reads

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(part.text for part in self.parts)


@dataclass(frozen=True, slots=True)
class TokenPair:
    first: int  # index of the part of the first text
    second: int
    first_text: str
    second_text: str
    value: float  # what the two contribute to the similarity
    sticky: bool  # whether the run calls a token of either part sticky


@dataclass(frozen=True, eq=False)
class Why:
    """The similarity of two texts as a sum over pairs of their parts.

    Up to the completeness error, `matrix`, `first_reference`, `second_reference` and `reference` sum to the
    similarity. What the reference is depends on the method. Deletion has none, and the reference terms are
    0. With Jacobians it is the text with padding in place of its content.

    Attributes:
        model: name of the model.
        method: how the similarity was divided: ``deletion`` or ``jacobians``.
        similarity: cosine of the two texts, computed by the model itself.
        u: mean cosine of two vocabulary entries, from the run or estimated.
        first: the first text, n parts.
        second: the second text, m parts.
        matrix: contributions of pairs of parts, float32 of shape (n, m).
        first_reference: contributions of the first text's parts with the second reference, shape (n,).
        second_reference: contributions of the second text's parts with the first reference, shape (m,).
        reference: cosine of the two references.
        without_sticky: similarity without the parts that the run calls sticky; None without a run, without
            such parts or if nothing is left.
        run: folder of the run; None without one.
    """

    model: str
    method: str
    similarity: float
    u: float
    first: ReadText
    second: ReadText
    matrix: NDArray[np.float32]
    first_reference: NDArray[np.float32]
    second_reference: NDArray[np.float32]
    reference: float
    without_sticky: float | None
    run: str | None

    @property
    def completeness_error(self) -> float:
        """Sum of all contributions minus the similarity."""
        terms = (self.matrix, self.first_reference, self.second_reference)
        return float(sum(each.sum(dtype=np.float64) for each in terms)) + self.reference - self.similarity

    def strongest(self, top: int = 10) -> list[TokenPair]:
        """List the pairs that raise the similarity most, strongest first; equal ones in reading order."""
        pairs = []
        for place in np.argsort(-self.matrix, axis=None, kind="stable")[:top].tolist():
            row, column = divmod(place, self.matrix.shape[1])
            one, other = self.first.parts[row], self.second.parts[column]
            value, sticky = float(self.matrix[row, column]), one.sticky or other.sticky
            pairs.append(TokenPair(row, column, one.text, other.text, value, sticky))
        return pairs

    def grouped(self) -> Why:
        """Return it with neighbouring copies of a sticky token as one part, as people read it.

        The deletion of such a part is that of all copies, where no other part of the texts is sticky.
        """
        sticky = sum(part.sticky for text in (self.first, self.second) for part in text.parts)
        effect = None if self.without_sticky is None else self.without_sticky - self.similarity
        (first, rows), (second, columns) = (
            _grouped(text, sticky, effect) for text in (self.first, self.second)
        )
        return replace(
            self,
            first=first,
            second=second,
            matrix=np.add.reduceat(np.add.reduceat(self.matrix, rows, axis=0), columns, axis=1),
            first_reference=np.add.reduceat(self.first_reference, rows),
            second_reference=np.add.reduceat(self.second_reference, columns),
        )

    def document(self, top: int = 10) -> dict[str, Any]:
        """Return JSON values."""
        numbers = ("similarity", "u", "without_sticky", "completeness_error", "reference")
        return {
            **{name: getattr(self, name) for name in ("model", "run", "method", *numbers)},
            "strongest": [asdict(pair) for pair in self.strongest(top)],
            "first": asdict(self.first),
            "second": asdict(self.second),
            **{
                name: getattr(self, name).tolist()
                for name in ("matrix", "first_reference", "second_reference")
            },
        }


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


def _grouped(text: ReadText, sticky: int, effect: float | None) -> tuple[ReadText, list[int]]:
    parts, starts = [], []  # a part begins at each start
    for _, group in groupby(
        enumerate(text.parts), lambda each: each[1].token_ids if each[1].sticky else each[0]
    ):
        (start, part), *rest = group
        starts.append(start)
        if rest:
            count = 1 + len(rest)
            name = f"{part.text} \N{MULTIPLICATION SIGN}{count}"
            part = Part(name, part.token_ids * count, True, effect if count == sticky else None)
        parts.append(part)
    return replace(text, parts=tuple(parts)), starts


# A part in this share of the strongest pairs, with so many different partners, joins the texts by itself.
_MOST_PAIRS, _ENOUGH_PARTNERS = 0.6, 4


def sentences(found: Why, top: int = 10) -> list[str]:
    pairs = found.grouped().strongest(top)
    best = pairs[0]
    strongest = f"The strongest pair is {best.first_text!r} with {best.second_text!r} ({best.value:+.3f})."
    lines = [
        f"The cosine of the two texts is {found.similarity:.3f}; that of two vocabulary entries of this "
        f"model is {found.u:.3f} on average."
    ]
    if found.first.text == found.second.text:
        lines.append("The two texts are equal: what follows says which tokens carry the vector.")
    for name, text in (("first", found.first), ("second", found.second)):
        if text.left_out:
            longer = f"The {name} text is longer than the model reads"
            lines.append(f"{longer}: its last {text.left_out:,} tokens are left out.")
        if any(len(part.text.split()) > 1 for part in text.parts):
            lines.append(f"The {name} text is long: its parts are spans of several words.")
    inside = Counter(part.text for text in (found.first, found.second) for part in text.parts if part.sticky)
    if found.run is None:
        return [*lines, _recurring(found, pairs) or strongest]
    if not inside:
        return [*lines, f"Neither text has a token that the run calls sticky. {strongest}"]
    names = ", ".join(repr(name) for name, _ in inside.most_common(3))
    line = (
        f"{sum(pair.sticky for pair in pairs)} of the {len(pairs)} strongest pairs join a token that the "
        f"run calls sticky ({names}{' ...' if len(inside) > 3 else ''}) to a part of the other text."
    )
    if found.without_sticky is not None:
        tokens = "that token" if inside.total() == 1 else f"these {inside.total()} tokens"
        line += f" Without {tokens}, the cosine is {found.without_sticky:.3f}."
    return [*lines, f"{line} See: stickytoken repair {quote(found.run)} --out YOUR_FOLDER"]


def _recurring(found: Why, pairs: list[TokenPair]) -> str | None:
    joined = [(pair.first_text, pair.second_text) for pair in pairs]
    for each in (joined, [(second, first) for first, second in joined]):
        name, count = Counter(own for own, _ in each).most_common(1)[0]
        partners = len({other for own, other in each if own == name})
        if count >= _MOST_PAIRS * len(pairs) and partners >= _ENOUGH_PARTNERS:
            return (
                f"{count} of the {len(pairs)} strongest pairs join {name!r} to {partners} different "
                "parts of the other text. If the texts are not about it, it may be sticky. See: stickytoken "
                f"probe {quote(found.model)} {quote(name)}"
            )
    return None
