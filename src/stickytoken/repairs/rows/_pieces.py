"""The pieces into which the text of an entry is split once the entry is unreachable."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stickytoken.repairs.tokenizer_edit import merge_pairs, renamed_model, word_pieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Stands before the number of a removed entry. The names of other entries do not hold it.
_REMOVED = "\U0010fffd\U0010fffd"


def pieces_of(backend: Tokenizer, ids: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Tokenize the text of entries without any of them.

    Args:
        backend: the pipeline of the model's tokenizer; it is not changed.
        ids: the entries.

    Returns:
        Ids of the pieces, by id of the entry; empty for an added token, which is matched before text is cut,
        and for an entry whose text cannot be written with other entries.
    """
    from tokenizers import Tokenizer

    names = {token_id: name for token_id in ids if (name := backend.id_to_token(token_id)) is not None}
    pipeline = json.loads(backend.to_str())
    added = {token["id"] for token in pipeline["added_tokens"]}
    model = _without(pipeline["model"], names)
    unknown = _unknown_id(model, backend)
    bare = Tokenizer.from_str(json.dumps({**_bare(pipeline), "model": model}))
    found: dict[int, tuple[int, ...]] = dict.fromkeys(ids, ())
    for token_id, name in names.items():
        pieces = () if token_id in added else tuple(_tokenized(bare, model, name))
        found[token_id] = () if unknown in pieces else pieces
    return found


def _bare(pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """Everything around the model of a pipeline, empty: names of entries are tokenized as they are."""
    parts = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    return {"version": pipeline.get("version", "1.0"), "added_tokens": [], **dict.fromkeys(parts)}


def _without(model: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    """Return the settings of a tokenizer's model with entries renamed, so that nothing reaches them."""
    kept = renamed_model(dict(model), {token_id: f"{_REMOVED}{token_id}" for token_id in names})
    if (pairs := merge_pairs(kept)) is not None:
        gone = set(names.values())
        kept["merges"] = [list(pair) for pair in pairs if gone.isdisjoint((*pair, "".join(pair)))]
    return kept


def _unknown_id(model: Mapping[str, Any], backend: Tokenizer) -> int | None:
    if isinstance(model["vocab"], list):
        found = model.get("unk_id")
        return None if found is None else int(found)
    token = model.get("unk_token")
    return None if token is None else backend.token_to_id(token)


def _tokenized(tokenizer: Tokenizer, model: Mapping[str, Any], name: str) -> Iterator[int]:
    """Tokenize the name of an entry by the model alone."""
    prefix = model.get("continuing_subword_prefix") or ""
    if model.get("type") == "WordPiece" and prefix and name.startswith(prefix):
        # The library would read the prefix as the beginning of a word.
        yield from (model["vocab"][piece] for piece in word_pieces(name, model["vocab"], prefix) or ())
        return
    yield from (token.id for token in tokenizer.model.tokenize(name))
