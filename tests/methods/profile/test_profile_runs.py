"""The profile method as a run: what it finds, what it stores, what changes its numbers and what does not."""

import functools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import planted
import profiled
import tiny
from naming import naming, says
from stickytoken import load_encoder
from stickytoken.data import SentencePair
from stickytoken.detection import probe
from stickytoken.errors import InputError, RunError
from stickytoken.gate import check
from stickytoken.insertion import Insertion
from stickytoken.intervals import Intervals
from stickytoken.measurement.store import ResultFolder
from stickytoken.methods.profile import TOKEN_COLUMNS
from stickytoken.methods.profile.estimates import (
    as_erased_shares,
    compare_with_ordinary,
    read_effects,
    write_effects,
)
from stickytoken.methods.statistics import Effects

pytestmark = pytest.mark.slow  # whole runs

ROUNDS = ("pilot", "screen", "confirm")
detect_profile = functools.partial(profiled.detect_profile, budget=12)


@pytest.fixture(scope="module")
def run(encoder, tmp_path_factory):
    return detect_profile(encoder, tmp_path_factory.mktemp("planted") / "run")


def test_an_entry_whose_copies_are_read_as_another_has_no_verdict(tmp_path):
    entries = ("qq", "qq qq", "qqqq")
    encoder = load_encoder(profiled.planted_model(4, token="qq qq", added=entries))
    run = detect_profile(encoder, tmp_path / "run", insertion=Insertion.WORDS)
    assert run.sticky["token"].to_list() == ["qq qq"]
    (row,) = run.tokens.filter(token="qq").to_dicts()
    assert [row[name] for name in ("verdict", "push", "severity", "erased")] == [None] * 4
    assert "0%" in row["reason"]
    assert len(run.tokens) == run.available
    ((token_id, copies_seen),) = run.token("qq").select("token_id", "copies_seen").rows()
    assert copies_seen == 0
    assert run.result.looked_at == run.available - 1
    assert token_id not in read_effects(run.path).ids
    assert any(says(note, "1 token", "no verdict") for note in run.description.notes)
    assert not any("no verdict" in gap for gap in check(run).incomplete)
    unjudged = pl.col("token") == run.sticky["token"][0]
    run.tokens = run.tokens.with_columns(verdict=pl.when(~unjudged).then("verdict"))
    assert any(says(gap, "no verdict", 1) for gap in check(run).incomplete)
    with pytest.raises(InputError, match=naming("token id", token_id)):
        probe(
            encoder, ["qq"], sentences=profiled.corpus(), settings=replace(profiled.SMALL, insertion="words")
        )
    with pytest.raises(InputError, match="copies"):
        detect_profile(encoder, tmp_path / "one", insertion=Insertion.WORDS, tokens=[token_id])


def test_a_planted_token_is_sticky_for_what_it_erases(run):
    (row,) = run.sticky.to_dicts()
    assert row["token"] == planted.PLANTED
    assert row["severity"] == "serious"
    assert row["erased_low"] > 0.4
    assert row["reason"].startswith(f"leaves {row['erased']:.0%} less of a text's meaning")


def test_the_contraction_is_the_erased_share_in_another_unit(run):
    row = run.sticky.row(0, named=True)
    ordinary = run.result.ordinary_contraction
    assert row["contraction"] == pytest.approx(ordinary + row["erased"] * (1 - ordinary))


def test_no_more_than_everything_is_erased():
    """Copies that reverse what a text means have a contraction above 1."""
    beyond = Intervals(value=np.array([0.3, 0.05]), low=np.array([0.15, 0.0]), high=np.array([0.5, 0.1]))
    shares = as_erased_shares(beyond, ordinary=0.8)
    np.testing.assert_allclose(shares, [[1.0, 0.25], [0.75, 0.0], [1.0, 0.5]])


