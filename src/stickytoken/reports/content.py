"""Read everything a report shows from a run folder, and say it; what is absent is listed as missing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from stickytoken.comparisons import rule_lines, short_headline, shown_interval, tone_of
from stickytoken.detection.run import NextStep, Run, next_steps, open_run
from stickytoken.detection.run_folder import RunEvidence, RunFolder, RunRecord, is_flagged, read_evidence
from stickytoken.errors import InputError, RunError
from stickytoken.explanation import files
from stickytoken.impacts.results import Impact, impacts_in
from stickytoken.measurement import PLAN_FILE, VOCABULARY_FILE
from stickytoken.measurement.resume import differences
from stickytoken.methods import Column, Distribution, Fact, Scatter, wording
from stickytoken.methods.base import AnyMethod, PlanRecord, StoredSettings
from stickytoken.methods.registry import method_named
from stickytoken.repairs.documents import mean_curves
from stickytoken.repairs.result import RepairRecord, last_verified, repairs_in, token_rows
from stickytoken.reports.figures import DataTable, ReportFigure, effects, run as run_figures
from stickytoken.reports.figures.explanation import explanation_figures
from stickytoken.reports.templating import number, plain
from stickytoken.scanning import scan as scans
from stickytoken.vocabulary import kind_of, script_of, word_mark

_UNFINISHED = (
    "This run is not finished, so there are no verdicts yet. Run the same `stickytoken detect` command "
    "again to continue it."
)
_WITHOUT_EVIDENCE = (
    "This run was made without symptom curves and example pairs. Run the same `stickytoken detect` "
    "command again to add them; nothing else is recomputed."
)


@dataclass(frozen=True)
class RunContent:
    path: Path  # the run folder
    record: RunRecord  # run.json
    plan: PlanRecord | None  # plan.json; None if it is not written yet
    vocabulary: pl.DataFrame | None  # the vocabulary with its categories; None if it is not written yet
    run: Run | None = None  # the finished run; None if it is unfinished
    # tokens.parquet with entry, script, length and position; empty if it is unfinished
    tokens: pl.DataFrame = field(default_factory=pl.DataFrame)
    evidence: RunEvidence | None = None  # curves and pairs; None if they were not kept
    # Number of tokens with committed results, by stage; only of an unfinished run
    measured: dict[str, int] = field(default_factory=dict)
    explanations: tuple[files.StoredExplanation, ...] = ()  # of tokens; empty if the run is unfinished
    impacts: tuple[Impact, ...] = ()  # finished measurements in the run folder, the latest first
    scans: tuple[scans.Scan, ...] = ()  # finished scans in the run folder, the latest first
    repairs: tuple[RepairRecord, ...] = ()  # of the model of the run, the latest first
    missing: tuple[str, ...] = ()  # what is absent or cannot be shown, one sentence each

    @property
    def flagged(self) -> pl.DataFrame:
        if self.run is None:
            return self.tokens
        others = self.tokens.filter(is_flagged() & (pl.col("verdict") != "sticky"))
        ranked = others.sort(self.method.ranked_by.key, "token_id", descending=[True, False])
        return pl.concat([self.sticky, ranked])

    @property
    def sticky(self) -> pl.DataFrame:
        if self.run is None:
            return self.tokens
        sticky = self.run.sticky.select("token_id").join(self.tokens, on="token_id", maintain_order="left")
        return sticky.select(self.tokens.columns)

    @property
    def method(self) -> AnyMethod:
        return method_named(self.record.method)

    @property
    def settings(self) -> StoredSettings:
        return RunFolder(self.path).settings_of(self.record)

    @property
    def confidence(self) -> str | None:
        """Coverage of the intervals in percent; None where the method has none."""
        scale = None if self.run is None else self.method.scale(self.run)
        return None if scale is None else f"{100 * scale.confidence:.4g}"


def read_content(path: str | Path, explanations: Path | None = None) -> RunContent:
    folder = RunFolder(Path(path).expanduser())
    if not folder.exists():
        raise RunError(f"no run folder {str(path)!r}")
    record = folder.read_run()
    vocabulary = None
    if (folder.path / VOCABULARY_FILE).is_file():
        vocabulary = folder.read_table(VOCABULARY_FILE, ("token_id", "token", "decoded", "category"))
    impacts, no_impacts = impacts_in(folder.path)
    scanned, no_scans = scans.scans_in(folder.path)
    repairs, no_repairs = repairs_in(folder.path)
    unfinished = RunContent(
        folder.path, record, None, vocabulary, impacts=impacts, scans=scanned, repairs=repairs
    )
    if record.result is None:
        return replace(
            unfinished,
            plan=folder.read_record(PLAN_FILE, method_named(record.method).plan_record),
            measured=folder.committed(),
            missing=(_UNFINISHED,),
        )
    run = open_run(folder.path)
    evidence = read_evidence(folder)
    found, not_shown = _explanations(run, explanations)
    absent = () if evidence else (_WITHOUT_EVIDENCE,)
    # What the entries are: their position is the share of the vocabulary before them.
    whole = run.tokens if vocabulary is None else vocabulary
    mark = word_mark(whole["token"].drop_nulls())
    ranks = whole.select("token_id").sort("token_id").with_row_index("rank")
    entries = [
        (kind_of(token or "", decoded or "", category or "", mark).value, script_of(decoded or ""))
        for token, decoded, category in run.tokens.select("token", "decoded", "category").iter_rows()
    ]
    lengths = [len((decoded or "").strip()) for decoded in run.tokens["decoded"]]
    tokens = run.tokens.join(ranks, on="token_id", how="left").with_columns(
        entry=pl.Series([kind for kind, _ in entries], dtype=pl.String),
        script=pl.Series([script for _, script in entries], dtype=pl.String),
        length=pl.Series(lengths, dtype=pl.Int64),
        position=pl.col("rank") / max(1, len(whole) - 1),
    )
    return replace(
        unfinished,
        plan=run.plan,
        run=run,
        tokens=tokens.drop("rank"),
        evidence=evidence,
        explanations=tuple(found),
        missing=(*absent, *not_shown, *no_impacts, *no_scans, *no_repairs),
    )


def _explanations(run: Run, asked: Path | None) -> tuple[list[files.StoredExplanation], list[str]]:
    folders = files.explanation_folders(run.path / files.EXPLANATIONS_FOLDER if asked is None else asked)
    if asked is not None and not folders:
        raise InputError(f"{asked} contains no explanation: pass the folder that explain --out wrote to")
    names = dict(run.tokens.select("token_id", "token").iter_rows())
    found: list[files.StoredExplanation] = []
    unread: list[str] = []
    for folder in folders:
        try:
            explanation = files.read_explanation(folder)
            own, other = (each.identity_parts.get("encoder") for each in (run.record, explanation.record))
            other = other if isinstance(other, dict) else {}
            if isinstance(own, dict) and (parts := differences(own, other)):
                raise RunError(
                    f"{folder} explains another model, not that of the run (they differ in "
                    f"{', '.join(parts)}): run explain with the model of the run"
                )
            token_id, token = explanation.token.token_id, explanation.token.token
            if names.get(token_id, token) != token:
                raise RunError(
                    f"{folder} explains the token {token!r}, and the run's token {token_id} is "
                    f"{names[token_id]!r}: it belongs to another model"
                )
            found.append(explanation)
        except RunError as error:
            if asked is not None:
                raise
            unread.append(f"An explanation is not shown: {error}.")
    return found, unread


MOST_CARDS = 12
"""Sticky tokens with a card of their own."""
FIRST_CARDS = 3
"""Cards that stand before what to do."""
# Tokens below the thresholds that are listed, as in a terminal.
_STRONGEST = 8


def headline(content: RunContent) -> str:
    if content.run is None:
        # Stages overlap, and beside a selection of tokens random ones are measured.
        measured = min(max(content.measured.values(), default=0), content.record.tokens)
        return (
            f"{content.record.model.title}: not finished, {measured:,} of {content.record.tokens:,} tokens "
            "have been measured so far."
        )
    return short_headline(content.run)


def tone(content: RunContent) -> str:
    return "unknown" if content.run is None else tone_of(content.sticky)


def key_facts(content: RunContent) -> list[Fact]:
    if content.run is None:
        return [
            Fact(f"{count:,}", f"tokens measured in the stage {stage}")
            for stage, count in content.measured.items()
        ]
    examined, available = len(content.tokens), content.record.model.available
    scope = f"{examined:,} tokens examined ({available:,} can appear in text)"
    if examined == available:
        scope = f"all {available:,} tokens that can appear in text"
    count = Fact(f"{len(content.sticky):,}", f"sticky, of {scope}")
    return [count, *content.method.key_facts(content.run)]


def rule(content: RunContent) -> list[str]:
    """Return the rule of the run and remarks on it, one sentence or two each."""
    return [] if content.run is None else rule_lines(content.run)


def rank_in_a_search(content: RunContent) -> str | None:
    """Say what the largest lift of the tokens with evidence means for the rank of an unrelated document."""
    if content.run is None or content.evidence is None or "lift_sd" not in content.tokens.columns:
        return None
    measured = content.evidence.tokens.filter(~pl.col("ordinary"))["token_id"]
    rows = content.tokens.filter(pl.col("token_id").is_in(measured.implode()), pl.col("lift_sd") > 0)
    if rows.is_empty():
        return None
    row = rows.sort("lift_sd", "token_id", descending=[True, False]).row(0, named=True)
    moved = content.evidence.moved(row["token_id"])
    return None if moved is None else wording.rank_in_a_search(row["token"], row["lift_sd"], moved)


@dataclass(frozen=True)
class ShownTable:
    """Tokens as a table of text."""

    title: str
    table: DataTable


def strongest_rows(content: RunContent) -> list[dict[str, Any]]:
    """Return the rows of the tokens that stand out most without being flagged."""
    return [] if content.run is None else content.run.strongest(_STRONGEST).to_dicts()


def strongest(content: RunContent) -> ShownTable | None:
    """Lay out the tokens that stand out most without being flagged; None if there are none."""
    if content.run is None:
        return None
    rows = content.run.strongest(_STRONGEST)
    if rows.is_empty():
        return None
    return ShownTable(_strongest_title(content, rows), token_table(content, rows))


def _strongest_title(content: RunContent, rows: pl.DataFrame) -> str:
    """Name the thresholds in the title of the strongest tokens, where the method has some."""
    numbers = content.settings.number
    if "lift_sd" in rows.columns:
        limits = f"{wording.percent(numbers('smallest_erased'))}, {wording.in_sd(numbers('smallest_lift'))}"
        return f"Strongest tokens below the thresholds ({limits})"
    return "Tokens that come next"


def token_table(content: RunContent, rows: pl.DataFrame) -> DataTable:
    """Lay out rows of tokens as the answer in a terminal does."""
    if content.run is None:
        return DataTable()
    answer = content.method.answer_table(content.run, rows)
    if answer is None:
        columns = (Column("token", "token"), *content.run.listed(rows), Column("verdict", "verdict"))
        table = rows
    else:
        columns = answer.columns
        table = answer.rows
    columns = tuple(column for column in columns if _has_values(table, column))
    titles = [column.title for column in columns]
    cells = [[column.text(row[column.key]) for column in columns] for row in table.iter_rows(named=True)]
    return DataTable(titles, cells)


def _has_values(table: pl.DataFrame, column: Column) -> bool:
    """Say whether any row has something to show in a column."""
    values = table[column.key].drop_nulls()
    return not values.is_empty() and not (values.dtype == pl.String and (values == "").all())


def steps(content: RunContent) -> tuple[NextStep, ...]:
    return () if content.run is None else next_steps(content.run, last_verified(content.repairs))


# Only the latest measurements and repairs are shown.
MOST_IMPACTS, MOST_REPAIRS = 3, 2
_STATES = {True: "verified", False: "NOT VERIFIED", None: "not verified: the verification was switched off"}


def notes(content: RunContent) -> list[str]:
    if content.run is None:
        return list(content.missing)
    found = []
    if len(content.tokens) < content.record.model.available:
        found.append(
            f"only {len(content.tokens):,} of {content.record.model.available:,} available tokens were "
            "examined: the others may be sticky too"
        )
    if not content.method.measures_lift and not len(content.sticky):
        found.append(
            f"the method {content.record.method} puts no tokens into texts, so it cannot tell whether any "
            "changes what a text means"
        )
    found += [*content.method.notes(content.run), *content.missing]
    impacts, repairs = content.impacts, content.repairs
    for impact in impacts[:MOST_IMPACTS]:
        found += [f"impact: {name} was not measured: {reason}" for name, reason in impact.failed.items()]
    if len(impacts) > MOST_IMPACTS:
        found.append(
            f"only the latest {MOST_IMPACTS} of {len(impacts)} impact measurements "
            "in the run folder are shown"
        )
    for record in repairs[:MOST_REPAIRS]:
        checks = [] if record.verification is None else record.verification.checks
        failed = [check for check in checks if not check.passed]
        start = f"repair {record.identity[:12]}"
        found += [f"{start}: {check.name} FAILED: {check.finding}" for check in failed]
    if len(repairs) > MOST_REPAIRS:
        found.append(f"only the latest {MOST_REPAIRS} of {len(repairs)} repairs are shown")
    return found


def run_details(content: RunContent) -> dict[str, dict[str, Any]]:
    record = content.record
    model = record.model.model_dump()
    if loading := model.get("loading"):  # only what was set
        model["loading"] = {name: value for name, value in loading.items() if value not in (None, "", False)}
    encoder = record.identity_parts.get("encoder")
    groups: dict[str, dict[str, Any]] = {
        "model": model | (encoder if isinstance(encoder, dict) else {}),
        "corpus": record.corpus.model_dump(),
        "result": {} if record.result is None else record.result.model_dump(),
        "settings": dict(record.settings),
        "plan": {} if content.plan is None else content.method.plan_facts(content.plan),
        "vocabulary": (
            {} if content.vocabulary is None else dict(Counter(content.vocabulary["category"]).most_common())
        ),
        "versions": dict(record.versions),
        "hardware": dict(record.hardware),
        "run": {
            "folder": str(content.path),
            "identity": record.identity,
            "started": record.started,
            "schema version": record.schema_version,
            "method": record.method,
        },
    }
    if content.evidence is not None:
        evidence = content.evidence.record
        groups["pictures"] = evidence.model_dump(mode="json", exclude={"carriers"}) | {
            "carriers": len(evidence.carriers)
        }
    for impact in content.impacts[:MOST_IMPACTS]:
        kinds = {
            f"{kind} tokens": [each.token for each in impact.record.tokens if each.kind == kind]
            for kind in ("sticky", "named", "benign")
        }
        groups[f"impact {impact.path.name}"] = {
            **impact.record.settings,
            **{kind: tokens for kind, tokens in kinds.items() if tokens},
            "texts": impact.result.sequences,
            "seconds": impact.result.seconds,
            **{f"texts cut, {task.name}": task.cut for task in impact.result.tasks if task.cut},
        }
    for repair in content.repairs[:MOST_REPAIRS]:
        groups[f"repair {repair.identity[:12]}"] = {
            "state": _STATES[repair.verified],
            "strategy": repair.strategy,
            "tokens": len(repair.tokens),
            **_repair_checks(repair),
            "seconds": repair.seconds,
            "started": repair.started,
        }
    return {name: values for name, values in groups.items() if values}


def _repair_checks(record: RepairRecord) -> dict[str, str]:
    checks = [] if record.verification is None else record.verification.checks
    return {check.name: f"{'' if check.passed else 'FAILED: '}{check.finding}" for check in checks}


def columns(content: RunContent) -> tuple[Column, ...]:
    first = (Column("token", "token"), Column("verdict", "verdict"))
    last = (Column("entry", "entry"), Column("script", "script"), Column("token_id", "id"))
    return (*first, *content.method.reported, *last)


def rows_of(content: RunContent, tokens: pl.DataFrame) -> list[dict[str, Any]]:
    """Return rows of the table of tokens; none of an unfinished run."""
    return [] if content.run is None else tokens.to_dicts()


@dataclass(frozen=True)
class Strip:
    """An interval on a scale that all cards share; places in percent of its width."""

    low: float
    value: float
    high: float
    ordinary: float  # the place of an ordinary token
    threshold: float


@dataclass(frozen=True)
class CardMeasure:
    """A number of a token as its card shows it."""

    title: str
    value: str
    interval: str  # empty without one
    threshold: str  # from which value on the token is what, such as ``sticky from 40%``; empty without one
    strip: Strip | None  # None without an interval or a threshold


@dataclass(frozen=True)
class Card:
    row: dict[str, Any]  # of the table of tokens
    consequences: list[str]  # what its copies do in a search; empty for a token that is not flagged
    measures: list[CardMeasure]  # the erased share first
    # What it did to pairs of texts, the typical and the largest change: which of them, anchor, carrier,
    # copies, similarity before and after; empty if the run holds none, or if the token is not about lift
    pairs: list[dict[str, Any]]


def cards(content: RunContent, tokens: pl.DataFrame | None = None) -> list[Card]:
    """Make the cards of some tokens, or of the worst sticky ones."""
    run = content.run
    if run is None:
        return []
    rows = rows_of(content, content.sticky.head(MOST_CARDS) if tokens is None else tokens)
    pairs = _pairs_by_token(content)
    scales = {column.key: _Scale.of(content, column, rows) for column in content.method.listed}
    made = []
    for row in rows:
        thresholds = content.method.thresholds(run, row)
        harm = None if content.evidence is None else content.evidence.harm(row["token_id"])
        is_graded = row.get("severity") is not None
        measures = []
        for column in content.method.listed:
            if column.digits is None or row.get(column.key) is None:
                continue
            # The card of a flagged token compares only those numbers with a threshold that reach it.
            is_compared = not is_graded or wording.reaches(row, column.key, thresholds)
            threshold = thresholds.get(column.key) if is_compared else None
            measures.append(_card_measure(row, column, threshold, scales[column.key]))
        # Pairs show a lift. A token that is flagged for what it erases may lift nothing.
        shows_lift = not is_graded or wording.reaches(row, "lift_sd", thresholds)
        own_pairs = pairs.get(row["token_id"], []) if shows_lift else []
        made.append(Card(row, wording.consequences(row, thresholds, harm), measures, own_pairs))
    return made


def _pairs_by_token(content: RunContent) -> dict[int, list[dict[str, Any]]]:
    """Collect the pairs of texts that the run keeps, by token."""
    if content.evidence is None:
        return {}
    pairs: dict[int, list[dict[str, Any]]] = {}
    for row in content.evidence.tokens.to_dicts():
        pairs[row["token_id"]] = [
            {
                "which": which,
                "anchor": row[f"{which}_anchor"],
                "carrier": row[f"{which}_carrier"],
                "copies": content.evidence.record.pair_copies,
                "before": row[f"{which}_before"],
                "after": row[f"{which}_after"],
            }
            for which in ("typical", "largest")
            if row[f"{which}_before"] is not None
        ]
    return pairs


@dataclass(frozen=True)
class _Scale:
    """The range of a measure over all cards."""

    start: float
    end: float

    @classmethod
    def of(cls, content: RunContent, column: Column, rows: list[dict[str, Any]]) -> _Scale:
        """Find the range of a measure's intervals; it includes the ordinary token and the threshold."""
        values = [0.0]
        for row in rows:
            ends = (row.get(f"{column.key}_low"), row.get(f"{column.key}_high"))
            values += [end for end in ends if end is not None]
            if content.run is not None:
                values += [
                    threshold
                    for key, threshold in content.method.thresholds(content.run, row).items()
                    if key == column.key
                ]
        return cls(min(values), max(values))

    def place(self, value: float) -> float:
        """Return the place of a value in percent, with a margin at both ends."""
        span = self.end - self.start or 1.0
        return round(2 + 96 * (value - self.start) / span, 2)


