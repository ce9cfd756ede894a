"""Are the verdicts right: on planted tokens, on other corpora, by another run, in a lower precision?"""

from __future__ import annotations

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
from stickytoken.methods.profile.anchors import ProfilePlanRecord, ProfileSettings, TextGroup, short_texts
from stickytoken.methods.profile.estimates import measurements
from stickytoken.methods.profile.plan import Round, round_stage, spread_of
from stickytoken.methods.std import StdSettings
from stickytoken.unit_vectors import unit_vectors
from stickytoken.vocabulary import categorize

TOPICAL = ("terrorist", "terrorism", "saddam", "politician", "bush", "qaeda", "jihad", "putin")
CARRIERS, MOST_ANCHORS, STRONGEST = 24, 10_000, 50


def jaccard(first: set[int], second: set[int]) -> tuple[float, str]:
    common, union = len(first & second), len(first | second)
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
    """
    encoder, truth = planted_encoder(rows, strength, device), pl.read_csv(rows.with_suffix(".csv"))
    ids = truth["token_id"].to_list()
    tokens = None
    if quick:
        vocabulary = analyze_vocabulary(encoder)
        drawn = np.random.default_rng(0).permutation([token.id for token in vocabulary.available])[:300]
        topical = [k for k, name in zip(vocabulary.ids, vocabulary.tokens, strict=True) if name in TOPICAL]
        tokens = sorted({*drawn.tolist(), *topical, *ids})
    pairs = published_table(published, "minilm_pairs")
    texts = [*pairs["sentence1"].to_list(), *pairs["sentence2"].to_list()]
    corpus = collect_sentences(texts, "sentences of the published pairs")
    with tempfile.TemporaryDirectory() as work:
        run = detected(encoder, method="profile", sentences=corpus, tokens=tokens, out=work)
        results = Results("planted", encoder.device, seconds=run.result.seconds, strength=strength)
        joined = truth.join(run.tokens.drop("token"), on="token_id")
        for bound, needed, bar in ((0.045, 0.95, "at least 95 % flagged"), (0.06, 1.0, "all flagged")):
            strong = joined.filter(pl.col("planted_lift") >= bound)
            found = strong.filter(pl.col("verdict") != "benign")
            sticky = len(found.filter(verdict="sticky"))
            others = strong.filter(pl.col("verdict") != "sticky").select("token", "planted_lift", "lift")
            ours = f"{len(found)} of {len(strong)}; {sticky} sticky, {len(found) - sticky} topical"
            title, passed = f"planted tokens of lift {bound} and more", len(found) >= needed * len(strong)
            results.check(title, bar, ours, passed, not_sticky=others.to_dicts())
        # Words that the sentences are about must not be called sticky.
        words = run.tokens.filter(pl.col("token").is_in(TOPICAL))
        wrong = len(words.filter(verdict="sticky"))
        verdicts = dict(words.select("token", "verdict").iter_rows())
        ours = f"{wrong} of {len(words)} sticky"
        results.check(", ".join(TOPICAL), "none sticky", ours, not wrong, verdicts=verdicts)
    results.finish()


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
                settings, started = ProfileSettings(screen_precision=precision), time.perf_counter()
                sample, out = 400 if quick else None, Path(folder) / str(precision)
                run = detected(encoder, settings=settings, sample=sample, out=out)
                runs[precision] = (run, time.perf_counter() - started)
            own, own_seconds = runs.pop(None)
            for precision, (lower, seconds) in runs.items():
                ours, theirs = (set(run.sticky["token_id"]) for run in (lower, own))
                share, counts = jaccard(ours, theirs)
                joined = own.tokens.join(lower.tokens, on="token_id", suffix="_lower")
                prefix, rho = (
                    f"{title}, screened in {precision}",
                    spearman(joined["lift"], joined["lift_lower"]),
                )
                name, told = "the tokens called sticky in float32", f"{share:.3f} ({counts})"
                told += f"; all lifts: Spearman {rho:.4f}"
                differing = {"only_float32": sorted(theirs - ours), "only_lower": sorted(ours - theirs)}
                results.check(f"{prefix}: {name}", "Jaccard at least 0.95", told, share >= 0.95, **differing)
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
    encoder, name = load_encoder(model, device=device), Path(model).name
    results = Results("reliability" if model == MINILM else f"reliability_{name}", encoder.device, model=name)
    order = np.random.default_rng(0).permutation([t.id for t in analyze_vocabulary(encoder).available])
    frame = bundled_frame().with_columns(half=pl.col("pair_id").rank("dense").over("topic") % 2)

    def two_runs(part: str, settings: Any, count: int | None) -> list[Run]:
        runs = []
        for number in (1, 2):
            half, source = frame.filter(half=number - 1), f"half {number} of the bundled corpus"
            corpus = collect_sentences(half["sentence"].to_list(), source, half["topic"].to_list())
            tokens = order[:count].tolist() if count else None
            place = out / ("quick" if quick else "full") / f"{part}-{number}"
            own = replace(settings, seed=number)
            runs.append(detected(encoder, sentences=corpus, settings=own, out=place, tokens=tokens))
        return runs

    def agreement(runs: list[Run], column: str) -> float:
        """Spearman correlation of a column over the tokens that have it in both runs."""
        first, second = (run.tokens.select("token_id", column).drop_nulls() for run in runs)
        joined = first.join(second, on="token_id", suffix="_again")
        return spearman(joined[column], joined[f"{column}_again"])

    runs = two_runs("default", ProfileSettings(), 300 if quick else None)
    share, counts = jaccard(*(set(run.sticky["token_id"]) for run in runs))
    found, prefix = agreement(runs, "lift"), f"profile, default settings, {len(runs[0].tokens):,} tokens"
    name, bar, sticky = (
        "sticky in both of either",
        "Jaccard at least 0.9",
        [run.sticky["token"].to_list() for run in runs],
    )
    results.check(f"{prefix}: {name}", bar, f"{share:.2f} ({counts})", share >= 0.9, sticky=sticky)
    results.check(f"{prefix}: Spearman of lifts", "at least 0.93", f"{found:.3f}", found >= 0.93)
    erased = f"{agreement(runs, 'contraction'):.3f}"
    results.check(f"{prefix}: Spearman of what copies erase", "beside it", erased)
    if model != MINILM:
        results.finish()
        return
    few = 30 if quick else 80
    runs = two_runs("std", StdSettings(sentences=500, candidate_share=0.1, validation_pairs=60), few)
    share, counts = jaccard(*(set(run.sticky["token_id"]) for run in runs))
    lists = [set(run.tokens.filter(pl.col("verdict").is_not_null())["token_id"]) for run in runs]
    ours = f"{agreement(runs, 'sticky_score'):.3f}; shortlists {jaccard(*lists)[0]:.2f}"
    name = f"std, 120 texts a token to score, {few} tokens: Spearman of scores"
    results.check(name, "beside it", f"{ours}, sticky {share:.2f} ({counts})")
    results.finish()


class Truth(NamedTuple):
    """Lifts of T tokens above the typical one's, measured directly by putting each into fresh carriers.

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


