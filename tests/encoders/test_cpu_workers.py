"""Batches computed by several threads."""

import threading

import numpy as np
import pytest
import torch

import tiny
import tiny_architectures as architectures
from stickytoken import load_encoder
from stickytoken.encoders.cpu.workers import compute_all, worker_count
from torch_threads import torch_threads

TEXTS = [f"the {word} sings {'near the bridge ' * (place % 5)}" for place, word in enumerate(tiny.WORDS)]


@pytest.fixture
def model(tmp_path):
    return tiny.sentence_transformer(tiny.bert_backbone(tmp_path))


@pytest.mark.parametrize("architecture", architectures.ARCHITECTURES, ids=lambda each: each.name)
def test_vectors_do_not_depend_on_the_number_of_threads(architecture, tmp_path):
    model = architectures.stacked(architecture.save(tmp_path), pooling=architecture.poolings[0])
    encoder = load_encoder(model, token_budget=40)
    alone = encoder.encode(TEXTS)
    for threads in (2, 3):
        with torch_threads(threads):
            # MKL rounds by where its inputs lie in memory.
            np.testing.assert_allclose(encoder.encode(TEXTS), alone, atol=4e-6)


def test_every_item_is_computed_once_by_threads_of_one_torch_thread_each():
    seen, threads, inference = [], set(), set()
    both = threading.Barrier(2, timeout=60)

    def compute(item):
        if item < 2:
            both.wait()  # so both threads take part
        seen.append(item)
        threads.add((threading.get_ident(), torch.get_num_threads()))
        inference.add(torch.is_inference_mode_enabled())

    before = torch.get_num_threads()
    compute_all(compute, range(50), 2)
    assert sorted(seen) == list(range(50))
    assert len(threads) == 2
    assert {count for _, count in threads} == {1}
    assert inference == {True}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_a_thread_raises_is_raised_and_the_rest_is_left_out(error):
    begun = []

    def compute(item):
        begun.append(item)
        if item == 3:
            raise error("item 3")

    with pytest.raises(error, match="item 3"):
        compute_all(compute, range(10_000), 2)
    assert len(begun) < 10_000


def test_calls_that_overlap_give_back_what_was_there_before_the_first():
    """As of two visitors with different models, each in a thread that is new to torch."""
    begun, ended = threading.Barrier(4, timeout=60), threading.Event()
    found = []

    def long(_):
        begun.wait()
        ended.wait(60)

    def visitor(item_of):
        compute_all(item_of, range(2), 2)
        found.append(torch.get_num_threads())

    def of_a_new_thread():
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        return seen[0]

    with torch_threads(3):
        threads = [threading.Thread(target=visitor, args=(long,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        ended.set()
        for thread in threads:
            thread.join()
        assert found == [3, 3]
        assert of_a_new_thread() == 3


def test_one_thread_is_the_calling_one():
    seen = set()
    compute_all(lambda _: seen.add(threading.get_ident()), range(3), 1)
    assert seen == {threading.get_ident()}


def test_workers_are_not_more_than_torch_may_use(model):
    with torch_threads(1):
        assert worker_count(model) == 1
    with torch_threads(64):
        assert 1 <= worker_count(model) <= 64


def test_modules_of_others_and_hooked_ones_are_computed_in_turn(model, monkeypatch):
    monkeypatch.setattr("stickytoken.encoders.cpu.workers.available_cores", lambda: 4)

    class Own(torch.nn.Identity):
        pass

    with torch_threads(4):
        assert worker_count(model) == 4
        handle = model[0].register_forward_hook(lambda *_: None)
        assert worker_count(model) == 1
        handle.remove()
        assert worker_count(model) == 4
        model.append(Own())
        assert worker_count(model) == 1
