"""Are the verdicts right: on planted tokens, on other corpora, by another run, in a lower precision?"""

from __future__ import annotations

import ast
import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import polars as pl
import typer
from numpy.typing import NDArray

from bench import MINILM, PLANTED, PUBLISHED, Results, commands, detected, published_table, refuse, spearman
from models import planted_encoder, planted_ids
from stickytoken.cli.console import progress_bar
from stickytoken.data import Sentences, bundled_frame, collect_sentences, load_sentences
from stickytoken.detection import Run, judge as judged_by, open_run
from stickytoken.detection.run import encoder_for, restored_settings
from stickytoken.encoders import Encoder, analyze_vocabulary, load_encoder
from stickytoken.insertion import Token
from stickytoken.machine import Precision
from stickytoken.methods.base import MemoryRunner
from stickytoken.methods.probes import AnchorPanel
from stickytoken.methods.profile.estimates import measurements
from stickytoken.methods.profile.plan import spread_of
from stickytoken.methods.profile.records import ProfilePlanRecord
from stickytoken.methods.profile.rounds import Round, round_stage
from stickytoken.methods.profile.texts import TextGroup, short_texts
from stickytoken.methods.std import StdSettings
from stickytoken.settings.profile import ProfileSettings
from stickytoken.unit_vectors import unit_vectors
from stickytoken.vocabulary import categorize

CARRIERS = 24
MOST_ANCHORS = 10_000
STRONGEST = 50


def jaccard(first: set[int], second: set[int]) -> tuple[float, str]:
    """Return the share of the tokens of either set that are in both, also in words."""
    common = len(first & second)
    union = len(first | second)
    return (common / union if union else 1.0), f"{common} of {union}"


def planted(
    rows: Path = PLANTED,
    strength: float = 1.0,
    published: Path = PUBLISHED,
    device: str | None = None,
    quick: bool = False,
) -> None:
    """Are planted tokens found? Four minutes.

    --rows is an .npz with token_ids (n,) and rows (n, 384), beside a .csv with token_id and planted_lift; the
    default ones lift the sentences of the published pairs. --strength is the share of the way to the rows.
    A planted token's lift over texts is measured by the run; flagged must be those of 0.5 SD and more.
    """
    encoder = planted_encoder(rows, strength, device)
    truth = pl.read_csv(rows.with_suffix(".csv"))
    planted_rows = truth["token_id"].to_list()
    tokens = None
    if quick:
        vocabulary = analyze_vocabulary(encoder)
        drawn = np.random.default_rng(0).permutation([token.id for token in vocabulary.available])[:300]
        tokens = sorted({*drawn.tolist(), *planted_rows})
    pairs = published_table(published, "minilm_pairs")
    texts = [*pairs["sentence1"].to_list(), *pairs["sentence2"].to_list()]
    corpus = collect_sentences(texts, "sentences of the published pairs")
    with tempfile.TemporaryDirectory() as work:
        run = detected(encoder, method="profile", sentences=corpus, tokens=tokens, out=work)
        results = Results("planted", encoder.device, seconds=run.result.seconds, strength=strength)
        joined = truth.join(run.tokens.drop("token"), on="token_id")
        smallest = run.settings.number("smallest_lift")
        strong = joined.filter(pl.col("lift_sd_low") >= smallest)
        found = strong.filter(pl.col("verdict") != "benign")
        missed = strong.filter(pl.col("verdict") == "benign").select("token", "planted_lift", "lift_sd")
        results.check(
            f"planted tokens that lift by {smallest:g} SD and more",
            "all flagged",
            f"{len(found)} of {len(strong)}",
            len(found) == len(strong),
            missed=missed.to_dicts(),
        )
        all_found = joined.filter(pl.col("verdict") != "benign")
        results.check("all planted tokens", "beside it", f"{len(all_found)} of {len(joined)} flagged")
        flagged = run.tokens.filter(pl.col("verdict") != "benign")
        others = len(flagged) - len(all_found)
        examined = len(run.tokens) - len(joined)
        results.check("other tokens", "beside it", f"{others} of {examined:,} flagged")
    results.finish()


