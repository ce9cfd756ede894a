"""Batches of equal length, as properties of whatever lengths come in; too little memory for them."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from stickytoken import load_encoder
from stickytoken.encoders._batch_runner import BatchRunner, affordable_tokens
from stickytoken.encoders.protocol import TOKEN_MULTIPLE, equal_length_batches
from stickytoken.errors import EncodingError

lengths = st.lists(st.integers(0, 40), max_size=60)
budgets = st.integers(1, 200)
reproducible = settings(max_examples=200)


@reproducible
@given(lengths, budgets)
def test_every_input_is_in_exactly_one_batch(sizes, budget):
    batches = equal_length_batches(sizes, budget)
    assert sorted(place for batch in batches for place in batch.tolist()) == list(range(len(sizes)))
    assert all(len(batch) for batch in batches)


@reproducible
@given(lengths, budgets)
def test_a_batch_holds_one_length_only(sizes, budget):
    assert all(len({sizes[place] for place in batch}) == 1 for batch in equal_length_batches(sizes, budget))


@reproducible
@given(lengths, budgets)
def test_a_batch_keeps_the_budget_unless_it_is_a_single_input(sizes, budget):
    for batch in equal_length_batches(sizes, budget):
        assert len(batch) == 1 or sum(sizes[place] for place in batch) <= budget


@reproducible
@given(lengths, budgets)
def test_only_the_last_batch_of_a_length_has_room_for_more(sizes, budget):
    """More is one input, or as many as keep the tokens a multiple of what kernels like."""
    batches = equal_length_batches(sizes, budget)
    for batch, following in pairwise(batches):
        length = sizes[batch[0]]
        if sizes[following[0]] == length:
            step = TOKEN_MULTIPLE // math.gcd(length, TOKEN_MULTIPLE)
            more = step if len(batch) >= step else 1
            assert (len(batch) + more) * max(1, length) > budget


@reproducible
@given(lengths, budgets)
def test_inputs_of_one_length_keep_their_order_and_long_ones_come_first(sizes, budget):
    order = [place for batch in equal_length_batches(sizes, budget) for place in batch.tolist()]
    assert order == sorted(range(len(sizes)), key=lambda place: (-sizes[place], place))


@reproducible
@given(lengths, budgets)
def test_the_same_lengths_give_the_same_batches_from_an_array(sizes, budget):
    expected = equal_length_batches(sizes, budget)
    found = equal_length_batches(np.array(sizes, dtype=np.int32), budget)
    assert [batch.tolist() for batch in found] == [batch.tolist() for batch in expected]


def test_no_inputs_make_no_batches():
    assert equal_length_batches([], 8) == []


def test_an_input_longer_than_the_budget_is_a_batch_of_its_own():
    batches = equal_length_batches([3, 9, 9, 3, 3], 6)
    assert [batch.tolist() for batch in batches] == [[1], [2], [0, 3], [4]]


@pytest.mark.parametrize("fits", [1, 3, 40])
def test_a_device_out_of_memory_gets_smaller_batches_and_the_same_vectors(
    fits, monkeypatch, caplog, tmp_path
):
    """The allocator is the one part that no test machine can run."""
    model = tiny.sentence_transformer(tiny.bert_backbone(tmp_path))
    texts = [f"the {word} sings to the {other}" for word in tiny.WORDS[:9] for other in tiny.WORDS[:9]]
    expected = load_encoder(model).encode(texts)
    encoder = load_encoder(model)
    launch = BatchRunner.launch

    def limited(self, contents):
        if len(contents) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return launch(self, contents)

    monkeypatch.setattr(BatchRunner, "launch", limited)
    assert np.abs(encoder.encode(texts) - expected).max() < 1e-6
    said = [record.message for record in caplog.records]
    assert all("out of memory on cpu, continuing with batches of at most" in message for message in said)
    assert said
    caplog.clear()
    assert np.abs(encoder.encode(texts) - expected).max() < 1e-6
    if fits > 1:
        assert len(caplog.records) < len(said)


def test_one_input_that_does_not_fit_is_an_error(monkeypatch, tmp_path):
    encoder = load_encoder(tiny.sentence_transformer(tiny.bert_backbone(tmp_path)))

    def nothing_fits(self, contents):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(BatchRunner, "launch", nothing_fits)
    with pytest.raises(EncodingError, match="cpu ran out of memory on a text of 5 tokens: use shorter"):
        encoder.encode(["the river sings", "a bird"])


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_batches_that_are_computed_ahead_give_the_same_vectors(ahead, monkeypatch, tmp_path):
    """As on an accelerator; a lack of memory may come while another batch is being computed."""
    model = tiny.sentence_transformer(tiny.bert_backbone(tmp_path))
    texts = [" ".join(tiny.WORDS[: 1 + k % 7]) + f" {word}" for k, word in enumerate(tiny.WORDS * 3)]
    expected = load_encoder(model).encode(texts)
    encoder = load_encoder(model, token_budget=24)
    encoder._runner._ahead = ahead
    assert np.abs(encoder.encode(texts) - expected).max() < 1e-6
    launch, most = BatchRunner.launch, 2

    def limited(self, contents):
        if len(contents) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return launch(self, contents)

    monkeypatch.setattr(BatchRunner, "launch", limited)
    assert np.abs(encoder.encode(texts) - expected).max() < 1e-6


@pytest.mark.parametrize(
    ("free", "bytes_per_token", "expected"),
    [(80e9, 1e6, 32000), (80e9, 1.0, 262144), (1e6, 1e6, 4096), (0, 0, 4096)],
)
def test_a_batch_takes_a_share_of_the_free_memory_within_bounds(free, bytes_per_token, expected):
    assert affordable_tokens(free, bytes_per_token) == expected


def test_on_cuda_the_free_memory_sets_the_batch(monkeypatch, tmp_path):
    """The device's memory is the one part that no test machine has; the model computes."""
    launched, launch = [], BatchRunner.launch

    def counted(self, contents):
        launched.append(len(contents) * len(contents[0]))
        return launch(self, contents)

    monkeypatch.setattr(BatchRunner, "launch", counted)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 5_000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5_000 + 64 * 32 * 100_000)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10e9, 80e9))
    encoder = load_encoder(tiny.sentence_transformer(tiny.bert_backbone(tmp_path, max_length=32)))
    # Texts of 32 tokens, [CLS] and [SEP] among them, that take 100,000 bytes a token; 40 % of 10 GB.
    assert encoder._runner._budget_by_memory() == 40_000
    assert launched[-1] == launched[-2] == 64 * 30
