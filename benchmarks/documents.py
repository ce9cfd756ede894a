"""Does what a run measures in documents hold in other collections?

A run measures tokens in the documents that come with the package. Here, copies are written as plain text in
front of documents of other collections, which NumPy searches. `collections` writes two collections beside
Cranfield: program documentation, and paragraphs with questions. `python benchmarks/documents.py COMMAND
--help` says what a command needs and how long it takes.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import polars as pl
import typer
from numpy.typing import NDArray

from bench import (
    MINILM,
    PLANTED,
    SHARED,
    Results,
    commands,
    detected,
    json_lines,
    record_as,
    refuse,
    spearman,
    units,
)
from models import plain_model, planted_ids
from stickytoken import load_encoder
from stickytoken.cli.console import progress_bar
from stickytoken.data import load_sentences
from stickytoken.detection import Run, open_run
from stickytoken.detection.run import encoder_for
from stickytoken.encoders import Encoder, IdEncoder
from stickytoken.encoders.fitting import fit_texts
from stickytoken.encoders.protocol import require_ids
from stickytoken.encoders.roles import Role, in_role
from stickytoken.insertion import Insertion, Token
from stickytoken.methods.profile.documents import DOCUMENT_COUNTS, encode_documents
from stickytoken.methods.profile.records import ProfilePlanRecord
from stickytoken.methods.runner import Runner
from stickytoken.settings.profile import ProfileSettings
from stickytoken.vocabulary import categorize

CRANFIELD = SHARED / "data" / "cranfield"
# Packages whose docstrings are the program documentation.
DOCUMENTED = ("numpy", "scipy", "sklearn", "torch", "networkx", "sympy")
# Numbers of words in a document that is made of a docstring, and in its first sentence, the query.
WORDS_OF_DOCUMENT = (70, 110)
WORDS_OF_QUERY = (5, 16)
# Number of documents with copies, and the lengths that they may have, in tokens.
COUNT = 24
LENGTHS = (100, 200)
COPIES = 8
TOP = 10
# A token pushes if documents are in this many times as many wrong results.
PUSHES = 1.5
# Number of tokens that are drawn evenly over the range of their push, from this many equal intervals in turn.
DRAWN = 150
INTERVALS = 20
# Number of rows to plant toward a collection, and strength at which a row of shared/planted is strong.
ROWS = 12
STRONG = 0.8
# Number of texts after which progress is shown.
SHARD = 512


def collections(out: Path, squad: Annotated[list[Path], typer.Option()], count: int = 700) -> None:
    """Write two collections in the layout of BEIR to the folder OUT. Takes seconds.

    In OUT/documentation, docstrings without their first sentences are searched for these sentences. In
    OUT/questions, paragraphs are searched for the questions about them that --squad has: a file in the format
    of SQuAD, as often as there are files. --count is the number of docstrings; the first sentences of 300
    others are queries as well.
    """
    docstrings = dict(sorted(docstring_pairs()))
    order = np.random.default_rng(1).permutation(len(docstrings))
    pairs = [list(docstrings.items())[index] for index in order[: count + 300]]
    queries = [(query, index if index < count else None) for index, (query, _) in enumerate(pairs)]
    write_collection(out / "documentation", [document for _, document in pairs[:count]], queries)

    questions_of: dict[str, set[str]] = {}
    for path in squad:
        for article in json.loads(path.read_text("utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                questions = questions_of.setdefault(" ".join(paragraph["context"].split()), set())
                answered = [entry for entry in paragraph["qas"] if not entry.get("is_impossible")]
                questions.update(" ".join(entry["question"].split()) for entry in answered)
    queries = []
    for index, questions in enumerate(questions_of.values()):
        queries += [(question, index) for question in sorted(questions)]
    write_collection(out / "questions", list(questions_of), queries)


def docstring_pairs() -> Iterator[tuple[str, str]]:
    """Yield first sentences of docstrings with the words that follow them."""
    for name in DOCUMENTED:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        for path in sorted(Path(spec.origin).parent.rglob("*.py")):
            if "tests" in path.parts:
                continue
            try:
                tree = ast.parse(path.read_text("utf-8"))
            except SyntaxError:  # written for a newer Python
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                    first, _, rest = (ast.get_docstring(node) or "").partition("\n\n")
                    # Headings are underlined.
                    words = [word for word in rest.split() if word.strip("-=")][: WORDS_OF_DOCUMENT[1]]
                    is_query = WORDS_OF_QUERY[0] <= len(first.split()) <= WORDS_OF_QUERY[1]
                    if is_query and len(words) >= WORDS_OF_DOCUMENT[0]:
                        yield " ".join(first.split()), " ".join(words)


def write_collection(folder: Path, documents: list[str], queries: list[tuple[str, int | None]]) -> None:
    """Write documents and queries, each with the index of the document that answers it."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    corpus = [{"_id": str(index), "title": "", "text": text} for index, text in enumerate(documents)]
    asked = [{"_id": str(index), "text": text} for index, (text, _) in enumerate(queries)]
    judged = [f"{index}\t{answer}\t1" for index, (_, answer) in enumerate(queries) if answer is not None]
    for name, rows in (("corpus", corpus), ("queries", asked)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, "utf-8")
    (folder / "qrels/test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n", "utf-8")
    print(f"{len(documents)} documents, {len(queries)} queries: {folder}")