def _card_measure(row: dict[str, Any], column: Column, threshold: float | None, scale: _Scale) -> CardMeasure:
    """Write a number of a token with its interval; one with a threshold is also drawn."""
    value = row[column.key]
    low = row.get(f"{column.key}_low")
    high = row.get(f"{column.key}_high")
    if low is None or high is None:
        return CardMeasure(column.title, column.text(value), "", "", None)
    interval = shown_interval(column, low, high)
    if threshold is None:
        return CardMeasure(column.title, column.text(value), interval, "", None)
    strip = Strip(
        scale.place(low), scale.place(value), scale.place(high), scale.place(0.0), scale.place(threshold)
    )
    needed = f"sticky from {column.text(threshold)}"
    return CardMeasure(column.title, column.text(value), interval, needed, strip)


def report_figures(content: RunContent) -> list[ReportFigure]:
    if content.run is None:
        return []
    described = content.method.figures(content.run)
    found = [
        run_figures.distribution(content.tokens, each) for each in described if isinstance(each, Distribution)
    ]
    found += curve_figures(content)
    found += [run_figures.scatter(content.tokens, each) for each in described if isinstance(each, Scatter)]
    if len(content.sticky) > MOST_CARDS:  # cards say it of fewer
        found.append(run_figures.composition(content.tokens))
    for place, impact in enumerate(content.impacts[:MOST_IMPACTS]):
        found += effects.impact_figures(impact, f"-{place + 1}" if place else "")
    for place, record in enumerate(content.repairs[:MOST_REPAIRS]):
        suffix = f"-{place + 1}" if place else ""
        state, *findings = (
            f"{text[0].upper()}{text[1:]}."
            for text in (_STATES[record.verified], *_repair_checks(record).values())
        )
        found.append(effects.repaired_tokens(token_rows(record), state, " ".join(findings), suffix))
        if (curves := mean_curves(record)) is not None:
            found.append(
                effects.repair_curves(
                    f"repair-curves{suffix}",
                    "Symptom curves before and after the repair",
                    "Copies of a repaired token are added to one of two unrelated texts; the mean over all "
                    "repaired tokens. After a repair, the curve should follow that of ordinary tokens.",
                    *curves,
                )
            )
    return found


