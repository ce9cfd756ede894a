"""Choose the tokens that an audit measures: flagged tokens, strongest tokens, and ordinary tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.audits.results import FLAGGED, FOUND, ORDINARY, STRONGEST
from stickytoken.cleaning import key_function
from stickytoken.detection import judge
from stickytoken.detection.run import Run
from stickytoken.detection.run_folder import flagged_ids
from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import InputError, RunError
from stickytoken.impacts.search import ExactSearch
from stickytoken.impacts.statistics import TOP
from stickytoken.measurement import ResultFolder
from stickytoken.measurement.engine import ProgressCallback
from stickytoken.methods.profile.estimates import read_effects
from stickytoken.methods.statistics import TokenEffects
from stickytoken.settings.audit import AuditSettings
from stickytoken.unit_vectors import Similarity

JUDGED_FILE = "judged.parquet"
"""Name of the table that says what copies of each token do to the texts of the documents."""
# Number of documents that serve as anchors of a judgement. With more, the judgement would cost as much as
# encoding the index.
JUDGED_ANCHORS = 300


@dataclass(frozen=True)
class Candidate:
    """A token to measure.

    Attributes:
        token_id: id of the token.
        token: vocabulary string of the token.
        text: decoded text of the token.
        group: flagged, in documents, strongest or ordinary.
        predicted: predicted share of queries whose top 10 includes a document with copies of the token;
            None without a prediction.
        lift_sd: lift of the token on the documents of the audit, in standard deviations; None if it was not
            measured.
        severity: severity that the token's lift implies; None if the token is not flagged on the documents of
            the audit.
    """

    token_id: int
    token: str
    text: str
    group: str
    predicted: float | None
    lift_sd: float | None
    severity: str | None


@dataclass(frozen=True)
class Candidates:
    """The tokens to measure.

    Attributes:
        tokens: the tokens.
        predicted: number of tokens in the vocabulary for which a share of queries was predicted.
        notes: remarks on the choice, such as the reason why tokens could not be judged.
    """

    tokens: list[Candidate]
    predicted: int
    notes: list[str]


def choose_candidates(
    run: Run,
    encoder: Encoder,
    search: ExactSearch,
    stuffed: Sequence[int],
    evaluated: NDArray[np.bool_],
    words_found: Sequence[str],
    texts: Sequence[str],
    settings: AuditSettings,
    folder: ResultFolder,
    progress: ProgressCallback,
) -> Candidates:
    """Choose the tokens to measure.

    The flagged tokens are those that the run flags and those that are sticky on the documents of the audit.
    The found tokens are tokens whose copies the documents already contain. The strongest tokens have the
    largest predicted shares of queries or the largest lifts on the documents of the audit. The ordinary
    tokens are drawn at random. A token that belongs to several groups is listed only in the first of these
    groups. ``settings.tokens`` limits the number of tokens in each group; the strongest tokens by share and
    by lift are limited separately.

    Args:
        run: the run of the model.
        encoder: the model.
        search: exact search in the index.
        stuffed: index positions of the documents that will receive copies.
        evaluated: whether each pair of a query and a document that will receive copies is evaluated, shape
            (queries, documents that will receive copies).
        words_found: words that documents already contain copies of, in descending order of the number of
            copies.
        texts: texts of the documents on which the tokens are judged.
        settings: settings of the audit.
        folder: folder of the audit, in which the judgement is stored.
        progress: called after every step of the judgement.

    Returns:
        The tokens to measure, the number of tokens with a predicted share, and notes on the choice.
    """
    notes: list[str] = []
    judged = _judged(run, encoder, texts, folder, progress, notes)
    shares = _predicted_by_id(run, search, stuffed, evaluated, notes)
    groups = _groups_by_id(run, judged, shares, words_found, settings, notes)
    rows = _rows_by_id(run.tokens, list(groups))
    judged_rows = {} if judged is None else _rows_by_id(judged, list(groups))
    tokens = []
    for token_id, group in groups.items():
        row = rows[token_id]
        judged_row = judged_rows.get(token_id, {})
        candidate = Candidate(
            token_id=token_id,
            token=row["token"],
            text=row["decoded"],
            group=group,
            predicted=shares.get(token_id),
            lift_sd=judged_row.get("lift_sd"),
            severity=judged_row.get("severity"),
        )
        tokens.append(candidate)
    return Candidates(tokens=tokens, predicted=len(shares), notes=notes)


def _groups_by_id(
    run: Run,
    judged: pl.DataFrame | None,
    shares: Mapping[int, float],
    words_found: Sequence[str],
    settings: AuditSettings,
    notes: list[str],
) -> dict[int, str]:
    """Choose the tokens to measure, and the group of each: flagged, found, strongest or ordinary.

    `choose_candidates` describes the groups. A token that fits several groups is in the first of them, in
    this order. The limit is ``settings.tokens``:

    - Flagged: at most the limit, those with the largest predicted shares first. Flagged tokens beyond the
      limit are measured only if they are chosen as found tokens. They count as flagged all the same.
    - Found: at most the limit, those with the most copies in the documents first.
    - Strongest: at most the limit by predicted share, and at most the limit by lift. A flagged token is never
      chosen here, not even one beyond the limit. If a found token is among the strongest, it takes up a
      place, but it stays in its group.
    - Ordinary: at most the limit, drawn at random from all other tokens that are not flagged.

    Args:
        run: the run of the model.
        judged: the judgement of the tokens on the documents; None if there is none.
        shares: the predicted shares of queries, keyed by token id; empty if there are none.
        words_found: words that documents already contain copies of, in descending order of the number of
            copies.
        settings: settings of the audit.
        notes: receives a note if not all flagged tokens will be measured.

    Returns:
        The group of each token to measure, keyed by token id, in the order in which they are measured.
    """
    limit = settings.tokens
    flagged = flagged_ids(run.tokens)
    if judged is not None:
        sticky_here = judged.filter(pl.col("verdict") == "sticky")
        flagged += [token_id for token_id in sticky_here["token_id"].to_list() if token_id not in flagged]
    # Tokens with equal shares, or without shares, keep their order.
    flagged.sort(key=lambda token_id: -shares.get(token_id, 0.0))
    groups: dict[int, str] = dict.fromkeys(flagged[:limit], FLAGGED)
    for token_id in _first_without(_ids_of_words(run, words_found), list(groups), limit):
        groups[token_id] = FLAGGED if token_id in flagged else FOUND
    measured_flagged = sum(group == FLAGGED for group in groups.values())
    if measured_flagged < len(flagged):
        notes.append(_limit_note(len(flagged), limit, measured_flagged - limit, has_shares=bool(shares)))
    for token_id in _strongest_ids(run, judged, shares, flagged, limit):
        groups.setdefault(token_id, STRONGEST)  # a found token stays in the group of found tokens
    excluded = {*flagged, *groups}
    others = [token_id for token_id in run.tokens["token_id"].to_list() if token_id not in excluded]
    order = np.random.default_rng([settings.seed, len(others), 2]).permutation(len(others))
    for token_id in sorted(others[position] for position in order[:limit].tolist()):
        groups[token_id] = ORDINARY
    return groups


def _strongest_ids(
    run: Run, judged: pl.DataFrame | None, shares: Mapping[int, float], flagged: Sequence[int], limit: int
) -> list[int]:
    """Return the ids of the strongest tokens that are not flagged; an id may occur twice.

    These are the ``limit`` tokens with the largest predicted shares, and the ``limit`` tokens whose lift on
    the documents has the largest lower bound. If neither shares nor lifts are known, they are about ``limit``
    of the strongest tokens of the run.
    """
    by_share = sorted(shares, key=lambda token_id: (-shares[token_id], token_id))
    strongest = _first_without(by_share, flagged, limit)
    if judged is not None:
        with_lift = judged.drop_nulls("lift_sd_low")
        by_lift = with_lift.sort("lift_sd_low", "token_id", descending=[True, False])
        strongest += _first_without(by_lift["token_id"].to_list(), flagged, limit)
    return strongest or run.strongest(limit)["token_id"].to_list()


def _limit_note(flagged: int, limit: int, found_beyond: int, *, has_shares: bool) -> str:
    """Return a note that says which of the flagged tokens were measured.

    Args:
        flagged: number of flagged tokens, larger than the limit.
        limit: maximum number of tokens in a group.
        found_beyond: number of flagged tokens that were measured in spite of the limit, because documents
            already contain their copies.
        has_shares: whether the flagged tokens were chosen by their predicted shares.
    """
    by_limit = f"the {limit} with the largest predicted shares" if has_shares else f"{limit} of them"
    beyond = f", and {found_beyond} more because documents contain copies" if found_beyond else ""
    return (
        f"{flagged} tokens are flagged; {by_limit} were measured{beyond} (--set tokens=NUMBER measures more)"
    )


def _rows_by_id(table: pl.DataFrame, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the rows of a table for these token ids, keyed by token id."""
    rows = table.filter(pl.col("token_id").is_in(ids)).iter_rows(named=True)
    return {row["token_id"]: row for row in rows}


