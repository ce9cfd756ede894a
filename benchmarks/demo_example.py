"""Put a finished run into the package, as the one that the web app opens with.

stickytoken detect all-MiniLM-L6-v2 --out RUN    # today's identity, default settings
python benchmarks/demo_example.py RUN

All that a reader of the run needs, the same values packed tighter. Shards, report and effects.parquet stay
behind; the last is large, and only `stickytoken judge` needs it.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import polars as pl

from stickytoken.demo.context import EXAMPLE
from stickytoken.detection import open_run

_COPIED = ("run.json", "plan.json", "evidence.json")
_PACKED = ("tokens.parquet", "vocabulary.parquet", "evidence.parquet", "map.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path, help="finished run of the packaged model, with its evidence")
    run = open_run(parser.parse_args().run)
    if run.evidence is None:
        raise SystemExit(
            f"the run in {run.path} keeps no curves, pairs and map: run detect without --no-report"
        )
    EXAMPLE.mkdir(parents=True, exist_ok=True)
    for name in _COPIED:
        shutil.copyfile(run.path / name, EXAMPLE / name)
    for name in _PACKED:
        pl.read_parquet(run.path / name).write_parquet(
            EXAMPLE / name, compression="zstd", compression_level=22
        )


if __name__ == "__main__":
    main()