@dataclass(frozen=True)
class JudgedCollection:
    """M queries, N documents, and which documents answer which queries.

    Attributes:
        name: name of the collection.
        queries: the queries.
        documents: the documents.
        is_answer: whether a document answers a query, shape (M, N).
    """

    name: str
    queries: list[str]
    documents: list[str]
    is_answer: NDArray[np.bool_]


def read_collection(folder: Path) -> JudgedCollection:
    """Read a folder in the layout of BEIR; documents without text are left out."""
    rows = [row for row in json_lines(folder / "corpus.jsonl") if row["text"].strip()]
    queries = json_lines(folder / "queries.jsonl")
    column_of = {row["_id"]: column for column, row in enumerate(rows)}
    row_of = {query["_id"]: row for row, query in enumerate(queries)}
    is_answer = np.zeros((len(queries), len(rows)), dtype=np.bool_)
    for line in (folder / "qrels/test.tsv").read_text("utf-8").splitlines()[1:]:
        query_id, document_id, score = line.split()
        if int(score) > 0 and document_id in column_of:
            is_answer[row_of[query_id], column_of[document_id]] = True
    documents = [f"{row['title']} {row['text']}".strip() for row in rows]
    return JudgedCollection(folder.name, [query["text"] for query in queries], documents, is_answer)


class Measured(NamedTuple):
    """What copies of T tokens do to the n documents of a collection.

    Attributes:
        wrong: number of wrong results that each document is, shape (T, n).
        found: share of the queries that find the document that answers them, shape (T,).
        wrong_without: the first without copies, shape (n,).
        found_without: the second without copies.
    """

    wrong: NDArray[np.int64]
    found: NDArray[np.float64]
    wrong_without: NDArray[np.int64]
    found_without: NDArray[np.float64]

    @property
    def ratios(self) -> NDArray[np.float64]:
        """In how many times as many wrong results the documents are with copies, shape (T,)."""
        return np.asarray(self.wrong.sum(axis=1) / self.wrong_without.sum())


def reliability(wrong: NDArray[Any]) -> float:
    """Return how reliable the sums over documents of T tokens are, by Spearman and Brown (1910).

    The halves are pairs of documents in turn, because packaged ones have copies in front and behind in turn.

    Args:
        wrong: number of wrong results that each document is, shape (T, n).
    """
    is_first = np.arange(wrong.shape[1]) % 4 < 2
    agreement = spearman(wrong[:, is_first].sum(axis=1), wrong[:, ~is_first].sum(axis=1))
    return 2 * agreement / (1 + agreement)


