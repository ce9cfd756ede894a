"""Batches of equal length: how inputs are grouped, too little memory for them, and several threads."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import tiny
import tiny_architectures as architectures
from naming import naming, says
from stickytoken import load_encoder
from stickytoken.encoders.compute import batches as batch_module
from stickytoken.encoders.compute.batches import (
    TOKEN_MULTIPLE,
    BatchRunner,
    compute_all,
    equal_length_batches,
    worker_count,
)
from stickytoken.errors import EncodingError


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


TEXTS = [f"the {word} sings {'near the bridge ' * (number % 5)}" for number, word in enumerate(tiny.WORDS)]


@settings(max_examples=60)
@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 200))
def test_a_batch_is_full_of_one_length_and_long_ones_come_first(sizes, budget):
    batches = equal_length_batches(np.array(sizes, dtype=np.int32), budget)
    order = [index for batch in batches for index in batch.tolist()]
    assert order == sorted(range(len(sizes)), key=lambda index: (-sizes[index], index))
    for batch in batches:
        (length,) = {sizes[index] for index in batch}
        assert len(batch) == 1 or length * len(batch) <= budget
    for batch, following in pairwise(batches):
        length = sizes[batch[0]]
        if sizes[following[0]] == length:  # then there was no room for more of it
            step = TOKEN_MULTIPLE // math.gcd(length, TOKEN_MULTIPLE)
            further = step if len(batch) >= step else 1
            assert (len(batch) + further) * max(1, length) > budget


# --- memory; the allocator is the one part that no test machine can run


@pytest.mark.parametrize(("fits", "budget"), [(1, None), (20, None), (2, 24)])
def test_a_device_out_of_memory_gets_smaller_batches_and_the_same_vectors(
    fits, budget, model, monkeypatch, caplog
):
    texts = [f"the {word} sings to the {other}" for word in tiny.WORDS[:6] for other in tiny.WORDS[:6]]
    expected = load_encoder(model).encode(texts)
    encoder = load_encoder(model, token_budget=budget)
    launch = BatchRunner.launch

    def limited(self, contents):
        if len(contents) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return launch(self, contents)

    monkeypatch.setattr(BatchRunner, "launch", limited)
    assert np.abs(encoder.encode(texts) - expected).max() < 1e-6
    messages = [record.message for record in caplog.records]
    assert all(says(message, "memory", "cpu") for message in messages)
    # Each halves the batches that still wait, too, so that these don't run out of memory one by one.
    assert 0 < len(messages) <= math.ceil(math.log2(len(texts)))
    caplog.clear()
    assert np.abs(encoder.encode(texts) - expected).max() < 1e-6
    assert len(caplog.records) < len(messages) or fits == 1


def test_one_input_that_does_not_fit_is_an_error(model, monkeypatch):
    def nothing_fits(self, contents):
        raise torch.OutOfMemoryError("CUDA out of memory")

    encoder = load_encoder(model)
    monkeypatch.setattr(BatchRunner, "launch", nothing_fits)
    with pytest.raises(EncodingError, match=naming("cpu", "memory", 5)):
        encoder.encode(["the river sings", "a bird"])


@pytest.mark.parametrize(
    ("free", "taken", "budget"), [(10e9, 100_000, 40_000), (80e9, 1, 262_144), (0, 0, 4096)]
)
def test_on_cuda_a_batch_takes_a_share_of_the_free_memory_within_bounds(
    free, taken, budget, monkeypatch, tmp_path
):
    launched = []
    launch = BatchRunner.launch

    def counted(self, contents):
        launched.append(len(contents) * len(contents[0]))
        return launch(self, contents)

    monkeypatch.setattr(BatchRunner, "launch", counted)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 5_000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5_000 + 64 * 32 * taken)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80e9))
    encoder = load_encoder(tiny.sentence_transformer(tiny.bert_backbone(tmp_path, max_length=32)))
    # 40 % of the free memory; texts have 32 tokens, [CLS] and [SEP] among them.
    assert encoder._runner._measure_token_budget() == budget
    assert launched[-1] == launched[-2] == 64 * 30


@pytest.mark.parametrize(("name", "pooling"), [("bert", "mean"), ("t5", "mean"), ("qwen2-chat", "lasttoken")])
def test_vectors_do_not_depend_on_the_number_of_threads(name, pooling, backbone):
    encoder = load_encoder(architectures.stacked(backbone(name), pooling=pooling), token_budget=40)
    alone = encoder.encode(TEXTS[:20])
    with torch_threads(3):
        # MKL rounds by where its inputs lie in memory.
        np.testing.assert_allclose(encoder.encode(TEXTS[:20]), alone, atol=4e-6)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_a_thread_raises_is_raised_and_the_rest_is_left_out(error):
    begun = []

    def compute(item):
        begun.append(item)
        time.sleep(0.01)
        if item == 3:
            raise error("item 3")

    with pytest.raises(error, match="item 3"):
        compute_all(compute, range(100), 2)
    assert len(begun) < 20


def test_an_error_stops_later_items_while_an_earlier_one_is_computed():
    failed = threading.Event()
    begun = []

    def compute(item):
        begun.append(item)
        if item == 0:
            failed.wait(60)
            time.sleep(0.1)  # in which the other thread would go on
        if item == 1:
            failed.set()
            raise ValueError("item 1")
        if item > 1:
            time.sleep(0.01)  # on a busy machine, 998 items without a pause end before they can be stopped

    with pytest.raises(ValueError, match="item 1"):
        compute_all(compute, range(1000), 2)
    assert len(begun) < 1000


def test_calls_that_overlap_give_back_what_was_there_before_the_first():
    begun = threading.Barrier(4, timeout=60)
    ended = threading.Event()
    threads_found = []

    def long(item):
        threads_before = torch.get_num_threads()  # before a call can end
        begun.wait()
        ended.wait(60)
        return item, threads_before, torch.is_inference_mode_enabled()

    def visitor():
        assert compute_all(long, range(2), 2) == [(0, 1, True), (1, 1, True)]
        threads_found.append(torch.get_num_threads())

    def run(*targets):
        threads = [threading.Thread(target=target) for target in targets]
        for thread in threads:
            thread.start()
        ended.set()
        for thread in threads:
            thread.join()

    with torch_threads(3):
        run(visitor, visitor)
        run(lambda: threads_found.append(torch.get_num_threads()))  # a thread that is new to torch, too
    assert threads_found == [3, 3, 3]


def test_workers_are_for_known_modules_without_hooks_and_not_more_than_torch_may_use(model, monkeypatch):
    monkeypatch.setattr(batch_module, "available_cores", lambda: 4)

    class Own(torch.nn.Identity):
        pass

    for threads, workers in ((1, 1), (3, 3), (64, 4)):
        with torch_threads(threads):
            assert worker_count(model) == workers
    with torch_threads(4):
        for register in (model[0].register_forward_hook, model[0].register_forward_pre_hook):
            handle = register(lambda *_: None)
            assert worker_count(model) == 1
            handle.remove()
        assert worker_count(model) == 4
        model.append(Own())
        assert worker_count(model) == 1
