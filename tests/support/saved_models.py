"""What saved models give, and changes to their files."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tiny
import tiny_architectures
from stickytoken import load_encoder

TEXTS = tiny.sentences(3)


def vectors(model: str | Path, **options) -> np.ndarray:
    return load_encoder(model, device="cpu", **options).encode(TEXTS)


def edit(path: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")


def static_in_a_folder(folder: Path) -> Path:
    """Save a static model with its files in a folder of its module, as published ones have them."""
    tiny_architectures.saved(tiny_architectures.static_model(), folder)
    module = folder / "0_StaticEmbedding"
    module.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).rename(module / name)
    edit(folder / "modules.json", lambda modules: modules[0].update(path=module.name))
    return folder
