"""Do copies of a token harm a search more if the token erases more of a text?

Eight copies of a token are appended to the documents that answer each query; all other documents stay as they
are. Recall@10 is then compared with the share that the token erases, over a hundred tokens
of a finished run. Two thirds of them are spread evenly over the erased shares of the vocabulary. The others
are those that erase most. A run only screens most tokens, with a standard error of several percent, so the
hundred tokens are first measured again, as closely as a run confirms a token.

Two collections are searched. In Cranfield, titles are searched for queries. In STS-B, a sentence is searched
for a sentence that means the same, among all sentences.

Needs a finished run of the profile method, Cranfield in the layout of BEIR, and the test set of STS-B. Takes
minutes. Also draws docs/images/NAME.svg.

    python benchmarks/search_harm.py RUN --name NAME
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

# Number of copies behind a document.
COPIES = 8
# Number of documents that a search returns.
TOP = 10
# Two sentences of STS-B mean the same if their score, from 0 to 5, is at least this.
SAME_MEANING = 4.0


class Collection(NamedTuple):
    """Queries, documents, and which documents answer which query.

    Attributes:
        name: name of the collection.
        queries: texts of the Q queries.
        documents: texts of the D documents.
        answers: for each query, the indices of the documents that answer it.
    """

    name: str
    queries: list[str]
    documents: list[str]
    answers: list[list[int]]


class Harm(NamedTuple):
    """Recall@10 of a collection.

    Attributes:
        collection: name of the collection.
        without_copies: recall without copies.
        by_token: recall with copies of each token in the answers.
    """

    collection: str
    without_copies: float
    by_token: list[float]


def cranfield(folder: Path, query_count: int) -> Collection:
    """Return the first queries of Cranfield, and the titles that are relevant to at least one of them."""
    text_of_query = {row["_id"]: row["text"] for row in json_lines(folder / "queries.jsonl")}
    title_of_document = {row["_id"]: row["title"] for row in json_lines(folder / "corpus.jsonl")}
    judgements = pl.read_csv(folder / "qrels/test.tsv", separator="\t")
    relevant_pairs = judgements.select(pl.col("query-id", "corpus-id").cast(pl.String))
    relevant: dict[str, list[str]] = {}
    for query_id, document_id in relevant_pairs.iter_rows():
        if title_of_document.get(document_id, "").strip():
            relevant.setdefault(query_id, []).append(document_id)

    query_ids = list(relevant)[:query_count]
    used_ids: set[str] = set()
    for query_id in query_ids:
        used_ids.update(relevant[query_id])
    document_ids = sorted(used_ids, key=int)
    index_of = {document_id: index for index, document_id in enumerate(document_ids)}
    answers = []
    for query_id in query_ids:
        answer_indices = [index_of[document_id] for document_id in relevant[query_id]]
        answers.append(answer_indices)
    return Collection(
        name="Cranfield",
        queries=[text_of_query[query_id] for query_id in query_ids],
        documents=[title_of_document[document_id] for document_id in document_ids],
        answers=answers,
    )


def sts_pairs(path: Path, pair_count: int) -> Collection:
    """Return pairs of STS-B that mean the same: the first sentence is the query, the second its answer.

    The documents are all sentences of STS-B, except the queries.
    """
    rows = json_lines(path)
    query_of: dict[str, str] = {}
    for row in rows:
        if row["score"] >= SAME_MEANING and row["sentence1"] != row["sentence2"]:
            query_of[row["sentence2"]] = row["sentence1"]
    # Queries are left out of the documents, so a sentence that is also a query could not be found.
    all_queries = set(query_of.values())
    answers = [answer for answer in query_of if answer not in all_queries][:pair_count]
    queries = [query_of[answer] for answer in answers]

    sentences = []
    for row in rows:
        sentences += [row["sentence1"], row["sentence2"]]
    used_queries = set(queries)
    other_sentences = [sentence for sentence in sentences if sentence not in used_queries]
    # The answers come first, so that the index of an answer is that of its query.
    documents = list(dict.fromkeys([*answers, *other_sentences]))
    return Collection("STS-B", queries, documents, [[index] for index in range(len(answers))])


def recall(
    similarities: NDArray[np.float32], with_copies: NDArray[np.float32], answers: list[list[int]]
) -> float:
    """Return recall@10, averaged over queries, if only the answers of a query contain copies.

    Args:
        similarities: similarities of queries to documents without copies, shape (Q, D).
        with_copies: the same, with copies in every document that answers any query, shape (Q, D).
        answers: indices of the documents that answer each query.
    """
    recall_by_query = []
    for query, answer_indices in enumerate(answers):
        scores = similarities[query].copy()
        scores[answer_indices] = with_copies[query, answer_indices]
        first = np.argsort(-scores, kind="stable")[:TOP]
        hits = set(first.tolist()).intersection(answer_indices)
        recall_by_query.append(len(hits) / min(TOP, len(answer_indices)))
    return float(np.mean(recall_by_query))


def chosen_tokens(run: Run, count: int) -> pl.DataFrame:
    """Return tokens spread evenly over the erased shares of the vocabulary, then those that erase most."""
    ascending = run.tokens.drop_nulls("erased").sort("erased", "token_id")
    erasing_most = ascending.tail(count // 3)
    others = ascending.head(len(ascending) - len(erasing_most))
    even_steps = np.linspace(0, len(others) - 1, count - len(erasing_most))
    spread_evenly = others[even_steps.round().astype(int).tolist()]
    chosen: pl.DataFrame = pl.concat([spread_evenly, erasing_most])
    return chosen


def measured_closely(encoder: Encoder, tokens: pl.DataFrame) -> pl.DataFrame:
    """Return the same rows, with the erased share that a probe measures."""
    with progress_bar() as progress:
        probed: Sequence[Any] = probe(
            encoder, tokens["token_id"].to_list(), method="profile", progress=progress
        )
    return tokens.with_columns(pl.Series("erased", [token.erased for token in probed]))


def search_with_copies(encoder: Encoder, collection: Collection, tokens: Sequence[Token]) -> Harm:
    """Measure recall@10 without copies, and with copies of each token."""
    reader = require_ids(encoder, "this benchmark")
    queries = unit_vectors(reader.encode(collection.queries))
    documents = reader.tokenize(collection.documents)
    similarities = queries @ unit_vectors(reader.encode(collection.documents)).T
    answering_set: set[int] = set()
    for answer_indices in collection.answers:
        answering_set.update(answer_indices)
    answering = sorted(answering_set)

    recall_by_token = []
    for token in tokens:
        answers_with_copies = [
            copies_as_ids(token, documents[index], Placement.SUFFIX, COPIES, ()) for index in answering
        ]
        with_copies = similarities.copy()
        with_copies[:, answering] = queries @ unit_vectors(reader.encode_ids(answers_with_copies)).T
        recall_by_token.append(recall(similarities, with_copies, collection.answers))
    return Harm(
        collection=collection.name,
        without_copies=recall(similarities, similarities, collection.answers),
        by_token=recall_by_token,
    )


def main(
    run: Path,
    tokens: int = 100,
    queries: int = 140,
    data: Path = SHARED / "data",
    name: str = "search_harm",
) -> None:
    """Compare the erased shares of tokens with recall@10 of a search whose answers contain copies.

    RUN is a finished run of the profile method. --tokens is the number of tokens to put behind documents.
    --queries is the number of queries in Cranfield; STS-B has twice as many. --data is a folder with
    cranfield/ in the layout of BEIR and stsb/test.jsonl. --name is the name of the results file and of the
    picture in docs/images. Takes minutes.
    """
    opened = open_run(run)
    encoder = encoder_for(None, opened, "the benchmark")
    model = opened.record.model.short_name
    chosen = measured_closely(encoder, chosen_tokens(opened, tokens))
    id_and_text = chosen.select("token_id", "decoded").iter_rows()
    inserted_tokens = [Token(token_id, text) for token_id, text in id_and_text]
    results = Results(name, encoder.device, model=model, tokens=len(inserted_tokens))
    collections = [
        cranfield(data / "cranfield", queries),
        sts_pairs(data / "stsb" / "test.jsonl", 2 * queries),
    ]
    harms = []
    for collection in collections:
        harm = search_with_copies(encoder, collection, inserted_tokens)
        check_harm(results, collection, harm, chosen, chosen.height - tokens // 3)
        harms.append(harm)
    draw(chosen, harms, model, IMAGES / f"{name}.svg")
    results.finish()


def check_harm(
    results: Results, collection: Collection, harm: Harm, tokens: pl.DataFrame, evenly_spread: int
) -> None:
    """Check the rank correlation of recall with the erased share, over the evenly spread tokens and over all.

    Args:
        results: the results to add a check to.
        collection: the collection that was searched.
        harm: recall with copies of each token.
        tokens: the tokens with their measures. The evenly spread ones come first.
        evenly_spread: number of tokens that are spread evenly over the erased shares.
    """
    with_erased = spearman(tokens["erased"], harm.by_token)
    with_erased_even = spearman(tokens["erased"][:evenly_spread], harm.by_token[:evenly_spread])
    median = float(np.median(harm.by_token))
    name = f"{collection.name}, {len(collection.documents)} documents"
    results.check(
        f"{name}: Spearman with the erased share, {evenly_spread} evenly drawn tokens",
        "at most -0.7",
        f"{with_erased_even:.2f}",
        with_erased_even <= -0.7,
    )
    results.check(
        f"{name}: the same with the {len(tokens) - evenly_spread} that erase most",
        "at most -0.7",
        f"{with_erased:.2f}; recall {harm.without_copies:.3f} without copies, median {median:.3f}",
        with_erased <= -0.7,
        recall=dict(zip(tokens["token"].to_list(), harm.by_token, strict=True)),
    )


def draw(tokens: pl.DataFrame, harms: list[Harm], model: str, path: Path) -> None:
    """Draw recall against the erased share, one panel for each collection."""
    # The fixed salt and the missing date make the file the same each time.
    with mpl.rc_context({"svg.hashsalt": "stickytoken", "font.size": 9}):
        figure, panels = plt.subplots(1, len(harms), figsize=(8, 3), sharey=True)
        for panel, harm in zip(panels, harms, strict=True):
            panel.axhline(harm.without_copies, color="grey", linestyle="dotted", label="without copies")
            panel.scatter(100 * tokens["erased"].to_numpy(), harm.by_token, s=12)
            panel.set_title(f"{model}, {harm.collection}")
            panel.set_xlabel("erased share, in %")
            panel.legend(frameon=False)
        panels[0].set_ylabel("recall@10 with 8 copies of a token")
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    commands(__doc__, main)
