"""Small vocabularies, missing pairs, and what cannot be measured."""

import functools
import json

import numpy as np
import polars as pl
import pytest

import planted
import profiled
from stickytoken import load_encoder
from stickytoken.corpora.pairs import SentencePair
from stickytoken.errors import InputError

# With fewer texts, noise explains all that the tokens of this model differ by.
detect_profile = functools.partial(profiled.detect_profile, budget=6)


def rows_of(run, step):
    """What a round measured, as stored in the shards."""
    paths = sorted((run.path / "shards").glob(f"{step}-*.parquet"))
    return pl.concat([pl.read_parquet(path) for path in paths]).to_dicts()


def test_a_vocabulary_below_200_tokens_is_judged_by_intervals(tmp_path):
    for count, controlled in ((104, False), (105, True)):
        words = profiled.WORDS[:count]
        encoder = load_encoder(profiled.planted_model(2, words=words))
        corpus = profiled.corpus(words=words)
        run = detect_profile(encoder, tmp_path / f"run-{count}", sentences=corpus)
        assert len(run.tokens) == 95 + count
        assert run.result.empirical_null is controlled
        assert run.tokens["q_value"].is_null().all() is not controlled
        assert planted.PLANTED in run.sticky["token"].to_list()


@pytest.mark.parametrize("count", [5, 20])
def test_a_vocabulary_smaller_than_the_pilot_is_measured_on_all_carriers(tmp_path, count):
    """No token is left for the last round."""
    words = profiled.WORDS[:count]
    encoder = load_encoder(profiled.planted_model(2, words=words))
    corpus = profiled.corpus(words=[*words, *profiled.WORDS[:8]])
    run = detect_profile(encoder, tmp_path / "run", sentences=corpus, adaptive=True)
    assert len(run.tokens) == 95 + count < 128
    assert run.plan.late_reference == run.tokens["token_id"].to_list()
    assert run.result.candidates == len(run.tokens)
    assert {path.name.split("-")[0] for path in (run.path / "shards").iterdir()} == {"pilot", "screen"}
    assert set(run.tokens["texts"]) == {24}
    assert run.result.sequences == len(run.tokens) * 34
    assert planted.PLANTED in run.sticky["token"].to_list()
    again = detect_profile(encoder, run.path, sentences=corpus)
    assert again.tokens.equals(run.tokens)


def test_groups_without_a_pair_below_the_mean_have_no_say(tmp_path):
    """Shards with missing values are whole shards."""
    encoder = load_encoder(profiled.planted_model(2, common=0.3))
    run = detect_profile(encoder, tmp_path / "run")
    groups = np.array([row["groups"] for row in rows_of(run, "screen")], dtype=float)
    assert np.isnan(groups).any()
    assert not run.tokens["lift"].is_null().any()
    assert planted.PLANTED in run.sticky["token"].to_list()
    json.dumps(run.summary(), allow_nan=False)
    (tmp_path / "run" / "tokens.parquet").unlink()
    events = []
    again = detect_profile(encoder, tmp_path / "run", progress=events.append)
    assert {event.computed for event in events} == {0}
    assert again.tokens.equals(run.tokens)


def constant_model(noise):
    """Every text has the same vector, but for a little noise."""
    model = profiled.planted_model(0)
    weights = model[0].embedding.weight.data
    weights[:] = 1 + noise * weights
    return model


UNRELATED = SentencePair("a bird", "a song", 0.1)
REFUSED = {
    "too few": (
        2,
        {"sentences": profiled.corpus(67)},
        "29 carriers .* are needed; use more sentences, or a smaller budget$",
    ),
    "far too few": (2, {"sentences": profiled.corpus(28)}, "29 are needed: use more or shorter sentences$"),
    "alike": ("constant", {}, r"the same similarity \(1\.0000\): there is nothing that a token could"),
    "nearly alike": ("noisy", {}, r"the same similarity \(1\.0000\): there is nothing that a token could"),
    "above u": ("above", {}, "of 100 carriers from test have a similarity below the .* more varied subjects"),
    "pairs": (2, {"sentences": None, "pairs": [UNRELATED]}, "takes no pairs: pass sentences, or use .* std"),
    "settings of std": (2, {"settings": planted.SMALL, "method": "profile"}, "pass a ProfileSettings$"),
    "settings for std": (2, {"method": "std"}, "ProfileSettings, which the method 'std' does not take"),
}


@pytest.mark.parametrize(("model", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_measured_is_refused_and_leaves_the_folder_free(tmp_path, model, options, message):
    made = {
        "constant": lambda: constant_model(0),
        "noisy": lambda: constant_model(1e-5),
        "above": lambda: profiled.planted_model(2, common=2),
    }
    encoder = load_encoder(made[model]() if model in made else profiled.planted_model(model))
    with pytest.raises(InputError, match=message):
        detect_profile(encoder, tmp_path / "run", **options)
    right = load_encoder(profiled.planted_model(2))
    assert detect_profile(right, tmp_path / "run", tokens=[34]).result.sticky == 1