@pytest.mark.parametrize("ordinary", [0.99, 1.02])
def test_where_ordinary_copies_leave_less_than_the_error_nothing_can_be_told(ordinary):
    noise = np.random.default_rng(0).normal(scale=0.1, size=(40, 24))
    with pytest.raises(InputError, match=naming("fewer copies", "longer sentences")):
        compare_with_ordinary(ordinary + noise, np.ones(40, dtype=np.bool_), confidence=0.95)


def test_without_a_planted_token_nothing_is_sticky(tmp_path):
    ordinary = load_encoder(profiled.planted_model(0))
    assert detect_profile(ordinary, tmp_path / "ordinary").sticky.is_empty()


def test_carriers_agree_with_the_one_contraction_of_the_whole_fit(run):
    for row in profiled.shard_rows(run, "screen").values():
        assert np.mean(row["contractions"]) == pytest.approx(row["contraction"], abs=1e-5)


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
    in_documents = {"push", "push_low", "push_high", "found", "documents"}
    assert missing <= {"severity", "reason", "vector_deviation"} | in_documents
    assert not any(series.is_nan().any() for series in table.select(pl.col(pl.Float64)))
    assert ((table["erased_low"] < table["erased"]) & (table["erased"] < table["erased_high"])).all()
    for words in ("severity", "reason"):
        assert table.filter(pl.col(words).is_null())["verdict"].unique().to_list() == ["benign"]


def test_the_run_counts_its_texts_and_tokens(run, encoder):
    assert run.record.model.parameters == encoder.parameters == 32 * len(encoder.tokenizer.entries)
    measured = {step: set(profiled.shard_rows(run, step)) for step in ROUNDS}
    pilots = set(run.plan.pilots)
    assert len(measured["screen"]) == profiled.AVAILABLE
    assert measured["pilot"] == pilots
    assert len(pilots) == 128
    assert not measured["confirm"] & pilots  # the pilot measured them in these carriers
    assert len(measured["confirm"] | pilots) == run.result.confirmed
    texts = 128 * 26 + profiled.AVAILABLE * 2 + len(measured["confirm"]) * 24
    assert run.result.sequences == texts
    assert run.result.texts_per_token == round(texts / profiled.AVAILABLE, 2)
    for row in run.tokens.to_dicts():
        is_confirmed = row["token_id"] in measured["confirm"] | pilots
        assert row["confirmed"] == is_confirmed
        assert row["texts"] == (24 if is_confirmed else 2)


def test_the_effects_of_all_tokens_are_those_of_the_screen(run):
    effects = read_effects(run.path)
    screened = profiled.shard_rows(run, "screen")
    assert effects.ids.tolist() == run.tokens["token_id"].to_list()
    for token_id, contraction in zip(effects.ids.tolist(), effects.contraction, strict=True):
        assert contraction == pytest.approx(screened[token_id]["contraction"], abs=1e-6)