class Search:
    """Exact search in a collection in which single documents receive copies.

    The documents are drawn from those that answer a query.

    Args:
        encoder: the model.
        collection: the collection.
    """

    def __init__(self, encoder: IdEncoder, collection: JudgedCollection) -> None:
        self.encoder = in_role(encoder, Role.DOCUMENT)
        self.name = collection.name
        lengths = np.array([len(ids) for ids in encoder.content_ids(collection.documents)])
        has_length = (lengths >= LENGTHS[0]) & (lengths <= LENGTHS[1])
        eligible = np.flatnonzero(has_length & collection.is_answer.any(axis=0))
        self.places = np.random.default_rng(7).permutation(eligible)[:COUNT]
        self.texts = [collection.documents[place] for place in self.places]
        read = [
            fitted.text for fitted in fit_texts(encoder, collection.documents, 0, Insertion.TEXT, self.name)
        ]
        self.queries = units(in_role(encoder, Role.QUERY).encode(collection.queries))
        similarities = self.queries @ units(self.encoder.encode(read)).T
        self.before = similarities[:, self.places]
        self.is_answer = collection.is_answer[:, self.places]
        limits = []
        for place in self.places:
            others = np.delete(similarities, place, axis=1)
            limits.append(np.partition(others, -TOP, axis=1)[:, -TOP])
        self.limits = np.stack(limits, axis=1)

    def _count(self, similarities: NDArray[np.float64]) -> tuple[NDArray[np.int64], float]:
        """Return how many wrong top 10s each document is in, and the share of its queries that find it."""
        is_in_top = similarities > self.limits
        found = float(is_in_top[self.is_answer].mean())
        return (is_in_top & ~self.is_answer).sum(axis=0), found

    def measure(self, words: Sequence[str]) -> Measured:
        """Write eight copies of each word in front of each document, and search for it."""
        wrong, found = [], []
        for word in words:
            written = [f"{' '.join([word] * COPIES)} {document}" for document in self.texts]
            counted = self._count(self.queries @ units(self.encoder.encode(written)).T)
            wrong.append(counted[0])
            found.append(counted[1])
        wrong_without, found_without = self._count(self.before)
        return Measured(np.array(wrong), np.array(found), wrong_without, np.array(found_without))


def draw_evenly(tokens: pl.DataFrame, count: int) -> list[int]:
    """Draw tokens evenly over the range of their push: one from each of 20 equal intervals in turn."""
    ascending = tokens.sort("push", "token_id")
    pushes = ascending["push"].to_numpy()
    shares = (pushes - pushes.min()) / (pushes.max() - pushes.min())
    queues: list[list[int]] = [[] for _ in range(INTERVALS)]
    for index in np.random.default_rng(3).permutation(len(ascending)):
        interval = min(int(shares[index] * INTERVALS), INTERVALS - 1)
        queues[interval].append(ascending["token_id"][int(index)])
    in_turn = [token_id for group in zip_longest(*queues) for token_id in group if token_id is not None]
    return in_turn[:count]


def measure_packaged(encoder: Encoder, run: Run, tokens: list[Token], path: Path) -> NDArray[np.float64]:
    """Return how many wrong results the documents of a run are that receive copies, shape (T + 1, n).

    The last row is without copies. All kinds of documents and of queries weigh the same. If the file PATH
    exists, they are read from it.
    """
    if path.is_file():
        return np.asarray(np.load(path))
    documents = record_as(run.plan, ProfilePlanRecord).documents
    with progress_bar() as progress:
        runner = Runner.in_memory(encoder, progress, shard_probes=SHARD)
        panel = encode_documents(encoder, load_sentences(), documents, runner, ProfileSettings().inserted_as)
        if panel is None:
            refuse("the run has no documents")
        results = panel.measure(runner, tokens, "documents with copies")
    is_wrong = [*results.wrong_results, panel.is_wrong_result]
    packaged = np.stack([(of_token * panel.weights).sum(axis=0) for of_token in is_wrong])
    np.save(path, packaged)
    return packaged


