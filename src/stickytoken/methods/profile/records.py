"""The records that the profile method writes to plan.json and run.json."""

from __future__ import annotations

from stickytoken.measurement.resume import Record
from stickytoken.methods.base import PlanRecord, ResultRecord
from stickytoken.unit_vectors import Similarity


class DocumentsRecord(Record):
    """The collection in which copies push documents, without its texts.

    Attributes:
        source: where the documents come from.
        fingerprint: hash of the documents and queries.
        documents: number of documents that are searched.
        queries: number of queries.
        depth: number of results of a query that count as its first.
        similarity: how the model compares queries with documents.
        chosen: indices of the documents that receive copies.
        indexed: indices of the documents that are searched; None if all are.
    """

    source: str
    fingerprint: str
    documents: int
    queries: int
    depth: int
    similarity: Similarity = Similarity.COSINE
    chosen: list[int]
    indexed: list[int] | None = None


class ProfilePlanRecord(PlanRecord):
    """Everything that a run chooses before it measures a token.

    Attributes:
        carriers: the texts into which copies are inserted.
        pilots: ids of random tokens that are measured in all carriers to define the ordinary token.
        call_noise: standard deviation of one cosine over repeated calls to the model.
        documents: the collection for the push; None if the texts do not suffice for one.
    """

    carriers: list[str]
    pilots: list[int]
    call_noise: float = 0.0
    documents: DocumentsRecord | None = None

    @property
    def texts(self) -> list[str]:
        """The carriers."""
        return self.carriers


class ProfileResultRecord(ResultRecord):
    """The numbers that summarize the result of a run.

    Attributes:
        looked_at: number of tokens with a verdict.
        confirmed: number of tokens that were measured in the confirming carriers.
        unconfirmed: number of tokens that may erase enough but were not confirmed, because the budget was
            used up.
        in_documents: number of tokens that were measured in documents.
        random_in_documents: number of random tokens among them.
        random_pushing: number of these random tokens that reach the threshold for the push.
        ordinary_push: median push of the random tokens; None if none was measured in documents.
        ordinary_found: mean share of queries that find their documents with copies of a random token; None in
            a run over few tokens, which measures hardly any random token in all documents.
        found: share of queries that find their documents without copies.
        ordinary_contraction: share of a text that copies of the ordinary token erase.
        vectors_compared: whether the model has enough token vectors for the rule on unusual vectors.
        screening_carriers: plan indices of the carriers into which every token was inserted.
        texts_per_token: number of texts encoded in all stages, divided by the number of judged tokens.
    """

    looked_at: int
    confirmed: int
    unconfirmed: int
    in_documents: int
    random_in_documents: int
    random_pushing: int
    ordinary_push: float | None
    ordinary_found: float | None
    found: float | None
    ordinary_contraction: float
    vectors_compared: bool
    screening_carriers: list[int]
    texts_per_token: float
