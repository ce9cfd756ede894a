"""Does another run say the same? Disjoint sentences, other seeds, another corpus.

python benchmarks/reliability.py            # about 15 minutes on 2 CPU cores
python benchmarks/reliability.py --quick    # a few minutes, on few tokens

Two runs share no carrier, and no anchor that the lift is measured on: each gets one half of the bundled
sentences as a corpus of its own (a sentence and its paraphrase stay together).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import spearmanr

from checks import Check, show, write
from published import PUBLISHED, table
from stickytoken.cli.output.progress import progress_bar
from stickytoken.corpora import Sentences, bundled_frame
from stickytoken.corpora.corpus import collect_sentences
from stickytoken.detection import Run, detect
from stickytoken.encoders import Encoder, analyze_vocabulary, load_encoder
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.std.settings import StdSettings

SEEDS = (1, 2)


def halves() -> tuple[Sentences, Sentences]:
    """The bundled sentences, every other pair of each topic."""
    frame = bundled_frame().with_columns(half=pl.col("pair_id").rank("dense").over("topic") % 2)
    first, second = (
        collect_sentences(
            part["sentence"].to_list(), f"half {number} of the bundled corpus", part["topic"].to_list()
        )
        for number, part in enumerate((frame.filter(half=0), frame.filter(half=1)), start=1)
    )
    return first, second


def paper_sentences(folder: Path) -> Sentences:
    """The sentences of the published pairs."""
    pairs = table(folder, "minilm_pairs")
    return collect_sentences(
        [*pairs["sentence1"].to_list(), *pairs["sentence2"].to_list()], "sentences of the published pairs"
    )


def two_runs(
    encoder: Encoder, out: Path, name: str, corpora: tuple[Sentences, Sentences], **options: Any
) -> tuple[Run, Run]:
    """Run both corpora with their seeds; runs that lie in the folder already are opened."""
    settings = options.pop("settings")
    found = []
    for seed, corpus in zip(SEEDS, corpora, strict=True):
        with progress_bar() as progress:
            found.append(
                detect(
                    encoder,
                    sentences=corpus,
                    settings=replace(settings, seed=seed),
                    out=out / f"{name}-{seed}",
                    progress=progress,
                    **options,
                )
            )
    return found[0], found[1]


def rank_agreement(runs: tuple[Run, Run], column: str) -> float:
    """Spearman correlation of a column over the tokens that have it in both runs."""
    first, second = (run.tokens.select("token_id", column).drop_nulls() for run in runs)
    joined = first.join(second, on="token_id", suffix="_again")
    return float(spearmanr(joined[column], joined[f"{column}_again"]).statistic)


def overlap(runs: tuple[Run, Run]) -> tuple[float, int, int]:
    """Jaccard index of the sticky sets, the size of their intersection and of their union."""
    first, second = (set(run.sticky["token_id"]) for run in runs)
    union = len(first | second)
    return (len(first & second) / union if union else 1.0), len(first & second), union


def fixed_budget(encoder: Encoder, out: Path, tokens: list[int], budget: int, bar: float) -> Check:
    settings = ProfileSettings(budget=budget, adaptive=False)
    runs = two_runs(encoder, out, f"alike-{budget}", halves(), settings=settings, tokens=tokens)
    found = rank_agreement(runs, "lift")
    return Check(
        f"profile, {budget} texts a token, {len(tokens):,} tokens: Spearman of lifts",
        f"at least {bar}",
        f"{found:.3f}",
        found >= bar,
        {"contraction": rank_agreement(runs, "contraction")},
    )


def default_settings(encoder: Encoder, out: Path, tokens: list[int] | None) -> list[Check]:
    runs = two_runs(encoder, out, "default", halves(), settings=ProfileSettings(), tokens=tokens)
    jaccard, common, union = overlap(runs)
    agreement = rank_agreement(runs, "lift")
    name = f"profile, default settings, {len(runs[0].tokens):,} tokens"
    return [
        Check(
            f"{name}: sticky in both of either",
            "Jaccard at least 0.8",
            f"{jaccard:.2f} ({common} of {union})",
            jaccard >= 0.8,
            {
                "sticky": [run.sticky["token"].to_list() for run in runs],
                "seconds": [run.result.seconds for run in runs],
                "sequences": [run.result.sequences for run in runs],
            },
        ),
        Check(f"{name}: Spearman of lifts", "at least 0.93", f"{agreement:.3f}", agreement >= 0.93, {}),
    ]


def other_corpus(encoder: Encoder, out: Path, tokens: list[int], folder: Path) -> Check:
    settings = ProfileSettings(budget=20, adaptive=False)
    corpora = (halves()[0], paper_sentences(folder))
    runs = two_runs(encoder, out, "corpora", corpora, settings=settings, tokens=tokens)
    found = rank_agreement(runs, "lift")
    return Check(
        f"profile, 20 texts a token, {len(tokens):,} tokens: bundled against the paper's sentences",
        "Spearman at least 0.85",
        f"{found:.3f}",
        found >= 0.85,
        {"contraction": rank_agreement(runs, "contraction")},
    )


def std(encoder: Encoder, out: Path, tokens: list[int]) -> Check:
    settings = StdSettings(sentences=500, candidate_share=0.1, validation_pairs=60)
    runs = two_runs(encoder, out, "std", halves(), settings=settings, tokens=tokens)
    jaccard, common, union = overlap(runs)
    chosen = [set(run.tokens.filter(pl.col("verdict").is_not_null())["token_id"]) for run in runs]
    shortlists = len(chosen[0] & chosen[1]) / len(chosen[0] | chosen[1])
    return Check(
        f"std, 120 texts a token to score, {len(tokens)} tokens: Spearman of scores",
        "beside it",
        f"{rank_agreement(runs, 'sticky_score'):.3f}; shortlists {shortlists:.2f}, "
        f"sticky {jaccard:.2f} ({common} of {union})",
        True,
        {"sequences": [run.result.sequences for run in runs]},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--device", default=None)
    parser.add_argument("--published", type=Path, default=PUBLISHED, help="folder of the published tables")
    parser.add_argument("--out", type=Path, default=Path("runs/reliability"), help="folder of the runs")
    parser.add_argument("--quick", action="store_true", help="few tokens, and not the whole vocabulary")
    parser.add_argument("--only", nargs="*", help="run only these parts")
    parser.add_argument("--name", default="reliability", help="name of the result file")
    arguments = parser.parse_args()
    encoder = load_encoder(arguments.model, device=arguments.device)
    available = [token.id for token in analyze_vocabulary(encoder).available]
    order = np.random.default_rng(0).permutation(available).tolist()
    many, some, few = (300, 300, 30) if arguments.quick else (2000, 2000, 80)
    out: Path = arguments.out / ("quick" if arguments.quick else "full")
    parts: dict[str, Callable[[], list[Check]]] = {
        "ten": lambda: [fixed_budget(encoder, out, order[:many], 10, 0.87)],
        "twenty": lambda: [fixed_budget(encoder, out, order[:many], 20, 0.93)],
        "default": lambda: default_settings(encoder, out, order[:many] if arguments.quick else None),
        "std": lambda: [std(encoder, out, order[:few])],
    }
    if arguments.published.is_dir():
        parts["corpora"] = lambda: [other_corpus(encoder, out, order[:some], arguments.published)]
    checks: list[Check] = []
    for name, part in parts.items():
        if not arguments.only or name in arguments.only:
            checks += part()
            # After every part, so that hours of work are not lost with the last one.
            write(checks, arguments.name, encoder.device, model=Path(arguments.model).name)
    show(checks, arguments.name)
    if not all(check.passed for check in checks):
        sys.exit(1)


if __name__ == "__main__":
    main()
