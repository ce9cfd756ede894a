"""Try a tiny random BERT with every tokenizer class of transformers.

Each tokenizer is trained on a few hundred sentences, or made from their words and characters. Each model is
loaded, its vocabulary listed, a few of its tokens measured, some texts embedded and one of its tokens
repaired. Vectors are compared with those of SentenceTransformer.encode.

    python benchmarks/tokenizer_sweep.py --out tokenizers.tsv             # about fifteen minutes on one core
    python benchmarks/tokenizer_sweep.py --out tokenizers.tsv --only BertTokenizer ByT5Tokenizer

The --out file gets one line for each class: its name, what happened, and the largest difference of vectors or
the reason. Classes that already have a line in the file are not measured again, so an interrupted sweep can
be continued. Some classes need further packages, such as sentencepiece.
"""

from __future__ import annotations

import importlib
import inspect
import json
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from sweep import SENTENCES, run_sweep, said, tried

_AUTO: Any = importlib.import_module("transformers.models.auto.tokenization_auto")
CLASSES: list[str] = sorted({str(name) for name in _AUTO.TOKENIZER_MAPPING_NAMES.values() if name})
# The special tokens. Some tokenizer classes expect the names in angle brackets, others those in square ones.
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<mask>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Number of vocabulary entries of a trained tokenizer.
ENTRIES = 400
# Number of vocabulary entries of a trained SentencePiece model.
SENTENCEPIECE_ENTRIES = 200
# A tokenizer is rejected if it reads a sentence as no more different tokens than this, because it then reads
# almost everything as unknown.
FEW_TOKENS = 3


def words() -> list[str]:
    """Return the words and full stops of the sentences in lower case, in order of appearance."""
    text = " ".join(SENTENCES).lower().replace(".", " .")
    return list(dict.fromkeys(text.split()))


def characters() -> list[str]:
    """Return the characters of the sentences in lower case, sorted, without the space."""
    return sorted(set("".join(SENTENCES).lower()) - {" "})


def all_entries() -> list[str]:
    """Return special tokens, characters and words. Words of one character are repeated."""
    return [*SPECIAL, *characters(), *words()]


def with_accepted_files(tokenizer_class: Any, files: Mapping[str, Path]) -> Any:
    """Make a tokenizer from those files that its class accepts; the keys are the names of the parameters."""
    parameters = inspect.signature(tokenizer_class.__init__).parameters
    accepted = {name: str(path) for name, path in files.items() if name in parameters}
    return tokenizer_class(**accepted)


# A recipe makes a tokenizer of a class. It may write files to the given folder.


def train(tokenizer_class: Any, _folder: Path) -> Any:
    """Train an empty tokenizer, which classes allow that are built on the tokenizers library."""
    return tokenizer_class().train_new_from_iterator(SENTENCES, ENTRIES)


def from_lines(tokenizer_class: Any, folder: Path) -> Any:
    """Make a tokenizer from a file with one vocabulary entry per line."""
    vocab_file = folder / "vocab.txt"
    vocab_file.write_text("\n".join(all_entries()) + "\n", encoding="utf-8")
    return tokenizer_class(vocab_file=str(vocab_file))


def from_json(tokenizer_class: Any, folder: Path, *, word_end: str = "") -> Any:
    """Make a tokenizer from a vocabulary in JSON and two merges, so that it reads text as characters.

    Args:
        tokenizer_class: the class.
        folder: folder for the files.
        word_end: what an entry at the end of a word ends with.
    """
    entries = [*SPECIAL]
    # "@@" marks entries inside a word.
    for ending in ("", word_end, "@@"):
        entries += [f"{character}{ending}" for character in characters()]
    entries += words()
    distinct_entries = dict.fromkeys(entries)
    vocabulary = {entry: token_id for token_id, entry in enumerate(distinct_entries)}
    vocab_file = folder / "vocab.json"
    vocab_file.write_text(json.dumps(vocabulary), encoding="utf-8")
    merges_file = folder / "merges.txt"
    merges_file.write_text("#version: 0.2\nt h 1\nth e 1\n", encoding="utf-8")
    files = {
        "vocab_file": vocab_file,
        "merges_file": merges_file,
        "src_vocab_file": vocab_file,
        "tgt_vocab_file": vocab_file,
    }
    return with_accepted_files(tokenizer_class, files)


def from_json_with_word_ends(tokenizer_class: Any, folder: Path) -> Any:
    """Make a tokenizer from a vocabulary in JSON in which entries at the end of a word end with ``</w>``."""
    return from_json(tokenizer_class, folder, word_end="</w>")


def from_fairseq_dictionary(tokenizer_class: Any, folder: Path) -> Any:
    """Make a tokenizer from a dictionary of fairseq, with an entry and its count on each line."""
    vocab_file = folder / "vocab.txt"
    entries = dict.fromkeys([*characters(), *words()])
    vocab_file.write_text("".join(f"{entry} 1\n" for entry in entries), encoding="utf-8")
    merges_file = folder / "bpe.codes"
    merges_file.write_text("t h 1\nth e</w> 1\n", encoding="utf-8")
    return tokenizer_class(vocab_file=str(vocab_file), merges_file=str(merges_file))


