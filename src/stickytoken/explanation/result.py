"""An explanation as an object, and its findings and verdicts in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from stickytoken.explanation import files
from stickytoken.explanation.files import Finding, StoredExplanation
from stickytoken.explanation.statistics import AREAS
from stickytoken.measurement.store import ResultFolder
from stickytoken.methods.measures import PUSH
from stickytoken.settings.explain import ExplainSettings
from stickytoken.validation import file_path
from stickytoken.words import counted, percent

_LIFT = "lift_sentences"
_LIFT_IN_WORDS = AREAS["similarity"][_LIFT]
# Minimum number of benign tokens for the verdict that a token does not differ from them. With fewer, the
# interval is so wide that a token inside it may still differ by several standard deviations, so the verdict
# does not claim that the token resembles benign tokens.
ENOUGH_BENIGN = 8
# Order of the areas in a verdict: first the effect, then its possible causes, from the input of the model to
# its output.
_AREA_ORDER = ("similarity", "embedding", "attention", "hidden states", "pooling", "attribution")
# Columns of tokens.parquet that a verdict quotes. `texts` is the number of texts that the run used to
# measure the token.
RUN_COLUMNS = ("verdict", "severity", "erased", "push", "texts")


def find_differences(rows: Sequence[dict[str, Any]]) -> list[Finding]:
    """Return the measures in which a token differs from its benign tokens.

    The findings are sorted by area, and within an area by the distance from the benign tokens, largest first.
    For a measure with layers, the finding is about the layer where the token is furthest from the benign
    tokens. ``rows`` are the rows of the measures table.
    """
    all_findings: list[Finding] = []
    for area, measures in AREAS.items():
        area_findings = []
        for name, words in measures.items():
            outside_rows = [row for row in rows if row["measure"] == name and row["outside"]]
            if outside_rows:
                area_findings.append(_make_finding(area, name, words, outside_rows))
        all_findings += sorted(
            area_findings, key=lambda finding: abs(finding.deviations or 0.0), reverse=True
        )
    return all_findings


def _make_finding(area: str, name: str, words: str, outside_rows: Sequence[dict[str, Any]]) -> Finding:
    # The row of the layer where the token is furthest from benign tokens; of equally far layers, the first.
    furthest = max(outside_rows, key=lambda row: (abs(row["deviations"] or 0.0), -(row["layer"] or 0)))
    layers = [row["layer"] for row in outside_rows if row["layer"] is not None]
    return Finding(
        area=area,
        measure=name,
        begins=min(layers, default=None),
        layer=furthest["layer"],
        value=furthest["value"],
        benign_mean=furthest["benign_mean"],
        deviations=furthest["deviations"],
        called=words,
    )


def describe_verdict(
    token: str,
    token_id: int,
    rows: Sequence[dict[str, Any]],
    differences: Sequence[Finding],
    benign: int,
    run_row: Mapping[str, Any] | None = None,
) -> str:
    """Return sentences that say whether a token differs from benign tokens, and in which measures.

    Args:
        token: The token.
        token_id: Id of the token.
        rows: Rows of the measures table.
        differences: The measures in which the token differs from the benign tokens: the result of
            `find_differences` for ``rows``.
        benign: Number of benign tokens.
        run_row: The token's row in a run, keyed by the columns in `RUN_COLUMNS`. None if there is no run with
            a verdict on the token.
    """
    subject = f"{token!r} ({token_id})"
    benign_tokens = f"{benign} matched benign tokens"
    measure_count = len({row["measure"] for row in rows})
    strongest = _describe_strongest(rows, differences)
    lift = _find_lift_beside_benign(rows)
    if run_row is not None:
        # The sentences about the run come first, because a run measures more texts. They also quote the lift,
        # the only measure of the area "similarity", which is therefore left out of the list of areas.
        strongest.pop("similarity", None)
        listed = f": {'; '.join(strongest.values())}" if strongest else ""
        return (
            f"{subject}: {_quote_run(run_row, lift)} Beyond the interval of {benign_tokens}: "
            f"{len(differences)} of {measure_count} measures{listed}."
        )
    if not differences and benign < ENOUGH_BENIGN:
        return (
            f"{subject}: {benign_tokens} are too few to say whether it differs ({ENOUGH_BENIGN} are needed)"
            f"{_describe_lift(rows)}."
        )
    clauses = list(strongest.values())
    if "similarity" not in strongest and lift is not None:
        # A lift inside the benign interval is quoted too, with the interval of its difference from the lift
        # of benign tokens, because the token may still have a larger lift than they.
        clauses.insert(
            0,
            f"over {counted(lift['carriers'], 'text')}, the {_LIFT_IN_WORDS} is {lift['value']:.3f} (mean of "
            f"{lift['benign_tokens']} benign tokens {lift['benign_mean']:.3f}), and "
            f"{_describe_interval(lift)}",
        )
    if not differences:
        none_outside = f"none of {measure_count} measures is outside the interval of {benign_tokens}"
        return f"{subject}: {'; '.join([none_outside, *clauses])}."
    return (
        f"{subject} differs from {benign_tokens} in {len(differences)} of {measure_count} measures: "
        f"{'; '.join(clauses)}."
    )


def _describe_strongest(rows: Sequence[dict[str, Any]], differences: Sequence[Finding]) -> dict[str, str]:
    # Returns the strongest finding of each area in words, keyed by area.
    layers = [row["layer"] for row in rows if row["layer"] is not None]
    last_layer = max(layers, default=None)
    strongest: dict[str, str] = {}  # keyed by area; the first finding of an area is its strongest
    for finding in sorted(differences, key=lambda finding: _AREA_ORDER.index(finding.area)):
        strongest.setdefault(finding.area, _describe_finding(finding, last_layer))
    return strongest


def _find_lift_beside_benign(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    # Returns the row of the lift, if it is known for the token and for benign tokens.
    for row in rows:
        # "outside" is None unless the lifts of the token and of benign tokens are known.
        if row["measure"] == _LIFT and row["outside"] is not None:
            return row
    return None


def _describe_lift(rows: Sequence[dict[str, Any]]) -> str:
    for row in rows:
        if row["measure"] == _LIFT and row["value"] is not None:
            mean = f"mean of the benign tokens {row['benign_mean']:.3f}"
            return f"; the {_LIFT_IN_WORDS} is {row['value']:.3f} ({mean})"
    return ""


def _quote_run(run_row: Mapping[str, Any], lift: Mapping[str, Any] | None) -> str:
    # Returns sentences that quote a run's verdict on a token, and the lift measured here. They aren't
    # compared, because the verdict rests on documents, about which lifts between sentences say nothing.
    run_verdict = run_row.get("verdict")
    severity = f" ({run_row['severity']})" if run_row.get("severity") else ""
    numbers = _quote_numbers(run_row)
    listed = f": {', '.join(numbers)}" if numbers else ""
    quoted = f"the run calls it {run_verdict}{severity}{listed}."
    if lift is None:
        return quoted
    distance = "" if lift["deviations"] is None else f", {lift['deviations']:+.1f} SD"
    return (
        f"{quoted} Over {counted(lift['carriers'], 'text')}, the {_LIFT_IN_WORDS} is {lift['value']:.3f} "
        f"(benign tokens {lift['benign_mean']:.3f}{distance}); the run's verdict rests on other measures."
    )


def _quote_numbers(run_row: Mapping[str, Any]) -> list[str]:
    numbers = []
    if run_row.get("erased") is not None:
        numbers.append(f"{percent(run_row['erased'])} erased")
    if run_row.get("push") is not None:
        numbers.append(f"push {PUSH.text(run_row['push'])}")
    if run_row.get("texts"):
        numbers.append(f"over {counted(run_row['texts'], 'text')}")
    return numbers


def _describe_interval(lift: Mapping[str, Any]) -> str:
    # Only for a lift within the interval of benign tokens, so that its difference from their lift may be
    # zero.
    low = lift["value"] - lift["benign_high"]
    high = lift["value"] - lift["benign_low"]
    return f"the interval of the difference, {low:+.3f} to {high:+.3f}, includes zero"


def _describe_finding(finding: Finding, last_layer: int | None) -> str:
    # ``last_layer`` is None only if no finding begins in a layer.
    notes = [f"benign {finding.benign_mean:.3f}"]
    if finding.deviations is not None:
        notes.append(f"{finding.deviations:+.1f} SD")
    if finding.begins is not None:
        begins = "at the embeddings" if finding.begins == 0 else f"in layer {finding.begins} of {last_layer}"
        notes.append(f"begins {begins}")
        if finding.layer != finding.begins:
            notes.append(f"furthest in layer {finding.layer}")
    return f"{finding.called} {finding.value:.3f} ({', '.join(notes)})"


TABLES = tuple(files.TABLE_SCHEMAS)


class Explanation:
    """Explains how tokens differ from benign tokens inside a model.

    Args:
        contents: Explanations of tokens, made with the same model, settings and texts.

    Attributes:
        model: Name of the model, as the user gave it.
        tokens: The explained tokens, in the order requested.
        measures: One row per token, measure and layer: the value with its interval, and the benign interval.
        heads: Attention that the copies receive, one row per token, layer and head. Rows without a head are
            means over the heads of a layer.
        pairs: The pairs whose similarity was attributed, one row per pair.
        attribution: The similarity matrices of the pairs in ``pairs``, one row per cell.
        benign: The benign tokens, one row per token and benign token.
        neighbours: The nearest rows of the embedding matrix, one row per token and neighbour.
        vocabulary: Statistics of the embedding matrix; empty if the model does not expose the matrix.
        notes: What could not be measured and why, and other limits of the results.
        settings: Settings of the explanation.
        carriers: Number of texts to which copies were added.
        source: Where the carriers come from, for display.
        pooling: Name of the model's pooling; None if unknown.
        contents: Record and tables of each token, keyed by token id.

    Examples:
        >>> settings = stickytoken.ExplainSettings(carriers=3, benign=3, attribution=False)
        >>> explanation = stickytoken.explain(model, ["[CLS]"], texts=documents[:3], settings=settings)
        >>> explanation.document()["model"]
        'all-MiniLM-L6-v2'
    """

    def __init__(self, contents: Sequence[StoredExplanation]) -> None:
        first = contents[0].record
        self.model = first.model
        self.pooling = first.pooling
        self.vocabulary = first.vocabulary
        self.carriers = first.carriers
        self.source = first.source
        setting_names = {field.name for field in fields(ExplainSettings)}
        # A later version may have written more settings.
        settings = {name: value for name, value in first.settings.items() if name in setting_names}
        self.settings = ExplainSettings(**settings)
        self.tokens = tuple(content.token for content in contents)
        self.notes = tuple(dict.fromkeys(note for content in contents for note in content.record.notes))
        self.contents = {content.token.token_id: content for content in contents}

        def joined(name: str) -> pl.DataFrame:
            return pl.concat([content.tables[name] for content in contents])

        self.measures = joined("measures")
        self.heads = joined("heads")
        self.pairs = joined("pairs")
        self.attribution = joined("attribution")
        self.benign = joined("benign")
        self.neighbours = joined("neighbours")

    def __repr__(self) -> str:
        return f"<Explanation: {self.model}, tokens: {len(self.tokens)}, carriers: {self.carriers}>"

    def of_token(self, token_id: int) -> dict[str, pl.DataFrame]:
        """Return all tables of one token, keyed by name."""
        return {name: getattr(self, name).filter(token_id=token_id) for name in TABLES}

    def document(self) -> dict[str, Any]:
        """Return the explanations of all tokens as JSON values, without the attribution matrices."""
        record = next(iter(self.contents.values())).record
        shared = record.model_dump(exclude={"identity", "identity_parts", "notes", "tokens", "versions"})
        tokens = [token.model_dump() for token in self.tokens]
        return shared | {"notes": list(self.notes), "tokens": tokens}

    def write(self, folder: str | Path) -> list[Path]:
        """Write one folder per token: explanation.json, and a Parquet file per table.

        Args:
            folder: The folder for the results. Each token gets a subfolder, named after the token's id. A
                subfolder that already holds the same explanation is not written again.

        Returns:
            The folders, in the order of the tokens.

        Raises:
            RunError: A folder holds another explanation or other files, or cannot be written.
        """
        token_folders = []
        for token_id, content in self.contents.items():
            token_folder = file_path("folder", folder) / str(token_id)
            # `load_or_explain` writes what this function returns, unless the folder already holds it.
            return_content = partial(_return_explanation, content)
            files.load_or_explain(token_folder, content.record.identity_parts, return_content)
            token_folders.append(token_folder)
        return token_folders


def _return_explanation(explanation: StoredExplanation, folder: ResultFolder) -> StoredExplanation:
    del folder  # where an explanation that is still to be computed would keep its shards
    return explanation
