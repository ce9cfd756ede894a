"""Does a repair keep its promises? The unplanted model is the truth that planted tokens are judged by.

python benchmarks/repair.py RUN --truth MODEL --planted planted.json --task sts.jsonl   # planted rows
python benchmarks/repair.py RUN --truth MODEL --planted planted.json --strategy distil  # by one strategy
python benchmarks/repair.py RUN --tokens '[CLS]' --task sts.jsonl                       # of a real model

RUN is a finished run of the planted (or real) model, --truth the model before planting. Measured on
texts that the run has not used, with another seed:

- the verdicts of the second detection, and the lifts of the repaired tokens against the true rows';
- rank agreement: Spearman between the similarities to a panel of texts of a text with the word in the
  repaired model and in the true one; median over texts, then over tokens;
- the vectors of texts without a repaired token; the score of the task; the time.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

import stickytoken
from checks import Check, show, write
from stickytoken.cli.output.progress import progress_bar
from stickytoken.corpora import text_kinds
from stickytoken.corpora.corpus import bundled_sentences
from stickytoken.detection import Run, open_run
from stickytoken.detection.model_files import encoder_for, restored_settings
from stickytoken.encoders import Encoder, load_encoder
from stickytoken.encoders.protocol import require_ids
from stickytoken.encoders.views import MeanSimilarity
from stickytoken.insertion import Token
from stickytoken.measurement.stage import ignore_progress
from stickytoken.methods.job import Tokens
from stickytoken.methods.profile.anchors import ProfilePlanRecord
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.profile.verdict import ProfileRecheck, plan_unused, recheck_settings
from stickytoken.repairs import Repair
from stickytoken.vocabulary import categorize

_PANEL, _CONTEXTS, _SEED = 300, 12, 17
_CLOSE, _AGREEMENT, _CLS, _MINUTES, _POINTS = 0.15, 0.85, 0.45, 5.0, 0.05


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--truth", help="name or folder of the model before planting")
    parser.add_argument("--planted", type=Path, help="planted.json: repair all of its tokens")
    parser.add_argument("--tokens", nargs="*", help="tokens to repair; default: the sticky tokens of the run")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--task", help="task to score; default: the packaged one")
    parser.add_argument("--out", type=Path, help="keep the repaired model here")
    parser.add_argument("--name", help="write the results to benchmarks/results/NAME.json")
    return parser.parse_args()


def panel(seed: int) -> tuple[list[str], list[str]]:
    """Texts to compare with, and texts to put a word into."""
    texts = [*text_kinds().texts, *bundled_sentences().texts]
    order = np.random.default_rng(seed).permutation(len(texts))
    drawn = [texts[k] for k in order]
    return drawn[:_PANEL], drawn[_PANEL : _PANEL + _CONTEXTS]


def ranks_of(encoder: Encoder, words: list[str], against: list[str], contexts: list[str]) -> np.ndarray:
    """Similarities of every context with each word in it, shape (words, contexts, panel)."""
    texts = [placed(context, word) for word in words for context in contexts]
    vectors, anchors = (unit(encoder.encode(each)) for each in (texts, against))
    return np.asarray((vectors @ anchors.T).reshape(len(words), len(contexts), len(against)))


def placed(context: str, word: str) -> str:
    """Put a word into the middle of a text."""
    parts = context.split()
    return " ".join([*parts[: len(parts) // 2], word, *parts[len(parts) // 2 :]])


def unit(vectors: np.ndarray) -> np.ndarray:
    doubled = vectors.astype(np.float64)
    return np.asarray(doubled / np.linalg.norm(doubled, axis=1, keepdims=True))


def agreements(truth: Encoder, other: Encoder, words: list[str]) -> np.ndarray:
    """Rank agreement with the true model, median over contexts, shape (words,)."""
    against, contexts = panel(_SEED)
    true, found = (ranks_of(each, words, against, contexts) for each in (truth, other))
    return np.array(
        [
            np.median([spearmanr(a, b).statistic for a, b in zip(*pair, strict=True)])
            for pair in zip(true, found, strict=True)
        ]
    )


def true_lifts(repair: Repair, run: Run, truth: Encoder) -> dict[int, float]:
    """Lifts of the tokens in the true model, on the texts of the verification, in its deviations."""
    plan, settings = run.plan_of(ProfilePlanRecord), restored_settings(run)
    if not isinstance(settings, ProfileSettings):
        raise SystemExit("the run must be of the method profile")
    planted = require_ids(encoder_for(None, run, "benchmark"), "benchmark")
    again = recheck_settings(settings, repair.record.settings["seed"])
    used = [*plan.carriers, *(anchor.text for anchor in plan.anchors)]
    similarity = MeanSimilarity(plan.mean_similarity, plan.mean_similarity_entries, 0)
    vocabulary = categorize(planted.tokenizer)
    texts = plan_unused(
        planted, again, bundled_sentences(), vocabulary.available, used, similarity, ignore_progress
    )
    tokens = [Token(token.token_id, token.text) for token in repair.record.tokens]
    recheck = ProfileRecheck(require_ids(truth, "benchmark"), vocabulary, again, texts, ignore_progress)
    found = recheck.judged(Tokens(tokens, [], []), ())
    return {
        token.id: (found.lifts[token.id] - found.ordinary_lift) / texts.similarity_spread for token in tokens
    }


def checks_of(repair: Repair, seconds: float, computing: float) -> list[Check]:
    verification = repair.record.verification
    if verification is None:
        raise SystemExit("the repair was not verified")
    rows = repair.tokens.to_dicts()
    sticky = [row["token"] for row in rows if row["verdict_after"] == "sticky"]
    before, after = ([row[f"deviations_{side}"] for row in rows] for side in ("before", "after"))
    raw = [row["lift_after"] / verification.similarity_spread for row in rows]
    score = verification.scores[0]
    change = 100 * (score.after - score.before)
    found = [
        Check("tokens still sticky", "0", f"{len(sticky)} of {len(rows)}", not sticky, {"sticky": sticky}),
        Check(
            "lift after, beyond an ordinary token's",
            "-",
            f"median {np.median(after):.2f}, at most {max(after):.2f} SD (before: at most {max(before):.2f})",
            True,
            {"tokens": rows},
        ),
        Check(
            f"{score.task}, {score.metric}",
            f"change at most {_POINTS} points",
            f"{100 * score.before:.2f} before, {100 * score.after:.2f} after",
            abs(change) <= _POINTS,
            {"change": change},
        ),
        Check(
            "time",
            f"{_MINUTES:g} minutes for 20 tokens",
            f"{seconds:.0f} s for {len(rows)}, {computing:.0f} s of them on a processor",
            seconds <= 60 * _MINUTES,
            {},
        ),
    ]
    found += [Check(check.name, "holds", check.finding, check.passed, {}) for check in verification.checks]
    if [row["token"] for row in rows] == ["[CLS]"]:
        found.append(
            Check("[CLS] through text", f"at most {_CLS} SD", f"{raw[0]:.2f} SD", raw[0] <= _CLS, {})
        )
    return found


def truth_checks(repair: Repair, run: Run, truth: Encoder) -> list[Check]:
    rows, true = repair.tokens.to_dicts(), true_lifts(repair, run, truth)
    away = [abs(row["deviations_after"] - true[row["token_id"]]) for row in rows]
    close = sum(each <= _CLOSE for each in away)
    words = [token.text.strip() for token in repair.record.tokens]
    before = agreements(truth, load_encoder(run.record.model.name), words)
    after = agreements(truth, load_encoder(repair.path), words)
    return [
        Check(
            "lift against the true row's",
            f"each within {_CLOSE} SD",
            f"median {np.median(away):.2f}, at most {max(away):.2f}; {close} of {len(away)} within",
            max(away) <= _CLOSE,
            {"away": away},
        ),
        Check(
            "rank agreement with the true word",
            f"median at least {_AGREEMENT}",
            f"{np.median(after):.2f} (before the repair: {np.median(before):.2f})",
            bool(np.median(after) >= _AGREEMENT),
            {"after": after.tolist(), "before": before.tolist()},
        ),
    ]


def main() -> None:
    given = arguments()
    tokens: Any = given.tokens
    if given.planted is not None:
        tokens = [int(each["token_id"]) for each in json.loads(given.planted.read_text(encoding="utf-8"))]
    run = open_run(given.run)
    with tempfile.TemporaryDirectory() as place, progress_bar() as progress:
        out = given.out or Path(place) / "repaired"
        started, processor = time.perf_counter(), sum(os.times()[:4])
        repair = stickytoken.repair(
            run, tokens, out=out, strategy=given.strategy, task=given.task, progress=progress
        )
        computing = sum(os.times()[:4]) - processor
        found = checks_of(repair, max(repair.record.seconds, time.perf_counter() - started), computing)
        if given.truth is not None:
            found += truth_checks(repair, run, load_encoder(given.truth))
    title = f"{Path(run.record.model.name).name}, {given.strategy}"
    show(found, title)
    if given.name:
        write(found, given.name, "cpu", command=title)


if __name__ == "__main__":
    main()
