"""What do sticky tokens cost, on small real evaluation sets? Are the figures right? How long does it take?

python benchmarks/impact.py                       # everything; on 2 CPU cores better in parts
python benchmarks/impact.py --out impact-bench --part whole --minutes 8   # a piece; again to continue
python benchmarks/impact.py --out impact-bench    # all parts are finished: checks and writes the results
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytrec_eval
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.cluster import KMeans
from sklearn.metrics import v_measure_score

from bench import MINILM as MODEL
from bench import (
    MINILM_U,
    PLANTED,
    SHARED,
    Check,
    commands,
    finish,
    json_lines,
    plain_model,
    planted_encoder,
    refuse,
    units,
)
from stickytoken.cli.console import progress_bar
from stickytoken.encoders import load_encoder
from stickytoken.errors import RunError
from stickytoken.impacts import Impact, ImpactSettings, Side, impact, open_impact
from stickytoken.impacts.statistics import benign_needed, conclusion
from stickytoken.measurement.engine import Progress

PUBLISHED_SPEARMAN = 82.03
CLS = 101
COPIES = 8
PLANTED_TOKENS = 5
# Fewest benign tokens for each measured one that allow a conclusion: five tokens, and a single one.
LEAST_BENIGN, LEAST_BENIGN_OF_ONE = benign_needed(PLANTED_TOKENS), benign_needed(1)


class PauseError(Exception):
    """The time for this piece of the work is over; the committed part of it stays."""


class Part(NamedTuple):
    """A measurement of its own, on the planted model or the real one, with tasks and options of `impact`."""

    planted: bool
    tasks: tuple[Path, ...]
    options: dict[str, Any]


def parts(data: Path, planted_rows: Path) -> dict[str, Part]:
    truth = pl.read_csv(planted_rows.with_suffix(".csv")).sort("planted_lift", descending=True)
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


def measured(part: Part, rows: Path, out: Path, end: float) -> Impact:
    """Compute a part, or what is missing of it, and pause behind the shard that is committed at the end."""
    encoder = planted_encoder(rows) if part.planted else load_encoder(MODEL)
    with progress_bar() as progress:

        def watching(step: Progress) -> None:
            progress(step)
            if step.computed and time.monotonic() > end:
                raise PauseError

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
        Check("planted tokens, sets on which they cost more", "2 of 3", f"{passed}", passed >= 2),
    ]


def hits(rows: list[dict[str, Any]]) -> str:
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
    return [cost_check(name, row, kind) for row in main_effects(found)]


def shown_intrusion(name: str, found: Impact) -> list[Check]:
    rows = found.intrusion.to_dicts()
    return [Check(f"{name}: hits of sticky / benign copies", "shown", hits(rows), True, {"rows": rows})]


def whole_checks(found: Impact) -> list[Check]:
    minutes = found.result.seconds / 60
    benign = sum(token.kind == "benign" for token in found.record.tokens)
    name = f"three sets, {PLANTED_TOKENS} planted and {benign} benign tokens: time"
    return [Check(name, "under 15 min", f"{minutes:.1f} min", minutes < 15)]


def results(found: dict[str, Impact], data: Path) -> list[Check]:
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


# Clean figures without stickytoken: plain sentence-transformers, and the libraries of the metrics.
def plain_vectors(model: Any, texts: list[str]) -> NDArray[np.float32]:
    return np.asarray(model.encode(texts, show_progress_bar=False))


def plain_sts(model: Any, path: Path) -> float:
    rows = json_lines(path)
    first, second = (
        units(plain_vectors(model, [row[side] for row in rows])) for side in ("sentence1", "sentence2")
    )
    return float(spearmanr([row["score"] for row in rows], (first * second).sum(axis=1)).statistic)


def plain_clustering(model: Any, path: Path, seed: int) -> float:
    rows = json_lines(path)
    labels = [row["label"] for row in rows]
    clusters = KMeans(len(set(labels)), n_init=10, random_state=seed).fit_predict(
        units(plain_vectors(model, [row["text"] for row in rows]))
    )
    return float(v_measure_score(labels, clusters))


class Search(NamedTuple):
    """A plain search of Cranfield: ids of queries and documents, and their similarities."""

    queries: list[str]
    documents: list[str]
    similarities: NDArray[np.float64]


def plain_search(model: Any, folder: Path, copies: int) -> Search:
    """Documents are cut where the model would cut if it read as many tokens less as there are copies."""
    documents = {
        row["_id"]: f"{row['title']} {row['text']}".strip() for row in json_lines(folder / "corpus.jsonl")
    }
    judged = judgements(folder)
    queries = {
        row["_id"]: row["text"] for row in json_lines(folder / "queries.jsonl") if row["_id"] in judged
    }
    asked = units(plain_vectors(model, list(queries.values())))
    longest = model.max_seq_length
    model.max_seq_length = longest - copies
    found = asked @ units(plain_vectors(model, list(documents.values()))).T
    model.max_seq_length = longest
    return Search(list(queries), list(documents), found)


def judgements(folder: Path) -> dict[str, dict[str, int]]:
    judged: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text("utf-8").splitlines()[1:]:
        query, document, score = line.split("\t")
        judged.setdefault(query, {})[document] = int(score)
    return judged


def plain_retrieval(search: Search, folder: Path) -> dict[str, float]:
    run = {}
    for query, row in zip(search.queries, search.similarities, strict=True):
        best = np.argsort(-row)[:1000]
        run[query] = {search.documents[place]: float(row[place]) for place in best}
    measures = {"ndcg_cut_10", "recall_100", "map", "recip_rank"}
    values = pytrec_eval.RelevanceEvaluator(judgements(folder), measures).evaluate(run)
    names = {"ndcg_at_10": "ndcg_cut_10", "recall_at_100": "recall_100", "map": "map", "mrr": "recip_rank"}
    return {ours: float(np.mean([row[theirs] for row in values.values()])) for ours, theirs in names.items()}


def main(
    data: Path = SHARED / "data",
    rows: Path = PLANTED,
    out: Path | None = None,
    part: str | None = None,
    finished: bool = False,
    minutes: float = float("inf"),
    name: str = "impact",
) -> None:
    """--data holds stsb/test.jsonl, cranfield/ (BEIR) and trec/test.jsonl; beside --rows lies a .csv.

    --part computes one part, and no checks; --finished computes nothing and checks what is finished;
    --minutes stops behind the shard that ends after this time.
    """
    for path in (rows, data):
        if not path.exists():
            refuse(f"no {path}: pass it with --rows or --data")
    everything, end = parts(data, rows), time.monotonic() + 60 * minutes
    if part and part not in everything:
        refuse(f"no part {part!r}: there are {', '.join(everything)}")
    found: dict[str, Impact] = {}
    with tempfile.TemporaryDirectory() as work:
        for each in [part] if part else everything:
            folder = (out or Path(work)) / each
            try:
                found[each] = (
                    open_impact(folder) if finished else measured(everything[each], rows, folder, end)
                )
            except PauseError:
                refuse("not finished: the same command continues")
            except RunError:
                if not finished:
                    raise
        if not part:
            checks = results(found, data)
            kept = {each: detail(one) for each, one in found.items()}
            finish(checks, name, next(iter(found.values())).record.device, parts=kept)


if __name__ == "__main__":
    commands(__doc__, main)
