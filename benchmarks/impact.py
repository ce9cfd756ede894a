"""What do sticky tokens cost, on small real evaluation sets? Are the figures right? How long does it take?"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytrec_eval
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import v_measure_score

from bench import MINILM, PLANTED, SHARED, Results, commands, json_lines, refuse, spearman, units
from models import plain_model, planted_encoder
from stickytoken.cli.console import progress_bar
from stickytoken.encoders import Encoder, load_encoder
from stickytoken.impacts import Impact, ImpactSettings, Side, impact
from stickytoken.impacts.wording import benign_needed, conclusion

PUBLISHED_SPEARMAN = 82.03
CLS, COPIES, PLANTED_TOKENS = 101, 8, 5
COST_MORE = "sticky tokens cost more"


def main(data: Path = SHARED / "data", rows: Path = PLANTED, out: Path | None = None) -> None:
    """All parts, on planted tokens and on [CLS] of the real model, then the checks; hours on 2 CPU cores.

    --data holds stsb/test.jsonl, cranfield/ (BEIR) and trec/test.jsonl; beside --rows lies a .csv. With
    --out, a folder, the same command continues one that was stopped.
    """
    for path in (rows, data):
        if not path.exists():
            refuse(f"no {path}: pass it with --rows or --data")
    truth = pl.read_csv(rows.with_suffix(".csv")).sort("planted_lift", descending=True)
    ids: list[int] = truth["token_id"].to_list()
    stsb, trec = (data / each / "test.jsonl" for each in ("stsb", "trec"))
    cranfield, settings = data / "cranfield", ImpactSettings()
    # The fewest benign tokens for each measured one that allow a conclusion: five tokens, and a single one.
    few, of_one = (replace(settings, benign=benign_needed(count)) for count in (PLANTED_TOKENS, 1))
    planted: dict[str, Any] = {"tokens": ids[:PLANTED_TOKENS], "exclude": ids, "settings": settings}
    details: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as work, progress_bar() as progress:
        plain, tampered = load_encoder(MINILM), planted_encoder(rows)
        results = Results("impact", plain.device, parts=details)

        def measured(part: str, encoder: Encoder, tasks: list[Path], **options: Any) -> Impact:
            found = impact(encoder, tasks, out=(out or Path(work)) / part, progress=progress, **options)
            details[part] = found.result.model_dump() | {
                "settings": found.record.settings,
                "tokens": [(token.token, token.kind) for token in found.record.tokens],
                "conditions": found.conditions.to_dicts(),
                "intrusion": found.intrusion.to_dicts(),
            }
            return found

        three = [trec, stsb, cranfield]
        own = measured("own", plain, three, tokens=[CLS], settings=of_one, intrusion=cranfield)
        check_clean(results, own, data)
        check_costs(results, f"{MINILM}, [CLS]", own.effects, "named")
        name = f"{MINILM}, [CLS], intrusion into Cranfield: hits of sticky / benign copies"
        results.check(name, "shown", hits(own))
        name = f"{PLANTED_TOKENS} planted tokens"
        words = measured("words", tampered, [trec, stsb], **planted)
        check_costs(results, name, words.effects, bar=COST_MORE)
        whole = measured("whole", tampered, three, **planted | {"settings": few})
        effects = whole.effects.filter(task="cranfield")
        check_costs(results, f"{name} in documents", effects, bar=COST_MORE)
        costly = sum(check["passed"] for check in results.checks if check["bar"] == COST_MORE)
        results.check("planted tokens, sets on which they cost more", "2 of 3", f"{costly}", costly >= 2)
        minutes = whole.result.seconds / 60
        benign = sum(token.kind == "benign" for token in whole.record.tokens)
        name = f"three sets, {PLANTED_TOKENS} planted and {benign} benign tokens: time"
        results.check(name, "under 15 min", f"{minutes:.1f} min", minutes < 15)
        in_queries = planted | {"settings": replace(settings, side=Side.QUERY)}
        queries = measured("queries", tampered, [cranfield], **in_queries)
        check_costs(results, "planted tokens in the queries", queries.effects)
        # Top-10 appearances of a random document with copies of planted tokens, against benign ones.
        pushed = measured("intrusion", tampered, [], **planted | {"settings": few}, intrusion=cranfield)
        steps = pushed.intrusion.to_dicts()
        best = max((row for row in steps if row["copies"] and row["ratio"]), key=lambda row: row["ratio"])
        rises = best["hits_sticky"] > steps[0]["hits_sticky"]  # than without copies, or nothing is pushed up
        name = "intrusion into Cranfield, planted tokens: hits of sticky / benign copies, by their number"
        bar, passed = "a rise, at least threefold against benign", rises and best["ratio"] >= 3
        ours = f"{best['ratio']:.2f}-fold at {best['copies']} (copies: {hits(pushed)})"
        results.check(name, bar, ours, passed)
    results.finish()


def check_costs(
    results: Results, name: str, effects: pl.DataFrame, kind: str = "sticky", bar: str = "shown"
) -> None:
    """By task, what copies cost, what benign ones cost, and what the test over tokens concludes."""
    for row in effects.filter("main").to_dicts():
        said = conclusion(row, kind)
        title = f"{name}, {row['task']}, {row['metric']} (of {row['clean']:.4f})"
        ours = f"{row['drop_sticky']:.4f} against {row['drop_benign']:.4f}; {said}"
        results.check(title, bar, ours, bar == "shown" or said.startswith(bar), **row)


def hits(found: Impact) -> str:
    return ", ".join(
        f"{row['copies']}: {row['hits_sticky']:.2f} / {row['hits_benign']:.2f}"
        for row in found.intrusion.to_dicts()
    )


def check_clean(results: Results, found: Impact, data: Path) -> None:
    """Clean figures against the published one, and against plain sentence-transformers and libraries."""

    def clean(task: str, metric: str) -> float:
        return float(found.scores.filter(task=task, metric=metric, kind="clean")["score"][0])

    model, published = plain_model(MINILM), PUBLISHED_SPEARMAN
    measured = 100 * clean("stsb-test", "spearman")
    name, bar = "clean STS-B test, Spearman", f"{published} (published) to 0.05"
    results.check(name, bar, f"{measured:.3f}", abs(measured - published) <= 0.05)
    rows = json_lines(data / "stsb" / "test.jsonl")
    first, second = (plain_vectors(model, [row[f"sentence{side}"] for row in rows]) for side in (1, 2))
    correlation = spearman([row["score"] for row in rows], (first * second).sum(axis=1))
    rows = json_lines(data / "trec" / "test.jsonl")
    labels = [row["label"] for row in rows]
    means = KMeans(len(set(labels)), n_init=10, random_state=ImpactSettings().seed)
    groups = means.fit_predict(plain_vectors(model, [row["text"] for row in rows]))
    retrieved = plain_search(model, data / "cranfield")
    plainly = {
        ("stsb-test", "spearman"): correlation,
        ("trec-test", "v_measure"): float(v_measure_score(labels, groups)),
        **{("cranfield", metric): value for metric, value in retrieved.items()},
    }
    for (task, metric), value in plainly.items():
        ours = clean(task, metric)
        name = f"clean {task}, {metric}, by sentence-transformers and the metric's library"
        results.check(name, f"{value:.7f} to 1e-6", f"{ours:.7f}", abs(ours - value) <= 1e-6)


def plain_vectors(model: Any, texts: list[str]) -> NDArray[np.float64]:
    return units(np.asarray(model.encode(texts, show_progress_bar=False)))


def plain_search(model: Any, folder: Path) -> dict[str, float]:
    """The metrics of the search.

    Documents are cut where the model would cut if it read as many tokens less as there are copies.
    """
    judged: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text("utf-8").splitlines()[1:]:
        query, document, score = line.split("\t")
        judged.setdefault(query, {})[document] = int(score)
    corpus = json_lines(folder / "corpus.jsonl")
    documents = {row["_id"]: f"{row['title']} {row['text']}".strip() for row in corpus}
    queries = {
        row["_id"]: row["text"] for row in json_lines(folder / "queries.jsonl") if row["_id"] in judged
    }
    asked = plain_vectors(model, list(queries.values()))
    longest = model.max_seq_length
    model.max_seq_length = longest - COPIES
    similarities = asked @ plain_vectors(model, list(documents.values())).T
    model.max_seq_length = longest
    names, run = list(documents), {}
    for query, row in zip(queries, similarities, strict=True):
        run[query] = {names[place]: float(row[place]) for place in np.argsort(-row)[:1000]}
    measures = {"ndcg_at_10": "ndcg_cut_10", "recall_at_100": "recall_100", "map": "map", "mrr": "recip_rank"}
    values = pytrec_eval.RelevanceEvaluator(judged, set(measures.values())).evaluate(run)
    return {own: float(np.mean([row[name] for row in values.values()])) for own, name in measures.items()}


if __name__ == "__main__":
    commands(__doc__, main)
