"""Symptom curves: how similar texts are, as a function of the number of copies of a token in one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stickytoken.insertion import Placement, Probe, Token
from stickytoken.measurement.stages import RowValue
from stickytoken.methods.base import Job, MethodSettings
from stickytoken.methods.probes import Carrier, Floats, as_carriers, fitting_copies, with_copies, word_count
from stickytoken.unit_vectors import unit_vectors

# Numbers of copies in a symptom curve.
SYMPTOM_COPIES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# Number of carriers whose similarities are averaged in a symptom curve.
SYMPTOM_CARRIERS = 12
# Minimum number of words in a carrier that is shown as an example. A shorter carrier tells a reader too
# little.
_LEAST_SHOWN_WORDS = 4


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
        similarities = (carriers @ self.vectors.T).astype(np.float64)
        return CarrierPanel(self, before=similarities, is_unrelated=similarities < unrelated_below)


@dataclass(frozen=True)
class CarrierPanel:
    """The similarities between K carriers, without copies, and A anchors.

    Attributes:
        anchors: the anchors.
        before: cosines between carriers and anchors, shape (K, A).
        is_unrelated: mask of the unrelated pairs, shape (K, A). A carrier and an anchor are unrelated if
            their cosine is below a limit, usually the model's mean similarity.
    """

    anchors: AnchorPanel
    before: Floats
    is_unrelated: NDArray[np.bool_]

    def chosen(self, carriers: Sequence[int]) -> CarrierPanel:
        """Return a panel of only the carriers with these indices."""
        rows = np.array(carriers, dtype=np.intp)
        return CarrierPanel(self.anchors, self.before[rows], self.is_unrelated[rows])


@dataclass(frozen=True)
class SymptomStage:
    """Measures the symptom curve of a token: the mean similarity as a function of the number of copies.

    The copies are appended to the carriers.

    Attributes:
        carriers: the K carriers.
        copies: the numbers of copies, excluding 0.
        panel: the similarities between the anchors and the carriers without copies.
        name: name of the stage.
    """

    carriers: tuple[Carrier, ...]
    copies: tuple[int, ...]
    panel: CarrierPanel
    name: str = "symptoms"

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

        A curve has the mean similarity of carriers to anchors without copies, followed by one for each number
        in ``copies``: ``below`` of unrelated pairs (those less similar than the model's mean), ``above`` of
        all others. It is empty if there are no such pairs.
        """
        return self._average_similarities(self._compute_similarities(vectors))

    def _compute_similarities(self, vectors: NDArray[np.float32]) -> Floats:
        """Return the similarities of carriers and anchors with 0 copies and each number of copies.

        Their shape is (K, 1 + numbers of copies, A).
        """
        units = unit_vectors(vectors).reshape(len(self.carriers), len(self.copies), -1)
        after = units @ self.panel.anchors.vectors.T
        return np.concatenate([self.panel.before[:, None], after.astype(np.float64)], axis=1)

    def _average_similarities(self, similarities: Floats) -> dict[str, RowValue]:
        is_unrelated = self.panel.is_unrelated[:, None]  # the same pairs for every number of copies
        return {
            "below": _average_curve(similarities, is_unrelated),
            "above": _average_curve(similarities, ~is_unrelated),
        }


def _average_curve(similarities: Floats, is_averaged: NDArray[np.bool_]) -> list[float]:
    # ``similarities`` has the shape (K, numbers of copies, A), and ``is_averaged`` (K, 1, A).
    pair_count = int(is_averaged.sum())
    if not pair_count:
        return []
    sums = np.where(is_averaged, similarities, 0.0).sum(axis=(0, 2))
    return [float(total / pair_count) for total in sums]


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
        similarities = self._compute_similarities(vectors)
        row = self._average_similarities(similarities)
        after = similarities[:, 1 + self.copies.index(self.pair_copies)]
        row["similarities_after"] = similarity_counts(after)
        return row | self._choose_example_pairs(after)

    def _choose_example_pairs(self, after: Floats) -> dict[str, RowValue]:
        """Return a typical unrelated pair, and the unrelated pair with the largest rise in similarity.

        The typical pair is the unrelated pair whose rise is closest to the mean rise. A pair whose carrier
        has fewer than `_LEAST_SHOWN_WORDS` words is chosen only if all unrelated pairs have such carriers.

        Returns:
            The columns of the two example pairs (see `_make_pair_columns`), or no columns if there are no
            unrelated pairs.
        """
        panel = self.panel
        # The similarity of each pair with copies is in ``after``, of shape (K, A).
        is_readable = np.array([word_count(carrier) >= _LEAST_SHOWN_WORDS for carrier in self.carriers])
        candidates = panel.is_unrelated & is_readable[:, None]
        if not candidates.any():
            candidates = panel.is_unrelated
        pairs = np.argwhere(candidates)  # one row (carrier, anchor) per candidate, in the order of ``rises``
        if not len(pairs):
            return {}
        rises = (after - panel.before)[candidates]
        typical_rise = float((after - panel.before)[panel.is_unrelated].mean())
        row = self._make_pair_columns("typical", pairs[np.abs(rises - typical_rise).argmin()], after)
        return row | self._make_pair_columns("largest", pairs[rises.argmax()], after)

    def _make_pair_columns(self, kind: str, pair: NDArray[np.intp], after: Floats) -> dict[str, RowValue]:
        carrier, anchor = pair.tolist()
        return {
            f"{kind}_carrier": self.texts[carrier],
            f"{kind}_anchor": self.sentences[anchor],
            f"{kind}_before": float(self.panel.before[carrier, anchor]),
            f"{kind}_after": float(after[carrier, anchor]),
        }


# Numbers of copies at which the curves in reports are measured. These few points are enough to show the shape
# of a curve.
_EVIDENCE_COPIES = (1, 2, 4, 8, 16, 32)
# Maximum number of copies of the token in the example text pairs that reports show.
_MOST_PAIR_COPIES = 8


def evidence_stage(
    job: Job[MethodSettings], carriers: list[str], sentences: list[str], anchors: AnchorPanel, u: float
) -> EvidenceStage:
    """Return the stage that measures symptom curves and example pairs for reports.

    Args:
        job: provides the model, and the setting for how copies are inserted.
        carriers: the texts into which copies are inserted.
        sentences: the texts of the anchors.
        anchors: the vectors of the anchors, in the same order as ``sentences``.
        u: similarity below which a pair of texts counts as unrelated.
    """
    encoder = job.encoder
    insertion = job.settings.inserted_as
    copies = fitting_copies(encoder, insertion, carriers, _EVIDENCE_COPIES)
    return EvidenceStage(
        as_carriers(encoder, insertion, carriers),
        copies,
        anchors.against(unit_vectors(encoder.encode(carriers)), u),
        pair_copies=max(count for count in copies if count <= _MOST_PAIR_COPIES),
        texts=carriers,
        sentences=sentences,
    )
