"""Does a token that erases more cost a search more? Recall of documents with copies; takes minutes.

Eight copies of a token are put behind the documents that answer each query; all other documents stay.
Recall@10 is then compared with the share that the token erases, and with its lift, over a hundred tokens of a
finished run: two thirds of them evenly over the erased shares of the vocabulary, the others those that erase
most. Most tokens of a run are only screened, with a standard error of several percent. The hundred tokens are
therefore measured again, as closely as a run confirms a token. Two collections are searched: the relevant
titles of Cranfield, and pairs of STS-B that mean the same, among all of its sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from numpy.typing import NDArray

from bench import IMAGES, SHARED, Results, commands, json_lines, spearman
from stickytoken.cli.console import progress_bar
from stickytoken.detection import Run, open_run, probe
from stickytoken.detection.run import encoder_for
from stickytoken.encoders import Encoder
from stickytoken.encoders.protocol import require_ids
from stickytoken.insertion import Placement, Token, copies_as_ids
from stickytoken.unit_vectors import unit_vectors

COPIES = 8
TOP = 10
# Pairs of STS-B from this score on, of 5, mean the same.
SAME_MEANING = 4.0


class Collection(NamedTuple):
    """Queries, documents, and which documents answer which query."""

    name: str
    queries: list[str]
    documents: list[str]
    answers: list[list[int]]  # places of the documents, by query


def cranfield(folder: Path, queries: int) -> Collection:
    """Take the titles of Cranfield that are relevant to a query, and the first queries."""
    texts = {row["_id"]: row["text"] for row in json_lines(folder / "queries.jsonl")}
    titles = {row["_id"]: row["title"] for row in json_lines(folder / "corpus.jsonl")}
    judged: dict[str, list[str]] = {}
    for query, document in (
        pl.read_csv(folder / "qrels/test.tsv", separator="\t")
        .select(pl.col("query-id", "corpus-id").cast(pl.String))
        .iter_rows()
    ):
        if titles.get(document, "").strip():
            judged.setdefault(query, []).append(document)
    chosen = list(judged)[:queries]
    used = sorted({document for query in chosen for document in judged[query]}, key=int)
    place_of = {document: place for place, document in enumerate(used)}
    answers = [[place_of[document] for document in judged[query]] for query in chosen]
    return Collection("Cranfield", [texts[query] for query in chosen], [titles[k] for k in used], answers)


def sts_pairs(path: Path, pairs: int) -> Collection:
    """Take pairs of STS-B that mean the same: the first sentence asks for the second, among all sentences."""
    rows = json_lines(path)
    same = [row for row in rows if row["score"] >= SAME_MEANING]
    query_of = {row["sentence2"]: row["sentence1"] for row in same if row["sentence1"] != row["sentence2"]}
    answers = list(query_of)[:pairs]
    queries = [query_of[answer] for answer in answers]
    others = [row[column] for row in rows for column in ("sentence1", "sentence2")]
    documents = list(dict.fromkeys([*answers, *others]))
    documents = [document for document in documents if document not in set(queries)]
    return Collection("STS-B", queries, documents, [[place] for place in range(len(answers))])


def recall(
    similarities: NDArray[np.float32], stuffed: NDArray[np.float32], answers: list[list[int]]
) -> float:
    """Compute recall@10 when the answers of each query, and only these, have copies.

    Args:
        similarities: of queries to documents without copies, shape (Q, D).
        stuffed: the same, with copies in every document that answers a query.
        answers: places of the documents that answer each query.
    """
    recalls_by_query = []
    for query, places in enumerate(answers):
        scores = similarities[query].copy()
        scores[places] = stuffed[query, places]
        first = np.argsort(-scores, kind="stable")[:TOP]
        hits = set(first.tolist()).intersection(places)
        recalls_by_query.append(len(hits) / min(TOP, len(places)))
    return float(np.mean(recalls_by_query))


def chosen_tokens(run: Run, count: int) -> pl.DataFrame:
    """Choose tokens evenly over the erased shares of the vocabulary, and those that erase most."""
    ranked = run.tokens.drop_nulls("erased").sort("erased", "token_id")
    most = ranked.tail(count // 3)
    rest = ranked.head(len(ranked) - len(most))
    places = np.linspace(0, len(rest) - 1, count - len(most)).round().astype(int).tolist()
    chosen: pl.DataFrame = pl.concat([rest[places], most])
    return chosen


def measured_closely(encoder: Encoder, tokens: pl.DataFrame) -> pl.DataFrame:
    """Replace lift and erased share of these tokens by those of a probe, in the same order."""
    with progress_bar() as progress:
        probed: Sequence[Any] = probe(
            encoder, tokens["token_id"].to_list(), method="profile", progress=progress
        )
    return tokens.with_columns(
        pl.Series("erased", [token.erased for token in probed]),
        pl.Series("lift_sd", [token.lift_sd for token in probed]),
    )


def recalls(encoder: Encoder, collection: Collection, tokens: Sequence[Token]) -> tuple[float, list[float]]:
    """Compute recall@10 without copies, and with copies of each token."""
    reader = require_ids(encoder, "this benchmark")
    queries = unit_vectors(reader.encode(collection.queries))
    documents = reader.tokenize(collection.documents)
    plain = queries @ unit_vectors(reader.encode(collection.documents)).T
    answering = sorted({place for places in collection.answers for place in places})
    by_token = []
    for token in tokens:
        ids = [copies_as_ids(token, documents[place], Placement.SUFFIX, COPIES, ()) for place in answering]
        stuffed = plain.copy()
        stuffed[:, answering] = queries @ unit_vectors(reader.encode_ids(ids)).T
        by_token.append(recall(plain, stuffed, collection.answers))
    return recall(plain, plain, collection.answers), by_token


def main(
    run: Path,
    tokens: int = 100,
    queries: int = 70,
    data: Path = SHARED / "data",
    name: str = "search_harm",
) -> None:
    """Measure both collections with the model of RUN, a finished run of the profile method."""
    opened = open_run(run)
    encoder = encoder_for(None, opened, "the benchmark")
    chosen = measured_closely(encoder, chosen_tokens(opened, tokens))
    named = [Token(token_id, text) for token_id, text in chosen.select("token_id", "decoded").iter_rows()]
    results = Results(name, encoder.device, model=opened.record.model.short_name, tokens=len(named))
    collections = [
        cranfield(data / "cranfield", queries),
        sts_pairs(data / "stsb" / "test.jsonl", 2 * queries),
    ]
    figures = []
    for collection in collections:
        without, by_token = recalls(encoder, collection, named)
        rho = spearman(chosen["erased"], by_token)
        of_lift = spearman(chosen["lift_sd"], by_token)
        median = float(np.median(by_token))
        even = chosen.height - tokens // 3
        rho_even = spearman(chosen["erased"][:even], by_token[:even])
        ours = (
            f"{rho:.2f}; over the {even} evenly drawn alone {rho_even:.2f}; with lift {of_lift:.2f}; "
            f"recall {without:.3f} without copies, median {median:.3f}"
        )
        title = f"{collection.name}, {len(collection.documents)} documents: Spearman with the erased share"
        detail = dict(zip(chosen["token"].to_list(), by_token, strict=True))
        results.check(title, "at most -0.7", ours, rho <= -0.7, recall=detail)
        figures.append((collection.name, without, by_token))
    draw(chosen, figures, opened.record.model.short_name, IMAGES / f"{name}.svg")
    results.finish()


def draw(tokens: pl.DataFrame, figures: list[tuple[str, float, list[float]]], model: str, path: Path) -> None:
    """Draw recall against the erased share, one panel for each collection."""
    with mpl.rc_context({"svg.hashsalt": "stickytoken", "font.size": 9}):
        drawn, panels = plt.subplots(1, len(figures), figsize=(8, 3), sharey=True)
        for panel, (name, without, by_token) in zip(panels, figures, strict=True):
            panel.axhline(without, color="grey", linestyle="dotted", label="without copies")
            panel.scatter(100 * tokens["erased"].to_numpy(), by_token, s=12)
            panel.set_title(f"{model}, {name}")
            panel.set_xlabel("erased share, in %")
            panel.legend(frameon=False)
        panels[0].set_ylabel("recall@10 with 8 copies of a token")
        drawn.tight_layout()
        drawn.savefig(path, metadata={"Date": None})
        plt.close(drawn)


if __name__ == "__main__":
    commands(__doc__, main)
