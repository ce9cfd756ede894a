"""Explain why two texts are similar by dividing their similarity among pairs of tokens.

This module also measures the effect of deleting each token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.detection.run import Run, encoder_for, open_run
from stickytoken.encoders.fitting import truncate_ids
from stickytoken.encoders.protocol import (
    IdEncoder,
    capabilities_of,
    content_limit,
    find_kept_prompt,
    require_ids,
    similarity_of,
)
from stickytoken.encoders.roles import Role, in_role
from stickytoken.errors import EncodingError, InputError
from stickytoken.inspection.shapley import divide_vector
from stickytoken.measurement.engine import Progress, ProgressCallback, ignore_progress
from stickytoken.unit_vectors import Similarity, exact_unit_vectors
from stickytoken.validation import require_callable, shown

if TYPE_CHECKING:
    from stickytoken.loading import AnyModel

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TextPart:
    """A token, a word or a span of a text."""

    text: str
    token_ids: tuple[int, ...]
    sticky: bool  # whether the run calls a token of the part sticky; False if there is no run
    # Change of the similarity when the part is deleted. None if the part is the only part of its text. Also
    # None if `Why.grouped` merged this part from copies, unless these are all sticky tokens of both texts.
    deletion: float | None
    sticky_tokens: tuple[str, ...] = ()  # the texts of the part's tokens that the run calls sticky, in order


@dataclass(frozen=True, slots=True)
class ReadText:
    """A text, divided into the parts that the model reads."""

    text: str  # the whole text
    parts: tuple[TextPart, ...]  # in reading order, truncated at the maximum input length
    left_out: int  # number of tokens beyond the maximum input length, which the model does not read
    # Token ids of a prompt that the pooling leaves out. It is no part, and stays when parts are deleted.
    kept_prompt: tuple[int, ...] = ()
    joined: bool = False  # whether the parts are spans, because the text has too many tokens or words

    @property
    def tokens(self) -> tuple[str, ...]:
        """The texts of the parts."""
        return tuple(part.text for part in self.parts)

    @property
    def ids(self) -> tuple[int, ...]:
        """The token ids of all parts."""
        return _join_ids(self.parts)


@dataclass(frozen=True, slots=True)
class TokenPair:
    """A pair of parts, one from each text, and its contribution to the similarity."""

    first: int  # index of the part in the first text
    second: int  # index of the part in the second text
    first_text: str
    second_text: str
    value: float  # contribution of the pair to the similarity
    sticky: bool  # whether the run calls a token of either part sticky


@dataclass(frozen=True, eq=False)
class Why:
    """The similarity of two texts as a sum over pairs of their parts.

    Attributes:
        model: Name of the model.
        similarity: Cosine similarity of the two texts, as the model encodes them.
        first: The first text, divided into n parts.
        second: The second text, divided into m parts.
        matrix: Contribution of each pair of parts, float32 of shape (n, m). The contributions sum to the
            similarity.
        without_sticky: Cosine after the tokens that the run calls sticky are deleted from both texts. None if
            there is no run, if no token is sticky, or if a text has only sticky tokens.
        run: Folder of the run. None if no run was passed.
        declared_similarity: The similarity function that the model declares. All similarities in this object
            are cosines, even if the model declares another function.
        prompt: The prompt with which the model encodes both texts; empty if it has none.

    Examples:
        >>> answer = stickytoken.why(model, "the wing of a plane", "a bird in flight", words=True)
        >>> [part.text for part in answer.first.parts]
        ['the', 'wing', 'of', 'a', 'plane']
    """

    model: str
    similarity: float
    first: ReadText
    second: ReadText
    matrix: NDArray[np.float32]
    without_sticky: float | None
    run: str | None
    declared_similarity: Similarity = Similarity.COSINE
    prompt: str = ""

    @property
    def sticky_count(self) -> int:
        """Number of tokens, in both texts together, that the run calls sticky."""
        return sum(len(part.sticky_tokens) for text in (self.first, self.second) for part in text.parts)

    def strongest(self, top: int = 10) -> list[TokenPair]:
        """Return the ``top`` pairs with the largest contributions, largest first.

        Pairs with equal contributions are in reading order.
        """
        pairs = []
        largest_first = np.argsort(-self.matrix, axis=None, kind="stable")  # indices of the flattened matrix
        for flat_index in largest_first[:top].tolist():
            row, column = divmod(flat_index, self.matrix.shape[1])
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
        """Return this attribution with neighbouring copies of a sticky token merged into one part.

        The contributions of the merged parts are summed. The ``deletion`` of a merged part is None unless the
        merged part consists of all sticky tokens of both texts, because copies were deleted together only in
        the measurement of `without_sticky`.
        """
        # How the similarity changes when all sticky tokens of both texts are deleted.
        sticky_effect = None if self.without_sticky is None else self.without_sticky - self.similarity
        first_groups = _group_copies(self.first)
        second_groups = _group_copies(self.second)
        row_starts = [group.start for group in first_groups]
        column_starts = [group.start for group in second_groups]
        # `reduceat` adds up the rows (or columns) of each group, from its start to the row before the next
        # start.
        by_row = np.add.reduceat(self.matrix, row_starts, axis=0)
        return replace(
            self,
            first=_merge_copies(self.first, first_groups, self.sticky_count, sticky_effect),
            second=_merge_copies(self.second, second_groups, self.sticky_count, sticky_effect),
            matrix=np.add.reduceat(by_row, column_starts, axis=1),
        )

    def document(self, top: int = 10) -> dict[str, Any]:
        """Return the attribution as JSON values, with its ``top`` strongest pairs."""
        return {
            "model": self.model,
            "run": self.run,
            "similarity": self.similarity,
            "without_sticky": self.without_sticky,
            "declared_similarity": str(self.declared_similarity),
            "prompt": self.prompt,
            "strongest": [asdict(pair) for pair in self.strongest(top)],
            "first": asdict(self.first),
            "second": asdict(self.second),
            "matrix": self.matrix.tolist(),
        }


# Maximum number of parts per text. A text with more tokens or words is divided into this many spans, because
# the computing time grows with the number of parts.
_MAX_PARTS = 48


def why(
    encoder: AnyModel,
    first: str,
    second: str,
    *,
    run: Run | str | Path | None = None,
    words: bool = False,
    progress: ProgressCallback = ignore_progress,
) -> Why:
    """Divide the similarity of two texts among pairs of their tokens.

    The effect of deleting each part is measured too. Swapping the two texts does not change the
    contributions. A text of more than 48 parts is divided into 48 spans. The similarity is always the cosine,
    even if the model declares a different one. Without a run, the texts are encoded as `encode` does; with
    one, as its documents, in which its tokens are sticky.

    Args:
        encoder: The model: anything that `load_encoder` accepts, as long as the model reads token ids.
            Examples are a SentenceTransformer and a prompted language model.
        first: The first text.
        second: The second text.
        run: A finished run of this model, or its folder. Parts that contain a sticky token of the run are
            marked. If ``run`` is None, no part is marked.
        words: Divide the texts into words instead of tokens.
        progress: Called after every batch. Each text is reported as a separate stage.

    Returns:
        The similarity, the contribution of each pair, and the effect of deleting each part.

    Raises:
        InputError: A text is empty or not a string, or an argument cannot be used.
        EncodingError: A text has no tokens or a token without an embedding, or the model returns no usable
            vector for it.
        RunError: The run was made with another model.

    Examples:
        >>> answer = stickytoken.why(model, "the wing of a plane", "a bird in flight", words=True)
        >>> round(answer.similarity, 2)
        0.57
    """
    _require_text("first", first)
    _require_text("second", second)
    require_callable("progress", progress)
    opened = None if run is None else open_run(run)
    role = None if opened is None else Role.DOCUMENT
    model = require_ids(in_role(encoder_for(encoder, opened, "why"), role), "why")
    sticky_ids = frozenset[int]() if opened is None else frozenset(opened.sticky["token_id"].to_list())
    first_text = _divide_text(model, first, sticky_ids, words=words)
    second_text = _divide_text(model, second, sticky_ids, words=words)
    contents = [(*text.kept_prompt, *text.ids) for text in (first_text, second_text)]
    first_unit, second_unit = exact_unit_vectors(model.encode_ids(contents))
    similarity = float(first_unit @ second_unit)

    # One vector per part, shapes (n, d) and (m, d).
    first_contributions = _compute_contributions(model, first_text, "first text", progress)
    second_contributions = first_contributions  # for equal texts
    if second_text.parts != first_text.parts:
        second_contributions = _compute_contributions(model, second_text, "second text", progress)
    # The cosine is the product of two unit vectors, and each unit vector is the sum of its contributions.
    matrix = first_contributions @ second_contributions.T
    return Why(
        model=model.name,
        similarity=similarity,
        first=_measure_deletions(model, first_text, second_unit, similarity),
        second=_measure_deletions(model, second_text, first_unit, similarity),
        matrix=matrix.astype(np.float32),
        without_sticky=_measure_similarity_without_sticky(model, first_text, second_text, sticky_ids),
        run=None if opened is None else str(opened.path),
        declared_similarity=similarity_of(model),
        prompt=capabilities_of(model).prompt,
    )


def _require_text(name: str, text: object) -> None:
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"the {name} text is {shown(text)}: pass a text with words")


def _compute_contributions(
    model: IdEncoder, text: ReadText, stage: str, progress: ProgressCallback
) -> Floats:
    # Returns what each part contributes to the unit vector of its text, shape (parts, d).
    def watch(done: int, total: int) -> None:
        progress(Progress(stage, done, total, computed=done))  # nothing was done by an earlier session

    # The index of each token's part.
    part_of_id = [index for index, part in enumerate(text.parts) for _ in part.token_ids]
    return divide_vector(model, text.ids, part_of_id, watch, kept_prompt=text.kept_prompt)


def _measure_deletions(model: IdEncoder, text: ReadText, other_unit: Floats, similarity: float) -> ReadText:
    """Return the text with the deletion effect of each part: the change of the similarity without this part.

    ``other_unit`` is the unit vector of the other text, and ``similarity`` the similarity of the two whole
    texts.
    """
    parts = text.parts
    if len(parts) == 1:
        return text  # without its only part, the text would be empty, so the deletion effect stays None
    remainders = [
        (*text.kept_prompt, *_join_ids((*parts[:index], *parts[index + 1 :]))) for index in range(len(parts))
    ]
    similarities = exact_unit_vectors(model.encode_ids(remainders)) @ other_unit
    effects = similarities - similarity
    parts_with_effects = [
        replace(part, deletion=float(effect)) for part, effect in zip(parts, effects, strict=True)
    ]
    return replace(text, parts=tuple(parts_with_effects))


def _measure_similarity_without_sticky(
    model: IdEncoder, first: ReadText, second: ReadText, sticky_ids: frozenset[int]
) -> float | None:
    # Deletes tokens and not parts: a part may be a span that also has ordinary words.
    first_remainder = [token_id for token_id in first.ids if token_id not in sticky_ids]
    second_remainder = [token_id for token_id in second.ids if token_id not in sticky_ids]
    has_sticky = not sticky_ids.isdisjoint(first.ids + second.ids)
    has_empty_remainder = not first_remainder or not second_remainder
    if not has_sticky or has_empty_remainder:
        return None
    contents = [(*first.kept_prompt, *first_remainder), (*second.kept_prompt, *second_remainder)]
    first_unit, second_unit = exact_unit_vectors(model.encode_ids(contents))
    return float(first_unit @ second_unit)


def _join_ids(parts: Iterable[TextPart]) -> tuple[int, ...]:
    return tuple(token_id for part in parts for token_id in part.token_ids)


def _divide_text(encoder: IdEncoder, text: str, sticky_ids: frozenset[int], *, words: bool) -> ReadText:
    """Truncate a text to the model's limit, and divide it into tokens, words or spans.

    Returns:
        The text, divided into parts whose deletion effects are not known yet.
    """
    whole = encoder.tokenize([text])[0]
    # If the model cannot read even one token, the text is not truncated, and encoding it raises an error.
    read = truncate_ids(whole, content_limit(encoder) or len(whole.ids))
    left_out = len(whole.ids) - len(read.ids)
    kept_prompt = find_kept_prompt(encoder, read)
    if kept_prompt:
        read = replace(read, head=())
    if not read.ids:
        raise EncodingError(f"{encoder.name}: the text {text[:80]!r} has no tokens: pass a text with words")
    if words:
        # A prompt before or after the text is divided into tokens nevertheless.
        head = [(token_id,) for token_id in read.head]
        tail = [(token_id,) for token_id in read.tail]
        pieces: list[tuple[int, ...]] = [*head, *read.words, *tail]
    else:
        pieces = [(token_id,) for token_id in read.ids]
    is_joined = len(pieces) > _MAX_PARTS
    if is_joined:
        pieces = _join_to_spans(pieces)
    names = _name_pieces(encoder, pieces)
    parts = []
    for name, piece in zip(names, pieces, strict=True):
        sticky_pieces = [(token_id,) for token_id in piece if token_id in sticky_ids]
        sticky_tokens = tuple(_name_pieces(encoder, sticky_pieces))
        parts.append(
            TextPart(name, piece, sticky=bool(sticky_tokens), deletion=None, sticky_tokens=sticky_tokens)
        )
    return ReadText(text, tuple(parts), left_out, kept_prompt, is_joined)


def _join_to_spans(pieces: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    # Joins neighbouring pieces to `_MAX_PARTS` spans with nearly equal numbers of pieces.
    indices_of_spans = np.array_split(np.arange(len(pieces)), _MAX_PARTS)
    spans = []
    for indices in indices_of_spans:
        pieces_of_span = [pieces[index] for index in indices]
        spans.append(tuple(chain.from_iterable(pieces_of_span)))
    return spans


def _name_pieces(encoder: IdEncoder, pieces: Sequence[tuple[int, ...]]) -> list[str]:
    decoded = encoder.tokenizer.decode_many(pieces)
    entries = encoder.tokenizer.entries
    return [_name_piece(piece, text, entries) for piece, text in zip(pieces, decoded, strict=True)]


def _name_piece(piece: tuple[int, ...], decoded: str, entries: Mapping[int, str]) -> str:
    name = decoded.strip()
    # Returns the text of a piece. If it is only whitespace or some bytes of a character, which cannot be
    # shown, returns its vocabulary entries.
    if name and "\N{REPLACEMENT CHARACTER}" not in name:
        return name
    return "".join(entries.get(token_id, str(token_id)) for token_id in piece)


def _group_copies(text: ReadText) -> list[range]:
    # Returns the indices of the parts in each group: a group consists of neighbouring copies of a sticky
    # token, or of a single other part.
    starts = []
    previous: TextPart | None = None
    for index, part in enumerate(text.parts):
        continues_copies = previous is not None and part.sticky and part.token_ids == previous.token_ids
        if not continues_copies:
            starts.append(index)
        previous = part
    ends = [*starts[1:], len(text.parts)]
    return [range(start, end) for start, end in zip(starts, ends, strict=True)]


def _merge_copies(
    text: ReadText, groups: Sequence[range], sticky_count: int, sticky_effect: float | None
) -> ReadText:
    """Return the text with each group of copies merged into one part.

    Deleting all sticky tokens of both texts, which are ``sticky_count``, changes the cosine by
    ``sticky_effect``.
    """
    parts = []
    for group in groups:
        part = text.parts[group.start]
        count = len(group)
        if count > 1:  # only copies of a sticky token are grouped
            name = f"{part.text} \N{MULTIPLICATION SIGN}{count}"
            token_ids = part.token_ids * count
            sticky_tokens = part.sticky_tokens * count
            # The effect of deleting the copies is known only if they are all sticky tokens of both texts.
            is_all_that_is_sticky = len(token_ids) == len(sticky_tokens) == sticky_count
            deletion = sticky_effect if is_all_that_is_sticky else None
            part = TextPart(name, token_ids, sticky=True, deletion=deletion, sticky_tokens=sticky_tokens)
        parts.append(part)
    return replace(text, parts=tuple(parts))


# A part recurs if it is in at least this share of the strongest pairs, and if these pairs join it to at least
# `_MIN_PARTNERS` different parts of the other text.
_RECURRING_SHARE = 0.6
_MIN_PARTNERS = 4
# Maximum number of sticky tokens that the summary names.
_NAMED_TOKENS = 3


def summary(result: Why, top: int = 10) -> list[str]:
    """Return a few sentences about what makes the two texts similar, based on the ``top`` strongest pairs."""
    pairs = result.grouped().strongest(top)
    lines = [f"The cosine of the two texts is {result.similarity:.3f}."]
    if result.declared_similarity is not Similarity.COSINE:
        lines.append(
            f"The model compares vectors by {result.declared_similarity}; all similarities here are cosines."
        )
    if result.prompt:
        role = "" if result.run is None else " as documents"
        lines.append(f"Both texts are encoded{role} with the prompt {result.prompt!r}.")
    if result.first.text == result.second.text:
        lines.append("The two texts are equal: the contributions show which tokens determine the vector.")
    if result.first.kept_prompt:
        lines.append("The model's pooling leaves out the prompt: it stays before both texts and is no part.")
    lines += _note_length("first", result.first) + _note_length("second", result.second)
    lines.append(_describe_cause(result, pairs))
    return lines


def _note_length(name: str, text: ReadText) -> list[str]:
    notes = []
    if text.left_out:
        notes.append(
            f"The {name} text is longer than the model reads: its last {text.left_out:,} tokens are left out."
        )
    if text.joined:
        notes.append(f"The {name} text is long: its parts are spans of several tokens or words.")
    return notes


def _describe_cause(result: Why, pairs: Sequence[TokenPair]) -> str:
    """Return sentences on what makes the two texts similar, such as the sticky tokens of the texts."""
    best = pairs[0]
    strongest = f"The strongest pair is {best.first_text!r} with {best.second_text!r} ({best.value:+.3f})."
    if result.run is None:
        return _describe_recurring_part(result, pairs) or strongest
    all_parts = [*result.first.parts, *result.second.parts]
    sticky_texts = Counter(name for part in all_parts for name in part.sticky_tokens)
    if not sticky_texts:
        return f"Neither text has a token that the run calls sticky. {strongest}"
    names = ", ".join(repr(name) for name, _ in sticky_texts.most_common(_NAMED_TOKENS))
    if len(sticky_texts) > _NAMED_TOKENS:
        names += " ..."
    sticky_pairs = sum(pair.sticky for pair in pairs)
    sentence = (
        f"The run calls these tokens sticky: {names}. {sticky_pairs} of the {len(pairs)} strongest pairs "
        "have one."
    )
    if result.without_sticky is not None:
        tokens = "that token" if result.sticky_count == 1 else f"these {result.sticky_count} tokens"
        sentence += f" Without {tokens}, the cosine is {result.without_sticky:.3f}."
    return f"{sentence} What to do: stickytoken show {quote(result.run)}"


def _describe_recurring_part(result: Why, pairs: Sequence[TokenPair]) -> str | None:
    first_and_second = [(pair.first_text, pair.second_text) for pair in pairs]
    second_and_first = [(second, first) for first, second in first_and_second]
    for named_pairs in (first_and_second, second_and_first):  # parts of the first text, then of the second
        # The part of this text that is in most pairs, and the parts of the other text that it is paired with.
        name, count = Counter(part for part, _ in named_pairs).most_common(1)[0]
        partners = {partner for part, partner in named_pairs if part == name}
        if count >= _RECURRING_SHARE * len(pairs) and len(partners) >= _MIN_PARTNERS:
            return (
                f"{count} of the {len(pairs)} strongest pairs join {name!r} to {len(partners)} different "
                "parts of the other text. If neither text is about it, it may be sticky. See: stickytoken "
                f"probe {quote(result.model)} {quote(name)}"
            )
    return None
