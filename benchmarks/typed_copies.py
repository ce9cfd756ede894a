"""How often does a search show a document in which someone typed a token eight times?

Copies are typed before or after a sample of Cranfield's abstracts, one abstract at a time, and the collection
is searched for its queries. Everything is encoded by sentence-transformers and compared by NumPy, so nothing
here depends on what stickytoken measures.

`measure` needs Cranfield in the layout of BEIR, the folder of a model, and a repaired copy of it if there is
one. `counts` measures other numbers of copies than eight, and keywords; `sizes`, parts of a collection of
different sizes. `draw` draws the picture of the README from the result file.

    python benchmarks/typed_copies.py measure MODEL "[CLS]" --repaired FOLDER
    python benchmarks/typed_copies.py draw
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import polars as pl
import typer
from matplotlib.axes import Axes
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from bench import IMAGES, RESULTS, SHARED, commands, json_lines, units, write_json

RESULT_NAME = "typed_copies"
CRANFIELD = SHARED / "data" / "cranfield"
# Number of copies before or after an abstract.
COPIES = 8
# Numbers of copies to compare.
COUNTS = (1, 2, 3, 4, 8)
# Numbers of copies with a word between each two.
SEPARATED_COUNTS = (2, 3, 8)
# Numbers of documents in parts of a collection.
SIZES = (350, 700, 1400, 2800)
# Number of results that a user is assumed to look at.
TOP = 10
# Everyday words, none of which Cranfield is about. Their numbers are averaged.
ORDINARY = ("harbor", "carpet", "violin", "kitchen", "tuesday", "orange")
# Number of tokens that the picture shows: the first, which pushes, and the second, which hides.
SHOWN = 2
# End of the scale of the picture, and the gap between a bar and its number, both in times as many searches.
SCALE_END = 4.0
TEXT_GAP = 0.08
# Resamples of documents and queries behind an interval, and the ends of the interval.
RESAMPLES = 2000
INTERVAL = (5, 95)
SEED = 0
# Colours of a bar without copies, of one with copies that serve for comparison, of one with a token that
# hides or pushes, and of the repaired model: a version for light pages and one for dark pages, keyed by the
# end of the file name.
COLOURS = {
    "": ("#adb5bd", "#868e96", "#c2410c", "#0b7285"),
    "-dark": ("#868e96", "#adb5bd", "#ff922b", "#3bc9db"),
}
TEXT_COLOURS = {"": "#212529", "-dark": "#dee2e6"}


class CollectionSample:
    """A part of a collection, and a sample of its documents that receive copies.

    Args:
        folder: The collection, such as Cranfield, in the layout of BEIR.
        document_count: Number of documents to search, at most all.
        query_count: Number of queries, at most all.
        sample_count: Number of documents that receive copies.
    """

    def __init__(self, folder: Path, document_count: int, query_count: int, sample_count: int) -> None:
        rng = np.random.default_rng(SEED)
        rows = [row for row in json_lines(folder / "corpus.jsonl") if row["text"].strip()]
        rows = [rows[index] for index in rng.permutation(len(rows))[:document_count]]
        queries = json_lines(folder / "queries.jsonl")
        queries = [queries[index] for index in rng.permutation(len(queries))[:query_count]]
        self.documents = [row["text"] for row in rows]
        self.queries = [query["text"] for query in queries]
        self.sample = range(min(sample_count, len(rows)))

        judgements = pl.read_csv(folder / "qrels/test.tsv", separator="\t").filter(pl.col("score") > 0)
        pairs = set(judgements.select(pl.col("query-id", "corpus-id").cast(pl.String)).iter_rows())
        answers = [
            [(query["_id"], rows[index]["_id"]) in pairs for query in queries] for index in self.sample
        ]
        self.is_answer = np.array(answers)


class Search:
    """The search in a collection with a model.

    Args:
        collection: What is searched.
        model: Name or folder of the model.
    """

    def __init__(self, collection: CollectionSample, model: str) -> None:
        self.collection = collection
        self.model = SentenceTransformer(model)
        self.queries = units(self.model.encode_query(collection.queries, batch_size=8))
        # sentence-transformers prefers "document", which is empty in models that name the prompt "passage".
        self.document_prompt = "passage" if self.model.prompts.get("passage") else None
        self.documents = self.encoded(collection.documents)

    def encoded(self, documents: list[str]) -> NDArray[np.float64]:
        """Return the unit vectors of documents."""
        vectors = self.model.encode_document(documents, prompt_name=self.document_prompt, batch_size=8)
        return units(vectors)

    def hits(self, *, before: str = "", after: str = "") -> NDArray[np.float64]:
        """Return 1 where a query has a sampled abstract among its first ten, shape (sample, queries).

        Only one abstract at a time is edited: it is compared with all others as they are.

        Args:
            before: What is typed before an abstract.
            after: What is typed after it.
        """
        sample = self.collection.sample
        texts = [f"{before} {self.collection.documents[index]} {after}".strip() for index in sample]
        own_similarities = self.encoded(texts) @ self.queries.T
        similarities = self.documents @ self.queries.T
        hits = np.zeros(own_similarities.shape)
        for row, index in enumerate(sample):
            others = np.delete(similarities, index, axis=0)
            tenth_best = np.partition(others, -TOP, axis=0)[-TOP]
            hits[row] = own_similarities[row] > tenth_best
        return hits


def copies_of(word: str, count: int = COPIES) -> str:
    """Return the copies of a word as someone would type them."""
    return " ".join([word] * count)


def keywords_of(queries: Sequence[str], count: int) -> list[str]:
    """Return the words that most queries contain, most frequent first, without stop words."""
    word_sets = [set(re.findall("[a-z]+", query.lower())) - ENGLISH_STOP_WORDS for query in queries]
    query_counts = Counter(word for words in word_sets for word in words)
    # In alphabetical order where equally many queries contain them, so that the choice is always the same.
    return sorted(query_counts, key=lambda word: (-query_counts[word], word))[:count]


def figures(
    label: str, hits: NDArray[np.float64], without: NDArray[np.float64], is_answer: NDArray[np.bool_]
) -> dict[str, Any]:
    """Return the numbers of one bar: top 10s, their ratio to those without copies, and answers found.

    Args:
        label: What the abstracts contain.
        hits: The hits with copies, shape (sample, queries).
        without: The hits without copies.
        is_answer: Whether an abstract answers a query, of the same shape.
    """
    rng = np.random.default_rng(SEED)
    ratios = []
    for _ in range(RESAMPLES):
        # How often each document and each query is drawn.
        documents = np.bincount(rng.integers(len(without), size=len(without)), minlength=len(without))
        query_count = without.shape[1]
        queries = np.bincount(rng.integers(query_count, size=query_count), minlength=query_count)
        if shown_without := documents @ without @ queries:
            ratios.append(documents @ hits @ queries / shown_without)
    return {
        "label": label,
        "top_tens": float(hits.sum(axis=1).mean()),
        "ratio": float(hits.sum() / without.sum()),
        "ratio_interval": np.percentile(ratios, INTERVAL).tolist(),
        "found": float(hits[is_answer].mean()),
    }


def measure(
    model: str,
    words: Annotated[
        list[str],
        typer.Argument(
            help="Tokens to type. The picture shows the first, which pushes, and the second, which hides."
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of the model in the picture.")] = "all-MiniLM-L6-v2",
    control: Annotated[
        str | None, typer.Option(help="Token that is as rare as the first two, but not flagged.")
    ] = None,
    repaired: Annotated[Path | None, typer.Option(help="Folder of the repaired model.")] = None,
    documents: Annotated[int, typer.Option(help="Number of documents to search.")] = 1398,
    queries: Annotated[int, typer.Option(help="Number of queries.")] = 225,
    sample: Annotated[int, typer.Option(help="Number of abstracts that receive copies.")] = 120,
    folder: Annotated[Path, typer.Option(help="Cranfield in the layout of BEIR.")] = SHARED
    / "data/cranfield",
    result: Annotated[
        str, typer.Option(help="Name of the result file. The picture shows the models of the default one.")
    ] = RESULT_NAME,
) -> None:
    """Add a model to a result file, by default benchmarks/results/typed_copies.json."""
    collection = CollectionSample(folder, documents, queries, sample)
    search = Search(collection, model)
    without = search.hits()
    hits_by_label = {"without copies": without}
    for place in ("before", "after"):
        ordinary_hits = [search.hits(**{place: copies_of(word)}) for word in ORDINARY]
        hits_by_label[f"an ordinary word {place}"] = np.mean(ordinary_hits, axis=0)
        for word in [*words, *([] if control is None else [control])]:
            hits_by_label[f"{word} {place}"] = search.hits(**{place: copies_of(word)})
    if repaired is not None:
        repaired_search = Search(collection, str(repaired))
        for word in words[:SHOWN]:
            hits_by_label[f"{word} before, repaired"] = repaired_search.hits(before=copies_of(word))
    rows = [figures(label, hits, without, collection.is_answer) for label, hits in hits_by_label.items()]

    path = RESULTS / f"{result}.json"
    models = json.loads(path.read_text("utf-8"))["models"] if path.is_file() else {}
    models[name] = {
        "documents": len(collection.documents),
        "queries": len(collection.queries),
        "sample": len(collection.sample),
        "words": words,
        "control": control,
        "rows": rows,
    }
    # The paths of this machine say nothing.
    command = "python benchmarks/typed_copies.py measure MODEL WORDS --name NAME --repaired FOLDER"
    write_json(result, command=command, models=models)
    for row in rows:
        print(row)


def counts(
    model: str,
    words: Annotated[list[str], typer.Argument(help="Tokens to type before an abstract.")],
    name: Annotated[str, typer.Option(help="Name of the model in the result.")] = "all-MiniLM-L6-v2",
    folder: Annotated[Path, typer.Option(help="Cranfield in the layout of BEIR.")] = SHARED
    / "data/cranfield",
) -> None:
    """Measure fewer copies than eight, copies with a word between each two, and keywords instead.

    Keywords are the words that most queries contain, as someone would type them who knows the queries.
    The result is benchmarks/results/typed_counts.json.
    """
    collection = CollectionSample(folder, document_count=1398, query_count=225, sample_count=120)
    search = Search(collection, model)
    without = search.hits()
    hits_by_label = {"without copies": without}
    for count in COUNTS:
        hits_of_words = [search.hits(before=copies_of(word, count)) for word in ORDINARY]
        hits_by_label[f"{count} × an ordinary word"] = np.mean(hits_of_words, axis=0)
        for word in words:
            hits_by_label[f"{count} × {word}"] = search.hits(before=copies_of(word, count))
    for word in words:
        # As someone would type them to evade a search for copies in a row. A scan finds the larger number.
        for count in SEPARATED_COUNTS:
            interleaved = " ".join(f"{word} {between}" for between in islice(cycle(ORDINARY), count))
            label = f"{count} × {word}, each before an ordinary word"
            hits_by_label[label] = search.hits(before=interleaved)
    keywords = keywords_of(collection.queries, COPIES)
    hits_by_label[f"{COPIES} × {keywords[0]}, the most frequent word of the queries"] = search.hits(
        before=copies_of(keywords[0])
    )
    hits_by_label[f"the {COPIES} most frequent words of the queries"] = search.hits(before=" ".join(keywords))
    for word in words:
        hits_by_label[f"{COPIES} × {word}, then these words"] = search.hits(
            before=f"{copies_of(word)} {' '.join(keywords)}"
        )
    rows = [figures(label, hits, without, collection.is_answer) for label, hits in hits_by_label.items()]
    command = f"python benchmarks/typed_copies.py counts {name} {' '.join(words)}"
    write_json("typed_counts", command=command, model=name, words=words, keywords=keywords, rows=rows)
    for row in rows:
        print(row)


def sizes(
    model: str,
    words: Annotated[list[str], typer.Argument(help="Tokens to type before a document.")],
    folder: Annotated[Path, typer.Option(help="Collection in the layout of BEIR.")],
    name: Annotated[str, typer.Option(help="Name of the model in the result.")] = "all-MiniLM-L6-v2",
    collection_name: Annotated[str, typer.Option(help="Name of the collection in the result.")] = "",
) -> None:
    """Search ever larger parts of a collection: do copies do less where more documents compete?

    The same 120 documents receive copies in each part, and the queries are the same, too. The result is added
    to benchmarks/results/typed_sizes.json.
    """
    # More documents and queries than any collection has: all of them.
    collection = CollectionSample(folder, document_count=10**9, query_count=10**9, sample_count=120)
    search = Search(collection, model)
    similarities = search.documents @ search.queries.T
    texts = {"without copies": [""], "an ordinary word": [copies_of(word) for word in ORDINARY]}
    texts |= {word: [copies_of(word)] for word in words}
    own_similarities: dict[str, list[NDArray[np.float64]]] = {}
    for label, typed in texts.items():
        edited = [
            [f"{before} {collection.documents[index]}".strip() for index in collection.sample]
            for before in typed
        ]
        own_similarities[label] = [search.encoded(documents) @ search.queries.T for documents in edited]
    rows = []
    for size in [size for size in SIZES if size < len(similarities)] + [len(similarities)]:
        limits = limits_of_sample(similarities[:size], len(collection.sample))
        hits_by_label = {
            label: np.mean([(own > limits).astype(np.float64) for own in of_label], axis=0)
            for label, of_label in own_similarities.items()
        }
        without = hits_by_label["without copies"]
        for label, hits in hits_by_label.items():
            rows.append({"documents": size} | figures(label, hits, without, collection.is_answer))
    path = RESULTS / "typed_sizes.json"
    collections = json.loads(path.read_text("utf-8"))["collections"] if path.is_file() else {}
    collections[collection_name or folder.name] = {
        "model": name,
        "queries": len(collection.queries),
        "sample": len(collection.sample),
        "rows": rows,
    }
    command = "python benchmarks/typed_copies.py sizes MODEL WORDS --folder COLLECTION"
    write_json("typed_sizes", command=command, collections=collections)
    for row in rows:
        print(row)


def limits_of_sample(similarities: NDArray[np.float64], sample_count: int) -> NDArray[np.float64]:
    """Return what each of the first documents must exceed to be among the first ten results of each query.

    A document competes with all others, so this is the tenth largest similarity of the others.

    Args:
        similarities: Similarity of each document to each query, shape (documents, queries).
        sample_count: Number of first documents to return limits for.
    """
    largest = np.partition(similarities, (-TOP - 1, -TOP), axis=0)
    eleventh, tenth = largest[-TOP - 1], largest[-TOP]
    return np.asarray(np.where(similarities[:sample_count] >= tenth, eleventh, tenth))


def draw() -> None:
    """Draw the picture of the README, docs/images/typed_copies.svg, for light and for dark pages."""
    models = json.loads((RESULTS / f"{RESULT_NAME}.json").read_text("utf-8"))["models"]
    for version, colours in COLOURS.items():
        text_colour = TEXT_COLOURS[version]
        style: Any = {
            # Makes the ids in the file the same in every drawing.
            "svg.hashsalt": "stickytoken",
            "font.size": 11,
            "text.color": text_colour,
            "axes.labelcolor": text_colour,
            "ytick.color": text_colour,
        }
        with mpl.rc_context(style):
            # Both panels have one scale: times as many searches.
            figure, panels = plt.subplots(1, len(models), figsize=(10, 3.4), sharex=True, squeeze=False)
            for axes, (name, content) in zip(panels[0], models.items(), strict=True):
                draw_panel(axes, name, content, colours)
            figure.suptitle(
                "Searches that show a document with a token typed in front, compared with none "
                "(lines: 90% intervals)",
                x=0.01,
                ha="left",
                weight="bold",
                fontsize=11,
            )
            figure.tight_layout()
            # Without a date, the same numbers give the same file.
            figure.savefig(IMAGES / f"{RESULT_NAME}{version}.svg", metadata={"Date": None}, transparent=True)
            plt.close(figure)


def draw_panel(axes: Axes, name: str, content: dict[str, Any], colours: Sequence[str]) -> None:
    """Draw a bar for each kind of copies in a model, with its interval as a line."""
    rows = {row["label"]: row for row in content["rows"]}
    unedited, compared, sticky, repaired = colours
    pushing, *hiding = content["words"][:SHOWN]
    control = content["control"]
    shown_as_it_is = rows["without copies"]["top_tens"]
    bars = [
        (f"as it is ({shown_as_it_is:.1f} of {content['queries']} searches)", "without copies", unedited),
        (f"with {COPIES} × an everyday word", "an ordinary word before", compared),
        (f"with {COPIES} × {control} (not sticky)", f"{control} before", compared),
    ]
    for word in (*hiding, pushing):
        bars.append((f"with {COPIES} × {word}", f"{word} before", sticky))
        bars.append((f"with {COPIES} × {word}, model repaired", f"{word} before, repaired", repaired))
    bars = [bar for bar in bars if bar[1] in rows]
    for position, (_, label, colour) in enumerate(bars):
        ratio = rows[label]["ratio"]
        low, high = rows[label]["ratio_interval"]
        axes.barh(position, ratio, color=colour, height=0.7)
        axes.plot([low, high], [position, position], color=axes.yaxis.label.get_color(), linewidth=1)
        text = f"{ratio:.{1 if ratio >= 1 else 2}f}×"
        axes.text(max(ratio, high) + TEXT_GAP, position, text, va="center")
    axes.set_yticks(range(len(bars)), [name for name, *_ in bars])
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.set_xlim(0, SCALE_END)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(name, loc="left", fontsize=11)


if __name__ == "__main__":
    commands(__doc__, measure, counts, sizes, draw)
