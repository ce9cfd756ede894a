"""An edit of a tokenizer, and the files that it changes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stickytoken.repairs.tokenizer_edit._checks import EditCheck
from stickytoken.repairs.tokenizer_edit._config import (
    as_json,
    config_of_pipeline,
    read_object,
    special_tokens_map,
)
from stickytoken.repairs.tokenizer_edit._pipeline import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    Pipeline,
    entries_of,
    normaliser_steps,
    pre_tokenizer_steps,
    read_pipeline,
)
from stickytoken.repairs.tokenizer_edit._specials import with_plain_specials
from stickytoken.repairs.tokenizer_edit._unreachable import merge_pairs, reasons_against, without_entries
from stickytoken.repairs.tokenizer_edit._vocabulary_files import vocabulary_files

_ROLES_FILE = "special_tokens_map.json"


@dataclass(frozen=True, slots=True)
class TokenizerEdit:
    """What text may no longer reach.

    Attributes:
        unreachable: entries that text must no longer reach; their text becomes other entries. Ids are kept.
        plain_specials: special or added tokens whose text becomes plain text. The tokenizer still puts them
            around a text by itself.
        collapse: cut runs of a repeated word to two copies.
    """

    unreachable: tuple[int, ...] = ()
    plain_specials: tuple[int, ...] = ()
    collapse: bool = False

    def __bool__(self) -> bool:
        """Whether anything changes."""
        return bool(self.unreachable or self.plain_specials or self.collapse)


def edited_tokenizer(folder: Path, edit: TokenizerEdit) -> dict[str, bytes]:
    """Compute the files of a tokenizer that an edit changes.

    Args:
        folder: A model folder; nothing in it is changed.
        edit: The edit.

    Returns:
        The new content by file name, relative to the folder.

    Raises:
        RepairError: An entry cannot be edited so; the message names it and says why.
    """
    if not edit:
        return {}
    pipeline = read_pipeline(folder)
    changed = _apply(pipeline, edit)
    check = EditCheck(pipeline, changed.document, changed.renamed)
    check.require_out_of_reach((*edit.unreachable, *edit.plain_specials))
    files = vocabulary_files(
        pipeline.folder,
        entries_of(pipeline.document),
        changed.renamed,
        merge_pairs(changed.document["model"]) if edit.unreachable else None,
        edit.plain_specials,
    )
    files[TOKENIZER_FILE] = as_json(changed.document)
    if changed.rebuilt and pipeline.tokenizer is not None:
        files |= _configuration(pipeline, changed, edit)
        check.require_honoured(files, (*edit.unreachable, *edit.plain_specials))
    place = pipeline.folder.relative_to(folder)
    return {str(place / name): content for name, content in files.items()}


def splittable(folder: Path, ids: Sequence[int]) -> dict[int, str | None]:
    """Say for each entry whether it can be made unreachable together with those before it.

    Returns:
        None by token id, or the reason why not.

    Raises:
        RepairError: The folder has no tokenizer that can be edited.
    """
    pipeline = read_pipeline(folder)
    return reasons_against(pipeline.document, list(dict.fromkeys(ids)), pipeline.can_change_steps)


@dataclass(frozen=True, slots=True)
class _Changed:
    """A pipeline after an edit.

    Attributes:
        document: tokenizer.json.
        renamed: New strings of entries by id.
        rebuilt: Whether more than the vocabulary changed, which classes such as BertTokenizer ignore.
    """

    document: dict[str, Any]
    renamed: Mapping[int, str]
    rebuilt: bool


def _apply(pipeline: Pipeline, edit: TokenizerEdit) -> _Changed:
    plain = tuple(dict.fromkeys(edit.plain_specials))
    unreachable = tuple(dict.fromkeys(edit.unreachable))
    for token_id in (*plain, *unreachable):
        pipeline.entry(token_id)
    renamed: dict[int, str] = {}
    rebuilt = bool(plain) or edit.collapse or pipeline.stored is None
    document = _as_loaded(pipeline) if rebuilt else pipeline.document
    removed = without_entries(document, unreachable, pipeline.can_change_steps) if unreachable else None
    if removed is not None and removed.looks_up_words and not rebuilt:
        rebuilt = True
        document = _as_loaded(pipeline)
        removed = without_entries(document, unreachable, pipeline.can_change_steps)
    if removed is not None:
        document = document | {"model": removed.model}
        renamed.update(removed.renamed)
        if removed.word_beginnings:
            document = document | {"pre_tokenizer": _cutting(document, removed.word_beginnings)}
    if plain:
        document, names = with_plain_specials(
            document, plain, getattr(pipeline.tokenizer, "pad_token_id", None)
        )
        renamed.update(names)
    if edit.collapse:
        document = with_collapsed_runs(document)
    return _Changed(document, renamed, rebuilt)


def _as_loaded(pipeline: Pipeline) -> dict[str, Any]:
    """Return the pipeline that transformers makes of the files, with the lengths of tokenizer.json."""
    if pipeline.tokenizer is None:
        return pipeline.document
    return pipeline.loaded | {key: (pipeline.stored or {}).get(key) for key in ("truncation", "padding")}


def _cutting(document: dict[str, Any], beginnings: Sequence[str]) -> dict[str, Any]:
    """Cut entries off the beginnings of words, the longest first."""
    alternatives = "|".join(re.escape(each) for each in sorted(beginnings, key=len, reverse=True))
    step = {
        "type": "Split",
        "pattern": {"Regex": rf"\A(?:{alternatives})"},
        "behavior": "Isolated",
        "invert": False,
    }
    return {"type": "Sequence", "pretokenizers": [*pre_tokenizer_steps(document), step]}


def _configuration(pipeline: Pipeline, changed: _Changed, edit: TokenizerEdit) -> dict[str, bytes]:
    pad_id = getattr(pipeline.tokenizer, "pad_token_id", None)
    config = config_of_pipeline(
        read_object(pipeline.folder / CONFIG_FILE),
        pipeline.tokenizer,
        changed.document,
        edit.plain_specials,
        changed.renamed.get(pad_id) if pad_id in edit.plain_specials else None,
    )
    files = {CONFIG_FILE: as_json(config)}
    if roles := read_object(pipeline.folder / _ROLES_FILE):
        files[_ROLES_FILE] = as_json(special_tokens_map(roles, config))
    return files


# A word that is followed by two more copies of itself. The replacement of a normaliser cannot refer to
# groups, so words are deleted rather than runs rewritten.
_REPEATED = r"\b(\w+)\s+(?=\1\s+\1\b)"
_STEP = {"type": "Replace", "pattern": {"Regex": _REPEATED}, "content": ""}
# Steps after which words are no longer separated by spaces.
_JOINING = {"Prepend", "ByteLevel", "Replace"}


def with_collapsed_runs(document: dict[str, Any]) -> dict[str, Any]:
    """Add the step to the normaliser: after lowercasing and the like, before spaces are replaced."""
    steps = normaliser_steps(document)
    if _STEP in steps:
        return document
    place = next((place for place, step in enumerate(steps) if step["type"] in _JOINING), len(steps))
    steps = [*steps[:place], _STEP, *steps[place:]]
    return document | {"normalizer": {"type": "Sequence", "normalizers": steps}}
