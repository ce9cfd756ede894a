"""The default method, profile: measures what copies of every token erase, and whether they push documents."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.data import corpus_fingerprint
from stickytoken.encoders.protocol import Encoder, reads_ids, similarity_of
from stickytoken.encoders.roles import identity_of_queries
from stickytoken.errors import InputError, ModelError
from stickytoken.inspection import inspector_of
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.measurement.store import ResultFolder
from stickytoken.methods import TokenTable, Verdict, base, wording
from stickytoken.methods.base import Job, Scope
from stickytoken.methods.measures import ERASED, PUSH, thresholds
from stickytoken.methods.probes import Floats
from stickytoken.methods.profile import estimates, rounds
from stickytoken.methods.profile._wording import (
    LISTED,
    REPORTED,
    describe_probe,
    describe_run,
    describe_similarity,
)
from stickytoken.methods.profile.documents import measures_few_tokens
from stickytoken.methods.profile.estimates import MeasuredJob, TokenNumbers
from stickytoken.methods.profile.plan import cells, ordinary_tokens
from stickytoken.methods.profile.records import ProfilePlanRecord, ProfileResultRecord
from stickytoken.methods.profile.rounds import make_plan
from stickytoken.methods.profile.verdict import Judged, apply_rule
from stickytoken.methods.runner import Runner
from stickytoken.settings.profile import ProfileSettings
from stickytoken.token_vectors import vector_deviations
from stickytoken.unit_vectors import Similarity
from stickytoken.vocabulary import Vocabulary

__all__ = [
    "PLAN_RECORD",
    "RESULT_RECORD",
    "TABLE",
    "ProfileEvidence",
    "compute",
    "describe_probe",
    "describe_run",
    "describe_similarity",
    "identity_parts",
    "make_plan",
    "probe",
    "token_vector_deviations",
]

PLAN_RECORD: type[base.PlanRecord] = ProfilePlanRecord
RESULT_RECORD: type[base.ResultRecord] = ProfileResultRecord

# The columns of tokens.parquet that every run has, with their types.
TOKEN_COLUMNS: dict[str, Any] = {
    "token_id": pl.Int64,
    "token": pl.String,
    "decoded": pl.String,
    "category": pl.String,
    "erased": pl.Float64,
    "erased_low": pl.Float64,
    "erased_high": pl.Float64,
    "push": pl.Float64,
    "push_low": pl.Float64,
    "push_high": pl.Float64,
    "found": pl.Float64,
    "documents": pl.Int64,
    "vector_deviation": pl.Float64,
    "confirmed": pl.Boolean,
    "verdict": pl.String,
    "severity": pl.String,
    "reason": pl.String,
    "contraction": pl.Float64,
    "texts": pl.Int64,
}
TABLE = TokenTable(
    columns=tuple(TOKEN_COLUMNS),
    verdicts=tuple(Verdict),
    judges_every_token=True,
    listed=LISTED,
    reported=REPORTED,
    ranked_by=ERASED,
    glossary=wording.GLOSSARY,
)


def identity_parts(job: Job[Any]) -> dict[str, Any]:
    """Return what can change the numbers of profile only, to add to the identity of a run."""
    encoder = job.encoder
    # This hash covers the topics of the texts, too: as many are drawn from each.
    parts: dict[str, Any] = {"corpus": corpus_fingerprint(job.sentences)}
    queries = identity_of_queries(encoder)
    if queries is not None:  # encoded otherwise than documents, whose identity all runs have
        parts["queries"] = asdict(queries)
    similarity = similarity_of(encoder)
    if similarity is not Similarity.COSINE:
        parts["similarity"] = similarity.value  # it decides which tokens are measured in documents
    if job.scope is Scope.SAMPLE:
        parts["sampled"] = True  # fewer tokens of a sample are measured in documents than of named ones
    return parts


def compute(
    job: Job[ProfileSettings], plan: ProfilePlanRecord, runner: Runner, folder: ResultFolder
) -> tuple[pl.DataFrame, ProfileResultRecord]:
    """Measure and judge the job's tokens. Return the table tokens.parquet and the result for run.json."""
    deviations = token_vector_deviations(job.encoder, job.vocabulary)
    measured = rounds.measure_rounds(job, plan, runner, deviations)
    estimates.write_effects(folder, measured.screened)
    numbers = estimates.estimate(measured)
    judged = apply_rule(numbers.measures, job.settings)
    tokens = runner.without_unanswered(token_table(measured, numbers, judged))
    judged_count = tokens["verdict"].count()
    cost = folder.total_cost()
    random_tokens = _summarize_random_tokens(measured, numbers)
    return tokens, ProfileResultRecord(
        looked_at=judged_count,
        confirmed=int(tokens["confirmed"].sum()),
        unconfirmed=measured.unconfirmed,
        sticky=int((tokens["verdict"] == "sticky").sum()),
        in_documents=int(tokens["documents"].is_not_null().sum()),
        random_in_documents=random_tokens.count,
        random_pushing=random_tokens.pushing,
        ordinary_push=random_tokens.push,
        ordinary_found=random_tokens.found,
        found=None if measured.in_documents is None else measured.in_documents.found_without,
        ordinary_contraction=numbers.ordinary_contraction,
        vectors_compared=deviations is not None,
        screening_carriers=measured.screening_carriers,
        texts_per_token=round(cost.sequences / max(1, judged_count), 2),
        sequences=cost.sequences,
        seconds=round(folder.seconds, 1),
    )


