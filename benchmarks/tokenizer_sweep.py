"""Load, list, detect, embed and repair a tiny BERT behind every tokenizer class that transformers has.

Each tokenizer is trained on, or made from, the words of a few hundred sentences. Vectors are compared with
those of SentenceTransformer.encode. One line per class: what happened, and the figure or the reason.

    python benchmarks/tokenizer_sweep.py --out tokenizers.tsv             # about fifteen minutes on one core
    python benchmarks/tokenizer_sweep.py --out tokenizers.tsv --only BertTokenizer ByT5Tokenizer

An --out file is continued: what it holds is not measured again.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

from sweep import SENTENCES, run_sweep, said, tried

_AUTO: Any = importlib.import_module("transformers.models.auto.tokenization_auto")
CLASSES: list[str] = sorted({str(name) for name in _AUTO.TOKENIZER_MAPPING_NAMES.values() if name})
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<mask>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ENTRIES = 400


def words() -> list[str]:
    """Return the words of the sentences, in order of appearance."""
    return list(dict.fromkeys(" ".join(SENTENCES).lower().replace(".", " .").split()))


def characters() -> list[str]:
    return sorted(set("".join(SENTENCES).lower()) - {" "})


def trained(cls: Any, folder: Path) -> Any:
    """Train the tokenizer of an empty instance, as classes on top of the tokenizers library allow."""
    return cls().train_new_from_iterator(SENTENCES, ENTRIES)


def of_words(cls: Any, folder: Path) -> Any:
    """Give the class a list of words, one per line."""
    path = folder / "vocab.txt"
    path.write_text("\n".join([*SPECIAL, *characters(), *words()]) + "\n", encoding="utf-8")
    return cls(vocab_file=str(path))


def of_json(cls: Any, folder: Path, *, end: str = "") -> Any:
    """Give the class a vocabulary in JSON and few merges, so that text falls into characters."""
    entries = [*SPECIAL]
    for ending in ("", end, "@@"):
        entries += [f"{character}{ending}" for character in characters()]
    entries += words()
    vocabulary = {entry: place for place, entry in enumerate(dict.fromkeys(entries))}
    vocab_file = folder / "vocab.json"
    vocab_file.write_text(json.dumps(vocabulary), encoding="utf-8")
    merges_file = folder / "merges.txt"
    merges_file.write_text("#version: 0.2\nt h 1\nth e 1\n", encoding="utf-8")
    wanted = inspect.signature(cls.__init__).parameters
    files = {"vocab_file": vocab_file, "merges_file": merges_file, "src_vocab_file": vocab_file}
    files["tgt_vocab_file"] = vocab_file
    return cls(**{name: str(path) for name, path in files.items() if name in wanted})


def of_json_with_ends(cls: Any, folder: Path) -> Any:
    return of_json(cls, folder, end="</w>")


def of_lines_with_counts(cls: Any, folder: Path) -> Any:
    """Give the class a dictionary of fairseq: an entry and its count on each line."""
    path = folder / "vocab.txt"
    entries = [*characters(), *words()]
    path.write_text("".join(f"{entry} 1\n" for entry in dict.fromkeys(entries)), encoding="utf-8")
    merges = folder / "bpe.codes"
    merges.write_text("t h 1\nth e</w> 1\n", encoding="utf-8")
    return cls(vocab_file=str(path), merges_file=str(merges))


def of_sentencepiece(cls: Any, folder: Path) -> Any:
    """Train a SentencePiece model for the class."""
    sentencepiece: Any = importlib.import_module("sentencepiece")
    prefix = folder / "spiece"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_prefix=str(prefix),
        vocab_size=200,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    path = f"{prefix}.model"
    entries = {entry: place for place, entry in enumerate([*SPECIAL, *characters(), *words()])}
    listed = folder / "entries.json"
    listed.write_text(json.dumps(entries), encoding="utf-8")
    wanted = inspect.signature(cls.__init__).parameters
    files = {
        "vocab_file": path,
        "spm_file": path,
        "source_spm": path,
        "target_spm": path,
        "vocab": str(listed),
    }
    if "spm_file" in wanted:
        files["vocab_file"] = str(listed)
    return cls(**{name: file for name, file in files.items() if name in wanted})


def of_pairs(cls: Any, folder: Path) -> Any:
    """Give the class a list of pieces with log-probabilities, as unigram models have."""
    pieces = [*SPECIAL, "\u2581", *characters(), *[f"\u2581{word}" for word in words()]]
    return cls(vocab=[(piece, -10.0 if place >= len(SPECIAL) else 0.0) for place, piece in enumerate(pieces)])


def of_parts(cls: Any, folder: Path) -> Any:
    """Give the class the further files that it demands: shapes, pronunciations, emojis."""
    words_file = folder / "vocab.txt"
    entries = [*SPECIAL, *characters(), *words()]
    words_file.write_text("\n".join(entries) + "\n", encoding="utf-8")
    zeros = folder / "zeros.json"
    zeros.write_text(json.dumps(dict.fromkeys(entries, 0)), encoding="utf-8")
    emoji = folder / "emoji.json"
    emoji.write_text(json.dumps({"emoji": {}, "emoji_inv": {}}), encoding="utf-8")
    files = {"vocab_file": words_file, "word_shape_file": zeros, "word_pronunciation_file": zeros}
    files["emoji_file"] = emoji
    wanted = inspect.signature(cls.__init__).parameters
    return cls(**{name: str(path) for name, path in files.items() if name in wanted})


def empty(cls: Any, folder: Path) -> Any:
    """Make the class without arguments, as those that read bytes or characters allow."""
    return cls()


def ways(cls: Any) -> Iterator[Callable[[Any, Path], Any]]:
    """Give the ways to make a tokenizer of a class, the likeliest first."""
    if hasattr(cls, "train_new_from_iterator"):
        yield trained
    wanted = inspect.signature(cls.__init__).parameters
    if "spm_file" in wanted or "source_spm" in wanted or "sp_model_kwargs" in wanted:
        yield of_sentencepiece
    if "merges_file" in wanted:
        yield of_json
        yield of_json_with_ends
        yield of_lines_with_counts
    yield of_words
    yield of_json
    yield of_pairs
    yield of_parts
    yield of_sentencepiece
    yield empty


def made(cls: Any, folder: Path) -> Any:
    """Return a tokenizer of a class that reads the sentences, or the reasons why there is none."""
    reasons = []
    for way in ways(cls):
        try:
            tokenizer = way(cls, folder)
            read = tokenizer(SENTENCES[0])["input_ids"]
            if len(set(read)) > 3:
                return tokenizer
            reasons.append(f"{way.__name__}: reads {len(set(read))} different tokens")
        except Exception as error:  # noqa: BLE001 - every class has demands of its own
            reasons.append(f"{way.__name__}: {said(error)[:90]}")
    return "; ".join(reasons)


def measured(name: str, folder: Path) -> tuple[str, str]:
    """Return what happened to a class, and the figure or the reason."""
    cls = getattr(transformers, name)
    tokenizer = made(cls, folder)
    if isinstance(tokenizer, str):
        return "not made", tokenizer
    used = set(tokenizer.get_vocab().values()) | set(tokenizer.all_special_ids)
    for ids in tokenizer(SENTENCES)["input_ids"]:
        used.update(ids)
    used.discard(None)  # a class that gives no id for what it cannot read
    entries = max(max(used) + 1, len(tokenizer))
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=entries,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        initializer_range=0.5,
    )
    place = folder / "model"
    transformers.BertModel(config).save_pretrained(place)
    tokenizer.model_max_length = 128
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    tokenizer.save_pretrained(place)
    return tried(place, folder)


if __name__ == "__main__":
    run_sweep(__doc__, CLASSES, lambda name, folder, _: measured(name, folder))