def measured(run: Run, encoder: Encoder, tokens: list[Token], planted: set[int], corpus: Sentences) -> Truth:
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
    random = ~np.isin(found.ids, sorted(planted))
    parts = (slice(None), slice(0, None, 2), slice(1, None, 2))
    means = [found.lifts[:, part].mean(axis=1) for part in parts]
    effects, *halves = ((lifts - np.median(lifts[random])) / spread for lifts in means)
    return Truth(found.ids, effects, np.array(halves), random)


def strongest_of_both(first: Any, second: Any) -> int:
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

    RUN is a finished run of the profile method. The truth is measured directly: so many random tokens (0 is
    all) and those of --planted, a planted.json, each in 24 sentences of the corpus, drawn with another seed,
    and compared with all of its texts (up to 10,000). With --own, a run is made on each corpus, too.
    """
    opened = open_run(run)
    encoder = encoder_for(None, opened, "the benchmark")
    available = categorize(encoder.tokenizer).available
    ids = [token.id for token in available]
    count = truth_tokens or len(ids)
    rows = set(planted_ids(planted) if planted else ())
    wanted = rows | set(np.random.default_rng(7).permutation(ids)[:count].tolist())
    tokens = [token for token in available if token.id in wanted]
    smallest = opened.settings.number("smallest_effect")
    seconds: dict[str, Any] = {}
    model = Path(opened.model_name).name
    results = Results(name, encoder.device, model=model, seconds_to_judge=seconds)
    for source in corpus:
        title, sentences, begun = Path(source).stem, load_sentences(source), time.perf_counter()
        with progress_bar() as progress:
            found = judged_by(opened, sentences, encoder=encoder, progress=progress).tokens
        seconds[title] = round(time.perf_counter() - begun, 1)
        truth = measured(opened, encoder, tokens, rows, sentences)
        compare(results, title, truth, truth.of(found), smallest)
        if count == len(ids):
            # Of the strongest tokens of the truth, those among ours, and what two halves of it share.
            ours = strongest_of_both(truth.of(found)["lift"].to_numpy(), truth.effects)
            halves = strongest_of_both(*truth.halves)
            told = f"{ours}; between halves of the truth {halves}"
            results.check(f"{title}: the {STRONGEST} strongest", "45 in ours", told, ours >= 45)
        if own:  # compare with a run made on the corpus, and that run with the truth
            with tempfile.TemporaryDirectory() as folder:
                again = detected(encoder, sentences=sentences, out=folder, evidence=False)
                theirs, judged = again.tokens.sort("token_id"), found.sort("token_id")
            rho = spearman(judged["lift"], theirs["lift"])
            against = spearman(truth.of(theirs)["lift"], truth.effects)
            _, counts = jaccard(
                *(set(each.filter(verdict="sticky")["token_id"]) for each in (judged, theirs))
            )
            told = f"{rho:.3f}; sticky in both {counts}; that run against the truth {against:.3f}"
            what = f"{title}: against a run made on it, {len(judged):,} tokens"
            results.check(what, "Spearman 0.9", told, rho >= 0.9)
    results.finish()


def compare(results: Results, title: str, truth: Truth, judged: pl.DataFrame, smallest: float) -> None:
    verdicts, lifts = judged["verdict"].to_numpy(), judged["lift"].to_numpy()
    large = truth.effects >= smallest
    missed = judged.with_columns(true_effect=pl.Series(truth.effects)).filter(
        pl.Series(large & (verdicts == "benign"))
    )
    count, rows = int(large.sum()), missed.select("token", "true_effect", "lift", "lift_high").to_dicts()
    name, ours = f"{title}: true lift of the smallest effect and more", f"{count - len(missed)} of {count}"
    results.check(name, "95 % flagged", ours, len(missed) <= 0.05 * count, missed=rows)
    wrong = judged.filter(pl.Series((verdicts == "sticky") & (truth.effects < smallest / 2)))[
        "token"
    ].to_list()
    name = f"{title}: sticky, with a true lift below half the smallest effect"
    results.check(name, "none", str(len(wrong)), not wrong, tokens=wrong)
    rho = spearman(lifts, truth.effects)
    name, random = f"{title}: lifts against the truth, {len(truth.ids):,} tokens", truth.random
    alone = spearman(lifts[random], truth.effects[random])
    results.check(name, "Spearman 0.9", f"{rho:.3f}", rho >= 0.9, random_tokens_alone=alone)


if __name__ == "__main__":
    commands(__doc__, planted, judge, reliability, screening)