def _ids_of_words(run: Run, words: Sequence[str]) -> list[int]:
    """Return the ids of the tokens whose text is one of these words, in the order of the words.

    The words come from a scan, which writes them as the model's normaliser does. Words that consist of
    several tokens are left out. If the normaliser makes several tokens equal, the one whose text equals the
    word is used, or else the one with the lowest id.
    """
    key_of = key_function(run.normalizer)
    id_of_text: dict[str, int] = {}
    id_of_key: dict[str, int] = {}
    for token_id, decoded in run.tokens.sort("token_id").select("token_id", "decoded").iter_rows():
        text = (decoded or "").strip()
        id_of_text.setdefault(text, token_id)
        id_of_key.setdefault(key_of(text), token_id)
    ids = []
    for word in words:
        token_id = id_of_text.get(word, id_of_key.get(key_of(word)))
        if token_id is not None and word:
            ids.append(token_id)
    return list(dict.fromkeys(ids))


def _first_without(ids: Sequence[int], excluded: Sequence[int], count: int) -> list[int]:
    """Return the first ``count`` ids that are not in ``excluded``."""
    excluded_ids = set(excluded)
    return [token_id for token_id in ids if token_id not in excluded_ids][:count]


def _judged(
    run: Run,
    encoder: Encoder,
    texts: Sequence[str],
    folder: ResultFolder,
    progress: ProgressCallback,
    notes: list[str],
) -> pl.DataFrame | None:
    """Judge the tokens on the documents, or read the judgement that an interrupted audit has stored.

    Returns:
        One row per token. None if the run or the documents do not allow a judgement; the reason is then added
        to ``notes``.
    """
    if (folder.path / JUDGED_FILE).is_file():
        try:
            return folder.read_table(JUDGED_FILE, ("token_id", "lift_sd", "lift_sd_low", "verdict"))
        except RunError:  # the file is damaged: judge again
            pass
    try:
        judgement = judge(run, list(texts), encoder=encoder, anchors=JUDGED_ANCHORS, progress=progress)
    except (InputError, RunError) as error:
        notes.append(f"the strongest tokens were not measured on these documents: {error}")
        return None
    folder.write_table(JUDGED_FILE, judgement.tokens)
    return judgement.tokens


