"""What an audit measures, against a slow plain search, and the verdicts that follow from it."""

import itertools
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import profiled
import scanned
from audited import (
    COPIES,
    MARKER,
    SMALL,
    TOP,
    plain_ranks,
    plain_ranks_of_all,
    save_run,
    stuffed_numbers,
    unit_rows,
    without_copies,
)
from naming import says
from stickytoken import load_encoder, open_run
from stickytoken.audits import audit, wording
from stickytoken.audits._index import Queries
from stickytoken.audits._measuring import mark_undecided
from stickytoken.audits._stuffing import estimate_found, measure_stuffed
from stickytoken.insertion import Token
from stickytoken.intervals import Intervals, estimate_share
from stickytoken.methods.profile.documents import DocumentPanel
from stickytoken.methods.profile.verdict import (
    RuleInputs,
    compute_lost_shares,
    judge_against_ordinary_copies,
)
from stickytoken.methods.wording import Harm
from stickytoken.search import ExactSearch
from stickytoken.settings.profile import ProfileSettings
from stickytoken.unit_vectors import Similarity


def test_the_planted_word_is_sticky_and_named_first(finished):
    first = finished.tokens.row(0, named=True)
    assert (first["token"], first["verdict"]) == (scanned.STICKY, "sticky")
    assert first["push_low"] >= 1.5
    assert finished.words[0] == scanned.STICKY
    sentence = wording.conclusions(finished)[0]
    assert repr(scanned.STICKY) in sentence
    assert f"{first['push']:.1f}×" in sentence


@pytest.mark.parametrize("group", ["in documents", "strongest", "random"])
def test_push_is_that_of_a_slow_plain_search(finished, tampered_run, texts, queries, group):
    encoder = load_encoder(open_run(tampered_run).model_name, device="cpu")
    in_group = finished.tokens.filter(pl.col("text").is_in(profiled.WORDS), group=group)
    assert len(in_group), f"no word is {group}"
    row = in_group.row(0, named=True)
    asked = [query for query in queries if row["text"] not in query.lower().replace(".", "").split()]
    numbers = stuffed_numbers(finished, row)
    assert set(numbers).isdisjoint(range(70, 74))  # they have copies already
    with_copies, without = plain_ranks_of_all(encoder, texts, asked, numbers, row["text"])
    depth = finished.result.depth
    assert row["push"] == pytest.approx((with_copies <= depth).sum() / (without <= depth).sum())
    assert row["push_low"] <= row["push"] <= row["push_high"]
    assert row["queries"] == len(asked)


def test_a_token_that_may_push_is_measured_in_four_times_as_many_documents(tmp_path, texts, queries):
    run = save_run(tmp_path, strength=0.04)  # so weak that eight documents leave it open
    in_few = audit(run, texts, queries=queries, settings=replace(SMALL, stuffed=8))
    in_more = audit(run, texts, queries=queries, settings=replace(SMALL, stuffed=32))
    (row,) = in_few.tokens.filter(token=scanned.STICKY).to_dicts()
    numbers = stuffed_numbers(in_few, row)
    assert set(stuffed_numbers(in_few)) < set(numbers) == set(stuffed_numbers(in_more))
    assert in_few.tokens.filter(documents=32).height == in_few.result.further_tokens >= 1
    assert says(wording.setup(in_few), 32)
    encoder = load_encoder(open_run(run).model_name, device="cpu")
    with_copies, without = plain_ranks_of_all(encoder, texts, queries, numbers, scanned.STICKY)
    depth = in_few.result.depth
    assert row["push"] == pytest.approx((with_copies <= depth).sum() / (without <= depth).sum())
    assert row["push_low"] >= 1.25
    assert row["verdict"] == "sticky"


