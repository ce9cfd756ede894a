"""Are tokens found that were planted, and are the others that are flagged sticky too?

python benchmarks/planted.py            # about 4 minutes on 2 CPU cores
python benchmarks/planted.py --quick    # few tokens beside the planted ones
python benchmarks/planted.py --strength 0.8   # rows moved only that far from the original ones

A planted model is all-MiniLM-L6-v2 with rows of its word embeddings overwritten, toward the sentences of
the published pairs. Other rows: pass an .npz with token_ids (n,) and rows (n, 384), and a .csv with
token_id and planted_lift. What planted rows do to other corpora is measured by judge.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from checks import Check, show, write
from published import PUBLISHED
from reliability import paper_sentences
from stickytoken.cli.output.progress import progress_bar
from stickytoken.corpora import Sentences, load_sentences
from stickytoken.corpora.corpus import open_ended
from stickytoken.detection import Run, detect
from stickytoken.encoders import IdEncoder, analyze_vocabulary, load_encoder
from stickytoken.encoders.loading.resolution import resolve_model
from stickytoken.insertion import Placement
from stickytoken.measurement.engine import compute_shard
from stickytoken.measurement.stage import Shard
from stickytoken.methods.profile.anchors import ProfilePlanRecord, anchor_panel
from stickytoken.methods.profile.plan import Cell, ProfileStage, Round
from stickytoken.methods.statistics import mean_with_interval

PLANTED = PUBLISHED.parent / "planted" / "minilm_planted.npz"
TOPICAL = ("terrorist", "terrorism", "saddam", "politician", "bush", "qaeda", "jihad", "putin")
FRESH_CARRIERS, COPIES = 60, 8


def planted_encoder(rows: Path, strength: float, device: str | None) -> IdEncoder:
    """The packaged model with rows overwritten, by a share of the way."""
    import torch
    from sentence_transformers import SentenceTransformer

    location = resolve_model("all-MiniLM-L6-v2").location
    model = SentenceTransformer(location, device=device, local_files_only=True)
    planted = np.load(rows)
    transformer: Any = model[0]
    weight = transformer.auto_model.get_input_embeddings().weight
    ids = torch.tensor(planted["token_ids"], device=weight.device)
    with torch.no_grad():
        target = torch.tensor(planted["rows"], dtype=weight.dtype, device=weight.device)
        weight[ids] += strength * (target - weight[ids])
    return load_encoder(model)


def find(encoder: IdEncoder, corpus: Sentences, out: Path, tokens: list[int] | None) -> Run:
    with progress_bar() as progress:
        return detect(encoder, method="profile", sentences=corpus, tokens=tokens, out=out, progress=progress)


def planted_checks(run: Run, truth: pl.DataFrame) -> list[Check]:
    """How many of the planted tokens are flagged, by their lift, and how many of those are called sticky."""
    joined = truth.join(run.tokens.drop("token"), on="token_id")
    checks = []
    for bound, needed, bar in ((0.045, 0.95, "at least 95 % flagged"), (0.06, 1.0, "all flagged")):
        strong = joined.filter(pl.col("planted_lift") >= bound)
        found = strong.filter(pl.col("verdict") != "benign")
        sticky = len(found.filter(verdict="sticky"))
        share = len(found) / len(strong) if len(strong) else 1.0
        others = strong.filter(pl.col("verdict") != "sticky")
        checks.append(
            Check(
                f"planted tokens of lift {bound} and more",
                bar,
                f"{len(found)} of {len(strong)}; {sticky} sticky, {len(found) - sticky} topical",
                share >= needed,
                {
                    "not sticky": others.select(
                        "token", "planted_lift", "lift", "q_value", "verdict"
                    ).to_dicts()
                },
            )
        )
    return checks


def topical_check(run: Run) -> Check:
    """Words that the sentences are about must not be called sticky."""
    words = run.tokens.filter(pl.col("token").is_in(TOPICAL))
    sticky = words.filter(verdict="sticky")["token"].to_list()
    verdicts = dict(words.select("token", "verdict").iter_rows())
    return Check(
        f"{', '.join(TOPICAL)}",
        "none sticky",
        f"{len(sticky)} of {len(words)} sticky",
        not sticky,
        {"verdicts": verdicts},
    )


def confirmed(run: Run, encoder: IdEncoder, truth: pl.DataFrame, fresh: Sentences) -> Check:
    """Measure what else was flagged on fresh carriers, in all placements, beside ordinary tokens."""
    others = run.sticky.filter(~pl.col("token_id").is_in(truth["token_id"].to_list()))["token_id"].to_list()
    low = fresh_lower_bounds(run, encoder, others, fresh)
    above = [token_id for token_id, bound in low.items() if bound > 0]
    share = len(above) / len(others) if others else 1.0
    names = run.sticky.filter(pl.col("token_id").is_in(others))
    return Check(
        f"sticky, not planted, on {FRESH_CARRIERS} fresh carriers",
        "at least 90 % above the ordinary token",
        f"{len(above)} of {len(others)}",
        share >= 0.9,
        {"tokens": names.select("token_id", "token", "lift").to_dicts(), "lower_bounds": low},
    )


def fresh_lower_bounds(
    run: Run, encoder: IdEncoder, token_ids: list[int], fresh: Sentences
) -> dict[int, float]:
    """Lower ends of 90 % intervals of the lift above the ordinary token's; the carrier is the unit."""
    if not token_ids:
        return {}
    plan = run.plan_of(ProfilePlanRecord)
    vocabulary = analyze_vocabulary(encoder).available
    used = {*plan.carriers, *(anchor.text for anchor in plan.anchors)}
    unlike = {open_ended(text): text for text in fresh.texts if text not in used}
    texts = sorted((text for text in unlike if text not in used), key=len)[:FRESH_CARRIERS]
    vectors = encoder.encode(texts)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    panel = anchor_panel(encoder, plan, vocabulary, beside=False)
    tokens = {token.id: token for token in vocabulary}
    ids = [*token_ids, *(k for k in plan.late_reference if k not in token_ids)]
    lifts = []
    for placement in Placement:
        stage = ProfileStage(
            Round.CONFIRM.value,
            tuple(encoder.tokenize(texts)),
            tuple(range(len(texts))),
            (Cell(placement, COPIES),) * len(texts),
            panel.against(units, plan.mean_similarity),
            seed=2,
        )
        rows, _ = compute_shard(stage, Shard(0, tuple(tokens[k] for k in ids)), encoder)
        lifts.append([row["lifts"] for row in rows])
    by_carrier = np.mean(lifts, axis=0)
    ordinary = by_carrier[len(token_ids) :].mean(axis=0)
    found = mean_with_interval(by_carrier[: len(token_ids)] - ordinary, 0.9)
    return dict(zip(token_ids, found.low.tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=Path, default=PLANTED, help=".npz of rows; the .csv lies beside it")
    parser.add_argument("--strength", type=float, default=1.0, help="share of the way to the planted rows")
    parser.add_argument("--published", type=Path, default=PUBLISHED, help="folder of the published tables")
    parser.add_argument("--device", default=None)
    parser.add_argument("--quick", action="store_true", help="300 tokens beside the planted ones")
    parser.add_argument("--out", type=Path, help="folder of the runs; temporary unless given")
    parser.add_argument("--name", default="planted", help="name of the result file")
    arguments = parser.parse_args()
    if not arguments.rows.is_file():
        raise SystemExit(f"no planted rows {arguments.rows}: pass them with --rows")
    if not arguments.published.is_dir():
        raise SystemExit(f"no published pairs in {arguments.published}: pass their folder with --published")
    truth = pl.read_csv(arguments.rows.with_suffix(".csv"))
    encoder = planted_encoder(arguments.rows, arguments.strength, arguments.device)
    tokens = few_tokens(encoder, truth) if arguments.quick else None
    with tempfile.TemporaryDirectory() as work:
        run = find(encoder, paper_sentences(arguments.published), arguments.out or Path(work), tokens)
        checks = [
            *planted_checks(run, truth),
            topical_check(run),
            confirmed(run, encoder, truth, load_sentences()),
        ]
    write(checks, arguments.name, encoder.device, seconds=run.result.seconds, strength=arguments.strength)
    show(checks, arguments.name)
    if not all(check.passed for check in checks):
        sys.exit(1)


def few_tokens(encoder: IdEncoder, truth: pl.DataFrame) -> list[int]:
    """The planted tokens, the topical words and some others."""
    vocabulary = analyze_vocabulary(encoder)
    ids = [token.id for token in vocabulary.available]
    drawn = np.random.default_rng(0).permutation(ids)[:300].tolist()
    topical = [k for k, name in zip(vocabulary.ids, vocabulary.tokens, strict=True) if name in TOPICAL]
    return sorted({*drawn, *topical, *truth["token_id"].to_list()})


if __name__ == "__main__":
    main()