def from_sentencepiece(tokenizer_class: Any, folder: Path) -> Any:
    """Train a SentencePiece model, and make a tokenizer from it."""
    sentencepiece: Any = importlib.import_module("sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_prefix=str(folder / "spiece"),
        vocab_size=SENTENCEPIECE_ENTRIES,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    model_file = folder / "spiece.model"
    vocabulary = {entry: token_id for token_id, entry in enumerate(all_entries())}
    json_file = folder / "entries.json"
    json_file.write_text(json.dumps(vocabulary), encoding="utf-8")
    files = {
        "vocab_file": model_file,
        "spm_file": model_file,
        "source_spm": model_file,
        "target_spm": model_file,
        "vocab": json_file,
    }
    # A class with an extra parameter for the model expects its vocabulary as JSON.
    if "spm_file" in inspect.signature(tokenizer_class.__init__).parameters:
        files["vocab_file"] = json_file
    return with_accepted_files(tokenizer_class, files)


def from_log_probabilities(tokenizer_class: Any, _folder: Path) -> Any:
    """Make a tokenizer from a list of entries with log-probabilities, as unigram models need."""
    entries = ["\u2581", *characters(), *[f"\u2581{word}" for word in words()]]
    vocabulary = [(entry, 0.0) for entry in SPECIAL]
    vocabulary += [(entry, -10.0) for entry in entries]
    return tokenizer_class(vocab=vocabulary)


def from_several_files(tokenizer_class: Any, folder: Path) -> Any:
    """Make a tokenizer from a list of entries and files that a few classes need besides.

    These are the shapes and pronunciations of words, and emojis.
    """
    vocab_file = folder / "vocab.txt"
    vocab_file.write_text("\n".join(all_entries()) + "\n", encoding="utf-8")
    zeros_file = folder / "zeros.json"
    zeros_file.write_text(json.dumps(dict.fromkeys(all_entries(), 0)), encoding="utf-8")
    emoji_file = folder / "emoji.json"
    emoji_file.write_text(json.dumps({"emoji": {}, "emoji_inv": {}}), encoding="utf-8")
    files = {
        "vocab_file": vocab_file,
        "word_shape_file": zeros_file,
        "word_pronunciation_file": zeros_file,
        "emoji_file": emoji_file,
    }
    return with_accepted_files(tokenizer_class, files)


def without_arguments(tokenizer_class: Any, _folder: Path) -> Any:
    """Make a tokenizer without arguments, which classes allow that read bytes or characters."""
    return tokenizer_class()


# The recipes, keyed by the names that reasons give them.
RECIPES: dict[str, Callable[[Any, Path], Any]] = {
    "trained": train,
    "of_words": from_lines,
    "of_json": from_json,
    "of_json_with_ends": from_json_with_word_ends,
    "of_lines_with_counts": from_fairseq_dictionary,
    "of_sentencepiece": from_sentencepiece,
    "of_pairs": from_log_probabilities,
    "of_parts": from_several_files,
    "empty": without_arguments,
}


def recipe_names(tokenizer_class: Any) -> Iterator[str]:
    """Yield the names of the recipes to try for a class, the likeliest first. Some names are repeated."""
    if hasattr(tokenizer_class, "train_new_from_iterator"):
        yield "trained"
    parameters = inspect.signature(tokenizer_class.__init__).parameters
    if "spm_file" in parameters or "source_spm" in parameters or "sp_model_kwargs" in parameters:
        yield "of_sentencepiece"
    if "merges_file" in parameters:
        yield "of_json"
        yield "of_json_with_ends"
        yield "of_lines_with_counts"
    yield "of_words"
    yield "of_json"
    yield "of_pairs"
    yield "of_parts"
    yield "of_sentencepiece"
    yield "empty"


def make_tokenizer(tokenizer_class: Any, folder: Path) -> Any:
    """Make a tokenizer that reads the sentences.

    Returns:
        The tokenizer; if no recipe makes one, the reasons, as a string.
    """
    reasons = []
    for name in recipe_names(tokenizer_class):
        try:
            tokenizer = RECIPES[name](tokenizer_class, folder)
            distinct_ids = set(tokenizer(SENTENCES[0])["input_ids"])
            if len(distinct_ids) > FEW_TOKENS:
                return tokenizer
            reasons.append(f"{name}: reads {len(distinct_ids)} different tokens")
        except Exception as error:  # noqa: BLE001 - the classes raise many kinds of errors
            reasons.append(f"{name}: {said(error)[:90]}")
    return "; ".join(reasons)


def row_count(tokenizer: Any) -> int:
    """Return how many token vectors a model needs for this tokenizer, which may leave ids unused."""
    used_ids: set[Any] = set(tokenizer.get_vocab().values()) | set(tokenizer.all_special_ids)
    for ids in tokenizer(SENTENCES)["input_ids"]:
        used_ids.update(ids)
    used_ids.discard(None)  # some classes return None instead of an id for what they cannot read
    highest_id: int = max(used_ids)
    return max(highest_id + 1, len(tokenizer))


def save_bert(vocabulary_size: int, folder: Path) -> None:
    """Save a tiny random BERT."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        initializer_range=0.5,
    )
    transformers.BertModel(config).save_pretrained(folder)


def measure(class_name: str, folder: Path, _options: Namespace) -> tuple[str, str]:
    """Try a model with a tokenizer of this class. Return what happened, and the figure or the reason."""
    tokenizer = make_tokenizer(getattr(transformers, class_name), folder)
    if isinstance(tokenizer, str):
        return "not made", tokenizer
    model_folder = folder / "model"
    save_bert(row_count(tokenizer), model_folder)
    tokenizer.model_max_length = 128
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    tokenizer.save_pretrained(model_folder)
    return tried(model_folder, folder)


if __name__ == "__main__":
    run_sweep(__doc__, CLASSES, measure)
