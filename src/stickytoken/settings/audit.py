"""The settings of an audit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from stickytoken.insertion import Insertion, Placement
from stickytoken.settings import NaturalNumber, OptionName, PositiveCount, Proportion, check_settings


@dataclass(frozen=True)
class AuditSettings:
    """How an audit measures the effect of copies of a token on search results.

    Attributes:
        copies: Numbers of copies in a document; repeatable, by default 4, 8 and 32.
        placement: Where in the document the copies go.
        insertion: ids: the model reads exactly n copies. text: the copies are inserted as words, which is the
            only way for a model that reads only texts.
        stuffed: Number of random documents to insert copies into, one at a time.
        tokens: Maximum number of tokens in each group: flagged tokens; tokens whose copies these
            documents already contain; tokens with the strongest predicted effect on these documents; tokens
            with the largest lift on these documents; and ordinary tokens.
        queries: Maximum number of queries. If there are more queries, a random sample of this size is used.
        documents: Maximum number of documents in the index. If there are more documents, a random sample of
            this size is used.
        resamples: Number of bootstrap samples of queries and documents.
        confidence: Confidence level of the intervals.
        seed: Seed of all random sampling.

    Raises:
        InputError: A value is out of range.
    """

    copies: tuple[PositiveCount, ...] = (4, 8, 32)
    placement: Placement = Placement.SUFFIX
    insertion: Insertion = Insertion.IDS
    stuffed: Annotated[int, Ge(2)] = 32
    tokens: PositiveCount = 8
    queries: Annotated[PositiveCount, OptionName("most_queries")] = 500
    documents: Annotated[int, Ge(30), OptionName("most_documents")] = 20_000
    resamples: Annotated[int, Ge(100)] = 1000
    confidence: Proportion = 0.95
    seed: NaturalNumber = 42

    def __post_init__(self) -> None:
        check_settings(self)
        object.__setattr__(self, "copies", tuple(sorted(set(self.copies))))
