"""Draw the picture of the README: what copies of sticky and of ordinary tokens do to unrelated pairs.

python benchmarks/readme_figure.py --published ../shared/paper    # about 8 minutes on 2 CPU cores
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from published import PUBLISHED, table
from stickytoken.cli.progress import progress_bar
from stickytoken.detection.std.settings import StdSettings
from stickytoken.encoders import analyze_vocabulary, load_encoder
from stickytoken.runs import Evidence, probe

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "lift.svg"
_STICKY, _ORDINARY = "#b3391f", "#3d6b99"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--published", type=Path, default=PUBLISHED)
    parser.add_argument("--ordinary", type=int, default=40, help="random tokens to compare with")
    parser.add_argument("--pairs", type=int, default=60, help="unrelated sentence pairs")
    arguments = parser.parse_args()

    encoder = load_encoder("all-MiniLM-L6-v2")
    vocabulary = analyze_vocabulary(encoder)
    published = table(arguments.published, "minilm_candidates")
    sticky = published.filter(sticky=True)["token_id"].to_list()
    known = set(published["token_id"])
    rest = [token.id for token in vocabulary.available if token.id not in known]
    ordinary = np.random.default_rng(0).choice(rest, size=arguments.ordinary, replace=False).tolist()
    with progress_bar() as progress:
        evidence = probe(
            encoder,
            vocabulary,
            [*sticky, *ordinary],
            settings=StdSettings(validation_pairs=arguments.pairs),
            progress=progress,
        )
    draw(evidence[: len(sticky)], evidence[len(sticky) :], arguments.pairs)


def draw(sticky: list[Evidence], ordinary: list[Evidence], pairs: int) -> None:
    mpl.rcParams["svg.hashsalt"] = "stickytoken"  # the same picture for the same numbers
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for group, colour, label in (
        (ordinary, _ORDINARY, f"{len(ordinary)} random tokens"),
        (sticky, _STICKY, f"{len(sticky)} tokens published as sticky"),
    ):
        curves = np.array([[0.0, *each.lift_by_copies] for each in group])
        copies = np.arange(curves.shape[1])
        axes.plot(copies, curves.T, color=colour, alpha=0.25, linewidth=0.8)
        axes.plot(copies, curves.mean(axis=0), color=colour, linewidth=2.5, label=label)
    axes.axhline(0, color="#777777", linewidth=0.8)
    axes.set_xlabel("copies of the token in one of two unrelated sentences")
    axes.set_ylabel("change of their cosine")
    axes.set_title(f"all-MiniLM-L6-v2, {pairs} sentence pairs below the mean similarity", fontsize=10)
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
