"""The records that the std method writes to plan.json and run.json."""

from __future__ import annotations

from stickytoken.data import SentencePair
from stickytoken.methods.base import PlanRecord, ResultRecord


class StdPlanRecord(PlanRecord):
    """The plan of a run: the pairs for scoring tokens and for validating candidates."""

    mean_similarity: float  # the mean cosine over all pairs of vocabulary entries, u
    mean_similarity_entries: int  # number of entries that it is computed from
    left_out: int  # Number of sentences or pairs that are too long once the copies are inserted.
    # Largest absolute difference between the similarity of a pair in the corpus file and in this model.
    similarity_deviation: float
    scoring: list[SentencePair]
    validation: list[SentencePair]
    # Texts of the scoring and validation pairs that the model truncates once the copies are inserted.
    truncated: tuple[str, ...] = ()

    @property
    def texts(self) -> list[str]:
        """The texts that receive copies in validation."""
        return list(dict.fromkeys(pair.sentence2 for pair in self.validation))


class StdResultRecord(ResultRecord):
    """The numbers that summarize the result of a run."""

    scored: int  # number of tokens with an exact score, or an upper bound that rules them out as candidates
    candidates: int
    score_threshold: float  # minimum score of a candidate
    rate_threshold: float  # a candidate is sticky if its validation rate is above this value
    exact_scores: int | None = None  # number of tokens with an exact score; null in older runs
