"""Does screening in a lower precision find the same tokens, and how much sooner?

python benchmarks/screening.py            # about 15 minutes on 2 CPU cores
python benchmarks/screening.py --quick    # few tokens
python benchmarks/screening.py --model models/mini-all   # another model too, such as planted.py writes

Default settings on the packaged all-MiniLM-L6-v2, and on the same model with planted tokens where the
rows are there (see planted.py): throughout in float32, then screened in each precision of the device.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from checks import Check, show, write
from planted import PLANTED, planted_encoder
from stickytoken.cli.output.progress import progress_bar
from stickytoken.detection import Run, detect
from stickytoken.encoders import IdEncoder, load_encoder
from stickytoken.machine import Precision
from stickytoken.methods.profile.settings import ProfileSettings

QUICK_TOKENS = 400
LEAST_JACCARD, MOST_MINUTES = 0.95, 6


@dataclass(frozen=True)
class Timed:
    """A finished run and the seconds that it took."""

    run: Run
    seconds: float


def timed(encoder: IdEncoder, precision: Precision | None, out: Path, sample: int | None) -> Timed:
    settings = ProfileSettings(screen_precision=precision)
    started = time.perf_counter()
    with progress_bar() as progress:
        run = detect(encoder, settings=settings, sample=sample, out=out, progress=progress)
    return Timed(run, time.perf_counter() - started)


def compared(name: str, precision: Precision, own: Timed, lower: Timed) -> Check:
    """Sticky tokens of both runs, and how all lifts agree."""
    ours, theirs = (set(found.run.sticky["token_id"].to_list()) for found in (lower, own))
    jaccard = len(ours & theirs) / len(ours | theirs) if ours | theirs else 1.0
    joined = own.run.tokens.join(lower.run.tokens, on="token_id", suffix="_lower")
    agreement = float(spearmanr(joined["lift"], joined["lift_lower"]).statistic)
    largest = float(np.abs(joined["lift"] - joined["lift_lower"]).max() or 0.0)
    return Check(
        f"{name}, screened in {precision}: the tokens called sticky in float32",
        f"Jaccard at least {LEAST_JACCARD}",
        f"{jaccard:.3f} ({len(ours & theirs)} of {len(ours | theirs)}); all lifts: Spearman {agreement:.4f}",
        jaccard >= LEAST_JACCARD,
        {"only_float32": sorted(theirs - ours), "only_lower": sorted(ours - theirs), "largest": largest},
    )


def duration(name: str, precision: Precision, own: Timed, lower: Timed) -> Check:
    """The time of a whole detection, the model loaded."""
    return Check(
        f"{name}, screened in {precision}: time",
        f"under {MOST_MINUTES} minutes",
        f"{lower.seconds / 60:.1f} minutes; float32 throughout {own.seconds / 60:.1f}",
        lower.seconds < 60 * MOST_MINUTES,
        {"seconds": lower.seconds, "seconds_float32": own.seconds},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=Path, default=PLANTED, help="planted rows, .npz")
    parser.add_argument("--model", action="append", default=[], help="a further model; may be repeated")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_TOKENS} tokens")
    parser.add_argument("--name", default="screening", help="name of the result file")
    arguments = parser.parse_args()
    there = [Precision.INT8, Precision.BFLOAT16]
    if arguments.device != "cpu":
        there = [Precision.TF32, Precision.BFLOAT16, Precision.FLOAT16]
    encoders = {"all-MiniLM-L6-v2": load_encoder("all-MiniLM-L6-v2", device=arguments.device)}
    if arguments.rows.is_file():
        encoders["planted tokens"] = planted_encoder(arguments.rows, 1.0, arguments.device)
    encoders |= {Path(model).name: load_encoder(model, device=arguments.device) for model in arguments.model}
    sample = QUICK_TOKENS if arguments.quick else None
    checks = []
    for name, encoder in encoders.items():
        with tempfile.TemporaryDirectory() as folder:
            own = timed(encoder, None, Path(folder) / "own", sample)
            for precision in there:
                lower = timed(encoder, precision, Path(folder) / precision, sample)
                checks += [compared(name, precision, own, lower), duration(name, precision, own, lower)]
    write(checks, arguments.name, arguments.device)
    show(checks, arguments.name)
    if not all(check.passed for check in checks):
        sys.exit(1)


if __name__ == "__main__":
    main()
