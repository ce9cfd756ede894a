"""Draw the picture of the README from a finished run: who stands out, and what copies of it do.

stickytoken detect PLANTED --out RUN      # a model with planted rows: the real ones have no sticky tokens
python benchmarks/readme_figure.py RUN --title "planted all-MiniLM-L6-v2"    # a minute
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator

from stickytoken.cli.output.progress import progress_bar
from stickytoken.detection import Run, open_run, probe
from stickytoken.detection.run_model import encoder_for
from stickytoken.methods.profile.probe import ProfileEvidence
from stickytoken.methods.profile.settings import ProfileSettings

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "lift.svg"
_STICKY, _ORDINARY = "#b3391f", "#3d6b99"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a profile run with a sticky token")
    parser.add_argument("--title", help="name of the model in the picture; default: as in the run")
    arguments = parser.parse_args()
    run = open_run(arguments.run)
    if run.sticky.is_empty():
        raise SystemExit(f"the run in {run.path} found no sticky token: there is nothing to draw")
    encoder = encoder_for(None, run, "the picture")
    with progress_bar() as progress:
        (evidence,) = probe(
            encoder,
            run.sticky["token_id"].head(1).to_list(),
            settings=ProfileSettings(),
            progress=progress,
        )
    if not isinstance(evidence, ProfileEvidence):
        raise TypeError(evidence)
    mpl.rcParams["svg.hashsalt"] = "stickytoken"  # the same picture for the same numbers
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.6), layout="constrained")
    draw_lifts(left, run, arguments.title or run.model_name)
    draw_curve(right, evidence)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURE, metadata={"Date": None})


def draw_lifts(axes: Axes, run: Run, title: str) -> None:
    """Lifts of the whole vocabulary, the worst sticky token marked."""
    lifts = run.tokens["lift"].to_numpy()
    axes.hist(lifts, bins=np.linspace(lifts.min(), lifts.max(), 90).tolist(), color=_ORDINARY, log=True)
    for row in run.sticky.head(1).to_dicts():
        axes.annotate(
            row["token"],
            (row["lift"], 1),
            xytext=(0, 26),
            textcoords="offset points",
            ha="center",
            color=_STICKY,
            arrowprops={"arrowstyle": "->", "color": _STICKY},
        )
    axes.xaxis.set_major_locator(MultipleLocator(0.05))
    axes.set_xlabel("lift: mean rise of the similarity of unrelated texts")
    axes.set_ylabel("tokens")
    axes.set_title(f"{title}: all {len(lifts):,} tokens", fontsize=10)


def draw_curve(axes: Axes, evidence: ProfileEvidence) -> None:
    """The symptom curve: pairs below and above the mean similarity."""
    curve = evidence.curve
    for values, colour, style, label in (
        (curve.above, _STICKY, "-", f"{evidence.token}, related texts"),
        (curve.below, _STICKY, "--", f"{evidence.token}, unrelated texts"),
        (curve.ordinary_above, _ORDINARY, "-", "ordinary tokens, related texts"),
        (curve.ordinary_below, _ORDINARY, "--", "ordinary tokens, unrelated texts"),
    ):
        axes.plot(curve.copies, values, color=colour, linestyle=style, linewidth=2, label=label)
    axes.axhline(
        evidence.mean_similarity, color="#777777", linewidth=0.8, label="mean similarity of the model"
    )
    axes.set_xlabel("copies of the token in one of two texts")
    axes.set_ylabel("mean cosine similarity")
    axes.set_ylim(top=1.45 * axes.get_ylim()[1])  # room for the legend
    axes.legend(frameon=False, fontsize=8, loc="upper right")


if __name__ == "__main__":
    main()
