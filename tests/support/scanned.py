"""A run whose model has one sticky word, and documents with copies of it."""

from pathlib import Path

import profiled
from stickytoken import load_encoder

STICKY = profiled.WORDS[7]
OTHER = profiled.WORDS[::2]
COPIES = 8


def save_run(folder: Path) -> Path:
    profiled.planted_model(2, token=STICKY).save(str(folder / "model"))
    encoder = load_encoder(folder / "model", device="cpu")
    run = profiled.detect_profile(encoder, folder / "run")
    assert run.sticky["token"].to_list() == [STICKY]
    return folder / "run"


def documents(count: int, planted: range = range(0), seed: int = 3) -> list[str]:
    """Distinct texts of about 40 different words; some have copies of the sticky word behind them."""
    sentences = profiled.sentences(6 * count, [word for word in OTHER if word != STICKY], seed)
    texts = [" ".join(sentences[6 * index : 6 * index + 6]) for index in range(count)]
    return [f"{text} {copies()}" if index in planted else text for index, text in enumerate(texts)]


def copies(count: int = COPIES) -> str:
    return " ".join([STICKY] * count)
