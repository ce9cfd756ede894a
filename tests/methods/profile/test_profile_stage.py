"""One round of the profile method: which texts a token is put into, and what their vectors mean."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

import profiled
from stickytoken.insertion import Placement, Token, TokenizedText, insert_as_ids, insert_as_text
from stickytoken.measurement.engine import Shard
from stickytoken.measurement.stages import TokenWork
from stickytoken.methods.profile.rounds import Cell, ProfileStage
from stickytoken.unit_vectors import unit_vectors

PREFIX, SUFFIX, RANDOM = Placement
MARK = "\N{BLACK STAR}"
TOKEN = Token(777, f" {MARK}")
TEXTS = ("a red boat", "one", "two words", "here are four words", "", "  spaces \t everywhere ")
TOKENIZED = tuple(
    TokenizedText((1, 2), tuple((10 * index + word,) for word in range(len(text.split()))))
    for index, text in enumerate(TEXTS)
)
CELLS = tuple(Cell(placement, copies) for copies in (1, 3) for placement in Placement)
DIMENSION = 6
CARRIER_INDICES = (5, 0, 7, 9, 2, 30)

words = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=3).map(tuple), max_size=6).map(tuple)
tokenized_texts = st.builds(
    TokenizedText, head=st.lists(st.integers(0, 99), max_size=2).map(tuple), words=words
)


def vectors_of(probes):
    return profiled.hashed_vectors(probes, DIMENSION)


def units_of(probes):
    return unit_vectors(vectors_of(probes))


def stage_of(carriers=TEXTS, cells=CELLS, seed=3, carrier_indices=CARRIER_INDICES):
    return ProfileStage("screen", carriers, carrier_indices, cells, units_of(carriers), seed)


def test_a_token_goes_into_every_carrier_once_as_its_cell_says():
    for stage, insert, carriers in (
        (stage_of(), insert_as_text, TEXTS),
        (stage_of(TOKENIZED), insert_as_ids, TOKENIZED),
    ):
        probes = stage.probes(TOKEN)
        assert stage.probes_per_token == len(probes) == 6
        for probe, carrier, cell in zip(probes, carriers, CELLS, strict=True):
            assert probe.count(MARK if isinstance(probe, str) else TOKEN.id) == cell.copies
            if cell.placement is not RANDOM:
                assert probe == insert(TOKEN, carrier, cell.placement, cell.copies)[-1]


@settings(max_examples=30)
@given(st.lists(tokenized_texts, min_size=1, max_size=4), st.integers(1, 8), st.integers(100, 10**6))
def test_random_ids_keep_the_carrier_and_stand_at_its_word_boundaries(carriers, copies, token_id):
    cells = (Cell(RANDOM, copies),) * len(carriers)
    carrier_indices = tuple(range(len(carriers)))
    vectors = units_of(["any carrier"])
    probes = ProfileStage("x", tuple(carriers), carrier_indices, cells, vectors, 5).probes(
        Token(token_id, "x")
    )
    for carrier, probe in zip(carriers, probes, strict=True):
        assert probe.count(token_id) == copies
        assert tuple(probe_id for probe_id in probe if probe_id != token_id) == carrier.ids
        inside = [
            len(carrier.head),
            *itertools.accumulate(map(len, carrier.words), initial=len(carrier.head)),
        ]
        passed = 0
        for probe_id in probe:
            assert probe_id != token_id or passed in inside
            passed += probe_id != token_id


def test_random_copies_are_spread_over_all_arrangements_evenly():
    stage = stage_of(("two words",), (Cell(RANDOM, 3),), carrier_indices=(4,))
    counts_of_pattern = Counter()
    for token_id in range(100, 3100):
        (probe,) = stage.probes(Token(token_id, "x"))
        counts_of_pattern[tuple(word == "x" for word in probe.split())] += 1
    assert len(counts_of_pattern) == math.comb(5, 3)
    assert stats.chisquare(list(counts_of_pattern.values())).pvalue > 0.001


def randoms(stage, token_id=777):
    """Random placements as arrangements of copies and words, whatever the copies are."""
    return [
        [probe_id == token_id for probe_id in probe]
        for probe, cell in zip(stage.probes(Token(token_id, "x")), stage.cells, strict=False)
        if cell.placement is RANDOM
    ]


def test_random_placement_depends_on_seed_token_and_place_and_on_nothing_else():
    carriers = (TokenizedText((), tuple((k,) for k in range(20))),) * 4
    cells = (Cell(RANDOM, 5),) * 4
    plain = stage_of(carriers, cells, carrier_indices=(0, 1, 2, 3))
    first = randoms(plain)
    assert len({tuple(probe_ids) for probe_ids in first}) == 4
    assert randoms(stage_of(carriers, cells, carrier_indices=(0, 1, 2, 3))) == first
    moved = replace(plain, carrier_indices=(8, 9, 10, 11))
    for other in (randoms(replace(plain, seed=4)), randoms(plain, 778), randoms(moved)):
        assert all(first_probe != right for first_probe, right in zip(first, other, strict=True))
    carriers = (TokenizedText((), tuple((k,) for k in range(9))),) * 6
    cells = (Cell(RANDOM, 4),) * 6
    first = randoms(stage_of(carriers, cells))
    longer = TokenizedText((5, 5), ((1, 2, 3),) * 30)
    carrier_indices = (1, *CARRIER_INDICES[1:3])
    others = stage_of((longer, *carriers[1:3]), (CELLS[0], *cells[1:3]), carrier_indices=carrier_indices)
    renamed = replace(others, name="confirm", without_copies=units_of(["any", "other"]))
    assert randoms(others) == randoms(renamed) == first[1:3]


def slow_row(stage, probes):
    carriers = units_of(stage.carriers)
    copies = units_of(probes)
    deviations = carriers - carriers.mean(axis=0)
    moved = copies - copies.mean(axis=0)
    spread = float((deviations**2).sum()) / len(carriers)
    contractions = []
    for shift, deviation in zip(moved, deviations, strict=True):
        contractions.append(1 - float(shift @ deviation) / spread)
    design = np.hstack([carriers.reshape(-1, 1), np.tile(np.eye(DIMENSION), (len(carriers), 1))])
    contraction, *pull = np.linalg.lstsq(design.astype(float), copies.ravel().astype(float), rcond=None)[0]
    return {"contractions": contractions, "contraction": 1 - contraction, "pull": pull}


@pytest.mark.parametrize("carriers", [TEXTS, TOKENIZED], ids=["text", "ids"])
def test_a_row_equals_a_loop_over_carriers(carriers):
    stage = stage_of(carriers)
    probes = stage.probes(TOKEN)
    measured = dict(stage.measure([TOKEN], vectors_of(probes))[0])
    expected = slow_row(stage, probes)
    assert set(measured) == set(expected)
    for name, value in expected.items():
        tolerance = 1e-3 if name == "pull" else 1e-5  # pulls are kept in half precision
        assert measured[name] == pytest.approx(value, abs=tolerance), name


def test_copies_are_counted_beyond_those_that_the_carrier_has(encoder):
    carriers = ("the river", "a song", "the river")
    probes = ("the river river", "a song", "a song")
    stage = SimpleNamespace(probes=lambda token: list(probes))
    token = Token(encoder.content_ids(["river"])[0][0], "river")
    work = TokenWork(stage, carrier_texts=carriers)
    inputs_seen = work.prepare(Shard(0, (token,)), encoder).copies_seen
    assert inputs_seen == [[1, 0, 0]]