def curves_of(content: RunContent) -> tuple[list[run_figures.Curve], list[run_figures.Curve]]:
    if content.evidence is None:
        return [], []
    verdicts = content.tokens.select("token_id", "verdict")
    named = content.tokens if content.vocabulary is None else content.vocabulary
    names = named.select("token_id", "token").join(verdicts, on="token_id", how="left")
    rows = content.evidence.tokens.join(names, on="token_id", how="left", maintain_order="left").to_dicts()
    found: tuple[list[run_figures.Curve], list[run_figures.Curve]] = ([], [])
    for row in rows:
        curve = {name: row[name] for name in ("token", "verdict", "copies", "below", "above")}
        found[row["ordinary"]].append(curve | {"token": row["token"] or f"id {row['token_id']}"})
    return found


def curve_figures(content: RunContent) -> list[ReportFigure]:
    if content.evidence is None or content.run is None:
        return []
    return [run_figures.symptom_curves(*curves_of(content), content.run.plan.mean_similarity)]


def explained_tokens(content: RunContent) -> list[dict[str, Any]]:
    order = (
        {token_id: place for place, token_id in enumerate(content.flagged["token_id"])} if content.run else {}
    )
    ranked = sorted(
        content.explanations,
        key=lambda each: (order.get(each.token.token_id, len(order)), each.token.token_id),
    )
    found = []
    for place, each in enumerate(ranked):
        lines = []
        for finding in each.token.findings:
            line = f"{finding.called}: {number(finding.value, 3)}, benign {number(finding.benign_mean, 3)}"
            if finding.deviations is not None:
                line += f", {number(finding.deviations, 1)} SD"
            lines.append(line if finding.begins is None else f"{line}, begins in layer {finding.begins}")
        record, token, settings = each.record, each.token, each.record.settings
        found.append(
            {
                "token_id": token.token_id,
                "token": token.token,
                "run_verdict": token.run_verdict,
                "verdict": token.verdict,
                "findings": lines,
                "basis": f"{plain(settings.get('copies'))} copies ({plain(settings.get('placement'))}) in "
                f"{record.carriers} texts of {record.source}, compared with {len(each.tables['benign'])} "
                f"matched benign tokens{'' if token.same_category else ' of other categories'}.",
                "notes": list(record.notes),
                # The page must open on a phone.
                "figures": explanation_figures(each) if place < 4 else [],
            }
        )
    return found


