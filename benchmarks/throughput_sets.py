"""Sets of texts with known lengths, alone and beside another job, for `throughput.py`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from sentence_transformers import SentenceTransformer

from checks import Check
from stickytoken.encoders import IdEncoder, load_encoder
from stickytoken.vocabulary import categorize

# Batch sizes of SentenceTransformer.encode; the better one of each set counts.
_LIBRARY_BATCHES = (32, 128)
_OTHER_JOB = """
import torch
torch.set_num_threads(2)
left = torch.rand(1500, 1500)
while True:
    left @ left
"""
_STARTS = 5  # seconds


@dataclass(frozen=True)
class TextSet:
    """Texts, and how much faster than the library they must be.

    Attributes:
        name: what it is.
        lengths: content tokens of each text.
        alone: least ratio with nothing else running.
        beside: least ratio beside a job of two threads.
    """

    name: str
    lengths: Sequence[int]
    alone: float
    beside: float


_LENGTHS = np.resize(np.arange(4, 60), 720)  # 56 lengths
_DOCUMENTS = np.linspace(20, 250, 200).astype(int)
SETS = {
    "small": (
        TextSet("720 texts of one length", [round(float(_LENGTHS.mean()))] * 720, 1.8, 1.2),
        TextSet("720 texts of 56 lengths", _LENGTHS.tolist(), 1.8, 1.2),
        TextSet(
            "200 documents of 20 to 250 tokens", np.linspace(20, 250, 200).astype(int).tolist(), 1.3, 1.0
        ),
    ),
    "large": (TextSet("500 texts of 24 tokens", [24] * 500, 1.5, 1.1),),
}


def texts_of_lengths(encoder: IdEncoder, lengths: Sequence[int]) -> list[str]:
    """Write random words that the tokenizer reads as one token each."""
    words = [
        token.text.strip()
        for token in categorize(encoder.tokenizer).available
        if token.text.strip().isalpha() and token.text.isascii()
    ]
    ids = encoder.content_ids([f"a {word}" for word in words])
    single = [word for word, own in zip(words, ids, strict=True) if len(own) == 2]
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(single, length)) for length in lengths]


@contextmanager
def other_job() -> Iterator[None]:
    """Multiply matrices with two threads in another process."""
    with subprocess.Popen([sys.executable, "-c", _OTHER_JOB]) as job:
        time.sleep(_STARTS)
        try:
            yield
        finally:
            job.kill()


def seconds_by_turns(ways: dict[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """Time each way in turn."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            found[name].append(time.perf_counter() - started)
    return found


def set_checks(model: SentenceTransformer, name: str, turns: int) -> list[Check]:
    """Compare the engine with the library on each set, alone and beside another job."""
    encoder = load_encoder(model)
    sets = SETS["small" if encoder.dimension < 512 else "large"]
    texts = {own.name: texts_of_lengths(encoder, own.lengths) for own in sets}
    checks = [_exactness(model, encoder, name, next(iter(texts.values())))]
    for own in sets:
        encoder.encode(texts[own.name])  # builds kernels
    alone = {own.name: _timed(model, encoder, texts[own.name], turns) for own in sets}
    with other_job():
        beside = {own.name: _timed(model, encoder, texts[own.name], turns) for own in sets}
    for condition, found in (("alone", alone), ("beside a job of two threads", beside)):
        for own in sets:
            bar = own.alone if condition == "alone" else own.beside
            checks.append(_ratio(f"{name}, {own.name}, {condition}", bar, len(own.lengths), found[own.name]))
    if len(sets) > 1:
        checks.append(_few_shapes(name, sets, alone))
    return checks


def _timed(
    model: SentenceTransformer, encoder: IdEncoder, texts: list[str], turns: int
) -> dict[str, list[float]]:
    ways: dict[str, Callable[[], object]] = {"engine": lambda: encoder.encode(texts)}
    for size in _LIBRARY_BATCHES:
        ways[str(size)] = lambda size=size: model.encode(texts, batch_size=size, show_progress_bar=False)  # type: ignore[misc]
    return seconds_by_turns(ways, turns)


def _ratio(name: str, bar: float, texts: int, found: dict[str, list[float]]) -> Check:
    typical = {way: statistics.median(times) for way, times in found.items()}
    ours = typical.pop("engine")
    batch, theirs = min(typical.items(), key=lambda item: item[1])
    return Check(
        name,
        f"at least {bar} times SentenceTransformer.encode",
        f"{theirs / ours:.2f} times ({texts / ours:.0f} to {texts / theirs:.0f} texts a second, "
        f"with batches of {batch})",
        theirs / ours >= bar,
        {"seconds": found},
    )


def _few_shapes(name: str, sets: Sequence[TextSet], alone: dict[str, dict[str, list[float]]]) -> Check:
    one, many = (sum(own.lengths) / statistics.median(alone[own.name]["engine"]) for own in sets[:2])
    return Check(
        f"{name}, tokens a second: 56 lengths against one length",
        "at least 0.85",
        f"{many / one:.2f}",
        many / one >= 0.85,
        {"one length": one, "56 lengths": many},
    )


def _exactness(model: SentenceTransformer, encoder: IdEncoder, name: str, texts: list[str]) -> Check:
    expected = np.asarray(model.encode(texts, show_progress_bar=False))
    found = encoder.encode(texts)
    lengths = np.linalg.norm(expected, axis=1)
    difference = float((np.abs(found - expected).max(axis=1) / lengths).max())
    return Check(
        f"{name}, vectors against SentenceTransformer.encode in float32",
        "components within 1e-6 of the vector's length",
        f"{difference:.1e}",
        difference <= 1e-6,
        {},
    )