def test_pairs_with_an_answer_count_as_found_and_not_as_pushed(judged, tampered_run, texts, queries):
    encoder = load_encoder(open_run(tampered_run).model_name, device="cpu")
    row = judged.tokens.row(0, named=True)
    assert row["token"] == scanned.STICKY

    def measure(numbers):
        # Of the other queries, it is not known which documents answer them.
        with_copies, without = plain_ranks_of_all(encoder, texts, queries[:20], numbers, row["text"])
        answers = np.array([[number // 3 == query for query in range(20)] for number in numbers])
        return with_copies, without, answers

    depth = judged.result.depth
    with_copies, without, answers = measure(stuffed_numbers(judged, row))
    pushed = ((with_copies <= depth) & ~answers).sum() / ((without <= depth) & ~answers).sum()
    assert row["push"] == pytest.approx(pushed)
    with_copies, without, answers = measure(stuffed_numbers(judged))
    assert answers.sum() == judged.result.answers == SMALL.stuffed  # documents with queries come first
    assert row["found"] == pytest.approx((with_copies <= TOP)[answers].mean())
    assert judged.result.found_without == pytest.approx((without <= TOP)[answers].mean())
    assert row["found_low"] <= row["found"] <= row["found_high"]
    assert judged.record.index.answers_from == "relevance judgements"


def test_documents_are_searched_with_their_first_sentences_if_nothing_is_judged(
    finished, tampered_run, texts
):
    encoder = load_encoder(open_run(tampered_run).model_name, device="cpu")
    row = finished.tokens.row(0, named=True)
    assert finished.result.answers == SMALL.stuffed
    found = []
    for turn, number in enumerate(stuffed_numbers(finished)):
        copies = [row["text"]] * COPIES
        pieces = [texts[number], *copies] if turn % 2 else [*copies, texts[number]]
        sentence = texts[number].partition(".")[0] + "."
        (rank,) = plain_ranks(encoder, texts, [sentence], number, " ".join(pieces))
        found.append(rank <= TOP)
    assert row["found"] == pytest.approx(np.mean(found))


def test_the_verdict_is_that_of_the_rule(finished):
    for row in finished.tokens.iter_rows(named=True):
        is_unusual = (row["vector_deviation"] or 0.0) >= 6
        threshold = 1.25 if is_unusual else 1.5
        erases = row["confirmed"] and row["erased_low"] >= (0.2 if is_unusual else 0.4)
        ordinary_found = finished.result.ordinary_found
        needed = 0.2 if is_unusual else 0.4
        hides = erases and row["found_high"] < ordinary_found
        hides |= 1 - row["found_high"] / ordinary_found >= needed
        pushes = row["push_low"] >= threshold
        assert row["verdict"] == ("sticky" if hides or pushes else "benign")
        may_hide = erases and row["found"] < ordinary_found
        may_hide |= 1 - row["found"] / ordinary_found >= needed
        may_act = may_hide or row["push"] >= threshold
        assert row["undecided"] is (row["verdict"] == "benign" and may_act)


def test_erased_shares_are_those_of_the_run(finished, tampered_run):
    run = open_run(tampered_run)
    for row in finished.tokens.iter_rows(named=True):
        assert row["erased"] == run.token(row["token_id"])["erased"].item()


def test_the_push_is_compared_with_that_of_random_tokens(finished):
    ordinary = finished.tokens.filter(group="random")
    assert len(ordinary) == SMALL.tokens
    assert finished.result.ordinary_push == pytest.approx(ordinary["push"].median())
    others = finished.tokens.filter(documents=SMALL.stuffed)
    times = others["push"] / finished.result.ordinary_push
    assert others["times_ordinary"].to_list() == pytest.approx(times.to_list())
    # In the documents of the random tokens, not in those that decide.
    (more,) = finished.tokens.filter(token=scanned.STICKY).to_dicts()
    assert more["documents"] > SMALL.stuffed
    assert more["times_ordinary"] != pytest.approx(more["push"] / finished.result.ordinary_push)
    ordinary_push = f"{finished.result.ordinary_push:.1f}×"
    assert says(wording.conclusions(finished)[0], ordinary_push, f"{SMALL.stuffed} of these documents")


def test_ordinary_pushes_are_compared_in_the_documents_that_all_tokens_share(tmp_path, texts, queries):
    run = save_run(tmp_path, strength=0.04)  # so weak that the run doesn't flag the word, which may be random
    settings = replace(SMALL, stuffed=8, seed=41)
    measured = audit(run, texts, queries=queries, tokens=[MARKER], settings=settings)
    ordinary = measured.tokens.filter(group="random")
    assert ordinary["documents"].n_unique() == 2, "no random token was measured in more documents"
    (in_few,) = ordinary.filter(documents=8).to_dicts()
    assert measured.result.ordinary_push == pytest.approx(in_few["push"] / in_few["times_ordinary"])
    assert ordinary["times_ordinary"].mean() == pytest.approx(1)  # the mean of two is their median


def test_in_the_model_as_it_was_the_word_is_benign(texts, queries, tmp_path):
    measured = audit(save_run(tmp_path, strength=0), texts[:70], queries=queries, settings=SMALL)
    assert scanned.STICKY not in measured.words


def test_an_erased_share_counts_only_where_the_token_hides_documents():
    found = Intervals(
        value=np.array([0.6, 0.85, 0.9, 0.8]), low=np.zeros(4), high=np.array([0.8, 0.95, 1.0, 1.0])
    )
    measures = RuleInputs(
        ids=np.arange(4),
        erased=Intervals(*np.repeat([[0.5], [0.45], [0.55]], 4, axis=1)),
        push=Intervals(*np.repeat([[1.0], [0.9], [1.1]], 4, axis=1)),
        vector_deviation=np.full(4, np.nan),
        confirmed=np.ones(4, dtype=bool),
    )

    def sticky_tokens(found, is_ordinary):
        judged = judge_against_ordinary_copies(
            measures, compute_lost_shares(found, np.array(is_ordinary)), ProfileSettings()
        )
        return [verdict == "sticky" for verdict in judged.verdicts]

    # Ordinary copies let 85% of the queries find their documents.
    assert sticky_tokens(found, [False, False, True, True]) == [True, False, False, False]
    # Without a comparison, nothing contradicts the run.
    assert sticky_tokens(None, [False, False, True, True]) == [True] * 4
    assert sticky_tokens(found, [False] * 4) == [True] * 4
    none_found = Intervals(*np.zeros((3, 4)))
    assert sticky_tokens(none_found, [False, False, True, True]) == [True] * 4


@pytest.mark.parametrize(
    ("erased_low", "confirmed", "found", "found_high", "push", "expected"),
    [
        (0.5, True, 0.6, 0.9, 1.0, True),  # may hide: the interval includes the 80% of the random token
        (0.5, True, 0.6, 0.7, 1.0, False),  # surely hides
        (0.5, True, 0.85, 0.9, 1.0, False),  # is found as often as with ordinary copies
        (0.3, True, 0.6, 0.9, 1.0, False),  # does not erase enough
        (0.5, False, 0.6, 0.9, 1.0, False),  # was only screened
        (0.3, True, 0.6, 0.9, 1.6, True),  # may push
    ],
)
def test_a_token_that_may_hide_or_push_is_undecided(erased_low, confirmed, found, found_high, push, expected):
    measures = RuleInputs(
        ids=np.array([3, 5]),
        erased=Intervals(np.array([0.6, 0.0]), np.array([erased_low, -0.1]), np.array([0.9, 0.1])),
        push=Intervals(np.array([push, 0.9]), np.array([0.8, 0.7]), np.array([2.0, 1.1])),
        vector_deviation=np.array([0.0, np.nan]),
        confirmed=np.array([confirmed, True]),
    )
    shares = Intervals(np.array([found, 0.8]), np.array([0.3, 0.6]), np.array([found_high, 0.95]))
    is_ordinary = np.array([False, True])
    lost = compute_lost_shares(shares, is_ordinary)
    assert mark_undecided(measures, lost, ProfileSettings()).tolist() == [expected, False]


@pytest.mark.parametrize(
    ("found", "found_high", "verdict", "severity"),
    [
        (0.1, 0.2, "sticky", "severe"),  # surely at most a quarter of the 80% with ordinary copies
        (0.3, 0.4, "sticky", "serious"),  # surely at most half of them
        (0.4, 0.6, "benign", None),  # half of them, but the interval reaches three quarters
        (0.8, 0.9, "benign", None),
    ],
)
@pytest.mark.parametrize("confirmed", [False, True])
def test_a_token_that_hides_these_documents_is_sticky_whatever_the_run_says(
    confirmed, found, found_high, verdict, severity
):
    measures = RuleInputs(
        ids=np.array([3, 5]),
        erased=Intervals(np.array([0.3, 0.0]), np.array([0.2, -0.1]), np.array([0.39, 0.1])),
        push=Intervals(np.array([0.5, 0.9]), np.array([0.4, 0.7]), np.array([0.6, 1.1])),
        vector_deviation=np.array([0.0, np.nan]),
        confirmed=np.array([confirmed, True]),
    )
    shares = Intervals(np.array([found, 0.8]), np.array([0.0, 0.6]), np.array([found_high, 0.95]))
    is_ordinary = np.array([False, True])
    lost = compute_lost_shares(shares, is_ordinary)
    judged = judge_against_ordinary_copies(measures, lost, ProfileSettings())
    assert (judged.verdicts[0], judged.severities[0]) == (verdict, severity)
    assert judged.verdicts[1] == "benign"
    reason = judged.reasons[0]
    assert reason is None if verdict == "benign" else f"{1 - found / 0.8:.0%}" in reason
    is_undecided = mark_undecided(measures, lost, ProfileSettings())
    assert is_undecided[0] == (found == 0.4)


def test_a_sticky_token_is_as_severe_as_these_documents_say_if_the_run_says_less():
    measures = RuleInputs(
        ids=np.array([3, 5]),
        erased=Intervals(np.array([0.5, 0.0]), np.array([0.45, -0.1]), np.array([0.55, 0.1])),
        push=Intervals(np.array([0.5, 0.9]), np.array([0.4, 0.7]), np.array([0.6, 1.1])),
        vector_deviation=np.array([0.0, np.nan]),
        confirmed=np.array([True, True]),
    )
    shares = Intervals(np.array([0.1, 0.8]), np.array([0.0, 0.6]), np.array([0.2, 0.95]))
    lost = compute_lost_shares(shares, np.array([False, True]))
    judged = judge_against_ordinary_copies(measures, lost, ProfileSettings())
    assert (judged.verdicts[0], judged.severities[0]) == ("sticky", "severe")
    assert says(judged.reasons[0], "50%", "88%")  # what it erases, and the queries that it loses


def answered_by(queries, answers):
    """Queries that each have answers of their own, shape (Q, n)."""
    return np.kron(np.eye(queries, dtype=bool), np.ones((1, answers), dtype=bool))


def draw_found(seed, is_answer, of_queries, of_documents):
    """Draw which queries find their documents, half of them on average, from effects of both."""
    generator = np.random.default_rng(seed)
    queries, documents = is_answer.shape
    effects = of_queries * generator.normal(size=(queries, 1))
    effects = effects + of_documents * generator.normal(size=(1, documents))
    return (generator.random(is_answer.shape) < 1 / (1 + np.exp(-effects))) & is_answer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_answer", "of_queries", "of_documents"),
    [
        (answered_by(64, 1), 0, 0),
        (answered_by(16, 1), 0, 0),
        (answered_by(64, 2).T, 0, 0),
        (answered_by(64, 2).T, 0, 5),
        (answered_by(20, 3), 0, 3),
        (answered_by(20, 3), 3, 3),
        (answered_by(5, 12), 2, 0),
        # Documents answer several queries, which have several answers.
        (np.random.default_rng(0).random((30, 40)) < 0.1, 2, 2),
        (np.random.default_rng(0).random((40, 64)) < 0.1, 0, 3),
    ],
)
def test_nine_of_ten_intervals_hold_the_true_share_of_found(is_answer, of_queries, of_documents):
    inside = []
    for seed in range(400):
        is_found = draw_found(seed, is_answer, of_queries, of_documents)
        ((_, low, high),) = estimate_found(is_found[None], is_answer, 0.9).of_each()
        inside.append(low <= 0.5 <= high)
    assert 0.86 <= np.mean(inside) <= 0.97


def test_the_more_queries_find_their_document_the_higher_is_the_interval():
    """Also at the ends, where a token alone would not show how much its pairs depend on each other."""
    is_answer = np.ones((4, 6), dtype=np.bool_)
    counts = range(is_answer.sum() + 1)
    is_found = np.array([count > np.arange(24).reshape(6, 4).T for count in counts])
    intervals = estimate_found(is_found, is_answer, 0.9).of_each()
    for fewer, more in itertools.pairwise(intervals):
        assert (fewer.low, fewer.high) < (more.low, more.high)
        assert fewer.low <= more.low
        assert fewer.high <= more.high


def test_where_each_query_has_one_document_the_interval_of_found_is_exact():
    is_answer = np.eye(24, dtype=bool)
    is_found = np.stack([is_answer & (np.arange(24) < count) for count in range(25)])
    for count, interval in enumerate(estimate_found(is_found, is_answer, 0.9).of_each()):
        assert interval == pytest.approx(estimate_share(count, 24, 0.9))


def test_documents_whose_queries_agree_count_as_one_trial_each():
    is_answer = answered_by(24, 2).T  # two queries for each document
    for count in (0, 12, 24):
        is_found = is_answer & (np.arange(24) < count)
        (share,) = estimate_found(is_found[None], is_answer, 0.9).of_each()
        # More queries tell nothing more of the documents. Where some disagree, the variance is an estimate.
        assert share == pytest.approx(estimate_share(count, 24, 0.9), abs=0.01)


def test_a_single_query_says_nothing_of_others():
    is_answer = np.ones((1, 6), dtype=bool)
    (share,) = estimate_found(is_answer[None] & (np.arange(6) < 3), is_answer, 0.9).of_each()
    assert share.value == 0.5
    assert share.low < 0.05
    assert share.high > 0.95


class RunnerWithRows:
    """Gives rows that were measured before, and says for which tokens a vector was missing."""

    def __init__(self, rows, unanswered=()):
        self.rows = rows
        self.unanswered = dict.fromkeys(unanswered, "a text")

    def __call__(self, stage, tokens, **_):
        rows = [self.rows[token.id] | {"token_id": token.id} for token in tokens]
        return pl.DataFrame(rows)


def test_a_token_without_a_vector_leaves_the_intervals_of_the_others_alone():
    generator = np.random.default_rng(0)
    is_answer = answered_by(6, 2)
    search = ExactSearch(generator.normal(size=(6, 4)), generator.normal(size=(12, 4)), Similarity.DOT)
    panel = DocumentPanel(
        places=tuple(range(12)),
        carriers=("",) * 12,
        texts=("",) * 12,
        search=search,
        depth=5,
        is_answer=is_answer,
        weights=np.ones(is_answer.shape),
    )
    queries = Queries(["query"] * 6, 6, [frozenset()] * 6, "", "")
    job = SimpleNamespace(
        index=SimpleNamespace(queries=queries), rule=ProfileSettings(), settings=SimpleNamespace(seed=1)
    )
    # With the token without a vector, every query finds one of its two documents; with the others, half of
    # the queries find both.
    found = {0: [1, 1, 0, 0] * 3, 1: [1, 0] * 6, 2: [0, 0, 1, 1] * 3}
    rows = {token_id: {"wrong_results": [255] * 9, "found": values} for token_id, values in found.items()}
    tokens = [Token(token_id, f"word{token_id}") for token_id in rows]
    measured = measure_stuffed(job, RunnerWithRows(rows, unanswered=[1]), tokens, panel, "stage")
    assert list(measured) == [0, 2]
    assert measured == measure_stuffed(job, RunnerWithRows(rows), [tokens[0], tokens[2]], panel, "stage")


def with_erasing_token(run, token_id, path):
    """A copy of the run in which a token has a large erased share."""
    shutil.copytree(run, path)
    shares = {"erased": 0.9, "erased_low": 0.85, "erased_high": 0.95, "confirmed": True}
    changed = pl.read_parquet(path / "tokens.parquet").with_columns(
        pl.when(pl.col("token_id") == token_id).then(pl.lit(value)).otherwise(pl.col(name)).alias(name)
        for name, value in shares.items()
    )
    changed.write_parquet(path / "tokens.parquet")
    return open_run(path)


def test_a_token_that_the_run_says_erases_is_benign_where_its_documents_are_found(
    tampered_run, finished, texts, queries, tmp_path
):
    chosen = finished.tokens.filter(group="random").sort("found", "token_id").row(-1, named=True)
    run = with_erasing_token(tampered_run, chosen["token_id"], tmp_path / "run")
    measured = audit(run, texts, queries=queries, tokens=[chosen["token"]], settings=SMALL)
    (row,) = measured.tokens.filter(token_id=chosen["token_id"]).to_dicts()
    assert measured.result.ordinary_found > 0
    assert row["erased_low"] == 0.85
    assert row["found_high"] >= measured.result.ordinary_found
    assert row["verdict"] == "benign"
    assert row["undecided"] is (row["found"] < measured.result.ordinary_found)


def test_where_no_query_finds_its_document_the_run_decides_what_hides(
    tampered_run, judged, judged_folder, texts, queries, tmp_path
):
    encoder = load_encoder(open_run(tampered_run).model_name, device="cpu")
    similarities = unit_rows(encoder, queries) @ unit_rows(encoder, texts[:70]).T
    folder = tmp_path / "hard"
    shutil.copytree(judged_folder, folder)
    answers = enumerate(similarities.argmin(axis=1))  # the last result of each query
    rows = [f"q{query}\td{number}\t1" for query, number in answers]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    chosen = judged.tokens.filter(group="random").sort("push").row(0, named=True)
    run = with_erasing_token(tampered_run, chosen["token_id"], tmp_path / "run")
    measured = audit(run, folder, tokens=[chosen["token"]], settings=SMALL)
    assert measured.result.found_without == measured.result.ordinary_found == 0
    (row,) = measured.tokens.filter(token_id=chosen["token_id"]).to_dicts()
    assert (row["verdict"], row["severity"]) == ("sticky", "severe")
    assert any(says(note, "0%", "run") for note in measured.record.notes)
    (sentence,) = (line for line in wording.token_conclusions(measured) if repr(row["token"]) in line)
    assert says(sentence, "90%")
    # If the run says nothing of a token either, it may yet hide documents.
    benign = audit(tampered_run, folder, tokens=[chosen["token"]], settings=SMALL)
    assert benign.sticky.is_empty()
    assert wording.answer(without_copies(benign)).word == "Perhaps"


def test_the_worst_token_is_the_one_that_does_most_to_these_documents(finished):
    result = finished.result

    def extent(row):
        ordinary = {"ordinary_push": result.ordinary_push, "ordinary_found": result.ordinary_found}
        harm = Harm(row["token"], row["push"], row["found"], **ordinary, found_without=result.found_without)
        return max(0, *harm.shares)

    decided = finished.tokens.filter(verdict="benign", undecided=False)
    extents = [extent(row) for row in decided.to_dicts()]
    assert len(set(extents)) > 2
    assert extents == sorted(extents, reverse=True)


def test_the_home_folder_is_found_for_documents_queries_and_judgements(
    judged, judged_folder, tampered_run, monkeypatch, tmp_path
):
    monkeypatch.setenv("HOME", str(judged_folder.parent))
    monkeypatch.setenv("USERPROFILE", str(judged_folder.parent))
    again = audit(tampered_run, f"~/{judged_folder.name}", settings=SMALL, out=tmp_path / "audit")
    assert again.result.answers == judged.result.answers
    assert again.tokens.equals(judged.tokens)
