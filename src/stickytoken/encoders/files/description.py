"""Find out the kind and the routes of a model from its files, without loading the model."""

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
# Files that say what a model is. For a model on the hub, these files are fetched before the weights.
DESCRIBING_FILES = (_SETTINGS_FILE, MODULES_FILE, _CONFIG_FILE)

_CROSS_ENCODER = "a cross-encoder, which scores pairs of texts and has no vectors of single texts"
_CLASSIFIER = "a classifier or a cross-encoder, whose vectors of texts were never trained"
_SPARSE = "a sparse encoder (such as SPLADE), whose components are the entries of its vocabulary"
_MULTI_VECTOR = "a multi-vector encoder (such as ColBERT), which has a vector for every token"
_BAG_OF_WORDS = "a bag of words, which counts words and has no tokens"
# Kinds of models without one vector per text, keyed by the `model_type` in config_sentence_transformers.json,
# in lower case. PyLate writes the type ColBERT.
_UNSUPPORTED_MODEL_TYPES = {
    "crossencoder": _CROSS_ENCODER,
    "sparseencoder": _SPARSE,
    "multivectorencoder": _MULTI_VECTOR,
    "colbert": _MULTI_VECTOR,
}
# Kinds of models, keyed by a substring of a module's type, for models that were saved before `model_type`
# existed.
_MODULE_TYPES = {
    ".cross_encoder.": _CROSS_ENCODER,
    ".sparse_encoder.": _SPARSE,
    ".multi_vector_encoder.": _MULTI_VECTOR,
    "SpladePooling": _SPARSE,
    "CSRSparsity": _SPARSE,
    "SparseAutoEncoder": _SPARSE,
    "SparseStaticEmbedding": _SPARSE,
    "LogitScore": _CROSS_ENCODER,
    ".BoW": _BAG_OF_WORDS,
    "MultiVectorMask": _MULTI_VECTOR,
    "pylate.": _MULTI_VECTOR,
}
_ARCHITECTURES = {"HF_ColBERT": _MULTI_VECTOR}
_TEXT = "text"  # name of the text modality in the mappings of a Router


def require_single_vectors(folder: Path, name: str) -> None:
    """Check that a model gives one dense vector per text.

    Cross-encoders, classifiers, bags of words, and sparse and multi-vector models are refused.

    Args:
        folder: folder with some or all of the files that describe the model.
        name: name of the model, for the message.

    Raises:
        ModelError: The model does not give one dense vector per text. The message says what kind of model it
            is.
    """
    # The settings of sentence-transformers, not the config.json of transformers.
    settings = _read_json_or_none(folder / _SETTINGS_FILE)
    model_type = str(settings.get("model_type", "")) if isinstance(settings, dict) else ""
    if model_type.lower() in _UNSUPPORTED_MODEL_TYPES:
        evidence = f"model_type {model_type} in {_SETTINGS_FILE}"
        raise _make_unsupported_error(_UNSUPPORTED_MODEL_TYPES[model_type.lower()], name, evidence)
    for module_type in module_types(folder):
        for marker, kind in _MODULE_TYPES.items():
            if marker in module_type:
                raise _make_unsupported_error(kind, name, f"its module {module_type}")
    has_modules = (folder / MODULES_FILE).is_file()
    if not has_modules:  # a plain transformers model
        architecture = _read_architecture(folder)
        if architecture.endswith("ForSequenceClassification"):
            raise _make_unsupported_error(_CLASSIFIER, name, architecture)
        if architecture in _ARCHITECTURES:
            raise _make_unsupported_error(_ARCHITECTURES[architecture], name, architecture)


def _read_architecture(folder: Path) -> str:
    config = _read_json_or_none(folder / _CONFIG_FILE)
    architectures = config.get("architectures") if isinstance(config, dict) else None
    if not isinstance(architectures, list) or not architectures:
        return ""
    return str(architectures[0])


def require_single_vectors_of(model: object) -> None:
    """Check that a loaded model of sentence-transformers gives one dense vector per text.

    Raises:
        ModelError: The model does not give one dense vector per text.
    """
    name = type(model).__name__
    for base in type(model).__mro__:  # the class itself, and all that it inherits from
        unsupported_kind = _UNSUPPORTED_MODEL_TYPES.get(base.__name__.lower())
        is_of_library = base.__module__.startswith(("sentence_transformers.", "pylate."))
        if is_of_library and unsupported_kind is not None:
            raise _make_unsupported_error(
                unsupported_kind, f"the {name}", f"{base.__module__}.{base.__name__}"
            )


def _make_unsupported_error(kind: str, name: str, evidence: str) -> ModelError:
    return ModelError(
        f"{name} is {kind} ({evidence}): pass an embedding model that gives one vector per text"
    )


def module_types(folder: Path) -> list[str]:
    """Return the types of a model's modules, including those in a Router; empty without modules.json."""
    types: list[str] = []
    for module in _read_modules(folder):
        types.append(str(module.get("type", "")))
        router_settings = _read_router_settings(folder / module["path"])
        type_of_inner_module = router_settings.get("types", {})
        if isinstance(type_of_inner_module, dict):
            types += map(str, type_of_inner_module.values())
    return types


