"""What do sticky tokens cost, on small real evaluation sets? Are the figures right?

python benchmarks/impact.py                      # about half an hour on 2 CPU cores
python benchmarks/impact.py --out impact-bench   # continues there when it is cut off
python benchmarks/impact.py --cranfield-tokens 5 # fewer tokens on the long documents

--data is a folder with stsb/test.jsonl, cranfield/ (BEIR) and trec/test.jsonl.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytrec_eval
from scipy.stats import spearmanr
from sklearn.cluster import KMeans
from sklearn.metrics import v_measure_score

from planted import PLANTED, planted_encoder
from published import PUBLISHED, Check, show, write
from stickytoken.cli.progress import progress_bar
from stickytoken.encoders import Encoder, load_encoder
from stickytoken.encoders.resolution import resolve_model
from stickytoken.impacts import Impact, ImpactSettings, Side, impact

MODEL = "all-MiniLM-L6-v2"
PUBLISHED_SPEARMAN = 82.03
CLS = 101
COPIES = 8


def measured(encoder: Encoder, tasks: Iterable[Path], out: Path, **options: Any) -> Impact:
    with progress_bar() as progress:
        return impact(encoder, list(tasks), out=out, progress=progress, **options)


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
    model = plain_model()
    expected = {
        ("stsb-test", "spearman"): plain_sts(model, data / "stsb" / "test.jsonl"),
        ("trec-test", "v_measure"): plain_clustering(model, data / "trec" / "test.jsonl"),
    }
    expected |= {("cranfield", k): v for k, v in plain_retrieval(model, data / "cranfield").items()}
    for (task, metric), value in expected.items():
        ours = clean(found, task, metric)
        name = f"clean {task}, {metric}, by sentence-transformers and the metric's library"
        checks.append(
            Check(name, f"{value:.7f} to 1e-6", f"{ours:.7f}", abs(ours - value) <= 1e-6, {"plain": value})
        )
    return checks


def plain_model() -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(resolve_model(MODEL).location, device="cpu", local_files_only=True)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def units(model: Any, texts: list[str]) -> np.ndarray:
    vectors = model.encode(texts, show_progress_bar=False).astype(np.float64)
    normed: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return normed


def plain_sts(model: Any, path: Path) -> float:
    rows = rows_of(path)
    first, second = (units(model, [row[side] for row in rows]) for side in ("sentence1", "sentence2"))
    return float(spearmanr([row["score"] for row in rows], (first * second).sum(axis=1)).statistic)


def plain_clustering(model: Any, path: Path) -> float:
    rows = rows_of(path)
    labels = [row["label"] for row in rows]
    clusters = KMeans(len(set(labels)), n_init=10, random_state=ImpactSettings().seed).fit_predict(
        units(model, [row["text"] for row in rows])
    )
    return float(v_measure_score(labels, clusters))


def plain_retrieval(model: Any, folder: Path) -> dict[str, float]:
    """Documents are cut where the model would cut if it read as many tokens less as there are copies."""
    documents = {
        row["_id"]: f"{row['title']} {row['text']}".strip() for row in rows_of(folder / "corpus.jsonl")
    }
    queries = {row["_id"]: row["text"] for row in rows_of(folder / "queries.jsonl")}
    judged: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text("utf-8").splitlines()[1:]:
        query, document, score = line.split("\t")
        judged.setdefault(query, {})[document] = int(score)
    queries = {query: text for query, text in queries.items() if query in judged}
    asked = units(model, list(queries.values()))
    longest = model.max_seq_length
    model.max_seq_length = longest - COPIES
    found = asked @ units(model, list(documents.values())).T
    model.max_seq_length = longest
    run = {}
    for query, row in zip(queries, found, strict=True):
        best = np.argsort(-row)[:1000]
        ids = list(documents)
        run[query] = {ids[place]: float(row[place]) for place in best}
    result = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut_10", "recall_100", "map", "recip_rank"})
    values = result.evaluate(run)
    names = {"ndcg_at_10": "ndcg_cut_10", "recall_at_100": "recall_100", "map": "map", "mrr": "recip_rank"}
    return {ours: float(np.mean([row[theirs] for row in values.values()])) for ours, theirs in names.items()}


def cost_checks(found: Iterable[Impact]) -> list[Check]:
    """Planted tokens must cost more than benign ones on two of the three sets."""
    effects = pl.concat([each.effects for each in found if not each.effects.is_empty()])
    checks = [
        Check(
            f"planted tokens, {row['task']}, {row['metric']} (of {row['clean']:.4f})",
            "sticky cost more, interval above 0",
            f"{row['drop_sticky']:.4f} against {row['drop_benign']:.4f}; difference {row['difference']:.4f} "
            f"[{row['difference_low']:.4f}, {row['difference_high']:.4f}]",
            row["difference_low"] > 0,
            row,
        )
        for row in effects.iter_rows(named=True)
    ]
    passed = sum(check.passed for check in checks)
    return [
        *checks,
        Check("planted tokens, sets with a difference above 0", "2 of 3", f"{passed}", passed >= 2, {}),
    ]


def intrusion_check(found: Impact) -> Check:
    """Top-10 appearances of a random document with copies of planted tokens, against benign ones."""
    rows = found.intrusion.to_dicts()
    shown = ", ".join(
        f"{row['copies']}: {row['hits_sticky']:.2f} / {row['hits_benign']:.2f}"
        for row in rows
        if row["copies"]
    )
    best = max((row for row in rows if row["ratio"] is not None), key=lambda row: row["ratio"])
    rises = best["hits_sticky"] > rows[0]["hits_sticky"]  # more than without copies, or nothing is pushed up
    return Check(
        "intrusion into Cranfield, planted tokens: hits of sticky / benign copies, by their number",
        "a rise, at least threefold against benign",
        f"{best['ratio']:.2f}-fold at {best['copies']} copies ({shown})",
        rises and best["ratio"] >= 3,
        {"rows": rows},
    )


def own_checks(found: Impact) -> list[Check]:
    """The packaged model's own sticky token: whatever comes out."""
    return [
        Check(
            f"{MODEL}, [CLS], {row['task']}, {row['metric']} (of {row['clean']:.4f})",
            "shown",
            f"{row['drop_sticky']:.4f} against {row['drop_benign']:.4f}; difference {row['difference']:.4f} "
            f"[{row['difference_low']:.4f}, {row['difference_high']:.4f}]",
            True,
            row,
        )
        for row in found.effects.iter_rows(named=True)
    ] + [
        Check(
            f"{MODEL}, [CLS], intrusion into Cranfield, {row['copies']} copies",
            "shown",
            f"{row['hits_sticky']:.2f} against {row['hits_benign']:.2f}",
            True,
            row,
        )
        for row in found.intrusion.iter_rows(named=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=PUBLISHED.parent / "data", help="folder of the sets")
    parser.add_argument("--rows", type=Path, default=PLANTED, help=".npz of rows; the .csv lies beside it")
    parser.add_argument("--out", type=Path, help="folder of the measurements; temporary unless given")
    parser.add_argument("--tokens", type=int, default=10, help="strongest planted tokens to measure")
    parser.add_argument("--cranfield-tokens", type=int, default=10, help="of them, on Cranfield")
    parser.add_argument("--own-benign", type=int, default=5, help="benign tokens for [CLS]")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--only", choices=("words", "queries", "cranfield", "intrusion", "own"), help="compute one part"
    )
    arguments = parser.parse_args()
    for path in (arguments.rows, arguments.data):
        if not path.exists():
            raise SystemExit(f"no {path}: pass it with --rows or --data")
    with tempfile.TemporaryDirectory() as work:
        run(arguments, arguments.out or Path(work))


