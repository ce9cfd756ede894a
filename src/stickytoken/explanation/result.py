"""An explanation in words and as an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from stickytoken.errors import InputError
from stickytoken.explanation import files
from stickytoken.explanation.files import Finding, StoredExplanation
from stickytoken.explanation.measuring import ExplainSettings
from stickytoken.methods import Verdict, wording

_WORDS = {name: words for measures in files.AREAS.values() for name, words in measures.items()}
_LIFT = "lift_sentences"
# With fewer benign tokens, an interval is so wide that a token inside it may still differ by several standard
# deviations in any measure.
ENOUGH_BENIGN = 8
# The effect comes first, then its possible causes in the order of the model.
_ORDER = ("similarity", "embedding", "attention", "hidden states", "pooling", "attribution")
# Columns of tokens.parquet that a verdict quotes. `texts` is the number of texts behind the numbers.
OF_RUN = ("verdict", "severity", "erased", "lift_sd", "kinds_lifted", "strongest_kind", "texts")


def findings(rows: Sequence[dict[str, Any]]) -> list[Finding]:
    found = []
    for area, measures in files.AREAS.items():
        of_area = []
        for name, words in measures.items():
            outside = [row for row in rows if row["measure"] == name and row["outside"]]
            if outside:
                furthest = max(outside, key=lambda row: (abs(row["deviations"] or 0.0), -(row["layer"] or 0)))
                own = {key: furthest[key] for key in ("layer", "value", "benign_mean", "deviations")}
                begins = min((row["layer"] for row in outside if row["layer"] is not None), default=None)
                of_area.append(Finding(area=area, measure=name, begins=begins, called=words, **own))
        found += sorted(of_area, key=lambda each: -abs(each.deviations or 0.0))
    return found


def verdict(
    token: str,
    token_id: int,
    rows: Sequence[dict[str, Any]],
    found: Sequence[Finding],
    benign: int,
    run: Mapping[str, Any] | None = None,
) -> str:
    last_layer = max((row["layer"] for row in rows if row["layer"] is not None), default=None)
    measures = len({row["measure"] for row in rows})
    who, against = f"{token!r} ({token_id})", f"{benign} matched benign tokens"
    strongest: dict[str, str] = {}
    for each in sorted(found, key=lambda each: _ORDER.index(each.area)):
        strongest.setdefault(each.area, _described(each, last_layer))
    lifts = [row for row in rows if row["measure"] == _LIFT]
    # The lift may be missing, or have no benign tokens to be compared with.
    lift = next((row for row in lifts if row["outside"] is not None), None)
    if run is not None:  # it comes first, for it rests on more texts
        strongest.pop("similarity", None)
        listed = f": {'; '.join(strongest.values())}" if strongest else ""
        return (
            f"{who}: {_beside_run(run, lift)} Beyond the interval of {against}: {len(found)} of {measures} "
            f"measures{listed}."
        )
    if not found and benign < ENOUGH_BENIGN:
        measured = "".join(
            f"; the {_WORDS[_LIFT]} is {row['value']:.3f} "
            f"(mean of the benign tokens {row['benign_mean']:.3f})"
            for row in lifts
            if row["value"] is not None
        )
        return (
            f"{who}: {against} are too few to say whether it differs ({ENOUGH_BENIGN} are needed){measured}."
        )
    parts = list(strongest.values())
    if "similarity" not in strongest and lift is not None:
        # A lift inside the benign interval is no evidence that the token has none.
        parts.insert(
            0,
            f"over {_texts(lift['carriers'])}, the {_WORDS[_LIFT]} is {lift['value']:.3f} (mean of "
            f"{lift['benign_tokens']} benign tokens {lift['benign_mean']:.3f}), and {_includes_zero(lift)}",
        )
    if not found:
        parts.insert(0, f"{who}: none of {measures} measures is outside the interval of {against}")
        return "; ".join(parts) + "."
    return f"{who} differs from {against} in {len(found)} of {measures} measures: {'; '.join(parts)}."


def _beside_run(run: Mapping[str, Any], lift: Mapping[str, Any] | None) -> str:
    called, severity = run.get("verdict"), run.get("severity")
    quoted = f"the run calls it {called}" + (f" ({severity})" if severity else "")
    numbers = []
    if run.get("erased") is not None:
        numbers.append(f"{wording.percent(run['erased'])} erased")
    if run.get("lift_sd") is not None:
        numbers.append(f"lift {wording.in_sd(run['lift_sd'])}")
    if run.get("texts"):
        numbers.append(f"over {_texts(run['texts'])}")
    if called == Verdict.TOPICAL and run.get("strongest_kind") is not None:
        numbers.append(f"most on {run['strongest_kind']}")
    quoted += f": {', '.join(numbers)}." if numbers else "."
    if lift is None:
        return quoted
    value, mean = lift["value"], lift["benign_mean"]
    distance = "" if lift["deviations"] is None else f", {lift['deviations']:+.1f} SD"
    quoted += (
        f" Over {_texts(lift['carriers'])}, the {_WORDS[_LIFT]} is {value:.3f} (benign tokens {mean:.3f}"
    )
    quoted += f"{distance})"
    rises = bool(lift["outside"]) and value > mean
    if rises == (called != Verdict.BENIGN):
        return f"{quoted}, consistent with the run."
    if lift["outside"]:
        return f"{quoted}: too few texts and benign tokens to question the run."
    return f"{quoted}; {_includes_zero(lift)}: too few texts and benign tokens to say."


def _includes_zero(lift: Mapping[str, Any]) -> str:
    low, high = lift["value"] - lift["benign_high"], lift["value"] - lift["benign_low"]
    return f"the interval of the difference, {low:+.3f} to {high:+.3f}, includes zero"


def _texts(count: int) -> str:
    return "1 text" if count == 1 else f"{count} texts"


def _described(finding: Finding, last_layer: int | None) -> str:
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
    """Why tokens stick, or that they do not.

    Args:
        contents: explanations of tokens that share model, settings and texts.

    Attributes:
        model: name given by the user.
        tokens: explained tokens in the order requested.
        measures: one row per token, measure and layer: the value with its interval, and the benign interval.
        heads: attention that the copies receive, one row per token, layer and head; rows without a head are
            means over heads.
        pairs: pairs whose similarity was attributed.
        attribution: matrices of these pairs, one row per cell.
        benign: benign tokens of each token.
        neighbours: nearest rows of the embedding matrix.
        vocabulary: geometry of the embedding matrix; empty if the model does not expose it.
        notes: what could not be measured, and why.
        settings: settings of the explanation.
        carriers: number of texts that copies were added to.
        source: where these texts come from.
        pooling: pooling of the model; None if unknown.
        contents: record and tables of each token, by token id.
    """

    def __init__(self, contents: Sequence[StoredExplanation]) -> None:
        first = contents[0].record
        self.model, self.pooling, self.vocabulary = first.model, first.pooling, first.vocabulary
        self.carriers, self.source = first.carriers, first.source
        known = ExplainSettings.__dataclass_fields__  # a later version may have written more
        self.settings = ExplainSettings(**{k: v for k, v in first.settings.items() if k in known})
        self.tokens = tuple(content.token for content in contents)
        self.notes = tuple(dict.fromkeys(note for content in contents for note in content.record.notes))
        self.contents = {content.token.token_id: content for content in contents}
        tables = {name: pl.concat([content.tables[name] for content in contents]) for name in TABLES}
        self.measures, self.heads, self.benign = tables["measures"], tables["heads"], tables["benign"]
        self.pairs, self.attribution = tables["pairs"], tables["attribution"]
        self.neighbours = tables["neighbours"]

    def __repr__(self) -> str:
        return f"<Explanation: {self.model}, tokens: {len(self.tokens)}, carriers: {self.carriers}>"

    def of_token(self, token_id: int) -> dict[str, pl.DataFrame]:
        """Return all tables of one token, by name."""
        return {name: getattr(self, name).filter(token_id=token_id) for name in TABLES}

    @property
    def parts(self) -> dict[int, dict[str, Any]]:
        """Everything that can change the numbers, by token id."""
        return {token_id: each.record.identity_parts for token_id, each in self.contents.items()}

    def document(self) -> dict[str, Any]:
        """Return JSON values of all tokens; matrices are only in the tables."""
        record = next(iter(self.contents.values())).record
        shared = record.model_dump(exclude={"identity", "identity_parts", "notes", "tokens", "versions"})
        tokens = [each.model_dump() for each in self.tokens]
        return shared | {"notes": list(self.notes), "tokens": tokens}

    def content(self, token_id: int) -> StoredExplanation:
        """Return one token in the form in which `read_explanation` reads it back.

        Raises:
            InputError: the token was not explained.
        """
        if token_id not in self.contents:
            explained = ", ".join(map(str, self.contents))
            raise InputError(f"token id {token_id} was not explained: ask for one of {explained}")
        return self.contents[token_id]

    def write(self, folder: str | Path) -> list[Path]:
        """Write one folder per token: explanation.json, and a Parquet file per table.

        Args:
            folder: folder that gets one folder per token, named by id. A folder that already holds the same
                explanation is left as it is.

        Returns:
            The folders, in the order of the tokens.

        Raises:
            RunError: a folder holds another explanation or something else, or cannot be written.
        """
        folders = {token_id: Path(folder).expanduser() / str(token_id) for token_id in self.contents}
        for token_id, content in self.contents.items():
            parts = content.record.identity_parts
            files.stored_explanation(folders[token_id], parts, lambda _, content=content: content)  # type: ignore[misc]
        return list(folders.values())
