"""What the files of a model say about it before it is loaded: its kind, and its routes."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stickytoken.errors import InputError, ModelError

MODULES_FILE = "modules.json"
ROUTER_FILE = "router_config.json"
_SETTINGS_FILE = "config_sentence_transformers.json"
_CONFIG_FILE = "config.json"
# The files that say what a model is; those of a model on the hub are fetched first.
DESCRIBING_FILES = (_SETTINGS_FILE, MODULES_FILE, _CONFIG_FILE)

_CROSS_ENCODER = "a cross-encoder, which scores pairs of texts and has no vectors of single texts"
_CLASSIFIER = "a classifier or a cross-encoder, whose vectors of texts were never trained"
_SPARSE = "a sparse encoder (such as SPLADE), whose components are the entries of its vocabulary"
_MULTI_VECTOR = "a multi-vector encoder (such as ColBERT), which has a vector for every token"
# By `model_type` of config_sentence_transformers.json; PyLate writes ColBERT.
_MODEL_TYPES = {
    "crossencoder": _CROSS_ENCODER,
    "sparseencoder": _SPARSE,
    "multivectorencoder": _MULTI_VECTOR,
    "colbert": _MULTI_VECTOR,
}
# By parts of the types of modules, for models that were saved before there was a `model_type`.
_MODULE_TYPES = {
    ".cross_encoder.": _CROSS_ENCODER,
    ".sparse_encoder.": _SPARSE,
    ".multi_vector_encoder.": _MULTI_VECTOR,
    "SpladePooling": _SPARSE,
    "CSRSparsity": _SPARSE,
    "SparseAutoEncoder": _SPARSE,
    "SparseStaticEmbedding": _SPARSE,
    "LogitScore": _CROSS_ENCODER,
    "MultiVectorMask": _MULTI_VECTOR,
    "pylate.": _MULTI_VECTOR,
}
_ARCHITECTURES = {"HF_ColBERT": _MULTI_VECTOR}
_TEXT = "text"  # the modality


def require_single_vectors(folder: Path, name: str) -> None:
    """Refuse a model that does not give one dense vector for a text.

    Args:
        folder: holds the files that describe the model, or some of them.
        name: of the model, for the message.

    Raises:
        ModelError: The model is of another kind, which the message names.
    """
    settings = _read(folder / _SETTINGS_FILE)
    model_type = str(settings.get("model_type", "")) if isinstance(settings, dict) else ""
    _refuse(_MODEL_TYPES.get(model_type.lower()), name, f"model_type {model_type} in {_SETTINGS_FILE}")
    for kind in module_types(folder):
        found = next((what for part, what in _MODULE_TYPES.items() if part in kind), None)
        _refuse(found, name, f"its module {kind}")
    config = _read(folder / _CONFIG_FILE)
    architectures = config.get("architectures") if isinstance(config, dict) else None
    first = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    is_whole_model = not (folder / MODULES_FILE).is_file()
    if is_whole_model:
        classifies = _CLASSIFIER if first.endswith("ForSequenceClassification") else None
        _refuse(_ARCHITECTURES.get(first, classifies), name, first)


def require_single_vectors_of(model: object) -> None:
    """Refuse a loaded model of sentence-transformers that is of another kind.

    Raises:
        ModelError: The model does not give one dense vector for a text.
    """
    for kind in type(model).__mro__:
        if kind.__module__.startswith(("sentence_transformers.", "pylate.")):
            name = type(model).__name__
            _refuse(_MODEL_TYPES.get(kind.__name__.lower()), f"the {name}", f"{kind.__module__}.{name}")


def _refuse(kind: str | None, name: str, why: str) -> None:
    if kind is not None:
        raise ModelError(f"{name} is {kind} ({why}): pass an embedding model, with one vector for a text")


def module_types(folder: Path) -> list[str]:
    """Return the types of the modules of a model, those in a Router too; none if it has no modules.json."""
    types = []
    for entry in _entries(folder):
        types.append(str(entry.get("type", "")))
        inside = _router(folder / entry["path"]).get("types", {})
        types += map(str, inside.values()) if isinstance(inside, dict) else ()
    return types


def modules_on_route(folder: Path, route: str | None, name: str) -> Iterator[tuple[Path, str]]:
    """Yield folder and class name of the modules that texts go through, in order, those of a route in it.

    Raises:
        ModelError: The list of modules is damaged.
        InputError: There is no such route, or none is named and there is no default.
    """
    for entry in _entries(folder):
        place = folder / entry["path"]
        router = _router(place)
        structure = router.get("structure")
        if not isinstance(structure, dict) or not structure:
            yield place, _class_name(entry.get("type"))
            continue
        settings = router.get("parameters", {})
        default = settings.get("default_route")
        if default is None and settings.get("allow_empty_key", True):
            default = next(iter(structure))
        taken = route_taken(list(structure), _mappings(settings), default, route, name)
        types = router.get("types", {})
        for module in structure[taken]:
            yield place / str(module), _class_name(types.get(module))


def _class_name(kind: object) -> str:
    """Return the name of a class without its package; empty if the list of modules does not say it."""
    return kind.rpartition(".")[2] if isinstance(kind, str) else ""


def _mappings(settings: Mapping[str, Any]) -> dict[tuple[str | None, Any], str]:
    """Return the mappings of a Router, whose keys are written as Python's tuples."""
    mappings: dict[tuple[str | None, Any], str] = {}
    for key, value in (settings.get("route_mappings") or {}).items():
        with suppress(ValueError, SyntaxError):  # the library leaves such a key out
            mappings[ast.literal_eval(key)] = value
    return mappings


def route_taken(
    routes: Sequence[str],
    mappings: Mapping[tuple[str | None, Any], str],
    default: str | None,
    route: str | None,
    name: str,
) -> str:
    """Return the route that a text takes for a task, in the order that sentence-transformers documents.

    Args:
        routes: names of the routes of a Router.
        mappings: routes by task and modality; None is any.
        default: the route without a task, if any.
        route: the task or route that is asked for; None is none.
        name: of the model, for messages.

    Raises:
        InputError: No route is asked for and there is no default, or there is none of this name.
    """
    for key in ((route, _TEXT), (route, None), (None, _TEXT), (None, None)):
        if key in mappings:
            return mappings[key]
    if route is not None and route in routes:
        return route
    if _TEXT in routes:
        return _TEXT
    known = ", ".join(choices_of(routes, mappings))
    if route is not None:
        raise InputError(f"{name} has no route {route!r}: use one of {known}")
    if default is None:
        raise InputError(f"{name} has several routes and no default: name one of {known} (--route)")
    return default


def choices_of(routes: Sequence[str], mappings: Mapping[tuple[str | None, Any], str]) -> tuple[str, ...]:
    """Return what can be asked for as a route: the names of routes, and the tasks that lead to them."""
    return tuple(dict.fromkeys((*routes, *(task for task, _ in mappings if task is not None))))


def _entries(folder: Path) -> list[dict[str, Any]]:
    path = folder / MODULES_FILE
    if not path.is_file():
        return []
    try:
        entries = json.loads(path.read_text("utf-8"))
        for entry in entries:  # a path that is no text is found here
            Path(entry["path"])
        return list(entries)
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is not a list of modules: {error}") from error


def _router(place: Path) -> dict[str, Any]:
    content = _read(place / ROUTER_FILE)
    return content if isinstance(content, dict) else {}


def _read(path: Path) -> Any:
    """Return the content of a JSON file, or None. A damaged one is reported when the model is loaded."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
