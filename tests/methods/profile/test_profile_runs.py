"""The profile method as a run: what it finds, what it stores, what changes its numbers and what does not."""

import functools
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import planted
import profiled
import tiny
from stickytoken import load_encoder
from stickytoken.data import SentencePair
from stickytoken.detection import judge, probe
from stickytoken.errors import InputError
from stickytoken.gate import check
from stickytoken.insertion import Insertion
from stickytoken.methods.profile.estimates import read_effects
from stickytoken.methods.profile.plan import Round
from stickytoken.methods.profile.verdict import TOKEN_COLUMNS

pytestmark = pytest.mark.slow  # whole runs

ROUNDS = ("pilot", "screen", "confirm")
# With fewer texts, noise explains all that the tokens of this model differ by.
detect_profile = functools.partial(profiled.detect_profile, budget=8)


@pytest.fixture(scope="module")
def run(encoder, tmp_path_factory):
    return detect_profile(encoder, tmp_path_factory.mktemp("planted") / "run")


def test_an_entry_whose_copies_are_read_as_another_has_no_verdict(tmp_path):
    entries = ("qq", "qq qq", "qqqq")
    encoder = load_encoder(profiled.planted_model(2, token="qq qq", added=entries))
    run = detect_profile(encoder, tmp_path / "run", insertion=Insertion.WORDS)
    judgement = judge(run, profiled.corpus(160), encoder=encoder)
    for found in (run, judgement):
        assert found.sticky["token"].to_list() == ["qq qq"]
        (row,) = found.tokens.filter(token="qq").to_dicts()
        assert [row[name] for name in ("verdict", "lift", "severity", "erases")] == [None] * 4
        assert "texts spell 0% of its copies" in row["reason"]
        assert len(found.tokens) == run.available
    ((token_id, seen),) = run.token("qq").select("token_id", "copies_seen").rows()
    assert seen == 0
    assert run.result.looked_at == run.available - 1
    assert token_id not in read_effects(run.path).ids
    assert any("1 token has no verdict" in note for note in run.method.notes(run))
    assert check(run).incomplete == ()
    unjudged = pl.col("token") == run.sticky["token"][0]
    run.tokens = run.tokens.with_columns(verdict=pl.when(~unjudged).then("verdict"))
    assert any("no verdict on 1 of" in gap for gap in check(run).incomplete)
    with pytest.raises(InputError, match=f"token id {token_id}"):
        probe(
            encoder, ["qq"], sentences=profiled.corpus(), settings=replace(profiled.SMALL, insertion="words")
        )
    with pytest.raises(InputError, match="name tokens that texts spell"):
        detect_profile(encoder, tmp_path / "one", insertion=Insertion.WORDS, tokens=[token_id])


def test_a_planted_token_is_sticky_and_erases_texts_and_no_other_does(run, tmp_path):
    (row,) = run.sticky.to_dicts()
    assert row["token"] == planted.PLANTED
    assert row["severity"] in ("serious", "severe")
    assert row["lift_low"] > 2 * run.result.ordinary_lift
    assert row["universality"] == pytest.approx(1)
    assert row["kind"] is None
    assert row["validation_rate"] > 0.95
    assert row["q_value"] < 1e-3
    assert run.tokens["lift"].max() == row["lift"]
    assert row["erases"]
    ordinary = run.result.ordinary_contraction
    assert ordinary < row["contraction_low"] < row["contraction"] < row["contraction_high"]
    assert row["reason"].startswith(f"erases {row['contraction']:.0%} of a text")
    assert f"{ordinary:.0%}" in row["reason"]
    others = run.tokens.filter(pl.col("token") != planted.PLANTED)
    assert not others["erases"].any()
    assert others["reason"].null_count() == len(others)
    # Carriers agree with the one contraction of the whole fit.
    for kept in profiled.shard_rows(run, "screen").values():
        assert np.mean(kept["contractions"]) == pytest.approx(kept["contraction"], abs=1e-5)
    ordinary = load_encoder(profiled.planted_model(0))
    assert detect_profile(ordinary, tmp_path / "ordinary").sticky.is_empty()