@dataclass(frozen=True, slots=True)
class RandomTokens:
    """What copies of random tokens do in documents: what is ordinary.

    Attributes:
        count: number of random tokens that were measured in documents.
        pushing: number of them that reach the threshold for the push.
        push: median push of the random tokens that `plan.ordinary_tokens` returns; None if none is known.
        found: mean share of queries that find the documents that answer them, with copies of the same random
            tokens; None if they were not measured in all documents.
    """

    count: int
    pushing: int
    push: float | None
    found: float | None


def _summarize_random_tokens(measured: MeasuredJob, numbers: TokenNumbers) -> RandomTokens:
    """Return what copies of the pilots, which are random tokens, do in documents."""
    in_documents = measured.in_documents
    if in_documents is None:
        return RandomTokens(count=0, pushing=0, push=None, found=None)
    is_random = np.isin(in_documents.ids, measured.plan.pilots)
    if not is_random.any():
        return RandomTokens(count=0, pushing=0, push=None, found=None)
    of_random = numbers.measures_of(in_documents.ids[is_random])
    push_thresholds = thresholds(of_random.vector_deviation, measured.job.settings)[PUSH.key]
    # The pilots that stand for the ordinary token: all of them only in a run over few tokens.
    is_ordinary = np.isin(in_documents.ids, ordinary_tokens(measured.job, measured.plan.pilots))
    # Where no document is a wrong result without copies, the push is unknown.
    known_pushes = in_documents.push.value[is_ordinary & ~np.isnan(in_documents.push.value)]
    # The share depends much on which documents are searched for, so it says what is ordinary only in those in
    # which other tokens are measured: all. In a run over few tokens, only random tokens that may push get so
    # far, and they are not ordinary.
    found_shares = in_documents.found[is_ordinary & (in_documents.documents == in_documents.documents.max())]
    is_found_known = len(found_shares) > 0 and not measures_few_tokens(measured.job)
    # A ratio has no upper end, so a single token could carry their mean. A share is at most 1, and the mean
    # of shares counts every search alike.
    return RandomTokens(
        count=int(is_random.sum()),
        pushing=int((of_random.push.low >= push_thresholds).sum()),
        push=float(np.median(known_pushes)) if len(known_pushes) else None,
        found=float(found_shares.mean()) if is_found_known else None,
    )


def token_vector_deviations(encoder: Encoder, vocabulary: Vocabulary) -> dict[int, float] | None:
    """Measure how unusual the token vector of each available token is, in median absolute deviations.

    Returns:
        The deviations, keyed by token id; None if the model has no token vectors, or too few to compare.
    """
    if not reads_ids(encoder):
        return None
    try:
        matrix = inspector_of(encoder).embedding_matrix()
    except ModelError:  # it gives no access to its states
        return None
    if matrix is None:
        return None
    ids = [token.id for token in vocabulary.available if token.id < len(matrix)]  # others have no row
    deviations = vector_deviations(matrix[ids])
    if deviations is None:
        return None
    return dict(zip(ids, deviations.tolist(), strict=True))


