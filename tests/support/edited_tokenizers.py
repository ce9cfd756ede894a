"""Edited tokenizers, read in every way that users read them."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

Read = Callable[[Sequence[str]], list[list[int]]]


def written(source: Path, target: Path, files: Mapping[str, bytes]) -> Path:
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            shutil.copyfile(file, target / file.name)
    for name, content in files.items():
        (target / name).write_bytes(content)
    return target


def raw(folder: Path) -> Read:
    """As inference servers read it: tokenizer.json alone."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda texts: [each.ids for each in tokenizer.encode_batch(list(texts))]


def auto(folder: Path) -> Read:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda texts: tokenizer(list(texts))["input_ids"]


def fast(folder: Path) -> Read:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    return lambda texts: tokenizer(list(texts))["input_ids"]


def saved_again(folder: Path, target: Path) -> Path:
    AutoTokenizer.from_pretrained(folder).save_pretrained(target)
    shutil.copyfile(folder / "config.json", target / "config.json")
    return target


def agreed(folder: Path, target: Path, texts: Sequence[str]) -> list[list[int]]:
    """Read texts in every way, before and after the tokenizer is saved again; all must agree."""
    again = saved_again(folder, target)
    found = raw(folder)(texts)
    for read in (auto(folder), fast(folder), raw(again), auto(again)):
        assert read(texts) == found
    return found
