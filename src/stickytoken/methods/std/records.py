"""The records that the std method writes to plan.json and run.json."""

from __future__ import annotations

from stickytoken.data import SentencePair
from stickytoken.methods import PlanTexts
from stickytoken.methods.base import MeanSimilarityRecord, PlanRecord, ResultRecord


class StdPlanRecord(MeanSimilarityRecord, PlanRecord):
    """The plan of a run: the pairs for scoring tokens and for validating candidates."""

    left_out: int  # Number of sentences or pairs that are too long once the copies are inserted.
    # Largest absolute difference between the similarity of a pair in the corpus file and in this model.
    similarity_deviation: float
    scoring: list[SentencePair]
    validation: list[SentencePair]
    # Texts of the scoring and validation pairs that the model truncates once the copies are inserted.
    truncated: tuple[str, ...] = ()

    @property
    def texts(self) -> PlanTexts:
        """The texts that receive copies in validation, and those that they are compared with."""
        # A sentence may be in several pairs, but each text is listed once, and one that is both is a carrier.
        carriers = dict.fromkeys(pair.sentence2 for pair in self.validation)
        anchors = dict.fromkeys(pair.sentence1 for pair in self.validation if pair.sentence1 not in carriers)
        return PlanTexts(list(carriers), list(anchors), by_topic=False)


class StdResultRecord(ResultRecord):
    """The numbers that summarize the result of a run."""

    scored: int  # number of tokens with an exact score, or an upper bound that rules them out as candidates
    candidates: int
    score_threshold: float  # minimum score of a candidate
    rate_threshold: float  # a candidate is sticky if its validation rate is above this value
    exact_scores: int | None = None  # number of tokens with an exact score; null in older runs