def correlation(
    run: Path,
    collection: Annotated[list[Path], typer.Option()],
    out: Path = Path("build/documents"),
    packaged: bool = True,
    name: str = "documents_correlation",
) -> None:
    """Does push agree with wrong top 10s in other collections, and the erased share with recall? 20 minutes.

    RUN is a finished run of the whole vocabulary on the packaged documents. 150 of the tokens that it
    measured in documents are drawn evenly over the range of their push. Its random tokens are added, and
    those that it flags because they hide. --collection is a folder in the layout of BEIR, as often as there
    are collections. With --no-packaged, the tokens are not measured again in more packaged documents, which
    takes half of the time. The folder --out keeps what was measured, so that the same command continues
    after an interruption.
    """
    opened = open_run(run)
    encoder = require_ids(encoder_for(None, opened, "the benchmark"), "this benchmark")
    measured = opened.tokens.drop_nulls("push")
    random_ids = record_as(opened.plan, ProfilePlanRecord).pilots
    drawn_ids = draw_evenly(measured, DRAWN)
    hiding_ids = measured.filter(is_hiding())["token_id"].to_list()
    ids = sorted({*drawn_ids, *random_ids, *hiding_ids})
    rows = pl.DataFrame({"token_id": ids}).join(measured, on="token_id", maintain_order="left")
    tokens = [Token(token_id, text) for token_id, text in rows.select("token_id", "decoded").iter_rows()]
    results = Results(
        name, encoder.device, model=opened.record.model.short_name, tokens=rows["token"].to_list()
    )
    is_random = np.isin(ids, random_ids)
    is_drawn = np.isin(ids, drawn_ids)
    groups = {"random tokens": is_random, "tokens drawn evenly": is_drawn}

    out.mkdir(parents=True, exist_ok=True)
    parts: dict[str, NDArray[np.float64]] = {}
    wrong: dict[str, NDArray[Any]] = {}
    if packaged:
        of_packaged = measure_packaged(encoder, opened, tokens, out / "packaged.npy")
        parts = {str(count): of_packaged[:, :count] for count in DOCUMENT_COUNTS}
        parts["32 in front"] = of_packaged[:, ::2]
        wrong["packaged"] = of_packaged[:-1]
    push = {name: part[:-1].sum(axis=1) / part[-1].sum() for name, part in parts.items()}
    outside: dict[str, Measured] = {}
    for folder in collection:
        path = out / f"{folder.name}.npz"
        if not path.is_file():
            search = Search(encoder, read_collection(folder))
            np.savez(path, **search.measure(rows["decoded"].to_list())._asdict())
        outside[folder.name] = Measured(**np.load(path))
    wrong |= {searched: there.wrong for searched, there in outside.items()}
    reliable = [f"{reliability(of_tokens[is_random]):.2f} ({of})" for of, of_tokens in wrong.items()]
    results.check(
        "two halves of the documents: reliability of wrong results, random tokens",
        "shown",
        ", ".join(reliable),
    )
    for searched, there in outside.items():
        check_push(results, searched, there, push, rows["push"].to_numpy(), groups)
    for (first, in_first), (second, in_second) in combinations(outside.items(), 2):
        of_random = spearman(in_first.ratios[is_random], in_second.ratios[is_random])
        of_drawn = spearman(in_first.ratios[is_drawn], in_second.ratios[is_drawn])
        title = f"{first} and {second}: Spearman of wrong top 10s, random tokens; tokens drawn evenly"
        results.check(title, "shown", f"{of_random:.2f}; {of_drawn:.2f}")
    for searched, there in outside.items():
        check_erased(results, searched, there, rows, groups)
    results.finish(strict=False)