def test_the_table_has_one_row_per_available_token_by_ascending_id(run):
    table = pl.read_parquet(run.path / "tokens.parquet")
    assert table.equals(run.tokens)
    assert table.columns == list(TOKEN_COLUMNS)
    available = run.vocabulary.filter(pl.col("category").is_in(["OK", "OK_SPECIAL"]))
    names = ["token_id", "token", "decoded", "category"]
    assert table.select(names).equals(available.select(names))
    assert len(table) == profiled.AVAILABLE == run.record.tokens == run.result.looked_at
    assert table["token_id"].is_sorted()
    missing = {name for name, count in table.null_count().row(0, named=True).items() if count}
    assert missing <= {"fixed_point", "severity", "kind", "reason"}
    assert not any(series.is_nan().any() for series in table.select(pl.col(pl.Float64)))
    assert ((table["lift_low"] < table["lift"]) & (table["lift"] < table["lift_high"])).all()
    for words in ("severity", "reason"):
        assert table.filter(pl.col(words).is_null())["verdict"].unique().to_list() == ["benign"]


def test_the_run_counts_its_texts_and_tokens_and_keeps_the_effects_of_both_rounds(run, encoder):
    assert run.record.model.parameters == encoder.parameters == 32 * len(encoder.tokenizer.entries)
    measured = {step: set(profiled.shard_rows(run, step)) for step in ROUNDS}
    late = set(run.plan.late_reference)
    assert len(measured["screen"]) == profiled.AVAILABLE
    assert measured["pilot"] == late
    assert len(late) == 128
    assert not measured["confirm"] & late  # the pilot measured them on these carriers
    assert len(measured["confirm"] | late) == run.result.candidates >= 128
    few = len(run.result.screening_carriers)
    texts = 128 * len(run.plan.carriers) + profiled.AVAILABLE * few + len(measured["confirm"]) * 24
    assert run.result.sequences == texts
    assert run.result.empirical_null
    assert run.result.texts_per_token == round(texts / profiled.AVAILABLE, 2)
    screened, confirmed = read_effects(run.path), read_effects(run.path, step=Round.CONFIRM)
    assert screened.ids.tolist() == run.tokens["token_id"].to_list()
    assert set(run.plan.late_reference) <= set(confirmed.ids.tolist()) <= set(screened.ids.tolist())
    assert len(confirmed.ids) == run.result.candidates
    for row in run.tokens.to_dicts():
        assert row["texts"] == (24 if row["token_id"] in measured["confirm"] | late else few)


