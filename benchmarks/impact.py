"""Measures what sticky tokens cost on small evaluation sets, whether the scores are right, and the time.

The script needs an .npz with planted rows, and a folder with the evaluation sets STS-B, Cranfield and TREC.
It takes hours on two CPU cores. Run it with `python benchmarks/impact.py`, or with `--out FOLDER` to be able
to continue it after an interruption.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
from stickytoken import load_encoder
from stickytoken.cli.console import progress_bar
from stickytoken.encoders import Encoder
from stickytoken.impacts import Impact, ImpactSettings, Side, impact
from stickytoken.impacts.wording import benign_needed, conclusion
from stickytoken.measurement.engine import ProgressCallback

# The published Spearman correlation of the packaged model on STS-B test, times 100.
PUBLISHED_SPEARMAN = 82.03
# The token [CLS] of the packaged model.
CLS = 101
# Number of copies that a measurement inserts into a text by default.
COPIES = 8
# Number of planted tokens to measure: those with the largest lift.
PLANTED_TOKENS = 5
# The bar of a check that requires a cost. A conclusion that meets it begins with these words.
COST_MORE = "sticky tokens cost more"
# The metrics of retrieval, and their names in pytrec_eval.
TREC_MEASURES = {
    "ndcg_at_10": "ndcg_cut_10",
    "recall_at_100": "recall_100",
    "map": "map",
    "mrr": "recip_rank",
}


@dataclass
class Measurements:
    """Runs impact measurements, and collects their results for the file.

    Attributes:
        folder: folder for the measurements, each in a subfolder.
        progress: called after every step.
        parts: the settings, tokens and tables of each measurement, keyed by its name.
    """

    folder: Path
    progress: ProgressCallback
    parts: dict[str, Any] = field(default_factory=dict)

    def measure(self, name: str, encoder: Encoder, tasks: list[Path], **options: Any) -> Impact:
        """Measure the impact on these tasks, with the options of `impact`."""
        measurement = impact(encoder, tasks, out=self.folder / name, progress=self.progress, **options)
        self.parts[name] = measurement.result.model_dump() | {
            "settings": measurement.record.settings,
            "tokens": [(token.token, token.kind) for token in measurement.record.tokens],
            "conditions": measurement.conditions.to_dicts(),
        }
        return measurement


def main(data: Path = SHARED / "data", rows: Path = PLANTED, out: Path | None = None) -> None:
    """Measure what planted tokens cost the packaged model, what [CLS] costs it, and check the scores.

    This takes hours on two CPU cores. --data is a folder with stsb/test.jsonl, trec/test.jsonl and cranfield/
    (in the layout of BEIR). --rows is an .npz with planted rows; a .csv of the same name, with the columns
    token_id and planted_lift, must be in the same folder. With --out, a folder for the measurements, the same
    command continues after an interruption.
    """
    for path in (rows, data):
        if not path.exists():
            refuse(f"no {path}: pass it with --rows or --data")
    planted_table = pl.read_csv(rows.with_suffix(".csv")).sort("planted_lift", descending=True)
    planted_ids: list[int] = planted_table["token_id"].to_list()
    with tempfile.TemporaryDirectory() as temporary_folder, progress_bar() as progress:
        measurements = Measurements(out or Path(temporary_folder), progress)
        plain = load_encoder(MINILM)
        tampered = planted_encoder(rows)
        results = Results("impact", plain.device, parts=measurements.parts)
        check_cls(results, measurements, plain, data)
        check_planted(results, measurements, tampered, planted_ids, data)
    results.finish()


def check_cls(results: Results, measurements: Measurements, encoder: Encoder, data: Path) -> None:
    """Measure what [CLS] costs the packaged model, and check the model's scores on clean texts."""
    cranfield = data / "cranfield"
    # A single token needs many benign tokens for a conclusion.
    settings = replace(ImpactSettings(), benign=benign_needed(1))
    measurement = measurements.measure(
        "own",
        encoder,
        [data / "trec" / "test.jsonl", data / "stsb" / "test.jsonl", cranfield],
        tokens=[CLS],
        settings=settings,
    )
    check_clean_scores(results, measurement, data)
    check_costs(results, f"{MINILM}, [CLS]", measurement.effects, "named")