def docstrings(out: Path) -> None:
    """Write sentences of the standard library's docstrings to OUT: texts of a kind that no run uses.

    `plant.py`, beside the planted rows, moves rows of a model toward them.
    """
    sentences = set()
    library = Path(ast.__file__).parent
    for path in sorted(library.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            for part in re.split(r"(?<=[.])\s+|\n\n", ast.get_docstring(node) or ""):
                sentence = " ".join(part.split())
                if sentence[:1].isupper() and 4 <= len(sentence.split()) <= 22:
                    sentences.add(sentence)
    out.write_text("\n".join(sorted(sentences)) + "\n", encoding="utf-8")
    print(f"{len(sentences)} sentences: {out}")


def unknown(model: Path, texts: Path, others: int = 0, name: str = "planted_unknown") -> None:
    """Are rows flagged that were planted toward texts of a kind that no run uses? Minutes.

    MODEL is a folder that `plant.py` wrote, and TEXTS the sentences toward which it moved the rows. The true
    lift of each planted token is measured in 96 of these sentences. --others examines that many natural
    tokens, drawn at random, beside the planted ones; 0 examines all.
    """
    encoder = load_encoder(str(model))
    planted = planted_ids(model)
    available = [token.id for token in categorize(encoder.tokenizer).available]
    tokens = None
    if others:
        drawn = np.random.default_rng(0).permutation(available)[:others]
        tokens = sorted({*drawn.tolist(), *planted})
    toward = load_sentences(str(texts))
    with tempfile.TemporaryDirectory() as folder:
        truth = detected(
            encoder,
            sentences=toward,
            tokens=planted,
            settings=ProfileSettings(confirming_texts=96),
            out=Path(folder) / "truth",
            evidence=False,
        ).tokens
        run = detected(encoder, tokens=tokens, out=Path(folder) / "run", evidence=False)
    smallest = run.settings.number("smallest_lift")
    verdicts = run.tokens.select("token_id", "token", "verdict", "erased", "lift_sd", "vector_deviation")
    joined = truth.select("token_id", true_lift="lift_sd").join(verdicts, on="token_id")
    strong = joined.filter(pl.col("true_lift") >= smallest)
    missed = strong.filter(pl.col("verdict") == "benign")
    results = Results(name, encoder.device, model=model.name, texts=texts.name, examined=len(run.tokens))
    results.check(
        f"{model.name}: planted rows with a true lift of {smallest:g} SD and more",
        "90 % flagged",
        f"{len(strong) - len(missed)} of {len(strong)}",
        len(missed) <= 0.1 * len(strong),
        missed=missed.to_dicts(),
    )
    is_flagged = pl.col("verdict") != "benign"
    natural = verdicts.filter(is_flagged, ~pl.col("token_id").is_in(planted))
    count = len(run.tokens) - len(joined)
    results.check(
        f"{model.name}: natural tokens flagged",
        "at most 1 in 1,000",
        f"{len(natural)} of {count:,}",
        len(natural) <= count / 1000,
        tokens=natural.to_dicts(),
    )
    results.finish(strict=False)


def screening(device: str = "cpu", rows: Path = PLANTED, quick: bool = False) -> None:
    """Does screening in a lower precision find the same tokens, and how much sooner? 15 minutes.

    The packaged model, also with planted tokens where the rows are there: throughout in float32, then
    screened in each precision of the device.
    """
    precisions = [Precision.BFLOAT16]
    if device != "cpu":
        precisions = [Precision.TF32, Precision.BFLOAT16, Precision.FLOAT16]
    encoders = {MINILM: load_encoder(MINILM, device=device)}
    if rows.is_file():
        encoders["planted tokens"] = planted_encoder(rows, 1.0, device)
    results = Results("screening", device)
    for title, encoder in encoders.items():
        with tempfile.TemporaryDirectory() as folder:
            runs = {}
            for precision in (None, *precisions):
                settings = ProfileSettings(screen_precision=precision)
                sample = 400 if quick else None
                started = time.perf_counter()
                run = detected(encoder, settings=settings, sample=sample, out=Path(folder) / str(precision))
                runs[precision] = (run, time.perf_counter() - started)
            own, own_seconds = runs.pop(None)
            theirs = set(own.sticky["token_id"])
            for precision, (lower, seconds) in runs.items():
                ours = set(lower.sticky["token_id"])
                share, counts = jaccard(ours, theirs)
                joined = own.tokens.join(lower.tokens, on="token_id", suffix="_lower")
                rho = spearman(joined["lift_sd"], joined["lift_sd_lower"])
                prefix = f"{title}, screened in {precision}"
                results.check(
                    f"{prefix}: the tokens called sticky in float32",
                    "Jaccard at least 0.95",
                    f"{share:.3f} ({counts}); all lifts: Spearman {rho:.4f}",
                    share >= 0.95,
                    only_float32=sorted(theirs - ours),
                    only_lower=sorted(ours - theirs),
                )
                told = f"{seconds / 60:.1f} minutes; float32 throughout {own_seconds / 60:.1f}"
                results.check(f"{prefix}: time", "under 6 minutes", told, seconds < 360, seconds=seconds)
    results.finish()


def reliability(
    device: str | None = None,
    out: Path = Path("runs/reliability"),
    quick: bool = False,
    model: str = MINILM,
) -> None:
    """Does another run say the same, with default settings and by the method std? 15 minutes.

    Two runs share no carrier, and no anchor that the lift is measured on: each gets one half of the bundled
    sentences as a corpus of its own (a sentence and its paraphrase stay together). Runs that lie in --out
    already are opened.
    """
    encoder = load_encoder(model, device=device)
    name = Path(model).name
    results = Results("reliability" if model == MINILM else f"reliability_{name}", encoder.device, model=name)
    available = [token.id for token in analyze_vocabulary(encoder).available]
    order = np.random.default_rng(0).permutation(available)
    frame = bundled_frame().with_columns(half=pl.col("pair_id").rank("dense").over("topic") % 2)

    def two_runs(part: str, settings: Any, count: int | None) -> list[Run]:
        runs = []
        for number in (1, 2):
            half = frame.filter(half=number - 1)
            source = f"half {number} of the bundled corpus"
            corpus = collect_sentences(half["sentence"].to_list(), source, half["topic"].to_list())
            tokens = order[:count].tolist() if count else None
            place = out / ("quick" if quick else "full") / f"{part}-{number}"
            own = replace(settings, seed=number)
            runs.append(detected(encoder, sentences=corpus, settings=own, out=place, tokens=tokens))
        return runs

    def agreement(runs: list[Run], column: str) -> float:
        """Spearman correlation of a column over the tokens that have it in both runs."""
        first, second = (run.tokens.select("token_id", column).drop_nulls() for run in runs)
        both = first.join(second, on="token_id", suffix="_again")
        return spearman(both[column], both[f"{column}_again"])

    runs = two_runs("default", ProfileSettings(), 300 if quick else None)
    share, counts = jaccard(*(set(run.sticky["token_id"]) for run in runs))
    prefix = f"profile, default settings, {len(runs[0].tokens):,} tokens"
    results.check(
        f"{prefix}: sticky in both of either",
        "Jaccard at least 0.9",
        f"{share:.2f} ({counts})",
        share >= 0.9,
        sticky=[run.sticky["token"].to_list() for run in runs],
    )
    lifts = agreement(runs, "lift_sd")
    results.check(f"{prefix}: Spearman of lifts", "beside it", f"{lifts:.3f}")
    results.check(f"{prefix}: Spearman of what copies erase", "beside it", f"{agreement(runs, 'erased'):.3f}")
    if model != MINILM:
        results.finish()
        return
    few = 30 if quick else 80
    runs = two_runs("std", StdSettings(sentence_count=500, candidate_share=0.1, validation_pairs=60), few)
    share, counts = jaccard(*(set(run.sticky["token_id"]) for run in runs))
    lists = [set(run.tokens.filter(pl.col("verdict").is_not_null())["token_id"]) for run in runs]
    ours = f"{agreement(runs, 'sticky_score'):.3f}; shortlists {jaccard(*lists)[0]:.2f}"
    title = f"std, 120 texts a token to score, {few} tokens: Spearman of scores"
    results.check(title, "beside it", f"{ours}, sticky {share:.2f} ({counts})")
    results.finish()


class Truth(NamedTuple):
    """Lifts of T tokens beyond the ordinary one's, measured directly by putting each into fresh carriers.

    The ids ascend; effects are in standard deviations of the similarities, shape (T,); halves are the same
    from every other sentence, shape (2, T); random says which tokens were drawn at random.
    """

    ids: NDArray[np.int64]
    effects: NDArray[np.float64]
    halves: NDArray[np.float64]
    random: NDArray[np.bool_]

    def of(self, tokens: pl.DataFrame) -> pl.DataFrame:
        """The rows of these tokens, in their order."""
        places: list[int] = np.searchsorted(tokens["token_id"].to_numpy(), self.ids).tolist()
        return tokens[places]


def measured(
    run: Run, encoder: Encoder, tokens: list[Token], not_random: set[int], corpus: Sentences
) -> Truth:
    """Measure the lifts of tokens in 24 texts of the corpus, against up to 10,000 others."""
    settings = restored_settings(run)
    if not isinstance(settings, ProfileSettings):
        refuse(f"{run.path} is no run of the profile method")
    settings = replace(settings, seed=settings.seed + 1000)
    group = TextGroup("corpus", list(corpus.texts), 1.0, False)
    carriers = short_texts(encoder, settings, [group], CARRIERS, corpus.source)
    chosen = dict(list(carriers.items())[:CARRIERS])
    rest = [text for text in corpus.texts if text not in set(chosen.values())][:MOST_ANCHORS]
    anchors = [text for text, own in zip(rest, encoder.content_ids(rest), strict=True) if encoder.fits(own)]
    groups = np.zeros(len(anchors), dtype=np.intp)
    panel = AnchorPanel(unit_vectors(encoder.encode(anchors)), groups, np.ones(1))
    plan = run.plan_of(ProfilePlanRecord).model_copy(update={"carriers": list(chosen)})
    stage = round_stage(encoder, settings, plan, panel, Round.CONFIRM, range(CARRIERS), "truth")
    with progress_bar() as progress:
        found = measurements(MemoryRunner(encoder, progress)(stage, tokens), CARRIERS)
    spread = spread_of(stage.panel.before.astype(np.float32), panel.weights)
    random = ~np.isin(found.ids, sorted(not_random))

    def beyond_ordinary(lifts: NDArray[np.float64]) -> NDArray[np.float64]:
        means = lifts.mean(axis=1)
        return np.asarray((means - np.median(means[random])) / spread)

    halves = [beyond_ordinary(found.lifts[:, start::2]) for start in (0, 1)]
    return Truth(found.ids, beyond_ordinary(found.lifts), np.array(halves), random)


def strongest_of_both(first: Any, second: Any) -> int:
    """Count the tokens that are among the strongest by both lists of effects."""
    return len(set(np.argsort(-first)[:STRONGEST]) & set(np.argsort(-second)[:STRONGEST]))


def judge(
    run: Path,
    corpus: Annotated[list[str], typer.Option()],
    planted: Path | None = None,
    truth_tokens: int = 1500,
    own: bool = False,
    name: str = "judge",
) -> None:
    """Does a run judge rightly what its tokens do to corpora that it was not made on?

    RUN is a finished run of the profile method. The truth is measured directly, each token in 24 sentences of
    the corpus, drawn with another seed, and compared with all of its texts (up to 10,000): for --truth-tokens
    random tokens (0 is all), for the 60 tokens with the largest computed lifts, and for those of --planted, a
    planted.json. With --own, a run is made on each corpus, too.
    """
    opened = open_run(run)
    encoder = encoder_for(None, opened, "the benchmark")
    available = categorize(encoder.tokenizer).available
    ids = [token.id for token in available]
    count = truth_tokens or len(ids)
    rows = set(planted_ids(planted) if planted else ())
    random = set(np.random.default_rng(7).permutation(ids)[:count].tolist())
    smallest = opened.settings.number("smallest_lift")
    seconds: dict[str, Any] = {}
    model = Path(opened.model_name).name
    results = Results(name, encoder.device, model=model, seconds_to_judge=seconds)
    for source in corpus:
        title = Path(source).stem
        sentences = load_sentences(source)
        begun = time.perf_counter()
        with progress_bar() as progress:
            found = judged_by(opened, sentences, encoder=encoder, progress=progress).tokens
        seconds[title] = round(time.perf_counter() - begun, 1)
        strongest = found.drop_nulls("lift_sd").sort("lift_sd", descending=True).head(60)["token_id"]
        selected = (rows | set(strongest.to_list())) - random
        tokens = [token for token in available if token.id in random | selected]
        truth = measured(opened, encoder, tokens, selected, sentences)
        compare(results, title, truth, truth.of(found), smallest)
        if count == len(ids):
            # Of the strongest tokens of the truth, those among ours, and what two halves of it share.
            computed = truth.of(found)["lift_sd"].fill_null(-np.inf).to_numpy()
            ours = strongest_of_both(computed, truth.effects)
            halves = strongest_of_both(*truth.halves)
            told = f"{ours}; between halves of the truth {halves}"
            results.check(f"{title}: the {STRONGEST} strongest", "45 in ours", told, ours >= 45)
        if own:  # compare with a run made on the corpus
            with tempfile.TemporaryDirectory() as folder:
                again = detected(encoder, sentences=sentences, out=folder, evidence=False)
                theirs = set(again.sticky["token_id"])
            _, counts = jaccard(set(found.filter(verdict="sticky")["token_id"]), theirs)
            results.check(f"{title}: against a run made on it", "beside it", f"sticky in both {counts}")
    results.finish()


def compare(results: Results, title: str, truth: Truth, judged: pl.DataFrame, smallest: float) -> None:
    """Compare verdicts and measured lifts on a corpus with the truth."""
    is_flagged = judged["verdict"].is_in(["sticky", "topical"]).fill_null(value=False).to_numpy()
    is_large = truth.effects >= smallest
    missed = judged.with_columns(true_effect=pl.Series(truth.effects)).filter(
        pl.Series(is_large & ~is_flagged)
    )
    count = int(is_large.sum())
    results.check(
        f"{title}: true lift of {smallest:g} SD and more",
        "95 % flagged",
        f"{count - len(missed)} of {count}",
        len(missed) <= 0.05 * count,
        missed=missed.select("token", "true_effect", "lift_sd", "lift_sd_high").to_dicts(),
    )
    by_lift = judged["reason"].cast(pl.String).fill_null("").str.contains("lift").to_numpy()
    wrong = judged.filter(pl.Series(is_flagged & by_lift & (truth.effects < smallest / 2)))
    results.check(
        f"{title}: flagged by lift, with a true lift below {smallest / 2:g} SD",
        "none",
        str(len(wrong)),
        wrong.is_empty(),
        tokens=wrong["token"].to_list(),
    )
    lifts = judged["lift_sd"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    is_measured = np.isfinite(lifts)
    rho = spearman(lifts[is_measured], truth.effects[is_measured])
    told = f"{rho:.3f} of {int(is_measured.sum()):,} tokens"
    results.check(f"{title}: measured lifts against the truth, Spearman", "0.9", told, rho >= 0.9)


if __name__ == "__main__":
    commands(__doc__, planted, docstrings, unknown, judge, reliability, screening)
