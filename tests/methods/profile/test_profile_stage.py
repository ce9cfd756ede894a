"""One round of the profile method: which texts a token is put into, and what their vectors mean."""

import hashlib
import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stickytoken.errors import InputError
from stickytoken.insertion import (
    Placement,
    Token,
    TokenizedText,
    copies_as_ids,
    copies_as_text,
    insert_as_ids,
    insert_as_text,
)
from stickytoken.methods.probes import AnchorPanel
from stickytoken.methods.profile.plan import Cell, ProfileStage

PREFIX, SUFFIX, RANDOM = Placement
MARK = "\N{BLACK STAR}"
TOKEN = Token(777, f" {MARK}")
TEXTS = ("a red boat", "one", "two words", "here are four words", "", "  spaces \t everywhere ")
TOKENIZED = tuple(
    TokenizedText((1, 2), tuple((10 * place + word,) for word in range(len(text.split()))))
    for place, text in enumerate(TEXTS)
)
CELLS = tuple(Cell(placement, copies) for copies in (1, 3) for placement in Placement)
DIMENSION, MEAN_SIMILARITY = 6, 0.35
# Mean similarities that leave out whole groups, and groups and carriers here and there.
LEVELS = (-0.6, -0.3, -0.15)
# The last group is measured beside the lift.
GROUPS, WEIGHTS = np.array([0, 1, 2, 0, 1, 2, 0, 1, 3, 3]), np.array([0.2, 0.3, 0.5, 0.0])
PLACES = (5, 0, 7, 9, 2, 30)

words = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=3).map(tuple), max_size=6).map(tuple)
tokenized_texts = st.builds(
    TokenizedText, head=st.lists(st.integers(0, 99), max_size=2).map(tuple), words=words
)
token_texts = st.sampled_from([MARK, f" {MARK}", f" {MARK} {MARK}", "", " "])


def vector_of(probe):
    """A vector that depends on nothing but the probe, not of length 1."""
    seed = int.from_bytes(hashlib.sha256(repr(probe).encode()).digest()[:8], "big")
    return (np.random.default_rng(seed).normal(size=DIMENSION) + 0.5).astype(np.float32)


def units_of(probes):
    vectors = np.stack([vector_of(probe) for probe in probes])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def panel_of(carriers, u=MEAN_SIMILARITY):
    anchors = AnchorPanel(units_of([f"anchor {k}" for k in range(len(GROUPS))]), GROUPS, WEIGHTS)
    return anchors.against(units_of(carriers), u)


def stage_of(carriers=TEXTS, cells=CELLS, seed=3, u=MEAN_SIMILARITY, places=PLACES):
    return ProfileStage("screen", carriers, places, cells, panel_of(carriers, u), seed)


def vectors_of(probes):
    return np.stack([vector_of(probe) for probe in probes])


# copies_as_text, copies_as_ids


@settings(max_examples=150)
@given(st.data(), token_texts, st.sampled_from(TEXTS), st.sampled_from(Placement), st.integers(1, 6))
def test_the_text_with_n_copies_is_the_last_of_those_with_up_to_n(data, text, carrier, placement, copies):
    token = Token(7, text)
    gaps = [len(carrier.split()) + step * len(text.split()) for step in range(copies)]
    path = tuple(data.draw(st.integers(0, gap)) for gap in gaps)
    found = copies_as_text(token, carrier, placement, copies, path)
    assert found == insert_as_text(token, carrier, placement, copies, path)[-1]
    assert found.count(MARK) == copies * text.count(MARK)


@settings(max_examples=150)
@given(st.data(), tokenized_texts, st.sampled_from(Placement), st.integers(1, 6))
def test_the_ids_with_n_copies_are_the_last_of_those_with_up_to_n(data, carrier, placement, copies):
    token = Token(7777, MARK)
    path = tuple(data.draw(st.integers(0, len(carrier.words) + step)) for step in range(copies))
    found = copies_as_ids(token, carrier, placement, copies, path)
    assert found == insert_as_ids(token, carrier, placement, copies, path)[-1]
    assert found.count(7777) == copies
    assert tuple(own for own in found if own != 7777) == carrier.ids


def test_copies_go_to_their_place():
    tokenized = TokenizedText((1,), ((10,), (11, 12)))
    token = Token(7, " x")
    assert copies_as_text(token, "a boat", PREFIX, 2) == " x xa boat"
    assert copies_as_text(token, "a boat", SUFFIX, 2) == "a boat x x"
    assert copies_as_text(token, "a boat", RANDOM, 2, (1, 0)) == " x a x boat"
    assert copies_as_ids(token, tokenized, PREFIX, 2) == (1, 7, 7, 10, 11, 12)
    assert copies_as_ids(token, tokenized, SUFFIX, 2) == (1, 10, 11, 12, 7, 7)
    assert copies_as_ids(token, tokenized, RANDOM, 2, (1, 0)) == (1, 7, 10, 7, 11, 12)