def check_planted(
    results: Results, measurements: Measurements, encoder: Encoder, planted_ids: list[int], data: Path
) -> None:
    """Measure what planted tokens cost in texts, documents and queries.

    Args:
        results: where the checks are recorded.
        measurements: runs the measurements.
        encoder: the model with planted tokens.
        planted_ids: ids of the planted tokens, the one with the largest lift first.
        data: folder with the evaluation sets.
    """
    stsb = data / "stsb" / "test.jsonl"
    trec = data / "trec" / "test.jsonl"
    cranfield = data / "cranfield"
    settings = ImpactSettings()
    # Fewer benign tokens save time. These are just enough for a conclusion.
    fewest_benign = replace(settings, benign=benign_needed(PLANTED_TOKENS))
    # All planted tokens are excluded, because none of them is benign.
    tokens: dict[str, Any] = {"tokens": planted_ids[:PLANTED_TOKENS], "exclude": planted_ids}

    name = f"{PLANTED_TOKENS} planted tokens"
    texts = measurements.measure("words", encoder, [trec, stsb], **tokens, settings=settings)
    check_costs(results, name, texts.effects, bar=COST_MORE)
    three_sets = measurements.measure(
        "whole", encoder, [trec, stsb, cranfield], **tokens, settings=fewest_benign
    )
    document_effects = three_sets.effects.filter(task="cranfield")
    check_costs(results, f"{name} in documents", document_effects, bar=COST_MORE)
    costly_sets = sum(check["passed"] for check in results.checks if check["bar"] == COST_MORE)
    results.check(
        "planted tokens, sets on which they cost more", "2 of 3", f"{costly_sets}", costly_sets >= 2
    )
    check_time(results, three_sets)

    query_settings = replace(settings, side=Side.QUERY)
    queries = measurements.measure("queries", encoder, [cranfield], **tokens, settings=query_settings)
    check_costs(results, "planted tokens in the queries", queries.effects)


def check_costs(
    results: Results, name: str, effects: pl.DataFrame, kind: str = "sticky", bar: str = "shown"
) -> None:
    """Record, for the main metric of each task, how much sticky and benign tokens lower the score.

    Args:
        results: where the checks are recorded.
        name: beginning of the checks' names.
        effects: the table of effects of a measurement.
        kind: what the conclusion calls the measured tokens.
        bar: words with which the conclusion must begin, or "shown" if any conclusion passes.
    """
    for row in effects.filter("main").to_dicts():
        conclusion_in_words = conclusion(row, kind)
        results.check(
            f"{name}, {row['task']}, {row['metric']} (of {row['clean']:.4f})",
            bar,
            f"{row['drop_sticky']:.4f} against {row['drop_benign']:.4f}; {conclusion_in_words}",
            bar == "shown" or conclusion_in_words.startswith(bar),
            **row,
        )


def check_time(results: Results, measurement: Impact) -> None:
    """Record the minutes that the measurement of three sets took."""
    minutes = measurement.result.seconds / 60
    benign_count = sum(token.kind == "benign" for token in measurement.record.tokens)
    name = f"three sets, {PLANTED_TOKENS} planted and {benign_count} benign tokens: time"
    results.check(name, "under 15 min", f"{minutes:.1f} min", minutes < 15)


def check_clean_scores(results: Results, measurement: Impact, data: Path) -> None:
    """Compare the scores on clean texts with the published one, and with those of other libraries.

    The other libraries are sentence-transformers for the vectors, and SciPy, scikit-learn and pytrec_eval for
    the metrics.
    """
    model = plain_model(MINILM)
    percent = 100 * clean_score(measurement, "stsb-test", "spearman")
    results.check(
        "clean STS-B test, Spearman",
        f"{PUBLISHED_SPEARMAN} (published) to 0.05",
        f"{percent:.3f}",
        abs(percent - PUBLISHED_SPEARMAN) <= 0.05,
    )
    library_scores = {
        ("stsb-test", "spearman"): library_correlation(model, data / "stsb" / "test.jsonl"),
        ("trec-test", "v_measure"): library_v_measure(model, data / "trec" / "test.jsonl"),
    }
    for metric, score in library_search(model, data / "cranfield").items():
        library_scores["cranfield", metric] = score
    for (task, metric), expected in library_scores.items():
        score = clean_score(measurement, task, metric)
        name = f"clean {task}, {metric}, by sentence-transformers and the metric's library"
        results.check(name, f"{expected:.7f} to 1e-6", f"{score:.7f}", abs(score - expected) <= 1e-6)


