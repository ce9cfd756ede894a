"""Scores by bounds: no bound is below a score, and rounds find the candidates that whole scores find."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

import planted
from stickytoken import load_encoder
from stickytoken.data import choose_corpus
from stickytoken.insertion import Insertion
from stickytoken.measurement.engine import LocalEngine, Shard, ignore_progress
from stickytoken.measurement.stages import TokenWork
from stickytoken.measurement.store import ResultFolder
from stickytoken.methods.base import Job, Scope
from stickytoken.methods.runner import Runner
from stickytoken.methods.std import ScoreConstants, Scores, StdSettings, candidate_threshold
from stickytoken.methods.std._scores import has_risen, score_bounds, scores_behind_threshold, sticky_score
from stickytoken.methods.std.counting import CountedRunner
from stickytoken.methods.std.placement import validation_order
from stickytoken.methods.std.plan import make_plan
from stickytoken.methods.std.scoring import copies_order, score_tokens, scoring_pairs
from stickytoken.methods.std.validation import published_paths, validation_stage
from stickytoken.vocabulary import categorize

COPIES = 6
CONSTANTS = ScoreConstants(0.1, 0.05, 0.01)
# Few distinct values, so that equal distances occur.
series_of_distances = arrays(
    np.float64, (4, COPIES + 1), elements=st.sampled_from([0, 0.2, 0.5, 0.51, 0.9, 1, 1.4, 2])
)
masks = arrays(np.bool_, (4, COPIES))
alone = st.floats(0, 2)


def partly(distances, mask):
    known_distances = distances.copy()
    known_distances[:, 1:][~mask] = np.nan
    return known_distances


@settings(max_examples=300)
@given(series_of_distances, masks, alone)
def test_no_bound_is_below_the_score(distances, mask, alone):
    alone_scores = np.full(len(distances), alone)
    scores = sticky_score(distances, alone_scores, CONSTANTS)
    assert (score_bounds(partly(distances, mask), alone_scores, CONSTANTS) >= scores - 1e-9).all()


@given(series_of_distances, alone)
def test_the_bound_of_known_distances_is_the_score(distances, alone):
    alone_scores = np.full(len(distances), alone)
    scores = sticky_score(distances, alone_scores, CONSTANTS)
    assert score_bounds(distances, alone_scores, CONSTANTS) == pytest.approx(scores, rel=1e-12)


@settings(max_examples=200)
@given(series_of_distances, masks, masks, alone)
def test_another_distance_never_raises_a_bound(distances, mask, more, alone):
    scores = np.full(len(distances), alone)
    before = score_bounds(partly(distances, mask), scores, CONSTANTS)
    after = score_bounds(partly(distances, mask | more), scores, CONSTANTS)
    assert (after <= before + 1e-9).all()


def test_a_bound_is_reached_in_the_limit():
    # From 1.0 to 0.4 in three steps, all of which fall; and from 0.4 to 0.5 with as many falls as possible.
    falling = np.array([[1.0, np.nan, np.nan, 0.4, np.nan, 0.5]])
    tiny = 1e-12
    best = np.array([[1.0, 0.8, 0.6, 0.4, 0.4 - tiny, 0.5]])
    scores = np.array([0.7])
    constants = ScoreConstants(0.1, 0.05, 0.01)
    assert score_bounds(falling, scores, constants) == pytest.approx(sticky_score(best, scores, constants))


def test_a_rise_is_seen_between_known_distances_only():
    distances = np.array([[0.5, np.nan, 0.6], [0.5, np.nan, 0.4], [0.5, np.nan, np.nan]])
    assert has_risen(distances).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("copies", "order"), [(1, [1]), (2, [2, 1]), (3, [3, 1, 2]), (8, [8, 1, 7, 2, 3, 4, 5, 6])]
)
def test_every_number_of_copies_comes_once(copies, order):
    assert copies_order(copies) == order


@given(st.integers(1, 3000), st.floats(0.0001, 1))
def test_the_threshold_depends_on_the_best_scores_only(tokens, share):
    scores = np.random.default_rng(tokens).permutation(tokens) / 7
    best = np.sort(scores)[-scores_behind_threshold(tokens, share) :]
    others = np.full(tokens - len(best), best.min() - 1)
    changed = np.concatenate([best, others])
    assert candidate_threshold(changed, share) == candidate_threshold(scores, share)


class PlainRunner:
    """Runs stages over tokens in one piece, and counts their texts."""

    def __init__(self, encoder):
        self.encoder = encoder
        self.texts = 0

    def __call__(self, stage, tokens, texts):
        (computed,) = LocalEngine(self.encoder).compute(TokenWork(stage), [Shard(0, tuple(tokens))])
        assert computed.cost.sequences == texts
        self.texts += texts
        return pl.DataFrame(computed.rows)

    def announce(self, scoring_texts, validation_texts):
        pass


@pytest.fixture(scope="module", params=[Insertion.TEXT, Insertion.IDS])
def scored(request, encoder):
    """Scores of all tokens of a small model: all exact, and only those that are needed."""
    result_of = {}
    for scores in Scores:
        std_settings = StdSettings(
            sentence_count=40,
            pair_count=60,
            scoring_pairs=3,
            validation_pairs=6,
            copies=6,
            candidate_share=0.05,
            insertion=request.param,
            scores=scores,
        )
        vocabulary = categorize(encoder.tokenizer)
        corpus = planted.small_corpus()
        tokens = vocabulary.available
        job = Job(encoder, std_settings, corpus, vocabulary, tokens, scope=Scope.WHOLE)
        runner = Runner.in_memory(encoder, ignore_progress)
        plan = make_plan(job, runner)
        runner = PlainRunner(encoder)
        table = score_tokens(job, scoring_pairs(encoder, std_settings, plan), runner, sample_size=12)
        result_of[scores] = table, runner.texts
    return result_of


def test_the_candidates_are_those_of_whole_scores(scored):
    (all_scores, _), (needed, _) = scored[Scores.ALL], scored[Scores.NEEDED]
    threshold = candidate_threshold(all_scores["score_cosine"].to_numpy(), 0.05)
    filled = needed["score_cosine"].fill_null(needed["score_at_most"])
    assert candidate_threshold(filled.to_numpy(), 0.05) == pytest.approx(threshold, rel=1e-6)
    chosen = [
        table.filter(pl.col("score_cosine") >= threshold - 1e-4)["token_id"].to_list()
        for table in (all_scores, needed)
    ]
    assert chosen[0] == chosen[1]
    assert chosen[0]


def test_fewer_texts_are_encoded(scored):
    assert scored[Scores.NEEDED][1] < 0.9 * scored[Scores.ALL][1]


def test_exact_scores_agree_and_bounds_lie_above(scored):
    (all_scores, _), (needed, _) = scored[Scores.ALL], scored[Scores.NEEDED]
    assert all_scores["score_cosine"].null_count() == 0
    joined = needed.join(all_scores, on="token_id", suffix="_whole")
    exact = joined.filter(pl.col("score_cosine").is_not_null())
    for metric in ("cosine", "euclidean", "manhattan"):
        ours = exact[f"score_{metric}"].to_numpy()
        assert ours == pytest.approx(exact[f"score_{metric}_whole"].to_numpy(), rel=1e-3)
    bounded = joined.filter(pl.col("score_cosine").is_null())
    assert (bounded["score_at_most"] >= bounded["score_cosine_whole"] - 1e-4).all()
    assert needed.select((pl.col("score_cosine").is_null() != pl.col("score_at_most").is_null()).all()).item()


def test_the_random_sample_is_scored_whole(scored):
    needed, _ = scored[Scores.NEEDED]
    sample = needed.filter("sampled")
    assert len(sample) == 12
    assert sample["score_cosine"].null_count() == 0


class StoppedError(Exception):
    pass


def scored_in(folder, encoder, stop=None):
    """Score in a run folder, in small shards; stop when so many progress reports have come."""
    reports = []

    def progress(step):
        reports.append(step)
        if len(reports) == stop:
            raise StoppedError

    std_settings = replace(planted.SMALL, copies=6, candidate_share=0.05)
    vocabulary = categorize(encoder.tokenizer)
    corpus = planted.small_corpus()
    tokens = vocabulary.available
    job = Job(encoder, std_settings, corpus, vocabulary, tokens, scope=Scope.WHOLE)
    plan = make_plan(job, Runner.in_memory(encoder, ignore_progress))
    result_folder = ResultFolder(folder)
    runner = Runner(LocalEngine(encoder), result_folder, progress, shard_probes=64)
    counted = CountedRunner(runner, result_folder, truncate=True)
    return score_tokens(job, scoring_pairs(encoder, std_settings, plan), counted, sample_size=12), len(
        reports
    )


@pytest.mark.slow
def test_rounds_that_were_cut_off_are_continued_with_identical_shards(encoder, tmp_path):
    uninterrupted, reports = scored_in(tmp_path / "whole", encoder)
    expected = {path.name for path in (tmp_path / "whole" / "shards").iterdir()}
    assert any(name.startswith("score-002") for name in expected)
    for share in (0.5, 0.9):
        folder = tmp_path / str(share)
        with pytest.raises(StoppedError):
            scored_in(folder, encoder, stop=int(share * reports))
        continued, _ = scored_in(folder, encoder)
        assert continued.equals(uninterrupted)
        assert {path.name for path in (folder / "shards").iterdir()} == expected


def test_tied_scores_are_ordered_by_token():
    scores = {7: 50.0, 3: 50.000004, 9: 51.0, 1: 49.0, 5: 50.00000999}
    assert validation_order(scores) == [9, 3, 5, 7, 1]
    assert validation_order({4: 50.0, 3: 50.0001}) == [3, 4]


def test_the_published_candidates_stand_in_our_order(shared):
    rows = pl.read_csv(shared / "paper" / "minilm_candidates.csv", infer_schema_length=None)
    scores = dict(rows.select("token_id", "sticky_score").iter_rows())
    assert validation_order(scores) == rows["token_id"].to_list()


@pytest.mark.slow
@pytest.mark.nightly
def test_published_rates_are_replayed_to_the_last_digit(shared):
    rows = pl.read_csv(shared / "paper" / "minilm_candidates.csv", infer_schema_length=None)
    chosen = rows.filter(pl.col("token").is_in(["preceding", "oskar", "[CLS]"]))
    encoder = load_encoder("all-MiniLM-L6-v2", device="cpu")
    vocabulary = categorize(encoder.tokenizer)
    by_id = {token.id: token for token in vocabulary.available}
    std_settings = StdSettings()
    corpus = choose_corpus(None, shared / "paper" / "minilm_pairs.csv")
    job = Job(encoder, std_settings, corpus, vocabulary, [], scope=Scope.WHOLE)
    plan = make_plan(job, Runner.in_memory(encoder, ignore_progress))
    order = validation_order(dict(rows.select("token_id", "sticky_score").iter_rows()))
    candidates = [by_id[token_id] for token_id in order]
    paths = published_paths(encoder, std_settings, plan, vocabulary.available, candidates)
    stage = replace(validation_stage(encoder, std_settings, plan), gaps_of=paths)
    tokens = tuple(by_id[token_id] for token_id in chosen["token_id"])
    computed = Runner.in_memory(encoder, ignore_progress)(stage, tokens, truncate=True).to_dicts()
    for metric in ("cosine", "euclidean"):
        rates = [row[f"rate_{metric}"] for row in computed]
        assert rates == pytest.approx(chosen[f"validation_rate_{metric}"].to_list(), abs=1e-9)
    # Manhattan rates were published for sticky tokens only.
    all_rates = pl.read_csv(shared / "paper" / "sticky_tokens_rates.csv", infer_schema_length=None)
    published_cls = all_rates.row(
        by_predicate=(pl.col("model") == "all-MiniLM-L6-v2") & (pl.col("token") == "[CLS]"), named=True
    )
    ours = computed[chosen["token"].to_list().index("[CLS]")]
    assert ours["rate_manhattan"] == pytest.approx(published_cls["rate_manhattan"], abs=1e-9)