@pytest.mark.parametrize(
    ("copies_as", "carrier"), [(copies_as_text, "a boat"), (copies_as_ids, TOKENIZED[2])]
)
def test_copies_that_a_path_does_not_place_are_refused(copies_as, carrier):
    with pytest.raises(InputError, match="of 3 copies needs a path of 3 gaps, got 2"):
        copies_as(TOKEN, carrier, RANDOM, 3, (0, 1))
    with pytest.raises(InputError, match=r"gap 4 of .* outside a sentence of 3 words"):
        copies_as(TOKEN, carrier, RANDOM, 2, (0, 4))


# probes


def test_a_token_goes_into_every_carrier_once_as_its_cell_says():
    stage, of_ids = stage_of(), stage_of(TOKENIZED)
    texts, ids = stage.probes(TOKEN), of_ids.probes(TOKEN)
    assert stage.probes_per_token == of_ids.probes_per_token == len(texts) == len(ids) == 6
    for place, cell in enumerate(CELLS):
        if cell.placement is not RANDOM:
            assert texts[place] == insert_as_text(TOKEN, TEXTS[place], *_cell(cell))[-1]
            assert ids[place] == insert_as_ids(TOKEN, TOKENIZED[place], *_cell(cell))[-1]
        assert texts[place].count(MARK) == ids[place].count(TOKEN.id) == cell.copies


def _cell(cell):
    return cell.placement, cell.copies


@given(st.lists(tokenized_texts, min_size=1, max_size=4), st.integers(1, 8), st.integers(100, 10**6))
def test_random_ids_keep_the_carrier_and_stand_at_its_word_boundaries(carriers, copies, token_id):
    cells = (Cell(RANDOM, copies),) * len(carriers)
    panel, places = panel_of(["any carrier"]), tuple(range(len(carriers)))
    probes = ProfileStage("x", tuple(carriers), places, cells, panel, 5).probes(Token(token_id, "x"))
    for carrier, probe in zip(carriers, probes, strict=True):
        assert probe.count(token_id) == copies
        assert tuple(own for own in probe if own != token_id) == carrier.ids
        inside = [
            len(carrier.head),
            *itertools.accumulate(map(len, carrier.words), initial=len(carrier.head)),
        ]
        passed = 0
        for own in probe:
            assert own != token_id or passed in inside
            passed += own != token_id


@given(st.sampled_from(TEXTS), st.integers(1, 8), token_texts, st.integers(0, 10**6))
def test_random_texts_keep_the_words_of_the_carrier_in_order(text, copies, token_text, token_id):
    stage = ProfileStage("x", (text,), (4,), (Cell(RANDOM, copies),), panel_of([text]), 5)
    (probe,) = stage.probes(Token(token_id, token_text))
    assert [word for word in probe.split() if word != MARK] == text.split()
    assert probe.count(MARK) == copies * token_text.count(MARK)


@pytest.mark.parametrize("as_ids", [False, True])
def test_random_copies_are_spread_over_all_arrangements_evenly(as_ids):
    """Each copy goes into any gap with the same chance, so that every arrangement has the same chance."""
    text = "two words"
    carrier = TokenizedText((), ((1,), (2,))) if as_ids else text
    stage = ProfileStage("x", (carrier,), (4,), (Cell(RANDOM, 3),), panel_of([text]), 5)
    found = Counter()
    for token_id in range(100, 3100):
        (probe,) = stage.probes(Token(token_id, "x"))
        marks = [own == token_id for own in probe] if as_ids else [own == "x" for own in probe.split()]
        found[tuple(marks)] += 1
    assert len(found) == math.comb(5, 3)
    assert stats.chisquare(list(found.values())).pvalue > 0.001


def randoms(stage, token_id=777):
    """Random placements as arrangements of copies and words, whatever the copies are."""
    return [
        [own == token_id for own in probe]
        for probe, cell in zip(stage.probes(Token(token_id, "x")), stage.cells, strict=False)
        if cell.placement is RANDOM
    ]


def test_random_placement_depends_on_seed_token_and_place():
    carriers, cells = (TokenizedText((), tuple((k,) for k in range(20))),) * 4, (Cell(RANDOM, 5),) * 4
    plain = stage_of(carriers, cells, places=(0, 1, 2, 3))
    first = randoms(plain)
    assert len({tuple(own) for own in first}) == 4
    assert randoms(stage_of(carriers, cells, places=(0, 1, 2, 3))) == first
    moved = replace(plain, places=(8, 9, 10, 11))
    for other in (randoms(replace(plain, seed=4)), randoms(plain, 778), randoms(moved)):
        assert all(left != right for left, right in zip(first, other, strict=True))