def check_push(
    results: Results,
    name: str,
    outside: Measured,
    push: Mapping[str, NDArray[np.float64]],
    reported: NDArray[np.float64],
    groups: Mapping[str, NDArray[np.bool_]],
) -> None:
    """Check how well the push in packaged documents agrees with wrong top 10s of a collection.

    Args:
        results: gets the checks.
        name: name of the collection.
        outside: what copies do there.
        push: push in packaged documents, keyed by how many.
        reported: push that the run reports, from four documents or more.
        groups: which tokens are random, and which are drawn evenly.
    """
    for (title, mask), bar in zip(groups.items(), (0.5, 0.7), strict=True):
        of_run = spearman(reported[mask], outside.ratios[mask])
        check = f"{name}, {mask.sum()} {title}: Spearman of the run's push"
        ours = f"{of_run:.2f}"
        if push:
            check += "; of that in more packaged documents"
            measured = []
            for part, of_part in push.items():
                measured.append(f"{spearman(of_part[mask], outside.ratios[mask]):.2f} ({part})")
            ours += f"; {', '.join(measured)}"
        results.check(check, f"at least {bar}", ours, of_run >= bar)


def is_hiding() -> pl.Expr:
    """Return the expression that selects the tokens of a run's table that are sticky because they hide."""
    return (pl.col("verdict") == "sticky") & (pl.col("push_low") < PUSHES)


def check_erased(
    results: Results,
    name: str,
    outside: Measured,
    rows: pl.DataFrame,
    groups: Mapping[str, NDArray[np.bool_]],
) -> None:
    """Check how well the erased share agrees with recall@10, and whether flagged tokens hide documents.

    The arguments are those of `check_push`, with ``rows`` of the run's table.
    """
    erased = rows["erased"].to_numpy()
    is_flagged = rows.select(is_hiding()).to_series().to_numpy()
    is_random, is_drawn = groups.values()
    masks = {
        "random tokens": is_random,
        "tokens drawn evenly that are not flagged": is_drawn & ~is_flagged,
        "tokens drawn evenly": is_drawn,
    }
    for title, mask in masks.items():
        with_recall = spearman(erased[mask], outside.found[mask])
        results.check(
            f"{name}, {mask.sum()} {title}: Spearman of the erased share with recall@{TOP}",
            "at most -0.7",
            f"{with_recall:.2f}",
            with_recall <= -0.7,
        )
    recall = [np.median(outside.found[mask]) for mask in (is_flagged, is_random)]
    results.check(
        f"{name}: median recall@{TOP} with {is_flagged.sum()} tokens that hide; random ones; no copies",
        "shown",
        f"{recall[0]:.0%}; {recall[1]:.0%}; {outside.found_without:.0%}",
        tokens=rows.filter(pl.Series(is_flagged))["token"].to_list(),
    )
    # A median conceals the tokens that do no harm.
    flagged_recall = outside.found[is_flagged]
    ordinary, low = np.quantile(outside.found[is_random], (0.5, 0.05))
    results.check(
        f"{name}: tokens that hide (of {is_flagged.sum()}) with recall@{TOP} below a random one's median; "
        "below 95% of the random ones",
        "shown",
        f"{(flagged_recall < ordinary).sum()}; {(flagged_recall < low).sum()}",
        recall=dict(zip(rows.filter(pl.Series(is_flagged))["token"], flagged_recall.tolist(), strict=True)),
    )


def plant(out: Path, base: str, collections_: Sequence[JudgedCollection]) -> dict[str, list[int]]:
    """Plant twelve rows toward the queries of each collection in one copy of a model.

    In all-MiniLM-L6-v2, the rows of shared/planted are planted too. Models that are in the folder OUT already
    are kept.

    Returns:
        Ids of the planted tokens, keyed by the name of the collection; those of shared/planted are under "".
    """
    import torch

    out.mkdir(parents=True, exist_ok=True)
    ids: dict[str, list[int]] = {}
    model = Path(base)
    if base == MINILM:
        planted_rows = np.load(PLANTED)
        ids[""] = planted_rows["token_ids"].tolist()
        model = out / "planted"
        if not model.is_dir():
            plain = plain_model(MINILM)
            weight = plain[0].auto_model.get_input_embeddings().weight
            with torch.no_grad():
                weight[torch.tensor(ids[""])] = torch.tensor(planted_rows["rows"], dtype=weight.dtype)
            plain.save(str(model))
    for seed, collection in enumerate(collections_, start=11):
        queries = out / f"{collection.name}.txt"
        queries.write_text("\n".join(collection.queries) + "\n", "utf-8")
        previous, model = model, out / f"planted-{collection.name}"
        if not model.is_dir():
            options = ["--toward", queries, "--count", ROWS, "--seed", seed]
            command = [sys.executable, SHARED / "planted" / "plant.py", previous, model, *options]
            subprocess.run(list(map(str, command)), check=True)
        ids[collection.name] = planted_ids(model)
    return ids


