"""Does a run judge rightly what its tokens do to corpora that it was not made on?

python benchmarks/judge.py RUN --corpus sts.txt --corpus trec.txt        # 1,500 random tokens as truth
python benchmarks/judge.py RUN --corpus sts.txt --planted planted.json   # and the planted ones
python benchmarks/judge.py RUN --corpus sts.txt --truth-tokens 0         # the whole vocabulary
python benchmarks/judge.py RUN --corpus sts.txt --own                    # and a run made on the corpus

RUN is a finished run of the profile method. The truth is measured directly: every token in 24 sentences
of the corpus, drawn with another seed, and compared with all of its texts (up to 10,000).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy.stats import spearmanr

from checks import Check, show, write
from stickytoken.cli.output.progress import progress_bar
from stickytoken.corpora import Sentences, load_sentences
from stickytoken.detection import Run, detect, judge, open_run
from stickytoken.detection.model_files import encoder_for, restored_settings
from stickytoken.encoders.protocol import Encoder
from stickytoken.methods.job import MemoryRunner
from stickytoken.methods.probes import AnchorPanel
from stickytoken.methods.profile.anchors import ProfilePlanRecord, TextGroup, short_texts
from stickytoken.methods.profile.estimates import measurements
from stickytoken.methods.profile.plan import Round, round_stage, spread_of
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.protocol import Judgement
from stickytoken.unit_vectors import unit_vectors
from stickytoken.vocabulary import Vocabulary, categorize

CARRIERS, MOST_ANCHORS, STRONGEST = 24, 10_000, 50


class Truth(NamedTuple):
    """Directly measured lifts above the typical token's, in standard deviations of the similarities.

    Attributes:
        ids: ids of T tokens, ascending.
        effects: shape (T,).
        halves: the same from every other sentence, shape (2, T).
        random: whether the token was drawn at random.
    """

    ids: np.ndarray
    effects: np.ndarray
    halves: np.ndarray
    random: np.ndarray


def measured_truth(
    run: Run, encoder: Encoder, vocabulary: Vocabulary, corpus: Sentences, wanted: set[int], planted: set[int]
) -> Truth:
    """Put every wanted token into fresh carriers of the corpus."""
    settings = restored_settings(run)
    if not isinstance(settings, ProfileSettings):
        raise SystemExit(f"{run.path} is no run of the profile method")
    settings = replace(settings, seed=settings.seed + 1000)
    plan = run.plan_of(ProfilePlanRecord)
    group = TextGroup("corpus", list(corpus.texts), 1.0, False)
    carriers = short_texts(encoder, settings, [group], CARRIERS, corpus.source)
    chosen = dict(list(carriers.items())[:CARRIERS])
    rest = [text for text in corpus.texts if text not in set(chosen.values())][:MOST_ANCHORS]
    fits = [encoder.fits(ids) for ids in encoder.content_ids(rest)]
    anchors = [text for text, fit in zip(rest, fits, strict=True) if fit]
    panel = AnchorPanel(
        unit_vectors(encoder.encode(anchors)), np.zeros(len(anchors), dtype=np.intp), np.ones(1)
    )
    own = plan.model_copy(update={"carriers": list(chosen)})
    stage = round_stage(encoder, settings, own, panel, Round.CONFIRM, range(CARRIERS), "truth")
    tokens = [token for token in vocabulary.available if token.id in wanted | planted]
    with progress_bar() as progress:
        found = measurements(MemoryRunner(encoder, progress)(stage, tokens), CARRIERS)
    spread = spread_of(stage.panel.before.astype(np.float32), panel.weights)
    random = ~np.isin(found.ids, sorted(planted))
    whole, *halves = (
        (lifts - np.median(lifts[random])) / spread
        for lifts in (
            found.lifts[:, part].mean(axis=1) for part in (slice(None), slice(0, None, 2), slice(1, None, 2))
        )
    )
    return Truth(found.ids, whole, np.array(halves), random)


def compared(name: str, found: Judgement, truth: Truth, smallest: float) -> list[Check]:
    """Compare a judgement with the truth."""
    rows = np.searchsorted(found.tokens["token_id"].to_numpy(), truth.ids)
    judged = found.tokens[rows.tolist()]
    verdicts, lifts = judged["verdict"].to_numpy(), judged["lift"].to_numpy()
    large = truth.effects >= smallest
    flagged = int((verdicts[large] != "benign").sum())
    share = flagged / int(large.sum()) if large.any() else 1.0
    wrong = (verdicts == "sticky") & (truth.effects < smallest / 2)
    rho = float(spearmanr(lifts, truth.effects)[0])
    missed = judged.with_columns(true_effect=pl.Series(truth.effects)).filter(
        pl.Series(large & (verdicts == "benign"))
    )
    return [
        Check(
            f"{name}: true lift of the smallest effect and more",
            "95 % flagged",
            f"{flagged} of {int(large.sum())}",
            share >= 0.95,
            {"missed": missed.select("token", "true_effect", "lift", "lift_high", "texts").to_dicts()},
        ),
        Check(
            f"{name}: sticky, with a true lift below half the smallest effect",
            "none",
            str(int(wrong.sum())),
            not wrong.any(),
            {"tokens": judged.filter(pl.Series(wrong))["token"].to_list()},
        ),
        Check(
            f"{name}: lifts against the truth, {len(truth.ids):,} tokens",
            "Spearman 0.9",
            f"{rho:.3f}",
            rho >= 0.9,
            {"random tokens alone": float(spearmanr(lifts[truth.random], truth.effects[truth.random])[0])},
        ),
    ]


def strongest(name: str, found: Judgement, truth: Truth) -> Check:
    """Of the 50 strongest tokens of the truth, those among our 50, and what two halves of it share."""
    rows = np.searchsorted(found.tokens["token_id"].to_numpy(), truth.ids)
    shared = _shared(found.tokens["lift"].to_numpy()[rows], truth.effects)
    between = _shared(*truth.halves)
    return Check(
        f"{name}: the {STRONGEST} strongest",
        "45 in ours",
        f"{shared}; between halves of the truth {between}",
        shared >= 45,
        {"Spearman correlation between halves of the truth": float(spearmanr(*truth.halves)[0])},
    )


def _shared(first: np.ndarray, second: np.ndarray) -> int:
    return len(set(np.argsort(-first)[:STRONGEST]) & set(np.argsort(-second)[:STRONGEST]))


def of_own_run(name: str, corpus: Sentences, encoder: Encoder, found: Judgement, truth: Truth) -> Check:
    """Compare with a run made on the corpus, and that run with the truth."""
    with tempfile.TemporaryDirectory() as folder, progress_bar() as progress:
        own = detect(encoder, sentences=corpus, out=folder, evidence=False, progress=progress)
        theirs = own.tokens.sort("token_id")
    ours = found.tokens.sort("token_id")
    rho = float(spearmanr(ours["lift"].to_numpy(), theirs["lift"].to_numpy())[0])
    of_truth = theirs["lift"].to_numpy()[np.searchsorted(theirs["token_id"].to_numpy(), truth.ids)]
    against = float(spearmanr(of_truth, truth.effects)[0])
    sets = [set(tokens.filter(verdict="sticky")["token_id"].to_list()) for tokens in (ours, theirs)]
    both, either = len(sets[0] & sets[1]), len(sets[0] | sets[1])
    return Check(
        f"{name}: against a run made on it, {len(ours):,} tokens",
        "Spearman 0.9",
        f"{rho:.3f}; sticky in both {both} of {either}; that run against the truth {against:.3f}",
        rho >= 0.9,
        {},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--corpus", action="append", required=True, help="as for --sentences; repeatable")
    parser.add_argument("--planted", type=Path, help="planted.json of the model: token ids are read")
    parser.add_argument("--truth-tokens", type=int, default=1500, help="random tokens; 0 is all")
    parser.add_argument("--own", action="store_true", help="also detect on each corpus")
    parser.add_argument("--name", default="judge", help="name of the result file")
    arguments = parser.parse_args()
    run = open_run(arguments.run)
    encoder = encoder_for(None, run, "the benchmark")
    vocabulary = categorize(encoder.tokenizer)
    ids = [token.id for token in vocabulary.available]
    count = arguments.truth_tokens or len(ids)
    wanted = set(np.random.default_rng(7).permutation(ids)[:count].tolist())
    planted: set[int] = set()
    if arguments.planted:
        planted = {row["token_id"] for row in json.loads(arguments.planted.read_text("utf-8"))} & set(ids)
    smallest = run.settings.number("smallest_effect")
    checks: list[Check] = []
    seconds: dict[str, Any] = {}
    for source in arguments.corpus:
        name, corpus = Path(source).stem, load_sentences(source)
        begun = time.perf_counter()
        with progress_bar() as progress:
            found = judge(run, corpus, encoder=encoder, progress=progress)
        seconds[name] = round(time.perf_counter() - begun, 1)
        truth = measured_truth(run, encoder, vocabulary, corpus, wanted, planted)
        checks += compared(name, found, truth, smallest)
        if count == len(ids):
            checks.append(strongest(name, found, truth))
        if arguments.own:
            checks.append(of_own_run(name, corpus, encoder, found, truth))
        # After every corpus, so that work is not lost with the next one.
        write(
            checks, arguments.name, encoder.device, model=Path(run.model_name).name, seconds_to_judge=seconds
        )
    show(checks, f"{arguments.name}: {run.model_name}")
    if not all(check.passed for check in checks):
        sys.exit(1)


if __name__ == "__main__":
    main()