def clean_score(measurement: Impact, task: str, metric: str) -> float:
    """Return the score of a task on clean texts."""
    return float(measurement.scores.filter(task=task, metric=metric, kind="clean")["score"][0])


def library_correlation(model: Any, path: Path) -> float:
    """Return the Spearman correlation of a SentenceTransformer on STS-B, computed with SciPy."""
    rows = json_lines(path)
    first = plain_vectors(model, [row["sentence1"] for row in rows])
    second = plain_vectors(model, [row["sentence2"] for row in rows])
    return spearman([row["score"] for row in rows], (first * second).sum(axis=1))


def library_v_measure(model: Any, path: Path) -> float:
    """Return the V-measure of a SentenceTransformer on TREC, computed with scikit-learn."""
    rows = json_lines(path)
    labels = [row["label"] for row in rows]
    clustering = KMeans(len(set(labels)), n_init=10, random_state=ImpactSettings().seed)
    clusters = clustering.fit_predict(plain_vectors(model, [row["text"] for row in rows]))
    return float(v_measure_score(labels, clusters))


def library_search(model: Any, folder: Path) -> dict[str, float]:
    """Return the metrics of a search with a SentenceTransformer, computed with pytrec_eval.

    An impact measurement truncates clean documents so that copies would still fit. The model's maximum length
    is therefore reduced by the number of copies.

    Args:
        model: the SentenceTransformer.
        folder: documents, queries and relevance judgments in the layout of BEIR.
    """
    judgments = relevance_judgments(folder / "qrels" / "test.tsv")
    document_rows = json_lines(folder / "corpus.jsonl")
    documents = {row["_id"]: f"{row['title']} {row['text']}".strip() for row in document_rows}
    query_rows = json_lines(folder / "queries.jsonl")
    queries = {row["_id"]: row["text"] for row in query_rows if row["_id"] in judgments}
    query_vectors = plain_vectors(model, list(queries.values()))
    max_length = model.max_seq_length
    model.max_seq_length = max_length - COPIES
    similarities = query_vectors @ plain_vectors(model, list(documents.values())).T
    model.max_seq_length = max_length
    document_ids = list(documents)
    retrieved: dict[str, dict[str, float]] = {}
    for query_id, row in zip(queries, similarities, strict=True):
        best_1000 = np.argsort(-row)[:1000]
        retrieved[query_id] = {document_ids[index]: float(row[index]) for index in best_1000}
    evaluator = pytrec_eval.RelevanceEvaluator(judgments, set(TREC_MEASURES.values()))
    scores_of_queries = evaluator.evaluate(retrieved).values()
    means = {}
    for metric, trec_name in TREC_MEASURES.items():
        means[metric] = float(np.mean([scores[trec_name] for scores in scores_of_queries]))
    return means


def relevance_judgments(path: Path) -> Mapping[str, dict[str, int]]:
    """Return the relevance of documents, keyed by query id and then by document id."""
    judgments: dict[str, dict[str, int]] = {}
    header_and_lines = path.read_text("utf-8").splitlines()
    for line in header_and_lines[1:]:
        query_id, document_id, relevance = line.split("\t")
        judgments.setdefault(query_id, {})[document_id] = int(relevance)
    return judgments


def plain_vectors(model: Any, texts: list[str]) -> NDArray[np.float64]:
    """Return the unit vectors of texts as a SentenceTransformer encodes them, shape (texts, d)."""
    return units(np.asarray(model.encode(texts, show_progress_bar=False)))


if __name__ == "__main__":
    commands(__doc__, main)