def planted(
    out: Path,
    toward: Annotated[list[Path], typer.Option()],
    collection: Annotated[list[Path], typer.Option()],
    model: str = MINILM,
    sample: int = 1500,
    name: str = "documents_planted",
) -> None:
    """Does a run flag tokens that were planted toward queries that it doesn't know? 20 minutes.

    Twelve rows of --model, all-MiniLM-L6-v2 or a folder, are planted toward the queries of each collection
    --toward, and a run is made on the planted tokens and --sample others, in the folder OUT. All planted
    tokens are then measured in the collections --toward and --collection. Both options take folders in the
    layout of BEIR, and may be repeated.
    """
    aims = [read_collection(folder) for folder in toward]
    ids_of = plant(out, model, aims)
    encoder = load_encoder(out / f"planted-{aims[-1].name}")
    available = {token.id: token for token in categorize(encoder.tokenizer).available}
    planted_set = set().union(*ids_of.values())
    others = np.random.default_rng(5).permutation(list(available))[:sample].tolist()
    run = detected(encoder, tokens=sorted(planted_set.union(others)), out=out / "run")
    results = Results(name, encoder.device, model=Path(model).name, tokens=len(run.tokens))

    table = run.tokens.filter(pl.col("token_id").is_in(planted_set) | (pl.col("token") == "[CLS]"))
    words = table["decoded"].to_list()
    ratios: dict[str, NDArray[np.float64]] = {}
    for searched in [*aims, *(read_collection(folder) for folder in collection)]:
        ratios[searched.name] = Search(encoder, searched).measure(words).ratios
    table = table.with_columns(pl.Series(f"in {name}", values) for name, values in ratios.items())
    for aim in aims:
        rows = table.filter(pl.col("token_id").is_in(ids_of[aim.name]))
        check_planted(results, f"rows planted toward {aim.name}", rows, 0.9)
        strong = rows.filter(pl.col(f"in {aim.name}") >= PUSHES)
        check_planted(results, f"those that push there, {PUSHES:g} times and more", strong, 0.9)
    if "" in ids_of:
        strengths = pl.read_csv(PLANTED.with_suffix(".csv")).select("token_id", "strength")
        strong = table.join(strengths.filter(pl.col("strength") >= STRONG), on="token_id")
        check_planted(results, f"rows planted toward sentences, strength {STRONG:g} and more", strong, 0.95)
    natural = run.sticky.filter(~pl.col("token_id").is_in(planted_set))
    results.check(
        "other tokens", "shown", f"{len(natural)} of {len(run.tokens) - len(planted_set):,} flagged"
    )
    check_transfer(results, table, list(ratios))
    results.finish(strict=False)


def check_planted(results: Results, title: str, rows: pl.DataFrame, share: float) -> None:
    """Check how many of some planted tokens are flagged."""
    flagged = rows.filter(pl.col("verdict") == "sticky")
    results.check(
        title,
        f"{share:.0%} flagged",
        f"{len(flagged)} of {len(rows)}",
        len(flagged) >= share * len(rows),
        tokens=rows.select(pl.exclude("decoded", "category", "reason")).to_dicts(),
    )


