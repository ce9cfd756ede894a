"""effects.parquet: what is written of every round, and what is read of it."""

import io

import numpy as np
import polars as pl
import pytest

import profiled
from stickytoken import load_encoder
from stickytoken.methods.panel import AnchorPanel, unit_vectors
from stickytoken.methods.profile._effects import EFFECTS_COLUMNS, EFFECTS_FILE, effects_frame, round_effects
from stickytoken.methods.profile.estimates import Measurements
from stickytoken.methods.profile.rounds import Round
from stickytoken.methods.pull import Pull, anchorage, fit_pull, predicted_lifts

DIMENSION = 9


def measured(ids, seed):
    generator = np.random.default_rng(seed)
    count = len(ids)
    nothing = np.zeros((count, 2))
    pull = generator.normal(size=(count, DIMENSION)).astype(np.float16)
    effects = Pull(generator.random(count), pull)
    return Measurements(np.array(ids), nothing, nothing.astype(np.float32), nothing[:, :, None], effects)


def reread(frame):
    file = io.BytesIO()
    frame.write_parquet(file)
    file.seek(0)
    return pl.read_parquet(file)


def test_one_row_per_round_and_token_is_read_as_it_was_written():
    rounds = {Round.SCREEN: measured([3, 5, 9], 1), Round.CONFIRM: measured([5, 9], 2)}
    frame = reread(effects_frame(rounds))
    assert tuple(frame.columns) == EFFECTS_COLUMNS
    assert frame["round"].to_list() == ["screen"] * 3 + ["confirm"] * 2
    assert frame["token_id"].to_list() == [3, 5, 9, 5, 9]
    for step, own in rounds.items():
        found = round_effects(frame.sample(fraction=1, shuffle=True, seed=3), step)
        assert found.ids.tolist() == own.ids.tolist()
        assert np.array_equal(found.effects.pull, own.effects.pull.astype(np.float32))
        assert found.effects.contraction == pytest.approx(own.effects.contraction, abs=1e-7)


def test_a_round_that_was_not_measured_has_no_rows():
    found = round_effects(reread(effects_frame({Round.SCREEN: measured([3, 5], 1)})), Round.CONFIRM)
    assert found.ids.tolist() == []
    assert found.effects.contraction.shape == (0,)
    assert found.effects.pull.shape == (0, DIMENSION)


def test_a_pull_takes_two_bytes_per_dimension():
    frame = effects_frame({Round.SCREEN: measured([3, 5], 1)})
    assert frame.schema["pull"] == pl.Array(pl.Float16, DIMENSION)


# Of a run.


@pytest.fixture(scope="module")
def model():
    return profiled.planted_model(2)


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("effects") / "run"
    return profiled.detect_profile(load_encoder(model), folder, insertion="text")


def test_a_run_keeps_the_effects_of_both_rounds(run):
    frame = pl.read_parquet(run.path / EFFECTS_FILE)
    screened, confirmed = (round_effects(frame, step) for step in (Round.SCREEN, Round.CONFIRM))
    assert screened.ids.tolist() == run.tokens["token_id"].to_list()
    assert set(run.plan.late_reference) <= set(confirmed.ids.tolist()) <= set(screened.ids.tolist())
    assert len(confirmed.ids) == run.result.candidates
    assert set(frame["round"]) == {"screen", "confirm"}


def test_the_effects_of_a_token_are_fitted_to_the_carriers_of_its_round(model, run):
    """The first carrier of a prefix and a suffix cell each, written out as texts."""
    frame = pl.read_parquet(run.path / EFFECTS_FILE)
    found = round_effects(frame, Round.SCREEN)
    places = run.result.screening_carriers
    cells = [(("prefix", "suffix", "random")[p % 3], (8, 4)[(p % 3 + p // 3) % 2]) for p in places]
    if any(placement == "random" for placement, _ in cells):
        assert len(cells) == 3  # such a text depends on the seed; the lifts below do not need it
        return
    before = [run.plan.carriers[place] for place in places]
    after = [
        "!" * copies + text if placement == "prefix" else text + "!" * copies
        for text, (placement, copies) in zip(before, cells, strict=True)
    ]
    vectors = unit_vectors(model.encode(before)), unit_vectors(model.encode(after))
    contraction, pull = fit_pull(*vectors)
    row = found.ids.tolist().index(34)
    assert found.effects.contraction[row] == pytest.approx(contraction, abs=1e-5)
    assert found.effects.pull[row] == pytest.approx(pull, abs=1e-3)


def test_lifts_predicted_from_the_effects_agree_with_those_that_were_measured(model, run):
    """On the anchors and carriers of the run itself; of single texts the two differ."""
    encoder = load_encoder(model)
    plan = run.plan
    texts = [anchor.text for anchor in plan.anchors]
    weights = np.array([group.weight for group in plan.groups])
    places = np.array([anchor.group for anchor in plan.anchors])
    rest = [text for k, text in enumerate(plan.carriers) if k not in run.result.screening_carriers]
    panel = AnchorPanel(unit_vectors(encoder.encode(texts)), places, weights[: places.max() + 1])
    corpus = anchorage(panel.against(unit_vectors(encoder.encode(rest)), plan.mean_similarity))
    confirmed = round_effects(pl.read_parquet(run.path / EFFECTS_FILE), Round.CONFIRM)
    predicted = predicted_lifts(confirmed.effects, corpus)
    lifts = dict(run.tokens.select("token_id", "lift").iter_rows())
    stored = np.array([lifts[token_id] for token_id in confirmed.ids.tolist()])
    assert np.corrcoef(predicted, stored)[0, 1] > 0.95
    assert confirmed.ids[predicted.argmax()] == 34