def _predicted_by_id(
    run: Run,
    search: ExactSearch,
    stuffed: Sequence[int],
    evaluated: NDArray[np.bool_],
    notes: list[str],
) -> dict[int, float]:
    """Predict how often documents with copies will rank in a query's top 10; see `predicted_shares`.

    Args:
        run: the run of the model.
        search: exact search in the index.
        stuffed: index positions of the documents that will receive copies.
        evaluated: whether each pair of a query and a document that will receive copies is evaluated, shape
            (queries, documents that will receive copies).
        notes: receives the reason if a prediction is not possible.

    Returns:
        The predicted shares of all tokens, keyed by token id; empty if a prediction is not possible.
    """
    if not run.is_profile:
        notes.append(
            f"the run is of the method {run.record.method}, which does not measure what a prediction for all "
            "tokens needs"
        )
        return {}
    effects = read_effects(run.path)
    if search.similarity is not Similarity.COSINE:
        notes.append(f"shares cannot be predicted, because the model compares vectors by {search.similarity}")
        return {}
    shares = predicted_shares(effects, search, stuffed, evaluated)
    return dict(zip(effects.ids.tolist(), shares.tolist(), strict=True))


def predicted_shares(
    effects: TokenEffects, search: ExactSearch, stuffed: Sequence[int], evaluated: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Predict how often documents with copies of each token will be in the top 10 of queries.

    The prediction is the share of the evaluated pairs of a query and a document in which the document will be
    in the query's top 10 if no other document has copies.

    With copies, the similarity of a document to a query is (1 - k) times its similarity without copies, plus
    the dot product of the query and the pull p; see `stickytoken.methods.statistics.Effects`. A document is
    in the top 10 if its similarity exceeds the similarity of the tenth-best other document.

    Args:
        effects: contraction k and pull p of the tokens.
        search: exact search in the index.
        stuffed: index positions of the documents that will receive copies.
        evaluated: whether each pair of a query and a document that will receive copies is evaluated, shape
            (queries, documents that will receive copies).

    Returns:
        The shares in the order of ``effects.ids``, shape (tokens,).
    """
    before = search.similarities[:, list(stuffed)]
    largest = -np.partition(-search.similarities, TOP, axis=1)[:, : TOP + 1]
    largest.sort(axis=1)
    eleventh = largest[:, :1]
    tenth = largest[:, 1:2]
    # For a document that is in the top ten itself, the tenth-best other document is the eleventh overall.
    limit = np.where(before >= tenth, eleventh, tenth)
    pulls = effects.pull.astype(np.float64) @ search.queries.T
    shares = np.empty(len(effects.ids))
    for row, contraction in enumerate(effects.contraction):
        after = (1 - contraction) * before + pulls[row][:, None]
        shares[row] = np.mean((after > limit)[evaluated])
    return shares