def routes_in(folder: Path) -> list[str]:
    """Return the route names in a model's Routers; empty for a model without a Router."""
    routes: list[str] = []
    for module in _read_modules(folder):
        router_settings = _read_router_settings(folder / module["path"])
        modules_by_route = router_settings.get("structure", {})
        routes += modules_by_route.keys()
    return list(dict.fromkeys(routes))


def modules_on_route(folder: Path, route: str | None, name: str) -> Iterator[tuple[Path, str]]:
    """Yield the folder and class name of each module that texts go through, in order.

    A Router contributes only the modules on one route.

    Args:
        folder: folder of the model.
        route: requested route; if None, the default route.
        name: name of the model, for messages.

    Raises:
        ModelError: The list of modules is damaged.
        InputError: The requested route does not exist, or none is requested and there is no default.
    """
    for outer_module in _read_modules(folder):
        module_folder = folder / outer_module["path"]
        router = _read_router_settings(module_folder)
        modules_by_route = router.get("structure")
        if not isinstance(modules_by_route, dict) or not modules_by_route:  # not a Router
            yield module_folder, _take_class_name(outer_module.get("type"))
            continue
        settings = router.get("parameters", {})
        default = settings.get("default_route")
        # As in sentence-transformers, the first route is the default unless `allow_empty_key` is false.
        if default is None and settings.get("allow_empty_key", True):
            default = next(iter(modules_by_route))
        route_names = list(modules_by_route)
        taken_route = choose_route(route_names, _read_route_mappings(settings), default, route, name)
        type_of_module = router.get("types", {})
        for module in modules_by_route[taken_route]:
            yield module_folder / str(module), _take_class_name(type_of_module.get(module))


def _take_class_name(module_type: object) -> str:
    # A type such as "sentence_transformers.models.Pooling"; a damaged file may lack it.
    return module_type.rpartition(".")[2] if isinstance(module_type, str) else ""


def _read_route_mappings(router_settings: Mapping[str, Any]) -> dict[tuple[str | None, Any], str]:
    # In the file, a key is a tuple of task and modality that was written as text, such as "('query', None)".
    stored_mappings = router_settings.get("route_mappings") or {}
    route_of: dict[tuple[str | None, Any], str] = {}
    for key, route in stored_mappings.items():
        with suppress(ValueError, SyntaxError):  # sentence-transformers also skips a malformed key
            task_and_modality = ast.literal_eval(key)
            route_of[task_and_modality] = route
    return route_of


def choose_route(
    routes: Sequence[str],
    mappings: Mapping[tuple[str | None, Any], str],
    default: str | None,
    route: str | None,
    name: str,
) -> str:
    """Return the route that texts take, by the precedence rules of sentence-transformers.

    A mapping takes precedence over a route with the requested name, which takes precedence over a route named
    ``text``; the last resort is the default. If a mapping applies to every task, or if a route is named
    ``text``, any requested name is accepted.

    Args:
        routes: names of a Router's routes.
        mappings: routes, keyed by task and modality; None in a key stands for any task or modality.
        default: route of texts without a task; None if there is none.
        route: requested task or route; None if the user requested neither.
        name: name of the model, for messages.

    Raises:
        InputError: No rule gives a route for the requested name; or nothing is requested, and there is no
            default.
    """
    # The most specific mapping applies; None stands for any task or modality.
    for key in ((route, _TEXT), (route, None), (None, _TEXT), (None, None)):
        if key in mappings:
            return mappings[key]
    if route is not None and route in routes:
        return route
    if _TEXT in routes:
        return _TEXT
    choices = ", ".join(list_choices(routes, mappings))
    if route is not None:
        raise InputError(f"{name} has no route {route!r}: use one of {choices}")
    if default is None:
        raise InputError(f"{name} has several routes and no default: name one of {choices} (--route)")
    return default


def list_choices(routes: Sequence[str], mappings: Mapping[tuple[str | None, Any], str]) -> tuple[str, ...]:
    """Return the names that the user can pass as a route: routes, and tasks that are mapped to routes."""
    tasks = [task for task, _ in mappings if task is not None]
    return tuple(dict.fromkeys([*routes, *tasks]))


def _read_modules(folder: Path) -> list[dict[str, Any]]:
    path = folder / MODULES_FILE
    if not path.is_file():
        return []
    try:
        modules = json.loads(path.read_text("utf-8"))
        for module in modules:
            Path(module["path"])  # raises one of the errors below if there is no path, or it is not a string
        return list(modules)  # each with its path and type
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is not a list of modules: {error}") from error


def _read_router_settings(module_folder: Path) -> dict[str, Any]:
    # A Router that was saved under its earlier name, Asym, has its settings in config.json.
    for file in (ROUTER_FILE, _CONFIG_FILE):
        settings = _read_json_or_none(module_folder / file)
        if isinstance(settings, dict) and isinstance(settings.get("structure"), dict):
            return settings
    return {}


def _read_json_or_none(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
