"""Insert copies of a token into texts, and measure how they change the similarities between texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, require_ids, require_words
from stickytoken.insertion import (
    Insertion,
    Placement,
    Probe,
    Token,
    TokenizedText,
    copies_as_ids,
    copies_as_text,
    draw_path,
)
from stickytoken.machine import Precision
from stickytoken.measurement.engine import RowValue
from stickytoken.unit_vectors import unit_vectors

Carrier: TypeAlias = str | TokenizedText
Path: TypeAlias = tuple[int, ...]
Floats: TypeAlias = NDArray[np.float64]

# Number of tokens reserved for each copy that is inserted as text, because the tokenizer may split the copy
# into several tokens.
_TOKENS_PER_TEXT_COPY = 8
# Numbers of copies in a symptom curve.
SYMPTOM_COPIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# Number of carriers whose similarities are averaged in a symptom curve.
SYMPTOM_CARRIERS = 12
# Minimum number of words in a carrier that is shown as an example. A shorter carrier tells a reader too
# little.
_LEAST_SHOWN_WORDS = 4


def require_insertion(encoder: Encoder, insertion: Insertion) -> None:
    """Raise a ModelError if copies are to be inserted as token ids, but the encoder accepts only texts."""
    if insertion is Insertion.IDS:
        require_ids(encoder, "insertion 'ids'", "set insertion to 'text'")


def as_carriers(encoder: Encoder, insertion: Insertion, texts: Sequence[str]) -> tuple[Carrier, ...]:
    """Return texts as carriers: tokenized if copies are inserted as token ids, otherwise unchanged."""
    if insertion is Insertion.IDS:
        require_insertion(encoder, insertion)
        return tuple(require_words(encoder, "insertion 'ids'").tokenize(texts))
    return tuple(texts)


def room_for(encoder: Encoder, insertion: Insertion, copies: int) -> int:
    """Return the number of tokens to keep free for copies in a text, at most half of the model's limit."""
    room = copies if insertion is Insertion.IDS else copies * _TOKENS_PER_TEXT_COPY
    return room if encoder.max_length is None else min(room, encoder.max_length // 2)


def has_room(encoder: Encoder, ids: Sequence[int], room: int) -> bool:
    """Return whether the model reads a text with these content ids, and ``room`` more tokens, in full."""
    placeholders = (0,) * room
    return encoder.fits((*ids, *placeholders))


def fitting_copies(
    encoder: Encoder, insertion: Insertion, texts: Sequence[str], counts: Sequence[int] = SYMPTOM_COPIES
) -> tuple[int, ...]:
    """Return the numbers of copies in ``counts`` with which the model reads even the longest text in full.

    If no number in ``counts`` is small enough, the result is ``(1,)``.
    """
    longest = max(encoder.content_ids(texts), key=len)
    tokens_per_copy = 1 if insertion is Insertion.IDS else _TOKENS_PER_TEXT_COPY
    fitting = [count for count in counts if has_room(encoder, longest, count * tokens_per_copy)]
    return tuple(fitting) or (1,)


def with_copies(token: Token, carrier: Carrier, placement: Placement, copies: int, path: Path = ()) -> Probe:
    """Return a carrier with copies of a token inserted.

    Random placement needs a ``path``.
    """
    if isinstance(carrier, str):
        return copies_as_text(token, carrier, placement, copies, path)
    return copies_as_ids(token, carrier, placement, copies, path)


def word_count(carrier: Carrier) -> int:
    """Return the number of words in a carrier."""
    return len(carrier.split()) if isinstance(carrier, str) else len(carrier.words)


def balanced(groups: Sequence[str], count: int, seed: int | Sequence[int]) -> list[int]:
    """Draw elements at random, one from each group in turn.

    Every group thus contributes the same number of elements, or all of its elements if it has fewer.

    Args:
        groups: for each element, the name of its group.
        count: maximum number of elements to draw.
        seed: seed of the random generator.

    Returns:
        Indices of the drawn elements.
    """
    generator = np.random.default_rng(seed)
    queues: dict[str, list[int]] = {}
    for index in generator.permutation(len(groups)):
        queues.setdefault(groups[index], []).append(int(index))
    rounds = max(map(len, queues.values()), default=0)
    order = [queue[turn] for turn in range(rounds) for queue in queues.values() if turn < len(queue)]
    return order[:count]


def words_added(token: Token, insertion: Insertion) -> int:
    """Return the number of words that a copy adds to a text. A copy inserted as an id counts as one word."""
    return 1 if insertion is Insertion.IDS else len(token.text.split())


@dataclass(frozen=True)
class KeyedPaths:
    """Random placements of copies in K carriers.

    A placement depends only on the seed, the key, the token id and the index of the carrier.

    Attributes:
        seed: seed of the run.
        key: number that identifies the stage. Placements that are drawn with different keys are independent.
        words: number of words in each carrier, shape (K,).
        copies: number of copies in each carrier.
        insertion: how copies are inserted into a text.
    """

    seed: int
    key: int
    words: tuple[int, ...]
    copies: int
    insertion: Insertion = Insertion.TEXT

    def of(self, token: Token) -> list[Path]:
        """Return a path for each carrier."""
        words_per_copy = words_added(token, self.insertion)
        paths = []
        for index, words in enumerate(self.words):
            generator = np.random.default_rng([self.seed, self.key, token.id, index])
            draw = partial(generator.integers, endpoint=True)
            paths.append(draw_path(draw, words, self.copies, words_per_copy))
        return paths


@dataclass(frozen=True)
class AnchorPanel:
    """The unit vectors of A anchors, shape (A, d)."""

    vectors: NDArray[np.float32]

    def against(self, carriers: NDArray[np.float32], unrelated_below: float) -> CarrierPanel:
        """Compare the anchors with carriers that have no copies, and return the similarities.

        Args:
            carriers: unit vectors of the carriers, shape (K, d).
            unrelated_below: similarity below which a carrier and an anchor are unrelated, usually the model's
                mean similarity.
        """
        before = (carriers @ self.vectors.T).astype(np.float64)
        return CarrierPanel(self, before, is_unrelated=before < unrelated_below)


@dataclass(frozen=True)
class CarrierPanel:
    """The similarities between K carriers, without copies, and A anchors.

    Attributes:
        panel: the anchors.
        before: cosines between carriers and anchors, shape (K, A).
        is_unrelated: mask of the unrelated pairs, shape (K, A). A carrier and an anchor are unrelated if
            their cosine is below a limit, usually the model's mean similarity.
    """

    panel: AnchorPanel
    before: Floats
    is_unrelated: NDArray[np.bool_]

    def chosen(self, carriers: Sequence[int]) -> CarrierPanel:
        """Return a panel of only the carriers with these indices."""
        rows = np.array(carriers, dtype=np.intp)
        return CarrierPanel(self.panel, self.before[rows], self.is_unrelated[rows])


@dataclass(frozen=True)
class SymptomStage:
    """Measures the symptom curve of a token: the mean similarity as a function of the number of copies.

    The copies are appended to the carriers.

    Attributes:
        carriers: the K carriers.
        copies: the numbers of copies, excluding 0.
        panel: the similarities between the anchors and the carriers without copies.
        name: name of the stage.
        precision: precision to run the model in; if None, the model's own.
    """

    carriers: tuple[Carrier, ...]
    copies: tuple[int, ...]
    panel: CarrierPanel
    name: str = "symptoms"
    precision: Precision | None = None

    @property
    def probes_per_token(self) -> int:
        """Number of texts that are encoded for each token."""
        return len(self.carriers) * len(self.copies)

    def probes(self, token: Token) -> Sequence[Probe]:
        """Return every carrier with each number of copies of a token, carrier by carrier."""
        return [
            with_copies(token, carrier, Placement.SUFFIX, copies)
            for carrier in self.carriers
            for copies in self.copies
        ]

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> dict[str, RowValue]:
        """Compute a token's curves from the vectors of its probes.

        The curve ``below`` averages over the unrelated pairs, and the curve ``above`` over all other pairs. A
        curve is a list with one mean for 0 copies, followed by one for each number in ``copies``. The list is
        empty if there are no pairs to average over.
        """
        return self._averages(self._similarities(vectors))

    def _similarities(self, vectors: NDArray[np.float32]) -> Floats:
        units = unit_vectors(vectors).reshape(len(self.carriers), len(self.copies), -1)
        after = units @ self.panel.panel.vectors.T
        return np.concatenate([self.panel.before[:, None], after.astype(np.float64)], axis=1)

    def _averages(self, curves: Floats) -> dict[str, RowValue]:
        is_unrelated = self.panel.is_unrelated[:, None]
        return {"below": _mean_curve(curves, is_unrelated), "above": _mean_curve(curves, ~is_unrelated)}


def _mean_curve(curves: Floats, pairs: NDArray[np.bool_]) -> list[float]:
    count = int(pairs.sum())
    if not count:
        return []
    sums = np.where(pairs, curves, 0.0).sum(axis=(0, 2))
    return [float(total / count) for total in sums]


# Edges of the histogram bins for similarities of pairs. The bins are 0.02 wide, which is finer than any
# detail that a few thousand pairs can show.
SIMILARITY_EDGES: Sequence[float] = [round(-1 + 0.02 * step, 2) for step in range(101)]


def similarity_counts(similarities: Floats) -> list[int]:
    """Clip similarities to [-1, 1], and count them in each bin of `SIMILARITY_EDGES`."""
    counts: list[int] = np.histogram(similarities.clip(-1, 1), SIMILARITY_EDGES)[0].tolist()
    return counts


@dataclass(frozen=True)
class EvidenceStage(SymptomStage):
    """Measures a token's symptom curve, and picks two example pairs of texts.

    Attributes:
        pair_copies: number of copies of the token in the example pairs; one of the numbers in ``copies``.
        texts: the texts of the carriers.
        sentences: the texts of the anchors.
    """

    name: str = "evidence"
    pair_copies: int = 1
    texts: Sequence[str] = ()
    sentences: Sequence[str] = ()

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> dict[str, RowValue]:
        """Return the curves, a histogram of similarities and the example pairs."""
        curves = self._similarities(vectors)
        row = self._averages(curves)
        after = curves[:, 1 + self.copies.index(self.pair_copies)]
        row["similarities_after"] = similarity_counts(after)
        return row | self._example_pairs(after)

    def _example_pairs(self, after: Floats) -> dict[str, RowValue]:
        """Return a typical unrelated pair, and the unrelated pair with the largest rise in similarity.

        The typical pair is the unrelated pair whose rise is closest to the mean rise. A pair whose carrier
        has fewer than `_LEAST_SHOWN_WORDS` words is chosen only if all unrelated pairs have such carriers.

        Returns:
            The columns of the two example pairs (see `_pair_columns`), or no columns if there are no
            unrelated pairs.
        """
        panel = self.panel
        is_readable = np.array([word_count(carrier) >= _LEAST_SHOWN_WORDS for carrier in self.carriers])
        candidates = panel.is_unrelated & is_readable[:, None]
        if not candidates.any():
            candidates = panel.is_unrelated
        pairs = np.argwhere(candidates)  # one row (carrier, anchor) per candidate, in the order of ``rises``
        if not len(pairs):
            return {}
        rises = (after - panel.before)[candidates]
        typical_rise = float((after - panel.before)[panel.is_unrelated].mean())
        row = self._pair_columns("typical", pairs[np.abs(rises - typical_rise).argmin()], after)
        return row | self._pair_columns("largest", pairs[rises.argmax()], after)

    def _pair_columns(self, kind: str, pair: NDArray[np.intp], after: Floats) -> dict[str, RowValue]:
        carrier, anchor = pair.tolist()
        return {
            f"{kind}_carrier": self.texts[carrier],
            f"{kind}_anchor": self.sentences[anchor],
            f"{kind}_before": float(self.panel.before[carrier, anchor]),
            f"{kind}_after": float(after[carrier, anchor]),
        }