def shown_scans(content: RunContent) -> list[dict[str, Any]]:
    found = []
    for scan in content.scans[:3]:  # the latest
        worst = scan.worst.head(20)
        columns = ["source", "documents", "with findings"]
        sources = [each for each in scan.result.sources if each.found][:20]
        rows: list[list[Any]] = [[each.source or "(none)", each.documents, each.found] for each in sources]
        if scan.result.matter is not None:
            columns.append("that matter")
            rows = [[*row, each.matter] for row, each in zip(rows, sources, strict=True)]
        documents = []
        for row in worst.iter_rows(named=True):
            words = [f"{each['text']} \N{MULTIPLICATION SIGN} {each['copies']}" for each in row["words"]]
            if len(words) > 3:
                words[3:] = ["\N{HORIZONTAL ELLIPSIS}"]
            place, effect = row["path"], ""
            if place is not None and row["line"] is not None:
                place = f"{place}, line {row['line']}"
            if row["effect"] is not None:
                up = "" if row["moves_up"] is None else f", moves up for {row['moves_up']:.0%} of the queries"
                effect = f"effect {number(row['effect'], 2)} SD{up}"
            documents.append(
                {
                    "id": row["id"],
                    "place": place,
                    "found": f"{', '.join(words)}; {row['share']:.0%} of the text",
                    "severity": row["severity"],
                    "effect": effect,
                    "pieces": [(each["text"], each["found"]) for each in row["excerpt"]],
                }
            )
        found.append(
            {
                "name": scan.record.documents,
                "headline": scans.headline(scan),
                "basis": scans.basis(scan),
                "sources": DataTable(columns, rows),
                "documents": documents,
                "more": len(scan.documents) - len(worst),
                "skipped": scan.result.skipped,
            }
        )
    return found
