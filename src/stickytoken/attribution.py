"""Why two texts are similar: their similarity as a sum over pairs of tokens, and without each token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations
from math import comb
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.detection.run import Run, encoder_for, open_run
from stickytoken.encoders.mean_similarity import mean_similarity
from stickytoken.encoders.protocol import IdEncoder, require_ids, similarity_of
from stickytoken.errors import EncodingError, InputError
from stickytoken.inspection import AttributionMethod, Contributions, Watch, inspector_of, similarity_matrix
from stickytoken.measurement.engine import Progress, ProgressCallback, ignore_progress
from stickytoken.unit_vectors import Similarity, exact_unit_vectors
from stickytoken.validation import require_callable, shown

if TYPE_CHECKING:
    from stickytoken.encoders.loading import AnyModel

Vector: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TextPart:
    """A token, a word or a span of a text."""

    text: str
    token_ids: tuple[int, ...]
    sticky: bool  # whether the run calls one of its tokens sticky; False without a run
    deletion: float | None  # change of the similarity without this part; None if nothing is left of the text


@dataclass(frozen=True, slots=True)
class ReadText:
    """A text as the model reads it."""

    text: str
    parts: tuple[TextPart, ...]  # what the model reads of it, in order
    left_out: int  # tokens beyond what the model reads

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(part.text for part in self.parts)

    @property
    def ids(self) -> tuple[int, ...]:
        return _ids(self.parts)


@dataclass(frozen=True, slots=True)
class TokenPair:
    """A part of the first text and one of the second."""

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
        declared_similarity: how the model itself compares vectors. All numbers here are cosines.
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
    declared_similarity: Similarity = Similarity.COSINE

    @property
    def completeness_error(self) -> float:
        """Sum of all contributions minus the similarity."""
        terms = (self.matrix, self.first_reference, self.second_reference)
        total = sum(term.sum(dtype=np.float64) for term in terms)
        return float(total) + self.reference - self.similarity

    @property
    def sticky_count(self) -> int:
        """Number of parts of both texts that the run calls sticky."""
        return sum(part.sticky for text in (self.first, self.second) for part in text.parts)

    def strongest(self, top: int = 10) -> list[TokenPair]:
        """List the pairs that raise the similarity most, strongest first; equal ones in reading order."""
        pairs = []
        for place in np.argsort(-self.matrix, axis=None, kind="stable")[:top].tolist():
            row, column = divmod(place, self.matrix.shape[1])
            first = self.first.parts[row]
            second = self.second.parts[column]
            pairs.append(
                TokenPair(
                    first=row,
                    second=column,
                    first_text=first.text,
                    second_text=second.text,
                    value=float(self.matrix[row, column]),
                    sticky=first.sticky or second.sticky,
                )
            )
        return pairs

    def grouped(self) -> Why:
        """Return it with neighbouring copies of a sticky token as one part, as people read it.

        The deletion of such a part is that of all copies, where no other part of the texts is sticky.
        """
        effect = None if self.without_sticky is None else self.without_sticky - self.similarity
        first_groups = _groups_of_copies(self.first)
        second_groups = _groups_of_copies(self.second)
        row_starts = [group.start for group in first_groups]
        column_starts = [group.start for group in second_groups]
        by_row = np.add.reduceat(self.matrix, row_starts, axis=0)
        return replace(
            self,
            first=_joined_copies(self.first, first_groups, self.sticky_count, effect),
            second=_joined_copies(self.second, second_groups, self.sticky_count, effect),
            matrix=np.add.reduceat(by_row, column_starts, axis=1),
            first_reference=np.add.reduceat(self.first_reference, row_starts),
            second_reference=np.add.reduceat(self.second_reference, column_starts),
        )

    def document(self, top: int = 10) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "model": self.model,
            "run": self.run,
            "method": self.method,
            "similarity": self.similarity,
            "u": self.u,
            "without_sticky": self.without_sticky,
            "completeness_error": self.completeness_error,
            "reference": self.reference,
            "declared_similarity": str(self.declared_similarity),
            "strongest": [asdict(pair) for pair in self.strongest(top)],
            "first": asdict(self.first),
            "second": asdict(self.second),
            "matrix": self.matrix.tolist(),
            "first_reference": self.first_reference.tolist(),
            "second_reference": self.second_reference.tolist(),
        }


# More parts than this are joined to spans: the time grows with their number.
_MAX_PARTS = 48
# Vocabulary entries from which u is estimated without a run.
_ENTRIES_FOR_U = 256


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
    matter. Texts of more than 48 parts are cut into 48 spans. The similarity is the cosine, whatever the
    model declares.

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
    _require_text("first", first)
    _require_text("second", second)
    require_callable("progress", progress)
    try:
        chosen_method = AttributionMethod(str(method))
    except ValueError:
        raise InputError(f"method is {shown(method)}: pass one of {', '.join(AttributionMethod)}") from None
    opened = None if run is None else open_run(run)
    model = require_ids(encoder_for(encoder, opened, "why"), "why")
    sticky_ids = frozenset[int]() if opened is None else frozenset(opened.sticky["token_id"].to_list())
    first_text = _read(model, first, sticky_ids, words=words)
    second_text = _read(model, second, sticky_ids, words=words)
    first_unit, second_unit = exact_unit_vectors(model.encode_ids([first_text.ids, second_text.ids]))
    similarity = float(first_unit @ second_unit)

    attribute = _attribution_by(chosen_method, model, (first_text, second_text), similarity)
    first_contributions = attribute(first_text, _watch("first text", progress))
    if second_text.parts == first_text.parts:
        second_contributions = first_contributions
    else:
        second_contributions = attribute(second_text, _watch("second text", progress))
    matrix = similarity_matrix(first_contributions, second_contributions)
    return Why(
        model=model.name,
        method=chosen_method.value,
        similarity=similarity,
        u=_mean_similarity_of(model) if opened is None else opened.plan.mean_similarity,
        first=_with_deletions(model, first_text, second_unit, similarity),
        second=_with_deletions(model, second_text, first_unit, similarity),
        # The last row and column are those of the references.
        matrix=matrix[:-1, :-1].astype(np.float32),
        first_reference=matrix[:-1, -1].astype(np.float32),
        second_reference=matrix[-1, :-1].astype(np.float32),
        reference=float(matrix[-1, -1]),
        without_sticky=_similarity_without_sticky(model, first_text, second_text),
        run=None if opened is None else str(opened.path),
        declared_similarity=similarity_of(model),
    )


def _require_text(name: str, text: object) -> None:
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"the {name} text is {shown(text)}: pass a text with words")


def _mean_similarity_of(model: IdEncoder) -> float:
    return mean_similarity(model, most=_ENTRIES_FOR_U).value


def _watch(stage: str, progress: ProgressCallback) -> Watch:
    def watch(done: int, total: int) -> None:
        progress(Progress(stage, done, total, done))

    return watch


Attribute: TypeAlias = Callable[[ReadText, Watch], Contributions]


def _attribution_by(
    method: AttributionMethod, model: IdEncoder, texts: tuple[ReadText, ReadText], similarity: float
) -> Attribute:
    """Return the function that divides the vector of a text among its parts."""
    if method is AttributionMethod.DELETION:
        return partial(_shapley_contributions, model)
    return _by_jacobians(model, texts, similarity)


def _with_deletions(model: IdEncoder, text: ReadText, other_unit: Vector, similarity: float) -> ReadText:
    """Delete every part once, and note by how much the similarity with the other text changes."""
    parts = text.parts
    if len(parts) == 1:
        return text
    remainders = [_ids((*parts[:place], *parts[place + 1 :])) for place in range(len(parts))]
    changes = exact_unit_vectors(model.encode_ids(remainders)) @ other_unit - similarity
    changed = [replace(part, deletion=float(change)) for part, change in zip(parts, changes, strict=True)]
    return replace(text, parts=tuple(changed))


def _similarity_without_sticky(model: IdEncoder, first: ReadText, second: ReadText) -> float | None:
    """Return the cosine without sticky parts; None if there are none, or nothing else in one of the texts."""
    remainders = [_ids(part for part in text.parts if not part.sticky) for text in (first, second)]
    has_sticky = any(part.sticky for text in (first, second) for part in text.parts)
    if not has_sticky or not all(remainders):
        return None
    first_unit, second_unit = exact_unit_vectors(model.encode_ids(remainders))
    return float(first_unit @ second_unit)


def _ids(parts: Iterable[TextPart]) -> tuple[int, ...]:
    return tuple(token_id for part in parts for token_id in part.token_ids)


def _read(encoder: IdEncoder, text: str, sticky_ids: frozenset[int], *, words: bool) -> ReadText:
    """Cut a text to what the model reads, and into tokens, words or spans."""
    tokenized = encoder.tokenize([text])[0]
    ids = tokenized.ids
    if not ids:
        raise EncodingError(f"{encoder.name}: the text {text[:80]!r} has no tokens: pass a text with words")
    if words:
        head = [(token_id,) for token_id in tokenized.head]
        tail = [(token_id,) for token_id in tokenized.tail]
        pieces: list[tuple[int, ...]] = [*head, *tokenized.words, *tail]
    else:
        pieces = [(token_id,) for token_id in ids]
    read_count = _readable_count(encoder, ids)
    pieces = _first_ids(pieces, read_count)
    if len(pieces) > _MAX_PARTS:
        pieces = _joined_to_spans(pieces)
    parts = []
    for piece, decoded in zip(pieces, encoder.tokenizer.decode_many(pieces), strict=True):
        name = _name_of(piece, decoded, encoder.tokenizer.entries)
        parts.append(TextPart(name, piece, not sticky_ids.isdisjoint(piece), None))
    return ReadText(text, tuple(parts), len(ids) - read_count)


def _readable_count(encoder: IdEncoder, ids: tuple[int, ...]) -> int:
    """Return how many of the first ids the model reads together with what it puts around them."""
    if encoder.max_length is None or encoder.fits(ids):
        return len(ids)
    fitting = 0
    maximum = min(len(ids), encoder.max_length)
    while fitting < maximum:  # the largest number that fits lies between the two
        middle = (fitting + maximum + 1) // 2
        if encoder.fits(ids[:middle]):
            fitting = middle
        else:
            maximum = middle - 1
    # If nothing fits, an entry has no row, for which the encoder has an error of its own.
    return fitting or len(ids)


def _first_ids(pieces: Sequence[tuple[int, ...]], count: int) -> list[tuple[int, ...]]:
    """Return the pieces that hold the first so many ids; the last of them may be cut."""
    kept_pieces = []
    missing = count
    for piece in pieces:
        if missing and piece:
            kept_pieces.append(piece[:missing])
            missing -= len(kept_pieces[-1])
    return kept_pieces


def _joined_to_spans(pieces: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Join neighbouring pieces to the largest number of spans, of almost equal numbers of pieces."""
    groups = np.array_split(np.arange(len(pieces)), _MAX_PARTS)
    return [tuple(token_id for place in group for token_id in pieces[place]) for group in groups]