def run(arguments: argparse.Namespace, out: Path) -> None:
    data: Path = arguments.data
    truth = pl.read_csv(arguments.rows.with_suffix(".csv")).sort("planted_lift", descending=True)
    ids: list[int] = truth["token_id"].to_list()
    short = (data / "trec" / "test.jsonl", data / "stsb" / "test.jsonl")
    settings = ImpactSettings(seeds=arguments.seeds)
    once = ImpactSettings(seeds=arguments.seeds, benign=arguments.own_benign)
    model = planted_encoder(arguments.rows, 1.0, None)
    few, strongest = ids[: arguments.cranfield_tokens], ids[: arguments.tokens]
    cranfield = data / "cranfield"
    parts: dict[str, Callable[[], Impact]] = {
        "words": lambda: measured(
            model, short, out / "planted", tokens=strongest, exclude=ids, settings=settings
        ),
        "intrusion": lambda: measured(
            model,
            (),
            out / "intrusion",
            tokens=strongest,
            exclude=ids,
            settings=settings,
            intrusion=cranfield,
        ),
        "own": lambda: measured(
            load_encoder(MODEL),
            (*short, cranfield),
            out / "own",
            tokens=[CLS],
            settings=once,
            intrusion=cranfield,
        ),
        "queries": lambda: measured(
            model,
            (cranfield,),
            out / "planted-queries",
            tokens=strongest,
            exclude=ids,
            settings=replace(settings, side=Side.QUERY),
        ),
        "cranfield": lambda: measured(
            model, (cranfield,), out / "planted-cranfield", tokens=few, exclude=ids, settings=settings
        ),
    }
    if arguments.only:
        parts[arguments.only]()
        return
    found = {name: compute() for name, compute in parts.items()}
    checks = [
        *clean_checks(found["own"], data),
        *cost_checks([found["words"], found["queries"], found["cranfield"]]),
        intrusion_check(found["intrusion"]),
        *own_checks(found["own"]),
    ]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    write(
        checks,
        "impact",
        model.device,
        parts={
            name: {
                "sequences": each.result.sequences,
                "seconds": each.result.seconds,
                "settings": each.record.settings,
                "tokens": [(token.token, token.kind) for token in each.record.tokens],
                "conditions": each.conditions.to_dicts(),
                "intrusion": each.intrusion.to_dicts(),
                "cut": {task.name: task.cut for task in each.result.tasks},
            }
            for name, each in found.items()
        },
        cpu_seconds_of_this_session=round(usage.ru_utime + usage.ru_stime, 1),
    )
    show(checks, "impact")
    if not all(check.passed for check in checks):
        sys.exit(1)


if __name__ == "__main__":
    main()
