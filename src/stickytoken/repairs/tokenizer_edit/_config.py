"""tokenizer_config.json and special_tokens_map.json of an edited tokenizer."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from stickytoken.errors import RepairError

_EXTRA = ("additional_special_tokens", "extra_special_tokens")
# Settings of classes that build their own pipeline; the pipeline is in tokenizer.json now.
_OF_CLASSES = (
    "add_bos_token",
    "add_eos_token",
    "auto_map",
    "from_slow",
    "legacy",
    "vocab_file",
    "tokenizer_file",
)
_SETTINGS = ("model_max_length", "padding_side", "truncation_side", "clean_up_tokenization_spaces")


def config_of_pipeline(
    stored: Mapping[str, Any],
    tokenizer: Any,
    document: Mapping[str, Any],
    plain: Collection[int],
    pad_name: str | None,
) -> dict[str, Any]:
    """Write the configuration that makes transformers follow tokenizer.json.

    A class such as BertTokenizer rebuilds its pipeline from the vocabulary. `PreTrainedTokenizerFast` does
    not, but it looks for every token that has a role (``cls_token``) in text, so tokens that are plain text
    have none.

    Args:
        stored: The configuration before.
        tokenizer: The tokenizer before, as transformers loads it.
        document: The edited tokenizer.json.
        plain: Ids of special tokens that are plain text now.
        pad_name: New name of the padding token, if that is one of them. Batches need it, so it keeps its
            role: then no special token is looked for in text, and the others lose their roles and that mark.
    """
    roles = {
        role: str(token) for role, token in tokenizer.special_tokens_map.items() if isinstance(token, str)
    }
    config = {key: value for key, value in stored.items() if key not in (*_EXTRA, *_OF_CLASSES)}
    for role, token in roles.items():
        token_id = tokenizer.convert_tokens_to_ids(token)
        if pad_name is not None or token_id in plain:
            config[role] = None
        else:
            config[role] = token
    if pad_name is not None:
        config |= {"pad_token": pad_name, "split_special_tokens": True}
    else:
        extra = [
            str(token)
            for token in getattr(tokenizer, "extra_special_tokens", ())
            if tokenizer.convert_tokens_to_ids(str(token)) not in plain
        ]
        config |= {"additional_special_tokens": extra} if extra else {}
    config["added_tokens_decoder"] = {
        str(added["id"]): {key: value for key, value in added.items() if key != "id"}
        for added in document["added_tokens"]
    }
    config |= {key: getattr(tokenizer, key) for key in _SETTINGS if getattr(tokenizer, key, None) is not None}
    config["model_input_names"] = list(tokenizer.model_input_names)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    return {key: value for key, value in config.items() if value is not None or key not in roles}


def special_tokens_map(stored: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Leave in special_tokens_map.json what still has a role."""
    kept = {}
    for key, value in stored.items():
        if key in _EXTRA:
            left = set(config.get("additional_special_tokens", ()))
            kept[key] = [each for each in value if _content(each) in left]
        elif key in config:
            kept[key] = value if _content(value) == config[key] else config[key]
    return kept


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; an empty one if there is no file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RepairError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise RepairError(f"{path} is not a JSON object")
    return found


def as_json(value: Any) -> bytes:
    """Write JSON as the files of tokenizers are written."""
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()


def _content(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token
