"""The settings of an audit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from stickytoken.insertion import Insertion
from stickytoken.settings import InsertingSettings, NaturalNumber, OptionName, PositiveCount, check_settings


@dataclass(frozen=True)
class AuditSettings(InsertingSettings):
    """How an audit measures what copies of a token do to documents.

    Attributes:
        insertion: text: insert the copies into the string. ids: insert exactly eight copies among the token
            ids. words: insert the copies into the string, with spaces chosen so that the tokenizer recognizes
            the token in as many copies as possible. Default: as in the run; if this is one of std, ids, or
            words if the model reads only texts.
        stuffed: Number of documents to insert copies into, one at a time. Copies of a token whose push
            reaches its threshold there are inserted into up to four times as many, which decide. They are not
            if the model is behind an endpoint, where every text costs.
        tokens: Maximum number of tokens in each group: flagged tokens, special tokens, tokens with unusual
            vectors, tokens whose copies these documents already contain, tokens that are expected to push
            these documents most, and random ones.
        queries: Maximum number of queries. If there are more queries, a random sample of this size is used.
        documents: Maximum number of documents in the index. If there are more documents, a random sample of
            this size is used.
        seed: Seed of all random sampling.

    Raises:
        InputError: A value is out of range.

    Examples:
        >>> stickytoken.AuditSettings(tokens=4).tokens
        4
    """

    insertion: Insertion | None = None
    stuffed: Annotated[int, Ge(2)] = 64
    tokens: PositiveCount = 8
    queries: Annotated[PositiveCount, OptionName("most_queries")] = 500
    documents: Annotated[int, Ge(30), OptionName("most_documents")] = 20_000
    seed: NaturalNumber = 42

    def __post_init__(self) -> None:
        check_settings(self)