def token_table(measured: MeasuredJob, numbers: TokenNumbers, judged: Judged) -> pl.DataFrame:
    """Return the table tokens.parquet, with one row per token of the job and null for missing values."""
    job = measured.job
    measures = numbers.measures
    columns: dict[str, Any] = {
        "token_id": measures.ids,
        "erased": measures.erased.value,
        "erased_low": measures.erased.low,
        "erased_high": measures.erased.high,
        "push": measures.push.value,
        # Where no document is a wrong result without copies, the push is unknown and its interval endless.
        "push_low": np.where(np.isnan(measures.push.value), np.nan, measures.push.low),
        "push_high": np.where(np.isnan(measures.push.value), np.nan, measures.push.high),
        "found": _make_column_of_documents(measured, "found"),
        "documents": _make_column_of_documents(measured, "documents"),
        "vector_deviation": measures.vector_deviation,
        "confirmed": measures.confirmed,
        "verdict": judged.verdicts,
        "severity": judged.severities,
        "reason": judged.reasons,
        # The erased share is relative to the ordinary token; the contraction is the share of a text.
        "contraction": numbers.contraction,
        "texts": numbers.carrier_counts,
    }
    types = {name: dtype for name, dtype in TOKEN_COLUMNS.items() if name in columns}
    table = pl.DataFrame(columns, schema_overrides=types).with_columns(pl.col(pl.Float64).fill_nan(None))
    vocabulary = job.vocabulary.frame()  # has the other columns: what each token is
    table = table.join(vocabulary, on="token_id", how="left", validate="1:1", maintain_order="left")
    table = table.select(list(TOKEN_COLUMNS))
    recognized_shares = _find_recognized_shares(measured)
    if recognized_shares is not None:  # a column only where copies were counted
        table = table.with_columns(pl.Series("copies_seen", recognized_shares))
    # The pilots were measured, too, even if the job has only other tokens.
    table = table.filter(pl.col("token_id").is_in([token.id for token in job.tokens]))
    return pl.concat([table, _make_rows_of_unmeasured_tokens(job)], how="diagonal_relaxed").sort("token_id")


def _make_column_of_documents(measured: MeasuredJob, name: str) -> list[float | int | None]:
    value_by_id: dict[int, float | int] = {}
    if measured.in_documents is not None:
        values = getattr(measured.in_documents, name).tolist()
        value_by_id = dict(zip(measured.in_documents.ids.tolist(), values, strict=True))
    # None for tokens that were not measured in documents.
    return [value_by_id.get(token_id) for token_id in measured.screened.ids.tolist()]


def _find_recognized_shares(measured: MeasuredJob) -> Floats | None:
    """Return the share of each token's copies that the tokenizer reads as this token; None if not counted."""
    screened = measured.screened
    confirmed = measured.confirmed
    if screened.copies_seen is None or confirmed.copies_seen is None:
        return None
    cell_of_carrier = cells(measured.job.settings, len(measured.plan.carriers))
    copies_of_carrier = np.array([cell.copies for cell in cell_of_carrier])
    copies_of_screening = copies_of_carrier[measured.screening_carriers]
    copies_of_confirming = np.delete(copies_of_carrier, measured.screening_carriers)
    shares = _compute_recognized_shares(screened.copies_seen, copies_of_screening)
    # A confirmed token gets its share of the confirming carriers instead.
    confirmed_rows = screened.rows_of(confirmed.ids)
    shares[confirmed_rows] = _compute_recognized_shares(confirmed.copies_seen, copies_of_confirming)
    return shares


def _compute_recognized_shares(recognized: NDArray[np.int64], inserted: NDArray[np.int64]) -> Floats:
    # ``recognized`` are copies of each token in each carrier, shape (T, K); ``inserted``, copies of any token
    # in each carrier, shape (K,). More may be recognized than were inserted, if words of the carrier are read
    # as the token, too.
    shares: Floats = np.minimum(recognized, inserted).sum(axis=1) / inserted.sum()
    return shares  # shape (T,)


