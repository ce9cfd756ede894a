"""What do sticky tokens cost, on small real evaluation sets? Are the figures right? How long does it take?

python benchmarks/impact.py                       # everything; on 2 CPU cores better in parts
python benchmarks/impact.py --out impact-bench    # continues there when it is cut off
python benchmarks/impact.py --out impact-bench --part whole --minutes 8   # a piece of the work
python benchmarks/impact.py --out impact-bench    # all parts are finished: checks and writes the results

--data is a folder with stsb/test.jsonl, cranfield/ (BEIR) and trec/test.jsonl.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from checks import Check, show, write
from plain_evaluation import (
    Search,
    plain_clustering,
    plain_model,
    plain_retrieval,
    plain_search,
    plain_sts,
)
from planted import PLANTED, planted_encoder
from published import MINILM_U, PUBLISHED
from stickytoken.cli.output.progress import progress_bar
from stickytoken.encoders import load_encoder
from stickytoken.errors import RunError
from stickytoken.impacts import Impact, ImpactSettings, Side, impact, open_impact
from stickytoken.impacts.statistics import benign_needed, conclusion
from stickytoken.measurement.stage import Progress, ProgressCallback

MODEL = "all-MiniLM-L6-v2"
PUBLISHED_SPEARMAN = 82.03
CLS = 101
COPIES = 8
PLANTED_TOKENS = 5
# Fewest benign tokens for each measured one that allow a conclusion: five tokens, and a single one.
LEAST_BENIGN, LEAST_BENIGN_OF_ONE = benign_needed(PLANTED_TOKENS), benign_needed(1)


class PauseError(Exception):
    """The time for this piece of the work is over; the committed part of it stays."""


class Deadline:
    """Ends a measurement behind a committed shard.

    Args:
        minutes: time that is left; None is all of it.
    """

    def __init__(self, minutes: float | None) -> None:
        self._end = None if minutes is None else time.monotonic() + 60 * minutes

    def watching(self, progress: ProgressCallback) -> ProgressCallback:
        """The callback, with an end."""

        def told(step: Progress) -> None:
            progress(step)
            if self._end is not None and step.computed and time.monotonic() > self._end:
                raise PauseError

        return told


@dataclass(frozen=True)
class Part:
    """A measurement of its own.

    Attributes:
        planted: whether the model is the planted one.
        tasks: of the measurement.
        options: of `impact`.
    """

    planted: bool
    tasks: tuple[Path, ...]
    options: dict[str, Any]


def parts(arguments: argparse.Namespace) -> dict[str, Part]:
    """All measurements by name, the short ones first."""
    data: Path = arguments.data
    truth = pl.read_csv(arguments.rows.with_suffix(".csv")).sort("planted_lift", descending=True)
    ids: list[int] = truth["token_id"].to_list()
    cranfield = data / "cranfield"
    words = (data / "trec" / "test.jsonl", data / "stsb" / "test.jsonl")
    settings = ImpactSettings()
    few, of_one = replace(settings, benign=LEAST_BENIGN), replace(settings, benign=LEAST_BENIGN_OF_ONE)
    planted = {"tokens": ids[:PLANTED_TOKENS], "exclude": ids, "settings": settings}
    own = {"tokens": [CLS], "settings": of_one, "intrusion": cranfield}
    return {
        "words": Part(True, words, planted),
        "bundled": Part(True, (), planted | {"intrusion": "bundled"}),
        "queries": Part(True, (cranfield,), planted | {"settings": replace(settings, side=Side.QUERY)}),
        "intrusion": Part(True, (), planted | {"settings": few, "intrusion": cranfield}),
        "whole": Part(True, (*words, cranfield), planted | {"settings": few}),
        "own": Part(False, (*words, cranfield), own),
    }


def measured(part: Part, rows: Path, out: Path, deadline: Deadline) -> Impact:
    """Compute a part, or what is missing of it."""
    encoder = planted_encoder(rows, 1.0, None) if part.planted else load_encoder(MODEL)
    with progress_bar() as progress:
        watching = deadline.watching(progress)
        return impact(encoder, list(part.tasks), out=out, progress=watching, **part.options)


def clean(found: Impact, task: str, metric: str) -> float:
    rows = found.scores.filter(task=task, metric=metric, kind="clean")
    return float(rows["score"][0])


def clean_checks(found: Impact, data: Path) -> list[Check]:
    """Clean figures against the published one, and against plain sentence-transformers and libraries."""
    spearman = 100 * clean(found, "stsb-test", "spearman")
    checks = [
        Check(
            "clean STS-B test, Spearman",
            f"{PUBLISHED_SPEARMAN} (published) to 0.05",
            f"{spearman:.3f}",
            abs(spearman - PUBLISHED_SPEARMAN) <= 0.05,
            {},
        )
    ]
    model = plain_model(MODEL)
    expected = {
        ("stsb-test", "spearman"): plain_sts(model, data / "stsb" / "test.jsonl"),
        ("trec-test", "v_measure"): plain_clustering(
            model, data / "trec" / "test.jsonl", ImpactSettings().seed
        ),
    }
    search = plain_search(model, data / "cranfield", COPIES)
    expected |= {("cranfield", k): v for k, v in plain_retrieval(search, data / "cranfield").items()}
    for (task, metric), value in expected.items():
        ours = clean(found, task, metric)
        name = f"clean {task}, {metric}, by sentence-transformers and the metric's library"
        checks.append(
            Check(name, f"{value:.7f} to 1e-6", f"{ours:.7f}", abs(ours - value) <= 1e-6, {"plain": value})
        )
    return [*checks, nearness_check(search)]


def nearness_check(search: Search) -> Check:
    """Why copies do not intrude: how similar a document must be, beside where copies pull."""
    mean, tenth = search.similarities.mean(), np.sort(search.similarities, axis=1)[:, -10].mean()
    return Check(
        "Cranfield: similarity of a query with a document, with its tenth best one; u of the model",
        "shown",
        f"{mean:.3f}, {tenth:.3f}; {MINILM_U:.3f}",
        True,
        {"mean": float(mean), "tenth": float(tenth)},
    )


def main_effects(found: Impact) -> list[dict[str, Any]]:
    """Rows of the main metrics."""
    return found.effects.filter("main").to_dicts()


def cost_check(name: str, row: dict[str, Any], kind: str, bar: str = "shown") -> Check:
    """One task: what copies cost, what benign ones cost, and what the test over tokens concludes."""
    said = conclusion(row, kind)
    return Check(
        f"{name}, {row['task']}, {row['metric']} (of {row['clean']:.4f})",
        bar,
        f"{row['drop_sticky']:.4f} against {row['drop_benign']:.4f}; {said}",
        bar == "shown" or said.startswith(bar),
        row,
    )


def cost_checks(words: Impact, whole: Impact | None) -> list[Check]:
    """Planted tokens must cost more than benign ones on two of the three sets."""
    name, bar = f"{PLANTED_TOKENS} planted tokens", "sticky tokens cost more"
    checks = [cost_check(name, row, "sticky", bar) for row in main_effects(words)]
    if whole is not None:
        found = [row for row in main_effects(whole) if row["task"] == "cranfield"]
        checks += [cost_check(f"{name} in documents", row, "sticky", bar) for row in found]
    passed = sum(check.passed for check in checks)
    return [
        *checks,
        Check("planted tokens, sets on which they cost more", "2 of 3", f"{passed}", passed >= 2, {}),
    ]


def hits(rows: list[dict[str, Any]]) -> str:
    """Hits of both kinds by number of copies."""
    return ", ".join(f"{row['copies']}: {row['hits_sticky']:.2f} / {row['hits_benign']:.2f}" for row in rows)


def intrusion_check(found: Impact) -> Check:
    """Top-10 appearances of a random document with copies of planted tokens, against benign ones."""
    rows = found.intrusion.to_dicts()
    best = max((row for row in rows if row["copies"] and row["ratio"]), key=lambda row: row["ratio"])
    rises = best["hits_sticky"] > rows[0]["hits_sticky"]  # more than without copies, or nothing is pushed up
    return Check(
        "intrusion into Cranfield, planted tokens: hits of sticky / benign copies, by their number",
        "a rise, at least threefold against benign",
        f"{best['ratio']:.2f}-fold at {best['copies']} (copies: {hits(rows)})",
        rises and best["ratio"] >= 3,
        {"rows": rows},
    )


def shown_costs(name: str, found: Impact, kind: str) -> list[Check]:
    """Costs without a bar: whatever comes out."""
    return [cost_check(name, row, kind) for row in main_effects(found)]


def shown_intrusion(name: str, found: Impact) -> list[Check]:
    """Hits without a bar, by number of copies."""
    rows = found.intrusion.to_dicts()
    return [Check(f"{name}: hits of sticky / benign copies", "shown", hits(rows), True, {"rows": rows})]


def whole_checks(found: Impact) -> list[Check]:
    """The time of one measurement of everything."""
    minutes = found.result.seconds / 60
    benign = sum(token.kind == "benign" for token in found.record.tokens)
    name = f"three sets, {PLANTED_TOKENS} planted and {benign} benign tokens: time"
    return [Check(name, "under 15 min", f"{minutes:.1f} min", minutes < 15, {})]


def results(found: dict[str, Impact], data: Path) -> list[Check]:
    """All checks that finished parts allow."""
    of_part: dict[str, Callable[[Impact], list[Check]]] = {
        "own": lambda part: clean_checks(part, data),
        "words": lambda part: cost_checks(part, found.get("whole")),
        "queries": lambda part: shown_costs("planted tokens in the queries", part, "sticky"),
        "intrusion": lambda part: [intrusion_check(part)],
        "bundled": lambda part: shown_intrusion("planted tokens, intrusion into the bundled sentences", part),
        "whole": whole_checks,
    }
    checks = [check for name, make in of_part.items() if name in found for check in make(found[name])]
    if own := found.get("own"):
        checks += shown_costs(f"{MODEL}, [CLS]", own, "named")
        checks += shown_intrusion(f"{MODEL}, [CLS], intrusion into Cranfield", own)
    return checks


def detail(found: Impact) -> dict[str, Any]:
    """What is kept of a part."""
    return {
        "sequences": found.result.sequences,
        "seconds": found.result.seconds,
        "settings": found.record.settings,
        "tokens": [(token.token, token.kind) for token in found.record.tokens],
        "conditions": found.conditions.to_dicts(),
        "intrusion": found.intrusion.to_dicts(),
        "intrusion_curves": found.intrusion_curves.to_dicts(),
        "cut": {task.name: task.cut for task in found.result.tasks},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=PUBLISHED.parent / "data", help="folder of the sets")
    parser.add_argument("--rows", type=Path, default=PLANTED, help=".npz of rows; the .csv lies beside it")
    parser.add_argument("--out", type=Path, help="folder of the measurements; temporary unless given")
    parser.add_argument("--part", help="compute this part only, and no checks")
    parser.add_argument("--finished", action="store_true", help="compute nothing: checks of finished parts")
    parser.add_argument("--minutes", type=float, help="stop behind the shard that ends after this time")
    arguments = parser.parse_args()
    for path in (arguments.rows, arguments.data):
        if not path.exists():
            raise SystemExit(f"no {path}: pass it with --rows or --data")
    with tempfile.TemporaryDirectory() as work:
        try:
            run(arguments, arguments.out or Path(work))
        except PauseError:
            raise SystemExit("not finished: the same command continues") from None


def is_finished(folder: Path) -> bool:
    """Whether a part can be opened."""
    try:
        open_impact(folder)
    except RunError:
        return False
    return True


def run(arguments: argparse.Namespace, out: Path) -> None:
    """Compute one part, or all of them and the checks."""
    everything, deadline = parts(arguments), Deadline(arguments.minutes)
    if arguments.part and arguments.part not in everything:
        raise SystemExit(f"no part {arguments.part!r}: there are {', '.join(everything)}")
    chosen = [arguments.part] if arguments.part else list(everything)
    if arguments.finished:
        found = {name: open_impact(out / name) for name in everything if is_finished(out / name)}
    else:
        found = {name: measured(everything[name], arguments.rows, out / name, deadline) for name in chosen}
    if arguments.part:
        return
    checks = results(found, arguments.data)
    kept = {name: detail(each) for name, each in found.items()}
    write(checks, "impact", next(iter(found.values())).record.device, parts=kept)
    show(checks, "impact")
    if not all(check.passed for check in checks):
        sys.exit(1)


if __name__ == "__main__":
    main()
