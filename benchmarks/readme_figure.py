"""Draw the picture of the README: what copies of a sticky token do, before and after a repair.

stickytoken detect TAMPERED --out RUN      # a model with planted rows: the real ones have no sticky tokens
stickytoken repair RUN --out REPAIRED
python benchmarks/readme_figure.py TAMPERED REPAIRED    # seconds; docs/lift.svg, results/readme_figure.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator

from checks import RESULTS
from stickytoken import load_encoder, open_repair

PICTURE = RESULTS.parents[1] / "docs" / "lift.svg"
TEXT, OTHER, COPIES = "An octopus has three hearts", "Leaves on the line make the rails slippery.", 8
_STICKY, _REPAIRED, _ORDINARY = "#b3391f", "#2f7d4f", "#3d6b99"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tampered", type=Path, help="folder of the model with a sticky token")
    parser.add_argument("repaired", type=Path, help="folder of its repaired copy")
    arguments = parser.parse_args()
    worst = open_repair(arguments.repaired).record.tokens[0]
    if worst.curve is None:
        raise SystemExit(f"the repair in {arguments.repaired} was not verified: there is nothing to draw")
    pair = {
        "as written": similarity(arguments.tampered, TEXT),
        "tampered": similarity(arguments.tampered, f"{TEXT} {' '.join([worst.token] * COPIES)}"),
        "repaired": similarity(arguments.repaired, f"{TEXT} {' '.join([worst.token] * COPIES)}"),
    }
    curve = worst.curve.model_dump()
    document = {"token": worst.token, "texts": [TEXT, OTHER], "copies": COPIES, "pair": pair, "curve": curve}
    (RESULTS / "readme_figure.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draw(worst.token, pair, curve)


def similarity(model: Path, text: str) -> float:
    """The cosine of a text and the other one."""
    first, second = load_encoder(str(model), device="cpu").encode([text, OTHER])
    return float(first @ second / (first @ first * (second @ second)) ** 0.5)


def draw(token: str, pair: dict[str, float], curve: dict[str, list[float]]) -> None:
    mpl.rcParams["svg.hashsalt"] = "stickytoken"  # the same picture for the same numbers
    # A white background: the picture is read in GitHub's dark mode too.
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.5), layout="constrained", facecolor="white")
    draw_pair(left, token, pair)
    draw_curve(right, token, curve)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    metadata: dict[str, Any] = {"Date": None}
    figure.savefig(PICTURE, metadata=metadata)


def draw_pair(axes: Axes, token: str, pair: dict[str, float]) -> None:
    """The cosine of two texts: as written, and with copies before and after the repair."""
    names = ["as written", f"{COPIES} copies of “{token}”", f"{COPIES} copies,\nrepaired model"]
    colours = [_ORDINARY, _STICKY, _REPAIRED]
    bars = axes.barh(names[::-1], list(pair.values())[::-1], color=colours[::-1], height=0.55)
    axes.bar_label(bars, fmt=lambda value: f"{value:.2f}".replace("-", "−"), padding=4)
    axes.axvline(0, color="#777777", linewidth=0.8)
    axes.margins(x=0.22)
    axes.set_xlabel("cosine similarity")
    axes.set_title(f"“{TEXT}”\nand “{OTHER}”", fontsize=9.5)


def draw_curve(axes: Axes, token: str, curve: dict[str, list[float]]) -> None:
    """Mean cosines of unrelated texts by the number of copies."""
    for name, colour, label in (
        ("before", _STICKY, f"“{token}”"),
        ("ordinary", _ORDINARY, "ordinary tokens"),
        ("after", _REPAIRED, f"“{token}”, repaired model"),
    ):
        axes.plot(
            curve["copies"], curve[name], color=colour, linewidth=2, marker="o", markersize=3, label=label
        )
    axes.set_xlabel("copies of the token in one of two texts")
    axes.set_ylabel("mean cosine similarity")
    axes.set_xticks([0, 1, 2, 4, 8, 16])
    axes.yaxis.set_major_locator(MultipleLocator(0.05))
    axes.set_ylim(0, 1.6 * max(curve["before"]))  # room for the legend
    axes.set_title("The mean over unrelated texts", fontsize=9.5)
    axes.legend(frameon=False, fontsize=8.5, loc="upper right")


if __name__ == "__main__":
    main()