def _make_rows_of_unmeasured_tokens(job: Job[ProfileSettings]) -> pl.DataFrame:
    # In a text, the tokenizer reads most copies of these tokens as other entries, so they weren't measured.
    recognized_share_by_id = job.vocabulary.unspelled
    ids = [token.id for token in job.tokens if token.id in recognized_share_by_id]
    recognized_shares = [recognized_share_by_id[token_id] for token_id in ids]
    reasons = [
        f"not judged: the tokenizer reads {share:.0%} of its copies as this entry"
        for share in recognized_shares
    ]
    rows = pl.DataFrame(
        {
            "token_id": ids,
            "texts": 0,
            "confirmed": False,
            "reason": reasons,
            "copies_seen": recognized_shares,
        },
        # Types for a table without rows, too.
        schema_overrides={"token_id": pl.Int64, "reason": pl.String, "copies_seen": pl.Float64},
    )
    rows = job.vocabulary.frame().join(rows, on="token_id")
    # Without such tokens, tokens.parquet has no column of shares.
    return rows if ids else rows.drop("copies_seen")


@dataclass(frozen=True, slots=True)
class ProfileEvidence:
    """The results of a probe for one token. Fields not described here are columns of tokens.parquet.

    Attributes:
        ordinary_push: median push of random tokens; None if it is unknown, as without documents.
        ordinary_contraction: the ordinary token's erased share, which is the share of a text that its copies
            erase.
        smallest_erased: threshold for the erased share.
        smallest_push: threshold for the push.
        unusual: threshold for the vector deviation: a token vector is unusual if its deviation is at least
            ``unusual``.
        vectors_compared: whether token vectors could be compared.
    """

    token_id: int
    token: str
    category: str
    verdict: str
    severity: str | None
    reason: str | None
    erased: float
    erased_low: float
    erased_high: float
    push: float | None
    push_low: float | None
    push_high: float | None
    found: float | None
    documents: int | None
    vector_deviation: float | None
    contraction: float
    texts: int
    ordinary_push: float | None
    ordinary_contraction: float
    smallest_erased: float
    smallest_push: float
    unusual: float
    vectors_compared: bool


def probe(job: Job[ProfileSettings], progress: ProgressCallback) -> list[ProfileEvidence]:
    """Measure all tokens of the job closely, as a run does with selected tokens, and judge them.

    All of them go into all carriers and into documents. Nothing is stored on disk.

    Returns:
        One result for each token of the job, in the same order. A token that occurs twice has two equal
        results.

    Raises:
        InputError: The tokenizer reads copies of a token as other vocabulary entries.
        EncodingError: A server gives no vector for a text with copies of a token.
    """
    unspelled = [token for token in job.tokens if token.id in job.vocabulary.unspelled]
    if unspelled:
        raise InputError(
            f"in a text, the tokenizer reads copies of {unspelled[0].text!r} (token id {unspelled[0].id}) as "
            "other vocabulary entries: leave this token out"
        )
    # If a token was named twice, measure it only once.
    distinct_tokens = list({token.id: token for token in job.tokens}.values())
    job_without_repeats = replace(job, tokens=distinct_tokens)
    runner = Runner.in_memory(job.encoder, progress)
    plan = make_plan(job_without_repeats, runner)
    deviations = token_vector_deviations(job.encoder, job.vocabulary)
    # With ``confirm_all``, no token is judged by the few screening carriers alone.
    measured = rounds.measure_rounds(job_without_repeats, plan, runner, deviations, confirm_all=True)
    runner.require_answers(distinct_tokens)
    numbers = estimates.estimate(measured)
    settings = job.settings
    table = token_table(measured, numbers, apply_rule(numbers.measures, settings))
    row_by_id = {row["token_id"]: row for row in table.to_dicts()}
    # The fields of the evidence that are columns; the others are the same for all tokens.
    columns = [field.name for field in fields(ProfileEvidence) if field.name in table.columns]
    ordinary_push = _summarize_random_tokens(measured, numbers).push
    evidence = []
    for token in job.tokens:
        row = row_by_id[token.id]
        evidence_of_token = ProfileEvidence(
            **{name: row[name] for name in columns},
            ordinary_push=ordinary_push,
            ordinary_contraction=numbers.ordinary_contraction,
            smallest_erased=settings.smallest_erased,
            smallest_push=settings.smallest_push,
            unusual=settings.unusual,
            vectors_compared=deviations is not None,
        )
        evidence.append(evidence_of_token)
    return evidence
