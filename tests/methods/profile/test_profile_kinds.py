"""Sticky, topical and benign on the bundled kinds of text, and on a corpus of one's own beside them."""

import numpy as np
import polars as pl
import pytest

import english
from stickytoken import load_encoder
from stickytoken.corpora import text_kinds_frame
from stickytoken.corpora.corpus import collect_sentences
from stickytoken.detection import detect
from stickytoken.methods.profile.anchors import representative_carriers

pytestmark = pytest.mark.slow
ORDINARY = list(range(40, 6000, 260))


@pytest.fixture(scope="module")
def encoder():
    return load_encoder(english.model(sticky=1.5, topical=1.0))


@pytest.fixture(scope="module")
def run(encoder, tmp_path_factory):
    """Both planted tokens and a few others on the default texts."""
    out = tmp_path_factory.mktemp("kinds") / "run"
    return detect(encoder, tokens=[english.STICKY, english.TOPICAL, *ORDINARY], out=out)


def row_of(run, token):
    return run.tokens.row(by_predicate=pl.col("token") == token, named=True)


def test_what_lifts_every_kind_is_sticky_and_what_lifts_one_is_topical_for_it(run):
    sticky, topical = row_of(run, english.STICKY), row_of(run, english.TOPICAL)
    assert (sticky["verdict"], sticky["universality"], sticky["kind"]) == ("sticky", 1.0, None)
    assert (topical["verdict"], topical["kind"]) == ("topical", english.KIND)
    assert topical["universality"] == pytest.approx(1 / 11)
    assert {sticky["severity"], topical["severity"]} == {"severe"}
    assert run.sticky["token"].to_list() == [english.STICKY]
    benign = run.tokens.filter(verdict="benign")
    assert len(benign) > len(ORDINARY) / 2
    assert benign["severity"].is_null().all()
    assert benign["kind"].is_null().all()
    assert run.result.topical == run.tokens.filter(verdict="topical").height


def test_a_topical_token_is_graded_on_its_kind_and_not_on_the_lift(run):
    topical = row_of(run, english.TOPICAL)
    sd = (topical["lift"] - run.result.ordinary_lift) / run.plan.similarity_spread
    assert sd < 0.5  # on all texts it would be mild


def shards(run, step):
    paths = sorted((run.path / "shards").glob(f"{step}-*.parquet"))
    return {row["token_id"]: row for row in pl.concat([pl.read_parquet(path) for path in paths]).to_dicts()}


def slow_group_means(row, carriers, groups, kept):
    values = np.array(row["groups"], dtype=float).reshape(carriers, groups)
    return [
        sum(own) / len(own) if (own := [values[k, g] for k in kept if not np.isnan(values[k, g])]) else np.nan
        for g in range(groups)
    ]


def test_universality_and_lift_words_equal_a_plain_version(run):
    """Of tokens of the last round: lifts by kind above the median of the tokens of the pilot."""
    plan, groups = run.plan, len(run.plan.groups)
    few = run.result.screening_carriers
    rest = [k for k in range(len(plan.carriers)) if k not in few]
    pilot, confirmed = shards(run, "pilot"), shards(run, "confirm")
    assert sorted(pilot) == plan.late_reference
    ordinary = [slow_group_means(row, len(plan.carriers), groups, rest) for row in pilot.values()]
    levels = np.median(ordinary, axis=0)
    kinds = [place for place, group in enumerate(plan.groups) if group.kind]
    assert len(kinds) == 11
    for row in run.tokens.filter(pl.col("texts") == 48).to_dicts():
        if row["token_id"] in confirmed:
            means = slow_group_means(confirmed[row["token_id"]], len(rest), groups, range(len(rest)))
        else:
            means = slow_group_means(pilot[row["token_id"]], len(plan.carriers), groups, rest)
        lifted = [
            means[place] - levels[place] >= 0.5 * 0.5 * plan.groups[place].spread
            for place in kinds
            if not np.isnan(means[place])
        ]
        assert row["universality"] == pytest.approx(sum(lifted) / len(lifted)), row["token"]
        assert row["lift_words"] == pytest.approx(means[-1], abs=1e-6)


def test_the_screening_carriers_are_those_that_the_pilot_speaks_for(run):
    plan = run.plan
    rows = [row for _, row in sorted(shards(run, "pilot").items())]
    groups = np.array([row["groups"] for row in rows], dtype=float)
    lifts = groups.reshape(len(rows), len(plan.carriers), len(plan.groups))
    kinds = sum(group.kind for group in plan.groups)
    weights = np.array([group.weight + group.kind / kinds for group in plan.groups])
    assert run.result.screening_carriers == representative_carriers(lifts, weights, 3)
    assert len(run.plan.carriers) == 3 + 48


def test_on_a_corpus_of_ones_own_the_kinds_tell_sticky_from_topical(encoder, tmp_path):
    """Copies of a legal term do lift in an index of law texts; that it is their subject shows beside it."""
    texts = text_kinds_frame().filter(kind=english.KIND)["text"].to_list()
    others = text_kinds_frame().filter(kind="news")["text"].to_list()
    corpus = collect_sentences([*texts, *others], "law and news")
    run = detect(
        encoder, sentences=corpus, tokens=[english.STICKY, english.TOPICAL, *ORDINARY], out=tmp_path / "run"
    )
    assert [group.name for group in run.plan.groups][:2] == ["corpus", "news"]
    assert [group.weight for group in run.plan.groups] == [1.0, *[0.0] * 11]
    sticky, topical = row_of(run, english.STICKY), row_of(run, english.TOPICAL)
    assert (sticky["verdict"], sticky["universality"]) == ("sticky", 1.0)
    assert (topical["verdict"], topical["kind"]) == ("topical", None)
    assert topical["lift_low"] > run.result.ordinary_lift + 0.25 * run.plan.similarity_spread
    assert topical["universality"] <= 0.2
