"""Whether layers are packed is measured, kept, and overridden."""

import itertools
import json
import logging
import time

import numpy as np
import pytest

import tiny
from stickytoken import load_encoder
from stickytoken.encoders.cpu.choice import measured, shortest, trial_inputs
from stickytoken.encoders.cpu.linear import PackedLinears
from stickytoken.machine import cache_folder, keep, recalled


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("STICKYTOKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STICKYTOKEN_PACKED_LAYERS")
    return tiny.sentence_transformer(tiny.bert_backbone(tmp_path))


def sleeping(seconds, calls):
    return lambda: (calls.append(seconds), time.sleep(seconds))


def test_the_faster_way_is_chosen_once_and_then_remembered(model):
    calls = []
    ways = {"slow": sleeping(0.02, calls), "fast": sleeping(0.001, calls)}
    found = measured("speed", model, ways, threads=2)
    assert found["fast"] < found["slow"]
    called = len(calls)
    assert measured("speed", model, ways, threads=2) == found
    assert len(calls) == called
    measured("speed", model, ways, threads=1)
    assert len(calls) > called
    (first, second) = sorted(len(list(group)) for _, group in itertools.groupby(sorted(calls)))
    assert first == second


def test_times_are_taken_by_turns_after_one_call_of_each():
    calls = []
    found = shortest((lambda: calls.append("a"), lambda: calls.append("b")))
    assert len(found) == 2
    assert len(calls) >= 8
    assert calls == ["a", "b"] * (len(calls) // 2)


@pytest.mark.parametrize("content", ["", "[]", '{"plain": 1}', "\x00"])
def test_a_damaged_measurement_is_made_again(model, content):
    load_encoder(model)
    (path,) = cache_folder().iterdir()
    path.write_text(content)
    load_encoder(model)
    assert set(json.loads(path.read_text())) == {"plain", "packed"}


@pytest.mark.parametrize(("plain", "packed"), [(1.0, 2.0), (2.0, 1.0)])
def test_the_measurement_decides_and_options_override_it(model, monkeypatch, caplog, plain, packed):
    entered = []
    active = PackedLinears.active
    monkeypatch.setattr(PackedLinears, "active", lambda self: entered.append(1) or active(self))
    load_encoder(model)
    (path,) = cache_folder().iterdir()
    keep(path.stem, {"plain": plain, "packed": packed})

    def packs(**options):
        encoder = load_encoder(model, **options)
        entered.clear()
        encoder.encode(["a bird sings"])
        return bool(entered)

    with caplog.at_level(logging.INFO, "stickytoken"):
        assert packs() is (packed < plain)
    said = "have packed weights" if packed < plain else "are torch's own"
    assert f"linear layers {said}, measured on this machine (1.000 s, otherwise 2.000 s)" in caplog.text
    assert packs(packed_layers=True)
    assert not packs(packed_layers=False)
    monkeypatch.setenv("STICKYTOKEN_PACKED_LAYERS", "1")
    assert packs()
    monkeypatch.setenv("STICKYTOKEN_PACKED_LAYERS", "0")
    assert not packs()
    assert recalled(path.stem) == {"plain": plain, "packed": packed}


def test_both_ways_give_the_same_vectors(model):
    texts = ["a bird sings", "the old river"]
    packed, plain = (load_encoder(model, packed_layers=way).encode(texts) for way in (True, False))
    assert np.abs(packed - plain).max() <= 1e-6 * np.abs(plain).max()


def test_a_trial_is_as_long_as_the_model_is_small(model):
    contents = [(1,) * 16] * 1000
    assert len(trial_inputs(model, contents)) == 64
    assert trial_inputs(model, [(1,) * 10_000_000]) == [(1,) * 10_000_000]
    assert trial_inputs(model[1], contents) == []


def test_a_cache_that_cannot_be_written_is_no_error(model, tmp_path):
    (tmp_path / "cache").write_text("a file, where a folder should be")
    load_encoder(model).encode(["a bird sings"])
