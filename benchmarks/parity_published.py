"""Compare the paper's method with the published numbers of another model: u, and rates of its sticky tokens.

python benchmarks/parity_published.py models/all-mpnet-base-v2 --pairs mpnet_pairs.csv    # about 20 minutes

MODEL is a folder whose name is that of the model in the published tables. Similarities of the published pairs
are compared too, since they tell at once whether the model is the published one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import polars as pl

from checks import Check, show, write
from published import PUBLISHED, table
from stickytoken.cli.output.progress import progress_bar
from stickytoken.detection import probe
from stickytoken.encoders import Encoder, load_encoder, mean_similarity
from stickytoken.methods.std.plan import StdEvidence
from stickytoken.methods.std.settings import StdSettings
from stickytoken.unit_vectors import unit_vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", type=Path, required=True, help="the model's published pairs")
    parser.add_argument("--published", type=Path, default=PUBLISHED, help="folder of the published tables")
    parser.add_argument("--tokens", type=int, default=12, help="published sticky tokens to validate")
    arguments = parser.parse_args()
    encoder, name = load_encoder(arguments.model), arguments.model.name
    facts = table(arguments.published, "models").filter(model_name=name)
    if not len(facts):
        raise SystemExit(f"{name} is not in the published tables")
    checks = [similarities(encoder, arguments.pairs), mean(encoder, facts["vocabulary_mean_cosine"].item())]
    write(checks, f"parity-{name}", encoder.device, model=name)
    sticky = table(arguments.published, "sticky_tokens").filter(model=name)
    checks.append(rates(encoder, sticky, arguments.pairs, arguments.tokens))
    write(checks, f"parity-{name}", encoder.device, model=name)
    show(checks, name)
    if not all(check.passed for check in checks):
        sys.exit(1)


def similarities(encoder: Encoder, pairs: Path) -> Check:
    rows = pl.read_csv(pairs)
    whole = [
        all(encoder.fits(ids) for ids in encoder.content_ids(pair))
        for pair in zip(rows["sentence1"], rows["sentence2"], strict=True)
    ]
    rows = rows.filter(pl.Series(whole))  # the published similarities of the others are of cut texts
    first, second = (
        unit_vectors(encoder.encode(rows[column].to_list())) for column in ("sentence1", "sentence2")
    )
    worst = float(np.abs((first * second).sum(axis=1) - rows["similarity"].to_numpy()).max())
    return Check(
        f"similarities of {len(rows):,} pairs", "within 1e-5", f"{worst:.1e}", worst <= 1e-5, {"worst": worst}
    )


def mean(encoder: Encoder, published: float) -> Check:
    u = mean_similarity(encoder).value
    return Check(
        "mean similarity u", f"{published:.5f} to 1e-4", f"{u:.6f}", abs(u - published) <= 1e-4, {"u": u}
    )


def rates(encoder: Encoder, sticky: pl.DataFrame, pairs: Path, count: int) -> Check:
    places = np.linspace(0, len(sticky) - 1, min(count, len(sticky))).round().astype(int)
    chosen = sticky[places.tolist()]
    with progress_bar() as progress:
        evidence = probe(
            encoder, chosen["token_id"].to_list(), settings=StdSettings(), pairs=pairs, progress=progress
        )
    ours = np.array([each.validation_rate["cosine"] for each in evidence if isinstance(each, StdEvidence)])
    off = np.abs(ours - chosen["validation_rate"].to_numpy())
    return Check(
        f"validation rates of {len(ours)} published tokens",
        "each within 0.02",
        f"largest difference {off.max():.4f}",
        bool(off.max() <= 0.02),
        {"tokens": chosen["token"].to_list(), "ours": ours.tolist(), "largest": float(off.max())},
    )


if __name__ == "__main__":
    main()