def _name_of(piece: tuple[int, ...], decoded: str, entries: Mapping[int, str]) -> str:
    """Return the text of a part; a piece of a character has only its vocabulary string."""
    name = decoded.strip()
    if name and "\N{REPLACEMENT CHARACTER}" not in name:
        return name
    return "".join(entries.get(token_id, str(token_id)) for token_id in piece)


# Up to this many parts, all sets of parts are encoded, and the values are exact.
MAX_EXACT_PARTS = 8
# With more parts, about this many texts are encoded, in at least so many orders. Each order comes with its
# reverse, which lowers the error of the mean.
ENCODED_TEXTS = 512
_MIN_ORDERS = 16
# Texts that are encoded at a time.
_BATCH = 256

ShapleyStep: TypeAlias = tuple[int, frozenset[int]]
"""A part, and the parts that come before it in some order."""


def _shapley_contributions(model: IdEncoder, text: ReadText, watch: Watch) -> Contributions:
    """Divide the unit vector of a text among its parts by Shapley values.

    The value of a part is the weighted mean over sets of other parts of the change of the unit vector when
    the part is added to the set. An empty text, and a set without a direction, count as the zero vector.
    """
    count = len(text.parts)
    weights = _exact_weights(count) if count <= MAX_EXACT_PARTS else _sampled_weights(count)
    subsets = {before for _, before in weights} | {before | {part} for part, before in weights}
    units = _units_of_subsets(model, text, subsets, watch)
    text_unit = units[frozenset(range(count))]
    values = np.zeros((count, len(text_unit)))
    for (part, before), weight in weights.items():
        values[part] += weight * (units[before | {part}] - units[before])
    return Contributions(text_unit, np.zeros_like(text_unit), values)


