"""One round of the profile method: which texts a token is put into, and what their vectors mean."""

import hashlib
import itertools
import json
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
from stickytoken.methods.panel import AnchorPanel
from stickytoken.methods.profile.rounds import Cell
from stickytoken.methods.profile.stage import ProfileStage

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
GROUPS, WEIGHTS = np.array([0, 1, 2, 0, 1, 2, 0, 1]), np.array([0.2, 0.3, 0.5])

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
    anchors = AnchorPanel(units_of([f"anchor {k}" for k in range(len(GROUPS))]), GROUPS, WEIGHTS, 2)
    return anchors.against(units_of(carriers), u)


def stage_of(carriers=TEXTS, cells=CELLS, seed=3, alone=False, u=MEAN_SIMILARITY):
    return ProfileStage("screen", carriers, cells, panel_of(carriers, u), seed, alone)


# copies_as_text, copies_as_ids


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.data(), token_texts, st.sampled_from(TEXTS), st.sampled_from(Placement), st.integers(1, 6))
def test_the_text_with_n_copies_is_the_last_of_those_with_up_to_n(data, text, carrier, placement, copies):
    token = Token(7, text)
    gaps = [len(carrier.split()) + step * len(text.split()) for step in range(copies)]
    path = tuple(data.draw(st.integers(0, gap)) for gap in gaps)
    found = copies_as_text(token, carrier, placement, copies, path)
    assert found == insert_as_text(token, carrier, placement, copies, path)[-1]
    assert found.count(MARK) == copies * text.count(MARK)


@settings(deadline=None, derandomize=True, max_examples=150)
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


@pytest.mark.parametrize("alone", [False, True])
def test_a_token_goes_into_every_carrier_once_as_its_cell_says(alone):
    stage, of_ids = stage_of(alone=alone), stage_of(TOKENIZED, alone=alone)
    texts, ids = stage.probes(TOKEN), of_ids.probes(TOKEN)
    assert stage.probes_per_token == of_ids.probes_per_token == len(texts) == len(ids) == 6 + alone
    for place, cell in enumerate(CELLS):
        if cell.placement is not RANDOM:
            assert texts[place] == insert_as_text(TOKEN, TEXTS[place], *_cell(cell))[-1]
            assert ids[place] == insert_as_ids(TOKEN, TOKENIZED[place], *_cell(cell))[-1]
        assert texts[place].count(MARK) == ids[place].count(TOKEN.id) == cell.copies


def _cell(cell):
    return cell.placement, cell.copies


def test_alone_a_token_has_as_many_copies_as_it_ever_has_and_the_prompt_in_front():
    assert stage_of(alone=True).probes(TOKEN)[-1] == TOKEN.text * 3
    assert stage_of(TOKENIZED, alone=True).probes(TOKEN)[-1] == (1, 2, 777, 777, 777)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(tokenized_texts, min_size=1, max_size=4), st.integers(1, 8), st.integers(100, 10**6))
def test_random_ids_keep_the_carrier_and_stand_at_its_word_boundaries(carriers, copies, token_id):
    cells = (Cell(RANDOM, copies),) * len(carriers)
    panel = panel_of(["any carrier"])
    probes = ProfileStage("x", tuple(carriers), cells, panel, 5).probes(Token(token_id, "x"))
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


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.sampled_from(TEXTS), st.integers(1, 8), token_texts, st.integers(0, 10**6))
def test_random_texts_keep_the_words_of_the_carrier_in_order(text, copies, token_text, token_id):
    stage = ProfileStage("x", (text,), (Cell(RANDOM, copies),), panel_of([text]), 5)
    (probe,) = stage.probes(Token(token_id, token_text))
    assert [word for word in probe.split() if word != MARK] == text.split()
    assert probe.count(MARK) == copies * token_text.count(MARK)


@pytest.mark.parametrize("as_ids", [False, True])
def test_random_copies_are_spread_over_all_arrangements_evenly(as_ids):
    """Each copy goes into any gap with the same chance, so that every arrangement has the same chance."""
    text = "two words"
    carrier = TokenizedText((), ((1,), (2,))) if as_ids else text
    stage = ProfileStage("x", (carrier,), (Cell(RANDOM, 3),), panel_of([text]), 5)
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
    plain = stage_of(carriers, cells)
    first = randoms(plain)
    assert len({tuple(own) for own in first}) == 4
    assert randoms(stage_of(carriers, cells)) == first
    for other in (randoms(replace(plain, seed=4)), randoms(plain, 778)):
        assert all(left != right for left, right in zip(first, other, strict=True))


def test_random_placement_depends_on_nothing_else():
    carriers, cells = (TokenizedText((), tuple((k,) for k in range(9))),) * 6, (Cell(RANDOM, 4),) * 6
    plain = stage_of(carriers, cells)
    first = randoms(plain)
    longer = TokenizedText((5, 5), ((1, 2, 3),) * 30)
    others = stage_of((*carriers[:3], longer, longer), (*cells[:3], *CELLS[:2]), alone=True)
    renamed = replace(others, name="confirm", panel=panel_of(["any", "other"], 0.9))
    assert randoms(others)[:3] == randoms(renamed)[:3] == first[:3]
    for token_id in (5, 10**9):
        plain.probes(Token(token_id, "y"))
    assert randoms(plain) == first
    assert plain.probes(Token(777, "other text")) == plain.probes(Token(777, "x"))


# measure


