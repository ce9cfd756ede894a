"""Are the verdicts of a run right, and do they stay the same under other conditions?

Verdicts are checked on planted tokens (`planted`, `unknown`), with other texts (`reliability`) and with a
screen in a lower precision (`screening`). `docstrings` writes texts toward which tokens can be planted.
`python benchmarks/verdicts.py COMMAND --help` says what a command needs and how long it takes.
"""

from __future__ import annotations

import ast
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from bench import MINILM, PLANTED, PUBLISHED, Results, commands, detected, published_table, spearman
from models import planted_encoder, planted_ids
from stickytoken.data import Sentences, bundled_frame, collect_sentences, load_sentences
from stickytoken.detection import Run
from stickytoken.encoders import Encoder, analyze_vocabulary, load_encoder
from stickytoken.machine import Precision
from stickytoken.methods.std import StdSettings
from stickytoken.settings.profile import ProfileSettings
from stickytoken.vocabulary import categorize

# Numbers of words in a sentence that `docstrings` writes.
FEWEST_WORDS = 4
MOST_WORDS = 22

IS_FLAGGED = pl.col("verdict") != "benign"


def random_ids(ids: Sequence[int], count: int, seed: int = 0) -> list[int]:
    """Draw ``count`` of the token ids without replacement; all of them if there are fewer."""
    drawn_ids: list[int] = np.random.default_rng(seed).permutation(ids)[:count].tolist()
    return drawn_ids


def jaccard(first: set[int], second: set[int]) -> tuple[float, str]:
    """Return the share of the tokens of either set that are in both sets, and the two counts in words."""
    common = len(first & second)
    union = len(first | second)
    share = common / union if union else 1.0
    return share, f"{common} of {union}"


def sticky_ids(run: Run) -> set[int]:
    """Return the ids of the tokens that a run calls sticky."""
    return set(run.sticky["token_id"])


def planted(
    rows: Path = PLANTED,
    strength: float = 1.0,
    published: Path = PUBLISHED,
    device: str | None = None,
    quick: bool = False,
) -> None:
    """How many tokens does a run flag that were planted to move texts toward its corpus? Four minutes.

    Rows of the word embeddings of all-MiniLM-L6-v2 are overwritten, and a run is made on the sentences of the
    published pairs. --rows is an .npz with token_ids, shape (n,), and rows, shape (n, 384), beside a .csv
    with token_id and planted_lift. --strength is the share of the way from the original rows to these rows.
    --published is the folder of the published tables. --quick examines only 300 tokens beside the planted
    ones.
    """
    encoder = planted_encoder(rows, strength, device)
    planted_tokens = pl.read_csv(rows.with_suffix(".csv"))
    token_ids = None
    if quick:
        available = [token.id for token in analyze_vocabulary(encoder).available]
        token_ids = sorted({*random_ids(available, 300), *planted_tokens["token_id"].to_list()})
    pairs = published_table(published, "minilm_pairs")
    texts = [*pairs["sentence1"].to_list(), *pairs["sentence2"].to_list()]
    corpus = collect_sentences(texts, "sentences of the published pairs")
    with tempfile.TemporaryDirectory() as folder:
        run = detected(encoder, method="profile", sentences=corpus, tokens=token_ids, out=folder)
        results = Results("planted", encoder.device, seconds=run.result.seconds, strength=strength)
        check_planted(results, run, planted_tokens)
    results.finish()


def check_planted(results: Results, run: Run, planted_tokens: pl.DataFrame) -> None:
    """Count the planted tokens that are flagged, and the other tokens that are."""
    measured_tokens = planted_tokens.join(run.tokens.drop("token"), on="token_id")
    missed = measured_tokens.filter(~IS_FLAGGED)
    flagged_planted = len(measured_tokens) - len(missed)
    results.check(
        "planted tokens",
        "beside it",
        f"{flagged_planted} of {len(measured_tokens)} flagged",
        missed=missed.select("token", "planted_lift", "erased", "push").to_dicts(),
    )
    flagged_natural = len(run.tokens.filter(IS_FLAGGED)) - flagged_planted
    natural = len(run.tokens) - len(measured_tokens)
    results.check("other tokens", "beside it", f"{flagged_natural} of {natural:,} flagged")


