"""Load a model's tokenizer alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stickytoken.encoders.loading.resolution import Origin, explained, hub_repositories, resolve_model
from stickytoken.encoders.tokenizer import HuggingFaceTokenizer
from stickytoken.errors import InputError, ModelError
from stickytoken.validation import shown

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
            return HuggingFaceTokenizer(_tokenizer_from_hub(source.name, revision, trust_remote_code))
    folder = tokenizer_folder(Path(source.location), source.name)
    files = {path.name for path in folder.iterdir()}
    with explained(source, "tokenizer"):
        if "tokenizer.json" in files and not files & {"tokenizer_config.json", "config.json"}:
            return HuggingFaceTokenizer(Tokenizer.from_file(str(folder / "tokenizer.json")))
        return HuggingFaceTokenizer(
            _auto_tokenizer(str(folder), trust_remote_code=trust_remote_code, local_files_only=True)
        )


def _tokenizer_from_hub(name: str, revision: str | None, trust_remote_code: bool) -> Any:
    """Load the tokenizer of the first repository that has one."""
    *preferred, last = hub_repositories(name)
    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    for repository in preferred:
        try:
            return _auto_tokenizer(repository, **options)
        except OSError:  # raised if the repository does not exist or has no tokenizer
            continue
    return _auto_tokenizer(last, **options)


def _auto_tokenizer(location: str, **options: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(location, **options)


def tokenizer_folder(folder: Path, name: str) -> Path:
    """Find the tokenizer in the folder itself, or in that of a module listed in modules.json."""
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
