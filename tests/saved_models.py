"""What saved models give, and changes to their files."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tiny
from stickytoken.encoders import load_encoder

TEXTS = tiny.sentences(3)


def vectors(model: str | Path, **options) -> np.ndarray:
    return load_encoder(model, device="cpu", **options).encode(TEXTS)


def edit(path: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")