def plain_lift(model, run, place, token):
    plan = run.plan
    placement = ("prefix", "suffix", "random")[place % 3]
    copies = (8, 4)[(place % 3 + place // 3) % 2]
    carrier = plan.carriers[place]
    changed = token * copies + carrier if placement == "prefix" else carrier + token * copies
    unit = [vector / np.linalg.norm(vector) for vector in model.encode([carrier, changed])]
    changes = {}
    for each in plan.anchors:
        anchor = model.encode([each.text])[0]
        before, after = (float(vector @ anchor) / float(np.linalg.norm(anchor)) for vector in unit)
        if before < plan.mean_similarity:
            changes.setdefault(each.group, []).append(after - before)
    weights = {group: plan.groups[group].weight for group in changes}
    lift = sum(weights[group] * np.mean(found) for group, found in changes.items()) / sum(weights.values())
    return lift, {group: np.mean(found) for group, found in changes.items()}


def test_lifts_of_every_round_equal_those_of_a_plain_version_of_the_method(tmp_path):
    model = profiled.planted_model(2)
    options = {"insertion": "text", "sentences": profiled.corpus(160)}
    run = detect_profile(load_encoder(model), tmp_path / "run", **options)
    assert run.sticky["token"].to_list() == [planted.PLANTED]
    every, few = list(range(len(run.plan.carriers))), run.result.screening_carriers
    rounds = {"pilot": every, "screen": few, "confirm": [k for k in every if k not in few]}
    for step, carriers in rounds.items():
        rows = profiled.shard_rows(run, step)
        token_id = 34 if step == "screen" else next(iter(rows))
        row, token = rows[token_id], run.vocabulary.filter(token_id=token_id)["decoded"].item()
        groups = np.array(row["groups"]).reshape(len(carriers), -1)
        measured = [own for own in enumerate(carriers) if own[1] % 3 < 2][:6]  # not at random gaps
        for place, carrier in measured:
            lift, by_group = plain_lift(model, run, carrier, token)
            assert row["lifts"][place] == pytest.approx(lift, abs=1e-5), (step, carrier)
            for group, value in by_group.items():
                assert groups[place, group] == pytest.approx(value, abs=1e-5), (step, carrier, group)


def test_a_named_token_is_measured_as_in_the_whole_run(encoder, run, tmp_path):
    late = set(run.plan.late_reference)
    ids = sorted({34, run.plan.late_reference[0], *list(profiled.shard_rows(run, "confirm"))[:2]})
    named = detect_profile(encoder, tmp_path / "named", tokens=[*reversed(ids), 34])
    assert named.tokens["token_id"].to_list() == ids
    assert named.result.looked_at == named.result.candidates == len(ids)
    assert named.plan == run.plan
    assert named.result.screening_carriers == run.result.screening_carriers
    beside = {"pilot": late, "screen": {*ids, *run.plan.reference}, "confirm": {*ids} - late}
    for step in ROUNDS:
        whole, ours = profiled.shard_rows(run, step), profiled.shard_rows(named, step)
        assert set(ours) == beside[step]
        assert set(whole) & set(ours)
        for token_id in set(whole) & set(ours):
            for name, value in whole[token_id].items():
                close = pytest.approx(value, abs=1e-3 if name == "pull" else 1e-5, nan_ok=True)
                assert ours[token_id][name] == close, (step, token_id, name)
    assert named.sticky["token"].to_list() == [planted.PLANTED]
    assert named.record.identity != run.record.identity


def test_without_adaptation_every_token_gets_the_budget_and_no_more(encoder, tmp_path):
    run = detect_profile(encoder, tmp_path / "run", adaptive=False, budget=10)
    assert set(run.tokens["texts"]) == {10}
    assert run.result.sequences == 10 * profiled.AVAILABLE
    assert {path.name.split("-")[0] for path in (run.path / "shards").iterdir()} == {"screen"}
    assert len(run.plan.carriers) == 10
    assert run.result.screening_carriers == list(range(10))
    assert run.result.candidates == profiled.AVAILABLE
    assert len(read_effects(run.path, step=Round.CONFIRM).ids) == 0
    assert run.sticky["token"].to_list() == [planted.PLANTED]


def test_a_vocabulary_smaller_than_the_pilot_is_measured_on_all_carriers(tmp_path):
    words = profiled.WORDS[:20]
    encoder = load_encoder(profiled.planted_model(2, words=words))
    run = detect_profile(encoder, tmp_path / "run", sentences=profiled.corpus(words=words))
    assert len(run.tokens) == run.result.candidates == 115
    assert run.plan.late_reference == run.tokens["token_id"].to_list()
    assert {path.name.split("-")[0] for path in (run.path / "shards").iterdir()} == {"pilot", "screen"}
    assert set(run.tokens["texts"]) == {24}
    assert run.result.sequences == len(run.tokens) * (len(run.plan.carriers) + 7)  # both rounds
    assert not run.result.empirical_null  # below 200 tokens, intervals decide
    assert run.tokens["q_value"].is_null().all()
    assert planted.PLANTED in run.sticky["token"].to_list()


def test_groups_without_a_pair_below_the_mean_have_no_say(tmp_path):
    encoder = load_encoder(profiled.planted_model(2, common=0.3))
    run = detect_profile(encoder, tmp_path / "run")
    assert np.isnan([row["groups"] for row in profiled.shard_rows(run, "screen").values()]).any()
    assert not run.tokens["lift"].is_null().any()
    assert planted.PLANTED in run.sticky["token"].to_list()
    (tmp_path / "run" / "tokens.parquet").unlink()
    events = []
    again = detect_profile(encoder, tmp_path / "run", progress=events.append)
    assert {event.computed for event in events} == {0}
    assert again.tokens.equals(run.tokens)


def test_a_narrow_corpus_is_measured_on_the_less_similar_half_of_its_pairs(tmp_path):
    """To this model, all sentences are more alike than its vocabulary's entries."""
    run = detect_profile(load_encoder(profiled.planted_model(2, common=2)), tmp_path / "run")
    limit = run.plan.narrow_limit
    assert limit > run.plan.mean_similarity
    assert run.plan.share_below == pytest.approx(0.5, abs=0.1)
    assert any(f"{limit:.4f}" in note for note in run.method.notes(run))
    assert planted.PLANTED in run.sticky["token"].to_list()


def alike(noise):
    model = profiled.planted_model(0)
    weights = model[0].embedding.weight.data
    weights[:] = 1 + noise * weights
    return model


SAME = r"the same similarity \(1\.0000\): there is nothing that a token could"
REFUSED = {
    "too few": ({"sentences": profiled.corpus(67)}, "31 carriers .* are needed; use .* smaller budget$"),
    "far too few": ({"sentences": profiled.corpus(28)}, "31 are needed: use more or shorter sentences$"),
    "alike": ({"model": lambda: alike(1e-5)}, SAME),
    "pairs": (
        {"sentences": None, "pairs": [SentencePair("a bird", "a song", 0.1)]},
        "takes no pairs: .* std",
    ),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_measured_is_refused_and_leaves_the_folder_free(encoder, tmp_path, options, message):
    options = dict(options)
    made = load_encoder(options.pop("model")()) if "model" in options else encoder
    with pytest.raises(InputError, match=message):
        detect_profile(made, tmp_path / "run", **options)
    assert not list((tmp_path / "run").glob("*.json"))


@pytest.mark.slow
def test_only_the_round_of_all_tokens_is_in_lower_precision_and_the_table_says_which(tmp_path):
    """The rows of the other rounds are those of the plain run, for the tokens in both.

    Not to the bit: shards of the last round hold other tokens, so that a text is computed in another batch.
    """
    (tmp_path / "model").mkdir()
    model = tiny.sentence_transformer(tiny.bert_backbone(tmp_path / "model", words=profiled.WORDS))
    plain = profiled.detect_profile(load_encoder(model), tmp_path / "plain")
    lower = profiled.detect_profile(load_encoder(model), tmp_path / "lower", screen_precision="bfloat16")
    assert set(plain.tokens["precision"]) == {"float32"}
    assert set(lower.tokens["precision"]) == {"float32", "bfloat16"}
    assert plain.result.screening_carriers == lower.result.screening_carriers
    for step, least in (("pilot", 128), ("confirm", 5)):
        rows = {run: profiled.shard_rows(run, step) for run in (plain, lower)}
        both = set(rows[plain]) & set(rows[lower])
        assert len(both) >= least
        assert max(difference(rows, token) for token in both) < 1e-6
    early = {run: profiled.shard_rows(run, "screen") for run in (plain, lower)}
    assert early[plain].keys() == early[lower].keys()
    assert max(difference(early, token) for token in early[plain]) > 1e-4
    exact = lower.tokens.filter(pl.col("precision") == "float32")["token_id"].to_list()
    assert set(exact) == {*profiled.shard_rows(lower, "confirm"), *lower.plan.late_reference}
    assert any("screened in bfloat16; numbers of the" in line for line in lower.method.lines(lower))


def difference(rounds, token):
    one, other = (np.array(rows[token]["lifts"]) for rows in rounds.values())
    return np.abs(one - other).max()
