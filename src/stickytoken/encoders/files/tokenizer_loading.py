"""Load the tokenizer of a model without its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stickytoken.encoders.files.description import (
    modules_on_route,
)
from stickytoken.encoders.files.resolution import (
    ModelSource,
    Origin,
    explained,
    hub_repositories,
    resolve_model,
)
from stickytoken.encoders.files.stored_rows import read_stored_tensors, static_rows
from stickytoken.encoders.inputs.tokenizer import HuggingFaceTokenizer
from stickytoken.errors import InputError, ModelError
from stickytoken.validation import shown

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
            tokenizer = _load_hub_tokenizer(source.name, revision, trust_remote_code)
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
        # The settings may name the tokenizer of another model.
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
    weights = module.folder / "model.safetensors"
    if module.is_static:
        rows = static_rows(read_stored_tensors(weights)) if weights.is_file() else None
        return None if rows is None else len(rows)
    try:
        config = json.loads((module.folder / "config.json").read_text("utf-8"))
        # A model of texts and images has the size among the settings of its part for texts.
        sizes = [config.get("vocab_size"), config.get("text_config", {}).get("vocab_size")]
    except (OSError, ValueError, AttributeError):  # if the file is damaged, loading the model raises an error
        return None
    return next((size for size in sizes if isinstance(size, int)), None)


def _load_hub_tokenizer(name: str, revision: str | None, trust_remote_code: bool) -> Any:
    from transformers import AutoTokenizer

    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    *preferred, last = hub_repositories(name)  # a short name may stand for two repositories
    for repository in preferred:
        with suppress(OSError):  # raised if the repository does not exist or has no tokenizer
            return _load_with_settings(
                AutoTokenizer, repository, _read_hub_settings(repository, revision), options
            )
    # If the last repository has no tokenizer either, its error reaches the user.
    return _load_with_settings(AutoTokenizer, last, _read_hub_settings(last, revision), options)


def _read_hub_settings(repository: str, revision: str | None) -> dict[str, Any]:
    from transformers.utils.hub import cached_file

    for file in _MODULE_SETTINGS:
        with suppress(OSError):  # the repository has no such file
            return _read_settings(Path(str(cached_file(repository, file, revision=revision))))
    return {}


def _load_with_settings(
    tokenizer_class: Any, location: str, settings: Mapping[str, Any], options: Mapping[str, Any]
) -> Any:
    """Load a tokenizer with the settings of the module that reads text.

    ``options`` are passed to `from_pretrained`.
    """
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

    if not tokenizer.is_fast:  # a tokenizer written in Python has a setting for lower-casing
        tokenizer.do_lower_case = True
        return
    backend = tokenizer.backend_tokenizer
    normalizer: Any = backend.normalizer
    steps: list[Any] = []
    if isinstance(normalizer, Sequence):
        steps = [normalizer[index] for index in range(len(normalizer))]  # a Sequence is not iterable
    elif normalizer is not None:
        steps = [normalizer]
    if not any(isinstance(step, Lowercase) for step in steps):
        backend.normalizer = Sequence([Lowercase(), *steps])


# Model types whose tokenizer class `AutoTokenizer` takes from tokenizer_config.json.
GENERIC_TYPES = ("bert", "mpnet", "roberta", "xlm-roberta")


def _is_generic(folder: Path) -> bool:
    """Return whether `AutoTokenizer` would choose `TokenizersBackend`: asking it would import torch."""
    with suppress(ValueError, AttributeError):  # a damaged file, for which loading the model raises an error
        tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        model_config = json.loads((folder / "config.json").read_text("utf-8"))
        names_backend = tokenizer_config.get("tokenizer_class") == "TokenizersBackend"
        is_generic_type = model_config.get("model_type") in GENERIC_TYPES
        # With one of these entries, `AutoTokenizer` may choose another class.
        has_own_class = "model_name" in model_config or "auto_map" in tokenizer_config
        return names_backend and is_generic_type and not has_own_class
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
        settings = {} if is_static else _read_module_settings(module_folder)
        return TextModule(module_folder, class_name, settings)
    if any((folder / file).is_file() for file in TOKENIZER_FILES):
        # The model has no list of modules, or none of the modules has a tokenizer of its own.
        return TextModule(folder)
    raise ModelError(f"{name!r} has no tokenizer: it contains none of {', '.join(TOKENIZER_FILES)}")


def _read_module_settings(folder: Path) -> dict[str, Any]:
    for file in _MODULE_SETTINGS:
        if (folder / file).is_file():
            return _read_settings(folder / file)
    return {}


def _read_settings(file: Path) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{file} is damaged: {error}") from error
    if not isinstance(settings, dict):
        raise ModelError(f"{file} is damaged: it does not contain a JSON object")
    return settings
