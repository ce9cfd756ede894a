"""Read what a report shows from a run folder, and note what is missing there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from stickytoken.audits import Audit, audits_in
from stickytoken.detection.run import Run, open_run
from stickytoken.errors import InputError, RunError
from stickytoken.explanation import files
from stickytoken.explanation.files import StoredExplanation
from stickytoken.measurement.resume import differences
from stickytoken.methods.base import PlanRecord
from stickytoken.repairs.records import RepairRecord, repairs_in
from stickytoken.scanning.results import Scan, scans_in
from stickytoken.vocabulary import kind_of, script_of, word_mark


@dataclass(frozen=True)
class RunContent:
    """A finished run, and what else its folder contains.

    Only finished scans, audits and repairs are included, latest first.

    Attributes:
        run: the run.
        plan: the plan of the run.
        tokens: the tokens of the run, with the columns that `_add_properties` adds.
        explanations: one explanation for each explained token.
        scans: searches for documents with copies.
        audits: audits of an index.
        repairs: records of repairs of the model.
        missing: sentences that each name something that is absent or cannot be shown.
    """

    run: Run
    plan: PlanRecord
    tokens: pl.DataFrame
    explanations: tuple[StoredExplanation, ...]
    scans: tuple[Scan, ...]
    audits: tuple[Audit, ...]
    repairs: tuple[RepairRecord, ...]
    missing: tuple[str, ...]

    @property
    def sticky(self) -> pl.DataFrame:
        """The rows of `tokens` whose verdict is sticky, worst first."""
        # The order comes from the run, and the columns from `tokens`.
        worst_first = self.run.sticky.select("token_id")
        return worst_first.join(self.tokens, on="token_id", maintain_order="left").select(self.tokens.columns)

    @property
    def confidence(self) -> str | None:
        """Confidence level of the intervals in percent, such as ``95``; None if there are no intervals."""
        return None if self.run.confidence is None else f"{100 * self.run.confidence:.4g}"


def read_content(path: str | Path, explanations: Path | None = None) -> RunContent:
    """Read the folder of a finished run.

    Args:
        path: The run folder.
        explanations: Folder with explanations of tokens. Default: the folder ``explain`` in the run folder.

    Raises:
        InputError: The folder `explanations` contains no explanation.
        RunError: `path` is not a run folder, the run is damaged or not finished, or the explanations belong
            to another model.
    """
    run = open_run(path)
    scans, unread_scans = scans_in(run.path)
    audits, unread_audits = audits_in(run.path)
    repairs, unread_repairs = repairs_in(run.path)
    stored_explanations, unread_explanations = _read_explanations(run, explanations)
    missing = [*unread_explanations, *unread_scans, *unread_audits, *unread_repairs]
    return RunContent(
        run=run,
        plan=run.plan,
        tokens=_add_properties(run.tokens, run.vocabulary),
        explanations=tuple(stored_explanations),
        scans=scans,
        audits=audits,
        repairs=repairs,
        missing=tuple(missing),
    )


def _add_properties(tokens: pl.DataFrame, vocabulary: pl.DataFrame) -> pl.DataFrame:
    """Add columns that describe the vocabulary entry of each token.

    Returns:
        The tokens with four more columns: `entry` (the kind of entry, such as subword), `script`, `length`
        (number of characters, without surrounding white space) and `position` (rank of the id in the
        vocabulary, from 0 for the smallest id to 1 for the largest).
    """
    # The prefix, such as "##", that this tokenizer puts before entries that begin or that continue a word.
    mark_of_words = word_mark(vocabulary["token"].drop_nulls())
    kinds = []
    scripts = []
    lengths = []
    for token, decoded, category in tokens.select("token", "decoded", "category").iter_rows():
        text = decoded or ""
        kinds.append(kind_of(token or "", text, category or "", mark_of_words).value)
        scripts.append(script_of(text))
        lengths.append(len(text.strip()))
    ranks = vocabulary.select("token_id").sort("token_id").with_row_index("rank")
    with_properties = tokens.join(ranks, on="token_id", how="left").with_columns(
        entry=pl.Series(kinds, dtype=pl.String),
        script=pl.Series(scripts, dtype=pl.String),
        length=pl.Series(lengths, dtype=pl.Int64),
        position=pl.col("rank") / max(1, len(vocabulary) - 1),  # a single entry has rank 0
    )
    return with_properties.drop("rank")


def _read_explanations(run: Run, named_folder: Path | None) -> tuple[list[StoredExplanation], list[str]]:
    """Read the explanations of a run's tokens.

    Returns:
        The explanations, and a sentence about each explanation that was skipped.

    Raises:
        InputError: The folder that the user named contains no explanation.
        RunError: An explanation in the folder that the user named cannot be used.
    """
    folder_of_run = run.path / files.EXPLANATIONS_FOLDER
    folders = files.explanation_folders(folder_of_run if named_folder is None else named_folder)
    if named_folder is not None and not folders:
        raise InputError(
            f"{named_folder} contains no explanation: pass the folder that explain --out wrote to"
        )
    token_by_id = dict(run.tokens.select("token_id", "token").iter_rows())
    explanations: list[StoredExplanation] = []
    unread: list[str] = []
    for folder in folders:
        try:
            explanation = files.read_explanation(folder)
            _require_same_model(run, explanation, token_by_id, folder)
        except RunError as error:
            if named_folder is not None:
                raise
            unread.append(f"An explanation is not shown: {error}.")
        else:
            explanations.append(explanation)
    return explanations, unread


def _require_same_model(
    run: Run, explanation: StoredExplanation, token_by_id: dict[int, str], folder: Path
) -> None:
    """Raise RunError if an explanation and the run belong to different models."""
    # The identities of the models. An explanation without an identity counts as made with another model.
    encoder = run.record.identity_parts.get("encoder")
    explained_encoder = explanation.record.identity_parts.get("encoder")
    if not isinstance(explained_encoder, dict):
        explained_encoder = {}
    if isinstance(encoder, dict):
        differing_parts = differences(encoder, explained_encoder)
        if differing_parts:
            raise RunError(
                f"{folder} explains a different model from the run's (they differ in "
                f"{', '.join(differing_parts)}): run explain with the run's model"
            )
    token_id = explanation.token.token_id
    token = explanation.token.token
    if token_by_id.get(token_id, token) != token:
        raise RunError(
            f"{folder} explains the token {token!r} with the id {token_id}, but that id belongs to "
            f"{token_by_id[token_id]!r} in the run: run explain with the run's model"
        )