def docstrings(out: Path) -> None:
    """Write sentences of the standard library's docstrings to the file OUT. Takes seconds.

    No run uses texts of this kind. `plant.py`, beside the planted rows, moves rows of a model toward them,
    and `unknown` then checks whether a run flags these rows.
    """
    library = Path(ast.__file__).parent
    sentences: set[str] = set()
    for path in sorted(library.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                sentences.update(sentences_of(ast.get_docstring(node) or ""))
    out.write_text("\n".join(sorted(sentences)) + "\n", encoding="utf-8")
    print(f"{len(sentences)} sentences: {out}")


def sentences_of(docstring: str) -> Iterator[str]:
    """Yield the sentences of a docstring that begin with a capital letter and are neither short nor long."""
    for passage in re.split(r"(?<=[.])\s+|\n\n", docstring):
        words = passage.split()
        sentence = " ".join(words)
        if sentence[:1].isupper() and FEWEST_WORDS <= len(words) <= MOST_WORDS:
            yield sentence


def unknown(model: Path, texts: Path, others: int = 0, name: str = "planted_unknown") -> None:
    """Does a run flag tokens that were planted toward texts of a kind that no run uses? Takes minutes.

    MODEL is a folder that `plant.py` wrote, and TEXTS the file of sentences toward which it moved the rows.
    The true push of each planted token is measured in documents that are joined from these sentences.
    --others is the number of random natural tokens to examine beside the planted ones; 0 examines all. --name
    is the name of the results file.
    """
    encoder = load_encoder(str(model))
    planted_token_ids = planted_ids(model)
    available = [token.id for token in categorize(encoder.tokenizer).available]
    token_ids = None
    if others:
        token_ids = sorted({*random_ids(available, others), *planted_token_ids})
    with tempfile.TemporaryDirectory() as folder:
        truth = detected(
            encoder,
            sentences=load_sentences(str(texts)),
            tokens=planted_token_ids,
            out=Path(folder) / "truth",
            evidence=False,
        ).tokens.select("token_id", true_push="push", true_push_low="push_low")
        run = detected(encoder, tokens=token_ids, out=Path(folder) / "run", evidence=False)
    results = Results(name, encoder.device, model=model.name, texts=texts.name, examined=len(run.tokens))
    check_unknown(results, model.name, run, truth, planted_token_ids)
    results.finish(strict=False)


def check_unknown(
    results: Results, model: str, run: Run, truth: pl.DataFrame, planted_token_ids: list[int]
) -> None:
    """Check how many planted tokens with a large true push, and how many natural tokens, a run flags.

    Args:
        results: the results to add checks to.
        model: name of the model.
        run: run of the model on its default texts.
        truth: the columns ``token_id``, ``true_push`` and ``true_push_low`` of the planted tokens.
        planted_token_ids: ids of the planted tokens.
    """
    smallest_push = run.settings.number("smallest_push")
    verdicts = run.tokens.select("token_id", "token", "verdict", "erased", "push", "vector_deviation")
    planted_tokens = truth.join(verdicts, on="token_id")
    strong = planted_tokens.filter(pl.col("true_push_low") >= smallest_push)
    missed = strong.filter(~IS_FLAGGED)
    results.check(
        f"{model}: planted rows with a true push of {smallest_push:g} and more",
        "90 % flagged",
        f"{len(strong) - len(missed)} of {len(strong)}",
        len(missed) <= 0.1 * len(strong),
        missed=missed.to_dicts(),
    )
    flagged_natural = verdicts.filter(IS_FLAGGED, ~pl.col("token_id").is_in(planted_token_ids))
    natural = len(run.tokens) - len(planted_tokens)
    results.check(
        f"{model}: natural tokens flagged",
        "at most 1 in 1,000",
        f"{len(flagged_natural)} of {natural:,}",
        len(flagged_natural) <= natural / 1000,
        tokens=flagged_natural.to_dicts(),
    )


class TimedRun(NamedTuple):
    """A run, and the seconds that it took."""

    run: Run
    seconds: float


def screening(device: str = "cpu", rows: Path = PLANTED, quick: bool = False) -> None:
    """Does a screen in a lower precision find the same tokens, and how much sooner? 15 minutes.

    Runs of all-MiniLM-L6-v2 are made in float32 throughout, and with the screen in each lower precision of
    the device. If the planted tokens of --rows exist, runs of the model with these tokens are made too.
    --quick examines only 400 tokens.
    """
    precisions = [Precision.BFLOAT16]
    if device != "cpu":
        precisions = [Precision.TF32, Precision.BFLOAT16, Precision.FLOAT16]
    encoders = {MINILM: load_encoder(MINILM, device=device)}
    if rows.is_file():
        encoders["planted tokens"] = planted_encoder(rows, 1.0, device)
    sample = 400 if quick else None
    results = Results("screening", device)
    for title, encoder in encoders.items():
        with tempfile.TemporaryDirectory() as folder:
            in_float32 = timed_run(encoder, None, sample, Path(folder))
            screened_lower = {
                precision: timed_run(encoder, precision, sample, Path(folder)) for precision in precisions
            }
            for precision, lower in screened_lower.items():
                prefix = f"{title}, screened in {precision}"
                check_screening(results, prefix, in_float32, lower)
    results.finish()


def timed_run(encoder: Encoder, precision: Precision | None, sample: int | None, folder: Path) -> TimedRun:
    """Make a run whose screen has the given precision, in a subfolder of ``folder``.

    Args:
        encoder: the model.
        precision: precision of the screen; None for that of the model.
        sample: number of random tokens; None for the whole vocabulary.
        folder: parent of the run folder.
    """
    settings = ProfileSettings(screen_precision=precision)
    started = time.perf_counter()
    run = detected(encoder, settings=settings, sample=sample, out=folder / str(precision))
    return TimedRun(run, time.perf_counter() - started)


def check_screening(results: Results, prefix: str, in_float32: TimedRun, lower: TimedRun) -> None:
    """Compare the sticky tokens, erased shares and time of a run with those of a run in float32."""
    sticky_float32 = sticky_ids(in_float32.run)
    sticky_lower = sticky_ids(lower.run)
    share, counts = jaccard(sticky_lower, sticky_float32)
    tokens = in_float32.run.tokens.join(lower.run.tokens, on="token_id", suffix="_lower")
    correlation = spearman(tokens["erased"], tokens["erased_lower"])
    results.check(
        f"{prefix}: the tokens called sticky in float32",
        "Jaccard at least 0.95",
        f"{share:.3f} ({counts}); all erased shares: Spearman {correlation:.4f}",
        share >= 0.95,
        only_float32=sorted(sticky_float32 - sticky_lower),
        only_lower=sorted(sticky_lower - sticky_float32),
    )
    results.check(
        f"{prefix}: time",
        "under 6 minutes",
        f"{lower.seconds / 60:.1f} minutes; float32 throughout {in_float32.seconds / 60:.1f}",
        lower.seconds < 360,
        seconds=lower.seconds,
    )


def reliability(
    device: str | None = None,
    out: Path = Path("runs/reliability"),
    quick: bool = False,
    model: str = MINILM,
) -> None:
    """Do two runs with different texts agree? 15 minutes.

    Two runs with default settings share no carrier and no document: the corpus of each is one half of the
    bundled sentences. A sentence and its paraphrase are in the same half. For the
    packaged model, two runs of the method std are compared too. Runs that are already in the folder --out are
    opened instead of made. --quick examines few tokens.
    """
    encoder = load_encoder(model, device=device)
    model_name = Path(model).name
    results_name = "reliability" if model == MINILM else f"reliability_{model_name}"
    results = Results(results_name, encoder.device, model=model_name)
    available = [token.id for token in analyze_vocabulary(encoder).available]
    folder = out / ("quick" if quick else "full")
    profile_ids = random_ids(available, 300) if quick else None
    check_profile_runs(results, runs_on_halves(encoder, ProfileSettings(), profile_ids, folder / "default"))
    if model == MINILM:
        std_ids = random_ids(available, 30 if quick else 80)
        std_settings = StdSettings(sentence_count=500, candidate_share=0.1, validation_pairs=60)
        check_std_runs(results, runs_on_halves(encoder, std_settings, std_ids, folder / "std"), len(std_ids))
    results.finish()


def corpus_halves() -> list[Sentences]:
    """Return two halves of the bundled corpus, with half of the pairs of each topic in either."""
    frame = bundled_frame().with_columns(half=pl.col("pair_id").rank("dense").over("topic") % 2)
    halves = []
    for number in (1, 2):
        rows = frame.filter(half=number - 1)
        source = f"half {number} of the bundled corpus"
        halves.append(collect_sentences(rows["sentence"].to_list(), source, rows["topic"].to_list()))
    return halves


def runs_on_halves(
    encoder: Encoder, settings: ProfileSettings | StdSettings, token_ids: list[int] | None, folder: Path
) -> list[Run]:
    """Make two runs, each with its own seed and its own half of the bundled corpus.

    Args:
        encoder: the model.
        settings: the settings of both runs, apart from the seed.
        token_ids: tokens to examine; None for the whole vocabulary.
        folder: path of the run folders, without the ending ``-1`` or ``-2``.
    """
    runs = []
    for number, corpus in enumerate(corpus_halves(), start=1):
        run_folder = folder.with_name(f"{folder.name}-{number}")
        seeded = replace(settings, seed=number)
        runs.append(detected(encoder, sentences=corpus, settings=seeded, out=run_folder, tokens=token_ids))
    return runs


def correlation_of_runs(runs: list[Run], column: str) -> float:
    """Return the Spearman correlation of a column over the tokens that have a value in both runs."""
    first, second = (run.tokens.select("token_id", column).drop_nulls() for run in runs)
    in_both = first.join(second, on="token_id", suffix="_again")
    return spearman(in_both[column], in_both[f"{column}_again"])


def check_profile_runs(results: Results, runs: list[Run]) -> None:
    """Compare the sticky tokens, pushes and erased shares of two runs of the profile method."""
    first, second = runs
    share, counts = jaccard(sticky_ids(first), sticky_ids(second))
    prefix = f"profile, default settings, {len(first.tokens):,} tokens"
    results.check(
        f"{prefix}: sticky in both of either",
        "Jaccard at least 0.9",
        f"{share:.2f} ({counts})",
        share >= 0.9,
        sticky=[run.sticky["token"].to_list() for run in runs],
    )
    pushes = correlation_of_runs(runs, "push")
    results.check(f"{prefix}: Spearman of pushes", "beside it", f"{pushes:.3f}")
    erased = correlation_of_runs(runs, "erased")
    results.check(f"{prefix}: Spearman of what copies erase", "beside it", f"{erased:.3f}")


def check_std_runs(results: Results, runs: list[Run], token_count: int) -> None:
    """Compare the scores, shortlists and sticky tokens of two runs of the method std."""
    first, second = runs
    share, counts = jaccard(sticky_ids(first), sticky_ids(second))
    # Only tokens on the shortlist of a run are validated, and only these have a verdict.
    shortlists = [set(run.tokens.filter(pl.col("verdict").is_not_null())["token_id"]) for run in runs]
    shortlist_share, _ = jaccard(*shortlists)
    scores = correlation_of_runs(runs, "sticky_score")
    results.check(
        f"std, 120 texts a token to score, {token_count} tokens: Spearman of scores",
        "beside it",
        f"{scores:.3f}; shortlists {shortlist_share:.2f}, sticky {share:.2f} ({counts})",
    )


if __name__ == "__main__":
    commands(__doc__, planted, docstrings, unknown, reliability, screening)