def plain_contractions(model, run, carriers, token):
    """Erase shares of carriers by definition: how much of each carrier's own direction is left."""
    plan = run.plan
    texts = [plan.carriers[place] for place in carriers]
    changed = []
    for place, carrier in zip(carriers, texts, strict=True):
        copies = (8, 4)[(place % 3 + place // 3) % 2]
        changed.append(token * copies + carrier if place % 3 == 0 else carrier + token * copies)
    before, after = (model.encode(each, normalize_embeddings=True).astype(float) for each in (texts, changed))
    deviations = before - before.mean(axis=0)
    moved = after - after.mean(axis=0)
    return 1 - len(carriers) * (moved * deviations).sum(axis=1) / (deviations**2).sum()


def test_contractions_equal_those_of_a_plain_version_of_the_method(tmp_path):
    """On two screening carriers, one of which may have copies at random places."""
    model = profiled.planted_model(4)
    options = {"insertion": "text", "sentences": profiled.corpus(160)}
    run = detect_profile(load_encoder(model), tmp_path / "run", **options)
    assert run.sticky["token"].to_list() == [planted.PLANTED]
    carriers = run.result.screening_carriers
    if any(place % 3 == 2 for place in carriers):
        pytest.skip("the screen has a carrier with copies at random places")
    row = profiled.shard_rows(run, "screen")[34]
    token = run.vocabulary.filter(token_id=34)["decoded"].item()
    assert row["contractions"] == pytest.approx(plain_contractions(model, run, carriers, token), abs=1e-5)


def test_named_tokens_are_measured_with_fewer_texts_and_judged_alike(encoder, run, tmp_path):
    ids = sorted({34, run.plan.pilots[0], *list(profiled.shard_rows(run, "confirm"))[:2]})
    named = detect_profile(encoder, tmp_path / "named", tokens=[*reversed(ids), 34])
    assert set(ids) < set(named.tokens["token_id"])  # beside the special tokens
    ids = named.tokens["token_id"].to_list()
    assert named.result.looked_at == named.result.confirmed == len(ids)
    pilots = set(named.plan.pilots)
    assert len(pilots) == 32
    beside = {"pilot": pilots, "screen": {*ids, *pilots}, "confirm-1": {*ids} - pilots}
    for step, measured_ids in beside.items():
        assert set(profiled.shard_rows(named, step)) == measured_ids
    for row in named.tokens.iter_rows(named=True):
        (in_run,) = run.tokens.filter(token_id=row["token_id"]).to_dicts()
        assert row["erased_low"] < in_run["erased_high"]
        assert in_run["erased_low"] < row["erased_high"]
        assert row["verdict"] == in_run["verdict"]
    assert named.sticky["token"].to_list() == [planted.PLANTED]
    assert named.record.identity != run.record.identity
    assert set(named.tokens["texts"]) == {24}


def test_a_vocabulary_smaller_than_the_pilot_is_measured_in_all_carriers(tmp_path):
    words = profiled.WORDS[:20]
    encoder = load_encoder(profiled.planted_model(4, words=words))
    run = detect_profile(encoder, tmp_path / "run", sentences=profiled.corpus(words=words))
    assert len(run.tokens) == run.result.confirmed == 115
    assert run.plan.pilots == run.tokens["token_id"].to_list()
    assert {path.name.split("-")[0] for path in (run.path / "shards").iterdir()} == {
        "pilot",
        "screen",
    }
    assert set(run.tokens["texts"]) == {24}
    assert planted.PLANTED in run.sticky["token"].to_list()


def test_tokens_that_the_budget_leaves_out_are_counted(encoder, tmp_path):
    """With thresholds that every token may reach, the budget decides."""
    run = profiled.detect_profile(encoder, tmp_path / "run", smallest_erased=1e-6, budget=2)
    assert run.result.unconfirmed > 0
    assert any("--set budget" in note for note in run.description.notes)


def confirmed_by_batch(run):
    """Number of tokens that each batch of the confirming round measured."""
    stages = sorted({path.stem.rsplit("-", 1)[0] for path in (run.path / "shards").glob("confirm-*")})
    return {stage: len(profiled.shard_rows(run, stage)) for stage in stages}


def test_the_confirming_round_ends_after_a_batch_in_which_no_token_may_reach_a_threshold(encoder, tmp_path):
    run = profiled.detect_profile(encoder, tmp_path / "run", smallest_erased=0.999, unusual=1000, budget=30)
    assert confirmed_by_batch(run) == {"confirm-1": 64}
    assert run.result.confirmed == 128 + 64
    assert run.result.unconfirmed == 0


def test_the_confirming_round_goes_on_while_tokens_may_reach_a_threshold(encoder, tmp_path):
    run = profiled.detect_profile(encoder, tmp_path / "run", smallest_erased=1e-6, budget=30)
    unmeasured = profiled.AVAILABLE - 128 - 3 * 64
    batches = {"confirm-1": 64, "confirm-2": 64, "confirm-3": 64, "confirm-4": unmeasured}
    assert confirmed_by_batch(run) == batches
    assert run.result.confirmed == profiled.AVAILABLE
    assert run.result.unconfirmed == 0


def test_a_table_that_was_deleted_is_made_again_without_encoding(encoder, tmp_path):
    run = detect_profile(encoder, tmp_path / "run")
    (tmp_path / "run" / "tokens.parquet").unlink()
    events = []
    again = detect_profile(encoder, tmp_path / "run", progress=events.append)
    assert {event.computed for event in events} == {0}
    assert again.tokens.equals(run.tokens)


def alike(noise):
    model = profiled.planted_model(0)
    weights = model[0].embedding.weight.data
    weights[:] = 1 + noise * weights
    return model


SAME = r"the same similarity \(1\.0000\), so no token can change it"
REFUSED = {
    "too few": ({"sentences": profiled.corpus(23)}, naming(23, 26)),
    "alike": ({"model": lambda: alike(1e-5)}, SAME),
    "pairs": (
        {"sentences": None, "pairs": [SentencePair("a bird", "a song", 0.1)]},
        naming("pairs", "std"),
    ),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_measured_is_refused_and_leaves_the_folder_free(encoder, tmp_path, options, message):
    options = dict(options)
    loaded = load_encoder(options.pop("model")()) if "model" in options else encoder
    with pytest.raises(InputError, match=message):
        detect_profile(loaded, tmp_path / "run", **options)
    assert not list((tmp_path / "run").glob("*.json"))


@pytest.mark.slow
def test_only_the_screen_is_in_lower_precision(tmp_path):
    """Not to the bit: shards of the last round hold other tokens, so that batches differ."""
    (tmp_path / "model").mkdir()
    model = tiny.sentence_transformer(tiny.bert_backbone(tmp_path / "model", words=profiled.WORDS))
    plain = profiled.detect_profile(load_encoder(model), tmp_path / "plain")
    lower = profiled.detect_profile(load_encoder(model), tmp_path / "lower", screen_precision="bfloat16")
    assert plain.result.screening_carriers == lower.result.screening_carriers
    for step, fewest in (("pilot", 128), ("confirm", 5)):
        rows = {run: profiled.shard_rows(run, step) for run in (plain, lower)}
        common_ids = set(rows[plain]) & set(rows[lower])
        assert len(common_ids) >= fewest
        assert max(difference(rows, token) for token in common_ids) < 1e-6
    early = {run: profiled.shard_rows(run, "screen") for run in (plain, lower)}
    assert early[plain].keys() == early[lower].keys()
    assert max(difference(early, token) for token in early[plain]) > 1e-4


def difference(rounds, token):
    one, other = (np.array(rows[token]["contractions"]) for rows in rounds.values())
    return np.abs(one - other).max()


def test_a_sample_and_the_same_tokens_named_are_two_runs(encoder, tmp_path):
    sampled = detect_profile(encoder, tmp_path / "sampled", sample=20)
    ids = sampled.tokens["token_id"].to_list()
    with pytest.raises(RunError, match="sampled"):
        detect_profile(encoder, tmp_path / "sampled", tokens=ids)


def test_pulls_that_would_take_too_much_space_are_kept_on_their_main_axes(tmp_path):
    """Pulls in a plane need no more than two axes, however many dimensions the model has."""
    generator = np.random.default_rng(3)
    plane, _ = np.linalg.qr(generator.normal(size=(16, 2)))
    pull = (generator.normal(size=(50, 2)) @ plane.T).astype(np.float16)
    effects = Effects(np.arange(50), np.zeros(50), pull)
    folder = ResultFolder(tmp_path)
    write_effects(folder, SimpleNamespace(ids=effects.ids, effects=effects), most_bytes=2 * 2 * 50)
    assert folder.read_table("effects_axes.parquet")["axis"].to_numpy().shape == (2, 16)
    assert read_effects(tmp_path).pull == pytest.approx(pull, abs=0.01)
