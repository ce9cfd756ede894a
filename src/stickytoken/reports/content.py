"""Read everything a report shows from a run folder, and say it; what is absent is listed as missing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from stickytoken.comparisons import ComparedRun, deviations, short_headline, tone_of
from stickytoken.detection.run import NextStep, Run, next_steps, open_run
from stickytoken.detection.run_folder import RunEvidence, RunFolder, RunRecord, is_flagged, read_evidence
from stickytoken.errors import InputError, RunError
from stickytoken.explanation import files
from stickytoken.impacts.results import Impact, impacts_in
from stickytoken.measurement import PLAN_FILE, VOCABULARY_FILE
from stickytoken.measurement.resume import differences
from stickytoken.methods import Column, Distribution, Fact, Moved, Scale, Scatter
from stickytoken.methods.base import AnyMethod, PlanRecord, StoredSettings
from stickytoken.methods.registry import method_named
from stickytoken.repairs.documents import mean_curves
from stickytoken.repairs.result import RepairRecord, last_verified, repairs_in, token_rows
from stickytoken.reports.figures import DataTable, ReportFigure, effects, run as run_figures
from stickytoken.reports.figures.explanation import explanation_figures
from stickytoken.reports.templating import number, plain
from stickytoken.scanning import scan as scans
from stickytoken.validation import visible
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
    def scale(self) -> Scale | None:
        return None if self.run is None else self.method.scale(self.run)

    @property
    def confidence(self) -> str | None:
        return None if self.scale is None else f"{100 * self.scale.confidence:.4g}"  # in percent


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
# The least similarity that two digits show.
_LEAST_SHOWN = 0.005


def headline(content: RunContent) -> str:
    if content.run is None:
        # Stages overlap, and beside a selection of tokens random ones are measured.
        measured = min(max(content.measured.values(), default=0), content.record.tokens)
        return (
            f"{content.record.model.name}: not finished, {measured:,} of {content.record.tokens:,} tokens "
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
    of = (
        f"all {available:,} tokens that can appear in text"
        if examined == available
        else f"{examined:,} tokens examined ({available:,} can appear in text)"
    )
    facts = [Fact(f"{len(content.sticky):,}", f"sticky, of {of}"), *content.method.key_facts(content.run)]
    compared = ComparedRun(content.run.model_name, content.run)
    copies, worst, scale = compared.copies, compared.worst, compared.scale
    if copies is None or worst is None or scale is None:
        return facts
    # The few texts of a curve can miss what many texts show: then it has no number to give.
    if copies.enough is not None or (worst.deviations or 0.0) < scale.serious:
        count, token = str(copies), visible(repr(worst.token))
        unit, are = ("copy", "is") if count == "1" else ("copies", "are")
        said = f"{unit} of {token} {are} needed for a serious effect, {scale.serious:g} SD"
        facts.append(Fact(count, said))
    return facts


def meaning(content: RunContent) -> str | None:
    if content.run is None:
        return None
    told = (
        "A sticky token draws texts together: a text that repeats it loses its meaning, becomes more "
        "similar to unrelated texts, and turns up in searches that it has nothing to do with. "
    )
    raised = ""
    worst = _worst_tokens(content).head(1)
    # Of a token that erases texts, a lift too small to be shown says nothing.
    least = _LEAST_SHOWN if len(content.sticky) else 0.0
    if content.scale is not None and len(worst) and worst["lift"][0] > least:
        lift, token = worst["lift"][0], visible(repr(worst["token"][0]))
        by = f"{lift:.2f}" if lift >= _LEAST_SHOWN else "less than 0.01"
        raised = f"copies of {token} raise the cosine similarity of unrelated texts by {by} on average"
    if len(content.sticky):
        return f"{told}This model has such tokens{f': {raised}' if raised else ''}."
    if not content.method.measures_lift:
        method = content.record.method
        return f"{told}The method {method} puts no tokens into texts, so it cannot tell whether any does."
    whole = content.tokens["verdict"].count() == content.record.model.available
    if not whole or not content.method.judges_every_token:
        return f"{told}None of the tokens examined does so enough to matter; the others may."
    most = f": even {raised}. It" if raised else ": it"
    return f"{told}No token of this model does so enough to matter{most} needs no repair."


def reasons(content: RunContent) -> list[dict[str, Any]]:
    return content.sticky.head(3).to_dicts() if "reason" in content.sticky.columns else []


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
    return [] if tokens.is_empty() else tokens.with_columns(sd=deviations(content.scale)).to_dicts()


@dataclass(frozen=True)
class Card:
    row: dict[str, Any]  # of the table of tokens, with ``sd``
    # Its interval on the scale of all cards, in percent: low, value, high and the ordinary token; None if
    # there is no interval
    strip: dict[str, float] | None
    # What it did to pairs of texts, the typical and the largest change: which of them, anchor, carrier,
    # copies, similarity before and after; empty if the run holds none
    pairs: list[dict[str, Any]]
    moved: Moved | None  # what copies do to the rank of a document; None where the run does not keep it


def cards(content: RunContent, tokens: pl.DataFrame | None = None) -> list[Card]:
    rows = rows_of(content, _worst_tokens(content) if tokens is None else tokens)
    pairs: dict[int, list[dict[str, Any]]] = {}
    moved: dict[int, Moved | None] = {}
    if content.evidence is not None:
        copies = content.evidence.record.pair_copies
        for own in content.evidence.tokens.to_dicts():
            pairs[own["token_id"]] = [
                {
                    "which": which,
                    "anchor": own[f"{which}_anchor"],
                    "carrier": own[f"{which}_carrier"],
                    "copies": copies,
                    "before": own[f"{which}_before"],
                    "after": own[f"{which}_after"],
                }
                for which in ("typical", "largest")
                if own[f"{which}_before"] is not None
            ]
            moved[own["token_id"]] = content.evidence.moved(own["token_id"])
    strips: list[dict[str, float] | None] = [None] * len(rows)
    scale = content.scale
    if scale is not None and rows and all(row.get("lift_low") is not None for row in rows):
        low = min(0.0, scale.ordinary, *(row["lift_low"] for row in rows))
        span = float(max(scale.ordinary, *(row["lift_high"] for row in rows)) - low) or 1.0

        def percent(value: float) -> float:
            return round(2 + 96 * float(value - low) / span, 2)

        strips = [
            {
                "low": percent(row["lift_low"]),
                "value": percent(row["lift"]),
                "high": percent(row["lift_high"]),
                "ordinary": percent(scale.ordinary),
            }
            for row in rows
        ]
    return [
        Card(row, strip, pairs.get(row["token_id"], []), moved.get(row["token_id"]))
        for row, strip in zip(rows, strips, strict=True)
    ]


def _worst_tokens(content: RunContent) -> pl.DataFrame:
    if content.run is None:
        return content.tokens
    if len(content.sticky):
        return content.sticky.head(MOST_CARDS)
    ranked = content.method.ranked_by.key
    known = content.tokens.filter(pl.col(ranked).is_not_null())
    return known.sort(ranked, "token_id", descending=[True, False]).head(3)


def report_figures(content: RunContent) -> list[ReportFigure]:
    if content.run is None:
        return []
    described = content.method.figures(content.run)
    found = [
        run_figures.distribution(content.tokens, each) for each in described if isinstance(each, Distribution)
    ]
    found += curve_figures(content)
    found += [run_figures.scatter(content.tokens, each) for each in described if isinstance(each, Scatter)]
    if rows := content.run.by_dimension().to_dicts():
        found.append(run_figures.by_dimension(rows))
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
                "more": scan.result.found - len(worst),
                "skipped": scan.result.skipped,
            }
        )
    return found
