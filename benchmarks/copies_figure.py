"""Measure and draw the figure of the README: how often a search finds a document that contains copies.

The search is among the documents of the package, each of which answers two queries. Copies of one word are
written behind one document at a time, and a query finds it if it is among the first ten results.

`measure` needs a run of the default method and a repaired model, takes a few minutes, and draws the figure
too. `draw` takes seconds. Run a command with, for example,
`python benchmarks/copies_figure.py measure runs/all-MiniLM-L6-v2 repaired`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from matplotlib.axes import Axes

import stickytoken
from bench import IMAGES, RESULTS, commands, write_json
from stickytoken.data.collection import bundled_collection
from stickytoken.detection.run import Run, encoder_for
from stickytoken.encoders import Encoder
from stickytoken.encoders.protocol import similarity_of
from stickytoken.search import ExactSearch

# Numbers of copies that are appended to a document.
COPIES = (0, 1, 2, 4, 8, 16)
# Number of results that a user is assumed to look at.
TOP = 10
# Number of ordinary tokens.
ORDINARY = 4
RESULT_NAME = "copies_figure"
# Colours of the ordinary token, of the sticky token after the repair and of the sticky token, keyed by the
# end of the file name: the figure has a version for light pages and a version for dark pages.
LINE_COLOURS = {"": ("#4c5a67", "#0b7285", "#c2410c"), "-dark": ("#adb5bd", "#3bc9db", "#ff922b")}
TEXT_COLOURS = {"": "#212529", "-dark": "#dee2e6"}


class DocumentSearch:
    """The search among the documents of the package, with a model.

    Args:
        encoder: The model.
        places: Indices of the documents that receive copies.
    """

    def __init__(self, encoder: Encoder, places: Sequence[int]) -> None:
        collection = bundled_collection()
        self.encoder = encoder
        self.places = places
        self.documents = [collection.documents[place] for place in places]
        similarity = similarity_of(encoder)
        self.search = ExactSearch(
            similarity.prepared(encoder.encode(collection.queries)),
            similarity.prepared(encoder.encode(collection.documents)),
            similarity,
        )
        self.is_answer = np.array(collection.answers)[:, None] == np.array(places)

    def shares_by_copies(self, word: str) -> list[float]:
        """Return, for each number in `COPIES`, the share of queries that find the document with copies."""
        shares = []
        for copies in COPIES:
            texts = [" ".join([document, *([word] * copies)]) for document in self.documents]
            ranks = self.search.ranks(self.encoder.encode(texts), self.places)
            shares.append(float((ranks <= TOP)[self.is_answer].mean()))
        return shares


def ordinary_words(run: Run) -> list[str]:
    """Return a few ordinary tokens of a run's evidence that consist of letters only."""
    evidence = pl.read_parquet(run.path / "evidence.parquet").filter(pl.col("ordinary"))
    tokens = run.tokens.join(evidence, on="token_id", how="semi")
    return [token for token in tokens["token"].to_list() if token.isalpha()][:ORDINARY]


def draw_version(shares: Mapping[str, Sequence[float]], version: str, path: Path) -> None:
    """Draw one version of the figure, with a line for each label and the label at the end of its line.

    Args:
        shares: For each label, the share of the documents that are found, for each number in `COPIES`.
        version: Version of the figure, which is a key of `LINE_COLOURS`.
        path: Path of the new SVG file.
    """
    text_colour = TEXT_COLOURS[version]
    # The annotation Any is needed because Matplotlib types each parameter name as a literal.
    style: Any = {
        # Makes the ids in the file the same in every drawing.
        "svg.hashsalt": "stickytoken",
        "font.size": 11,
        "text.color": text_colour,
        "axes.edgecolor": text_colour,
        "axes.labelcolor": text_colour,
        "xtick.color": text_colour,
        "ytick.color": text_colour,
    }
    with mpl.rc_context(style):
        figure, axes = plt.subplots(figsize=(8, 3.4))
        for (label, line_shares), colour in zip(shares.items(), LINE_COLOURS[version], strict=True):
            draw_line(axes, label, line_shares, colour)
        # The numbers of copies grow exponentially, so they are spaced evenly on the axis.
        axes.set_xticks(range(len(COPIES)), [str(copies) for copies in COPIES])
        axes.set_ylim(0, 100)
        axes.yaxis.set_major_formatter("{x:.0f}%")
        axes.set_xlabel("copies in the document")
        axes.set_title("Queries that find their document in the top 10", loc="left", color=text_colour)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        # The labels of the lines need the space on the right.
        figure.subplots_adjust(left=0.07, right=0.74, top=0.9, bottom=0.15)
        # Without a date, the same shares give the same file.
        figure.savefig(path, metadata={"Date": None}, transparent=True)
        plt.close(figure)


def draw_line(axes: Axes, label: str, shares: Sequence[float], colour: str) -> None:
    """Draw a line of shares in percent, with its label at its right end."""
    percentages = [100 * share for share in shares]
    axes.plot(range(len(COPIES)), percentages, marker="o", linewidth=2.5, color=colour)
    axes.annotate(
        label.replace(", ", ",\n"),
        (len(COPIES) - 1, percentages[-1]),
        xytext=(10, 0),
        textcoords="offset points",
        va="center",
        color=colour,
        fontweight="bold",
    )


def measure(run: Path, repaired: Path) -> None:
    """Compare the token of RUN that erases most with ordinary tokens, and with itself in the model REPAIRED.

    RUN is the folder of a run of the default method, and REPAIRED is the folder of the same model after the
    repair. The results are in benchmarks/results/copies_figure.json. The figure is drawn from this file.
    """
    opened_run = stickytoken.open_run(run)
    encoder = encoder_for(None, opened_run, "the figure")
    # Sticky tokens are sorted by severity, so the first may be one that pushes.
    worst_token = opened_run.sticky.sort("erased", descending=True)["decoded"][0]
    plan: Any = opened_run.plan  # the record of the default method, which has the documents
    search = DocumentSearch(encoder, plan.documents.chosen)
    words = ordinary_words(opened_run)
    ordinary_shares = np.mean([search.shares_by_copies(word) for word in words], axis=0)
    repaired_encoder = stickytoken.load_encoder(repaired, device=encoder.device)
    repaired_search = DocumentSearch(repaired_encoder, plan.documents.chosen)
    shares = {
        "an ordinary token": ordinary_shares.tolist(),
        "the sticky token, after the repair": repaired_search.shares_by_copies(worst_token),
        "the sticky token": search.shares_by_copies(worst_token),
    }
    result: Any = opened_run.result  # the record of the default method, which has the ordinary contraction
    write_json(
        RESULT_NAME,
        encoder.device,
        model=opened_run.record.model.short_name,
        token=worst_token,
        # The contraction is the share of a text's meaning that copies of a token remove.
        ordinary_contraction=result.ordinary_contraction,
        contraction=opened_run.token(worst_token)["contraction"][0],
        ordinary=words,
        documents=len(search.places),
        copies=COPIES,
        shares=shares,
    )
    draw()


def draw() -> None:
    """Draw the figure from its result file, for light and for dark pages."""
    results = json.loads((RESULTS / f"{RESULT_NAME}.json").read_text("utf-8"))
    for version in LINE_COLOURS:
        draw_version(results["shares"], version, IMAGES / f"copies{version}.svg")


if __name__ == "__main__":
    commands(__doc__, measure, draw)
