"""Draw the figure of the README: how often a search finds a document, by number of copies in it; a minute.

The search is the small search of a run: the first half of each text is a query, the second half the document
that answers it. Copies of one word are put behind one document at a time.
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

import stickytoken
from bench import IMAGES, RESULTS, commands, refuse, write_json
from stickytoken.detection.run import Run, encoder_for
from stickytoken.encoders import Encoder
from stickytoken.insertion import Insertion
from stickytoken.methods.small_search import SearchStage, search_shares, search_stage
from stickytoken.unit_vectors import unit_vectors

COPIES = (0, 1, 2, 4, 8, 16)
NAME = "copies_figure"
# Colours of ordinary, repaired and sticky, on a light and on a dark page.
COLOURS = {"": ("#4c5a67", "#0b7285", "#c2410c"), "-dark": ("#adb5bd", "#3bc9db", "#ff922b")}
INK = {"": "#212529", "-dark": "#dee2e6"}


def found_shares(search: SearchStage, encoder: Encoder, word: str) -> list[float]:
    """Return the share of documents among the first ten of their query, for each number of copies."""
    shares = []
    for copies in COPIES:
        texts = [" ".join([str(document), *([word] * copies)]) for document in search.documents]
        after = search.queries @ unit_vectors(encoder.encode(texts)).T
        shares.append(search_shares(search.similarities, after.astype(np.float64)).answering)
    return shares


def search_of(run: Run, encoder: Encoder) -> SearchStage:
    """Make the small search of a run, of texts instead of token ids."""
    texts = run.method.texts(run.plan)
    search = search_stage(encoder, Insertion.TEXT, [*texts.carriers, *texts.anchors])
    if search is None:
        refuse("the texts of this run are too few, or too short, for a search")
    return search


def ordinary_words(run: Run) -> list[str]:
    """Return the ordinary tokens of a run's evidence that are whole words."""
    evidence = pl.read_parquet(run.path / "evidence.parquet").filter(pl.col("ordinary"))
    tokens = run.tokens.join(evidence, on="token_id", how="semi")
    return [word for word in tokens["token"].to_list() if word.isalpha()]


def contractions(run: Run) -> tuple[float, float]:
    """Return the shares of a text that copies of an ordinary token, and of the worst token, remove."""
    result: Any = run.result
    return result.ordinary_contraction, run.sticky["contraction"][0]


def draw_version(shares: Mapping[str, Sequence[float]], version: str, path: Path) -> None:
    """Draw a line for each way, each with its label at its end."""
    ink = INK[version]
    style: Any = {  # rcParams names their keys one by one
        "svg.hashsalt": "stickytoken",
        "font.size": 11,
        "text.color": ink,
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "xtick.color": ink,
        "ytick.color": ink,
    }
    with mpl.rc_context(style):
        figure, axes = plt.subplots(figsize=(8, 3.4))
        places = range(len(COPIES))
        for (label, line), colour in zip(shares.items(), COLOURS[version], strict=True):
            percent = [100 * share for share in line]
            axes.plot(places, percent, marker="o", linewidth=2.5, color=colour)
            axes.annotate(
                label.replace(", ", ",\n"),
                (len(COPIES) - 1, percent[-1]),
                xytext=(10, 0),
                textcoords="offset points",
                va="center",
                color=colour,
                fontweight="bold",
            )
        axes.set_xticks(places, [str(copies) for copies in COPIES])
        axes.set_ylim(0, 80)
        axes.yaxis.set_major_formatter("{x:.0f}%")
        axes.set_xlabel("copies in the document")
        axes.set_title("Queries that find their document in the top 10", loc="left", color=ink)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        figure.subplots_adjust(left=0.07, right=0.74, top=0.9, bottom=0.15)
        figure.savefig(path, metadata={"Date": None}, transparent=True)
        plt.close(figure)


def measure(run: Path, repaired: Path) -> None:
    """Compare the worst token of RUN with ordinary tokens, and with itself in the model REPAIRED."""
    opened = stickytoken.open_run(run)
    encoder = encoder_for(None, opened, "the figure")
    worst = opened.sticky["decoded"][0]
    search = search_of(opened, encoder)
    words = ordinary_words(opened)
    ordinary = np.mean([found_shares(search, encoder, word) for word in words], axis=0)
    repaired_encoder = stickytoken.load_encoder(repaired, device=encoder.device)
    repaired_search = search_of(opened, repaired_encoder)
    shares = {
        "an ordinary token": ordinary.tolist(),
        "the sticky token, after the repair": found_shares(repaired_search, repaired_encoder, worst),
        "the sticky token": found_shares(search, encoder, worst),
    }
    ordinary_contraction, contraction = contractions(opened)
    write_json(
        NAME,
        encoder.device,
        model=opened.record.model.short_name,
        token=worst,
        ordinary_contraction=ordinary_contraction,
        contraction=contraction,
        ordinary=words,
        documents=len(search.documents),
        copies=COPIES,
        shares=shares,
    )
    draw()


def draw() -> None:
    """Draw the figure from its result file, for a light and for a dark page."""
    shares = json.loads((RESULTS / f"{NAME}.json").read_text("utf-8"))["shares"]
    for version in COLOURS:
        draw_version(shares, version, IMAGES / f"copies{version}.svg")


if __name__ == "__main__":
    commands(__doc__, measure, draw)