def test_random_placement_depends_on_nothing_else():
    """A carrier has the same text in the pilot, where all carriers are, and in a later round."""
    carriers, cells = (TokenizedText((), tuple((k,) for k in range(9))),) * 6, (Cell(RANDOM, 4),) * 6
    plain = stage_of(carriers, cells)
    first = randoms(plain)
    longer = TokenizedText((5, 5), ((1, 2, 3),) * 30)
    others = stage_of((longer, *carriers[1:3]), (CELLS[0], *cells[1:3]), places=(1, *PLACES[1:3]))
    renamed = replace(others, name="confirm", panel=panel_of(["any", "other"], 0.9))
    assert randoms(others) == randoms(renamed) == first[1:3]
    for token_id in (5, 10**9):
        plain.probes(Token(token_id, "y"))
    assert randoms(plain) == first
    assert plain.probes(Token(777, "other text")) == plain.probes(Token(777, "x"))


# measure


def slow_row(stage, probes, u):
    """Loops over carriers, anchors and groups."""
    anchors = stage.panel.panel.vectors
    carriers, copies = units_of(stage.carriers), units_of(probes)
    before = (carriers @ anchors.T).astype(float).tolist()
    after = (copies @ anchors.T).astype(float).tolist()
    row = {name: [] for name in ("lifts", "rising", "groups")}
    for old, new in zip(before, after, strict=True):
        changes = {
            group: [n - o for o, n, g in zip(old, new, GROUPS, strict=True) if g == group and o < u]
            for group in range(4)
        }
        means = {group: sum(own) / len(own) for group, own in changes.items() if own}
        rises = {group: sum(c > 0 for c in own) / len(own) for group, own in changes.items() if own}
        row["groups"] += [means.get(group, math.nan) for group in range(4)]
        row["lifts"].append(_weighted(means))
        row["rising"].append(_weighted(rises))
    design = np.hstack([carriers.reshape(-1, 1), np.tile(np.eye(DIMENSION), (len(carriers), 1))])
    kept, *pull = np.linalg.lstsq(design.astype(float), copies.ravel().astype(float), rcond=None)[0]
    return row | {"contraction": 1 - kept, "pull": pull}


def _weighted(means):
    total = sum(WEIGHTS[group] for group in means)
    return sum(WEIGHTS[group] * mean for group, mean in means.items()) / total if total else 0.0


@pytest.mark.parametrize("u", [-2.0, *LEVELS, 0.1, 2.0])
@pytest.mark.parametrize("carriers", [TEXTS, TOKENIZED], ids=["text", "ids"])
def test_a_row_equals_loops_over_carriers_anchors_and_groups(carriers, u):
    stage = stage_of(carriers, u=u)
    probes = stage.probes(TOKEN)
    found = dict(stage.measure(TOKEN, vectors_of(probes)))
    expected = slow_row(stage, probes, u)
    assert set(found) == set(expected)
    for name, value in expected.items():
        tolerance = 1e-3 if name == "pull" else 1e-5  # pulls are kept in half precision
        assert found[name] == pytest.approx(value, abs=tolerance, nan_ok=name == "groups"), name


@pytest.mark.parametrize("carriers", [TEXTS, TOKENIZED], ids=["text", "ids"])
def test_the_mean_similarities_of_the_loops_leave_groups_and_carriers_out(carriers):
    """Otherwise the test above would prove nothing about them."""
    counts = [panel.below @ panel.panel.membership for panel in (panel_of(carriers, u) for u in LEVELS)]
    present = [(own > 0).any(axis=0) for own in counts]
    assert any(own.any() and not own.all() for own in present)
    assert any(((own == 0).any(axis=1) & (own > 0).any(axis=1)).any() for own in counts)
    assert any((own == 0).all(axis=1).any() for own in counts)


def test_without_a_pair_below_there_is_no_lift_and_no_group():
    stage = stage_of(u=-2.0)
    row = stage.measure(TOKEN, vectors_of(stage.probes(TOKEN)))
    assert np.isnan(row["groups"]).all()
    assert row["lifts"] == [0] * 6
    assert not row["rising"].any()
    assert np.isfinite(row["pull"]).all()


def test_the_length_of_vectors_changes_nothing():
    stage = stage_of()
    vectors = vectors_of(stage.probes(TOKEN))
    row = stage.measure(TOKEN, vectors)
    longer = stage.measure(TOKEN, vectors * np.linspace(0.1, 9, 6, dtype=np.float32)[:, None])
    for name, value in row.items():
        assert longer[name] == pytest.approx(value, abs=1e-3 if name == "pull" else 1e-5, nan_ok=True)


def test_a_row_is_small_enough_for_a_large_vocabulary():
    """Two bytes per dimension for the pull, four per carrier and group."""
    stage = stage_of()
    row = stage.measure(TOKEN, vectors_of(stage.probes(TOKEN)))
    assert row["pull"].dtype == np.float16
    assert row["groups"].dtype == row["rising"].dtype == np.float32
    assert (len(row["groups"]), len(row["rising"]), len(row["pull"])) == (24, 6, DIMENSION)
    assert type(row["contraction"]) is float