def _exact_weights(count: int) -> dict[ShapleyStep, float]:
    """Return for each part and set of others the share of all orders in which that set comes before it."""
    weights: dict[ShapleyStep, float] = {}
    for part in range(count):
        others = [other for other in range(count) if other != part]
        for size in range(count):
            weight = 1 / (count * comb(count - 1, size))
            for before in combinations(others, size):
                weights[part, frozenset(before)] = weight
    return weights


def _sampled_weights(count: int) -> dict[ShapleyStep, float]:
    """Return the same shares among random orders and their reverses."""
    generator = np.random.default_rng((0, count))
    pair_count = max(_MIN_ORDERS, ENCODED_TEXTS // count) // 2
    orders: list[list[int]] = []
    for _ in range(pair_count):
        order = generator.permutation(count).tolist()
        orders += [order, order[::-1]]
    occurrences: Counter[ShapleyStep] = Counter()
    for order in orders:
        for place, part in enumerate(order):
            occurrences[part, frozenset(order[:place])] += 1
    return {step: times / len(orders) for step, times in occurrences.items()}


def _units_of_subsets(
    model: IdEncoder, text: ReadText, subsets: Iterable[frozenset[int]], watch: Watch
) -> dict[frozenset[int], Vector]:
    """Encode the text with the parts of each set alone; zeros where the model has no direction for a set."""
    by_size = sorted(filter(None, subsets), key=lambda subset: (len(subset), sorted(subset)))
    units: list[Vector] = []
    for start in range(0, len(by_size), _BATCH):
        contents = [
            _ids(text.parts[place] for place in sorted(subset)) for subset in by_size[start : start + _BATCH]
        ]
        units.extend(exact_unit_vectors(model.encode_ids(contents, allow_zero=True)))
        watch(len(units), len(by_size))
    by_subset = dict(zip(by_size, units, strict=True))
    by_subset[frozenset()] = np.zeros_like(units[0])
    return by_subset


# Numbers of points of the integrals. The smallest is chosen whose sums are the unit vectors up to a norm, and
# whose product is the similarity up to a share of it or an absolute error.
_STEPS = (8, 12, 16, 24, 32, 48, 64, 96)
_MAX_NORM_ERROR = 0.01
_MAX_SIMILARITY_ERROR_SHARE = 0.01
_MAX_SIMILARITY_ERROR = 0.0001
# So many points suffice for the parts if the similarity is right.
_ENOUGH_STEPS = 16


def _by_jacobians(model: IdEncoder, texts: Sequence[ReadText], similarity: float) -> Attribute:
    """Choose the number of points; a text as one part is enough to know how many are needed."""
    from stickytoken.inspection.integrated_jacobians import JacobianIntegrator

    integrator = JacobianIntegrator(inspector_of(model), most=1)
    allowed_error = max(_MAX_SIMILARITY_ERROR_SHARE * abs(similarity), _MAX_SIMILARITY_ERROR)
    for steps in _STEPS:
        as_one_part = [integrator.contributions(text.ids, [0] * len(text.ids), steps) for text in texts]
        similarity_error = abs(float(similarity_matrix(*as_one_part).sum()) - similarity)
        norm_error = max(contributions.error for contributions in as_one_part)
        vectors_are_close = steps >= _ENOUGH_STEPS or norm_error <= _MAX_NORM_ERROR
        if similarity_error <= allowed_error and vectors_are_close:
            break

    def attribute(text: ReadText, watch: Watch) -> Contributions:
        labels = [number for number, part in enumerate(text.parts) for _ in part.token_ids]
        return integrator.contributions(text.ids, labels, steps, watch)

    return attribute


def _groups_of_copies(text: ReadText) -> list[range]:
    """Divide the parts of a text into groups: neighbouring copies of a sticky token, and single parts."""
    starts = []
    previous: TextPart | None = None
    for place, part in enumerate(text.parts):
        is_copy = previous is not None and part.sticky and previous.sticky
        if previous is None or not is_copy or part.token_ids != previous.token_ids:
            starts.append(place)
        previous = part
    ends = [*starts[1:], len(text.parts)]
    return [range(start, end) for start, end in zip(starts, ends, strict=True)]


def _joined_copies(
    text: ReadText, groups: Sequence[range], sticky_count: int, effect: float | None
) -> ReadText:
    """Make one part of each group.

    ``effect`` is the change of the similarity without all sticky parts of both texts, ``sticky_count`` of
    them; it is the effect of a group that has them all.
    """
    parts = []
    for group in groups:
        part = text.parts[group.start]
        count = len(group)
        if count > 1:
            name = f"{part.text} \N{MULTIPLICATION SIGN}{count}"
            deletion = effect if count == sticky_count else None
            part = TextPart(name, part.token_ids * count, True, deletion)
        parts.append(part)
    return replace(text, parts=tuple(parts))


# A part in this share of the strongest pairs, with so many different partners, joins the texts by itself.
_RECURRING_SHARE = 0.6
_MIN_PARTNERS = 4
# Sticky tokens that are named.
_NAMED_TOKENS = 3


def summary(result: Why, top: int = 10) -> list[str]:
    """Say in a few sentences what makes the two texts similar; ``top`` is the number of strongest pairs."""
    pairs = result.grouped().strongest(top)
    lines = [
        f"The cosine of the two texts is {result.similarity:.3f}; that of two vocabulary entries of this "
        f"model is {result.u:.3f} on average."
    ]
    if result.declared_similarity is not Similarity.COSINE:
        lines.append(
            f"The model compares vectors by {result.declared_similarity}; all similarities here are cosines."
        )
    if result.first.text == result.second.text:
        lines.append("The two texts are equal: what follows says which tokens carry the vector.")
    lines += _notes_on_length("first", result.first) + _notes_on_length("second", result.second)
    lines.append(_main_sentence(result, pairs))
    return lines


def _notes_on_length(name: str, text: ReadText) -> list[str]:
    notes = []
    if text.left_out:
        notes.append(
            f"The {name} text is longer than the model reads: its last {text.left_out:,} tokens are left out."
        )
    if any(len(part.text.split()) > 1 for part in text.parts):
        notes.append(f"The {name} text is long: its parts are spans of several words.")
    return notes


def _main_sentence(result: Why, pairs: Sequence[TokenPair]) -> str:
    """Name the sticky tokens that join the texts, or else the strongest pair."""
    best = pairs[0]
    strongest = f"The strongest pair is {best.first_text!r} with {best.second_text!r} ({best.value:+.3f})."
    if result.run is None:
        return _recurring(result, pairs) or strongest
    sticky_texts = Counter(
        part.text for text in (result.first, result.second) for part in text.parts if part.sticky
    )
    if not sticky_texts:
        return f"Neither text has a token that the run calls sticky. {strongest}"
    names = ", ".join(repr(name) for name, _ in sticky_texts.most_common(_NAMED_TOKENS))
    if len(sticky_texts) > _NAMED_TOKENS:
        names += " ..."
    sentence = (
        f"{sum(pair.sticky for pair in pairs)} of the {len(pairs)} strongest pairs join a token that the "
        f"run calls sticky ({names}) to a part of the other text."
    )
    if result.without_sticky is not None:
        tokens = "that token" if result.sticky_count == 1 else f"these {result.sticky_count} tokens"
        sentence += f" Without {tokens}, the cosine is {result.without_sticky:.3f}."
    return f"{sentence} See: stickytoken repair {quote(result.run)} --out YOUR_FOLDER"


def _recurring(result: Why, pairs: Sequence[TokenPair]) -> str | None:
    """Name a part of either text that is in most of the strongest pairs; None if there is none."""
    joined = [(pair.first_text, pair.second_text) for pair in pairs]
    reversed_pairs = [(second, first) for first, second in joined]
    for named_pairs in (joined, reversed_pairs):
        name, count = Counter(part for part, _ in named_pairs).most_common(1)[0]
        partners = {partner for part, partner in named_pairs if part == name}
        if count >= _RECURRING_SHARE * len(pairs) and len(partners) >= _MIN_PARTNERS:
            return (
                f"{count} of the {len(pairs)} strongest pairs join {name!r} to {len(partners)} different "
                "parts of the other text. If the texts are not about it, it may be sticky. See: stickytoken "
                f"probe {quote(result.model)} {quote(name)}"
            )
    return None
