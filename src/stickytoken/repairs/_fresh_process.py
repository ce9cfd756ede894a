"""Load a repaired model as others would: in a separate process, without this package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Reads {folder, tokenizer, prompt, texts, encoded} and writes {version, vectors, unequal}. Everything that is
# not asked for, such as remote code, stays off.
_SCRIPT = """
import json, sys
sys.modules["stickytoken"] = None
given = json.load(open(sys.argv[1], encoding="utf-8"))
import sentence_transformers
from pathlib import Path
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast
model = SentenceTransformer(given["folder"], device="cpu")
texts, tokenizer = given["texts"], Path(given["tokenizer"])
def of_raw(raw):
    raw.no_truncation()
    raw.no_padding()
    return [each.ids for each in raw.encode_batch(texts, add_special_tokens=True)]
def of_transformers(kind):
    return kind(texts, add_special_tokens=True, truncation=False, verbose=False)["input_ids"]
own = model.tokenizer
found = {"sentence-transformers": of_raw(own) if isinstance(own, Tokenizer) else of_transformers(own)}
if (tokenizer / "tokenizer.json").is_file():
    found["tokenizers"] = of_raw(Tokenizer.from_file(str(tokenizer / "tokenizer.json")))
    if (tokenizer / "tokenizer_config.json").is_file():
        found["PreTrainedTokenizerFast"] = of_transformers(PreTrainedTokenizerFast.from_pretrained(tokenizer))
if (tokenizer / "tokenizer_config.json").is_file():
    found["AutoTokenizer"] = of_transformers(AutoTokenizer.from_pretrained(tokenizer))
first = found["sentence-transformers"]
unequal = {
    name: texts[place]
    for name, ids in found.items()
    for place in reversed(range(len(texts)))
    if list(ids[place]) != list(first[place])
}
vectors = model.encode(given["encoded"], prompt=given["prompt"] or None, show_progress_bar=False)
answer = {
    "version": sentence_transformers.__version__,
    "vectors": [[float(value) for value in row] for row in vectors],
    "unequal": unequal,
    "loaders": sorted(found),
}
json.dump(answer, open(sys.argv[2], "w", encoding="utf-8"))
"""
_SHOWN = 300


@dataclass(frozen=True)
class FreshModel:
    """What a fresh process found.

    Attributes:
        failure: why the folder could not be loaded; None if it could.
        version: version of sentence-transformers.
        vectors: of the texts that it encoded, shape (n, d).
        loaders: kinds of tokenizers that were compared.
        unequal: a text that a kind of tokenizer reads differently than sentence-transformers, by kind.
    """

    failure: str | None
    version: str = ""
    vectors: NDArray[np.float64] | None = None
    loaders: tuple[str, ...] = ()
    unequal: dict[str, str] | None = None


def load_fresh(
    folder: Path, tokenizer: Path, prompt: str, texts: Sequence[str], encoded: Sequence[str]
) -> FreshModel:
    """Load a model folder in a process that cannot import this package.

    Args:
        folder: the model.
        tokenizer: folder of its tokenizer.
        prompt: text before every text that is encoded.
        texts: texts to tokenize, each by every loader.
        encoded: texts to encode.
    """
    with tempfile.TemporaryDirectory(prefix="stickytoken-") as place:
        given, answer = Path(place) / "given.json", Path(place) / "answer.json"
        given.write_text(
            json.dumps(
                {
                    "folder": str(folder.absolute()),
                    "tokenizer": str(tokenizer.absolute()),
                    "prompt": prompt,
                    "texts": list(texts),
                    "encoded": list(encoded),
                }
            ),
            encoding="utf-8",
        )
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, str(given), str(answer)],
            cwd=place,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if done.returncode or not answer.is_file():
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            return FreshModel(lines[-1][:_SHOWN] if lines else f"the process ended with {done.returncode}")
        found: dict[str, Any] = json.loads(answer.read_text("utf-8"))
    return FreshModel(
        None,
        found["version"],
        np.array(found["vectors"], dtype=np.float64),
        tuple(found["loaders"]),
        found["unequal"],
    )