def slow_row(stage, probes, u):
    """Loops over carriers, anchors and groups."""
    anchors = stage.panel.panel.vectors
    before = (units_of(stage.carriers) @ anchors.T).astype(float).tolist()
    after = (units_of(probes[: len(before)]) @ anchors.T).astype(float).tolist()
    sizes = Counter(GROUPS.tolist())
    anchor_weights = [WEIGHTS[group] / sizes[group] for group in GROUPS]
    row = {name: [] for name in ("lifts", "sentence_lifts", "rising", "slopes", "intercept")}
    by_group = {group: [] for group in range(3)}
    for old, new in zip(before, after, strict=True):
        changes = {
            group: [n - o for o, n, g in zip(old, new, GROUPS, strict=True) if g == group and o < u]
            for group in range(3)
        }
        means = {group: sum(own) / len(own) for group, own in changes.items() if own}
        rises = {group: sum(c > 0 for c in own) / len(own) for group, own in changes.items() if own}
        for group, mean in means.items():
            by_group[group].append(mean)
        row["lifts"].append(_weighted(means))
        row["sentence_lifts"].append(_weighted({g: m for g, m in means.items() if g < 2}))
        row["rising"].append(_weighted(rises))
        slope, intercept = np.polyfit(old, new, 1, w=np.sqrt(anchor_weights))
        row["slopes"].append(slope)
        row["intercept"].append(intercept)
    for name in ("rising", "intercept"):
        row[name] = sum(row[name]) / len(before)
    row["groups"] = [sum(own) / len(own) if own else math.nan for own in by_group.values()]
    return row


def _weighted(means):
    total = sum(WEIGHTS[group] for group in means)
    return sum(WEIGHTS[group] * mean for group, mean in means.items()) / total if means else 0.0


@pytest.mark.parametrize("u", [-2.0, *LEVELS, 0.1, 2.0])
@pytest.mark.parametrize("carriers", [TEXTS, TOKENIZED], ids=["text", "ids"])
def test_a_row_equals_loops_over_carriers_anchors_and_groups(carriers, u):
    stage = stage_of(carriers, alone=True, u=u)
    probes = stage.probes(TOKEN)
    found = dict(stage.measure(TOKEN, np.stack([vector_of(probe) for probe in probes])))
    expected = slow_row(stage, probes, u)
    alone = units_of(probes[-1:])[0] @ stage.panel.panel.center
    assert found.pop("alone") == pytest.approx(float(alone), abs=1e-6)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-6, nan_ok=name == "groups"), name


@pytest.mark.parametrize("carriers", [TEXTS, TOKENIZED], ids=["text", "ids"])
def test_the_mean_similarities_of_the_loops_leave_groups_and_carriers_out(carriers):
    """Otherwise the test above would prove nothing about them."""
    counts = [panel.below @ panel.panel.membership for panel in (panel_of(carriers, u) for u in LEVELS)]
    present = [(own > 0).any(axis=0) for own in counts]
    assert any(own.any() and not own.all() for own in present)
    assert any(own.all() for own in present)
    assert any(((own == 0).any(axis=1) & (own > 0).any(axis=1)).any() for own in counts)
    assert any((own == 0).all(axis=1).any() for own in counts)


def test_a_group_that_no_carrier_lies_below_has_no_value():
    stage = stage_of(u=-2.0)
    row = stage.measure(TOKEN, np.stack([vector_of(probe) for probe in stage.probes(TOKEN)]))
    assert np.isnan(row["groups"]).all()
    assert row["lifts"] == row["sentence_lifts"] == [0] * 6
    assert row["rising"] == 0


def test_a_carrier_without_a_line_is_left_out_of_the_mean_line():
    """A carrier as far from one anchor as from every other tells nothing about a slope."""
    anchors = AnchorPanel(np.eye(4, 5, dtype=np.float32), np.array([0, 1, 2, 0]), WEIGHTS, 2)
    flat, first, second = np.eye(5, dtype=np.float32)[[4, 0, 1]]
    after = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)

    def line(carriers, vectors):
        panel = anchors.against(np.stack(carriers), 0.5)
        stage = ProfileStage("screen", TEXTS[: len(carriers)], CELLS[: len(carriers)], panel, 3)
        row = stage.measure(TOKEN, vectors)
        return row["slopes"], row["intercept"]

    slopes, intercept = line([flat, first, second], after)
    others, expected = line([first, second], after[1:])
    assert slopes == pytest.approx([math.nan, *others], abs=1e-6, nan_ok=True)
    assert intercept == pytest.approx(expected, abs=1e-6)
    slopes, intercept = line([flat, flat], after[:2])
    assert np.isnan([*slopes, intercept]).all()


def test_the_length_of_vectors_changes_nothing_and_the_token_alone_counts_for_no_lift():
    stage = stage_of(alone=True)
    vectors = np.stack([vector_of(probe) for probe in stage.probes(TOKEN)])
    row = stage.measure(TOKEN, vectors)
    longer = stage.measure(TOKEN, vectors * np.linspace(0.1, 9, 7, dtype=np.float32)[:, None])
    without = stage_of().measure(TOKEN, vectors[:6])
    assert set(row) - set(without) == {"alone"}
    for name, value in without.items():
        assert row[name] == value
        assert longer[name] == pytest.approx(value, abs=1e-5)
    assert longer["alone"] == pytest.approx(row["alone"], abs=1e-5)


def test_a_row_holds_plain_numbers_that_json_takes():
    stage = stage_of(alone=True)
    row = stage.measure(TOKEN, np.stack([vector_of(probe) for probe in stage.probes(TOKEN)]))
    assert json.loads(json.dumps(dict(row), allow_nan=False)) == row