def check_transfer(results: Results, table: pl.DataFrame, names: list[str]) -> None:
    """Check whether tokens that push in the packaged documents push in the collections too."""
    pushing = table.filter(pl.col("push_low") >= PUSHES)
    if pushing.is_empty():
        results.check(f"tokens that push packaged documents {PUSHES:g} times and more", "shown", "none")
        return
    shares = {name: float((pushing[f"in {name}"].to_numpy() >= PUSHES).mean()) for name in names}
    worst = min(shares.values())
    ours = ", ".join(f"{share:.0%} in {name}" for name, share in shares.items())
    results.check(
        f"{len(pushing)} tokens that push packaged documents {PUSHES:g} times and more: the same elsewhere",
        "80%",
        ours,
        worst >= 0.8,
        tokens=pushing["token"].to_list(),
    )


def again(
    run: Path,
    out: Path,
    collection: Annotated[list[Path], typer.Option()],
    tokens: int = 150,
    name: str = "documents_again",
) -> None:
    """Does a run on other texts flag the same tokens? Ten minutes.

    The texts of the second run, in the folder OUT, are the sentences of the collections, folders in the
    layout of BEIR. It measures the --tokens that erase most in RUN, its sticky tokens and special ones.
    """
    first = open_run(run)
    sentences: list[str] = []
    # Sentences of a document stay together, because they are joined to documents again.
    for documents in zip(*(read_collection(folder).documents for folder in collection), strict=False):
        for document in documents:
            sentences += re.split(r"(?<=[.!?])\s+", document)
    second = measure_again(first, tokens, sentences, out)
    compare_flagged(name, "two runs without a common text", first, second)


def halves(run: Path, out: Path, tokens: int = 150, name: str = "documents_halves") -> None:
    """Do runs on the two halves of the packaged sentences flag the same tokens? Ten minutes.

    Each run, in the folder OUT, has every other pair of sentences, and joins documents from its own. Both
    measure the --tokens that erase most in RUN, its sticky tokens and special ones.
    """
    whole = open_run(run)
    sentences = load_sentences().texts
    runs = []
    for half in range(2):
        texts = [text for index, text in enumerate(sentences) if index // 2 % 2 == half]
        runs.append(measure_again(whole, tokens, texts, out / f"half-{half + 1}"))
    compare_flagged(name, "runs on two halves of the packaged sentences", *runs)


def measure_again(run: Run, count: int, sentences: list[str], out: Path) -> Run:
    """Measure the tokens that erase most in a run, its sticky tokens and special ones with other texts."""
    candidates = run.tokens.sort("erased", descending=True, nulls_last=True)["token_id"][:count].to_list()
    ids = sorted({*candidates, *run.sticky["token_id"]})
    encoder = require_ids(encoder_for(None, run, "the benchmark"), "this benchmark")
    return detected(encoder, sentences=sentences, tokens=ids, out=out)


def compare_flagged(name: str, title: str, first: Run, second: Run) -> None:
    """Check that two runs flag the same tokens, among those that both measured."""
    columns = ["token_id", "token", "erased", "erased_low", "push", "push_low", "verdict"]
    both = first.tokens.select(columns).join(second.tokens.select(columns), on="token_id", suffix="_again")
    by_first, by_second = (
        set(both.filter(pl.col(column) == "sticky")["token_id"]) for column in ("verdict", "verdict_again")
    )
    union = by_first | by_second
    share = len(by_first & by_second) / len(union)
    results = Results(name, "cpu", model=first.record.model.short_name, tokens=len(both))
    results.check(
        f"{title}, {len(both)} tokens: flagged by both of either",
        "Jaccard 0.9",
        f"{share:.2f} ({len(by_first & by_second)} of {len(union)})",
        share >= 0.9,
        flagged=both.filter(pl.col("token_id").is_in(union)).to_dicts(),
    )
    results.check("flagged by the first; by the second", "shown", f"{len(by_first)}; {len(by_second)}")
    for measure in ("erased", "push"):
        compared = both.drop_nulls([measure, f"{measure}_again"])
        correlation = spearman(compared[measure], compared[f"{measure}_again"])
        results.check(f"Spearman of {measure}", "shown", f"{correlation:.2f}")
    results.finish(strict=False)


if __name__ == "__main__":
    commands(__doc__, collections, correlation, planted, again, halves)
