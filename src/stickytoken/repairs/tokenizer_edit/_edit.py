"""An edit of a tokenizer, and the files that it changes."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stickytoken.errors import RepairError
from stickytoken.repairs.tokenizer_edit._pipeline import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    Pipeline,
    entries_of,
    normaliser_steps,
    pre_tokenizer_steps,
    read_pipeline,
    shown_entry,
    transformers_tokenizer,
)
from stickytoken.repairs.tokenizer_edit._unreachable import (
    merge_pairs,
    reasons_against,
    with_plain_specials,
    without_entries,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer


# What may stand around the text of an entry.
_SHAPES = ("{}", " {}", "{0} {0} {0}", "{0}{0}", "a {} b", "a{}b", '"{}"')
_RUN = "one one one one two"


class EditCheck:
    """Compares an edited tokenizer with the requested edit."""

    def __init__(self, pipeline: Pipeline, document: dict[str, Any], renamed: Mapping[int, str]) -> None:
        self._pipeline = pipeline
        self._document = document
        self._renamed = renamed

    def require_out_of_reach(self, ids: Collection[int]) -> None:
        """Tokenize the text of every edited entry, alone, repeated and within other text."""
        model = self._document["model"]
        unknown = {model.get("unk_id"), self._after.token_to_id(str(model.get("unk_token")))}
        for token_id in set(ids) - unknown:
            for text in self._texts_with(token_id):
                if token_id in self._after.encode(text, add_special_tokens=False).ids:
                    entry = shown_entry(self._pipeline.entry(token_id), token_id)
                    raise RepairError(f"{entry} cannot be edited: text such as {text!r} still reaches it")
        before, after = self._before.get_vocab_size(), self._after.get_vocab_size()
        if before != after:
            raise RepairError(
                f"the tokenizer in {self._pipeline.folder} cannot be edited: it has {before} entries, and "
                f"{after} after the edit"
            )

    def require_honoured(self, files: Mapping[str, bytes], ids: Collection[int]) -> None:
        """Load the edited tokenizer with transformers, which may rebuild it from its vocabulary."""
        with tempfile.TemporaryDirectory() as place:
            if (config := self._pipeline.folder / "config.json").is_file():
                shutil.copyfile(config, Path(place) / config.name)
            for name, content in files.items():
                (Path(place) / name).write_bytes(content)
            tokenizer = transformers_tokenizer(Path(place))
        texts = [_RUN, *(text for token_id in ids for text in self._texts_with(token_id))]
        loaded = _whole(tokenizer.backend_tokenizer)
        for text in texts:
            if loaded.encode(text).ids != self._after.encode(text).ids:
                raise RepairError(
                    f"the tokenizer in {self._pipeline.folder} cannot be edited so: transformers rebuilds a "
                    f"{type(tokenizer).__name__} from its vocabulary, and reads {text!r} otherwise than "
                    "tokenizer.json says; choose a strategy that changes rows"
                )

    @cached_property
    def _before(self) -> Tokenizer:
        return _tokenizer(self._pipeline.document)

    @cached_property
    def _after(self) -> Tokenizer:
        return _tokenizer(self._document)

    def _texts_with(self, token_id: int) -> list[str]:
        entry = self._pipeline.entry(token_id)
        decoded = self._before.decode([token_id], skip_special_tokens=False)
        texts = {entry, self._renamed.get(token_id, entry), decoded}
        return [shape.format(text) for text in sorted(texts) for shape in _SHAPES]


def _tokenizer(document: dict[str, Any]) -> Tokenizer:
    from tokenizers import Tokenizer

    return _whole(Tokenizer.from_str(json.dumps(document)))


def _whole(tokenizer: Tokenizer) -> Tokenizer:
    """Switch off truncation and padding."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


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


_SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
_UNUSED = 5  # type of a SentencePiece entry that no text is cut into


def vocabulary_files(
    folder: Path,
    before: Mapping[int, str],
    renamed: Mapping[int, str],
    merges: Collection[tuple[str, str]] | None,
    dropped: Collection[int],
) -> dict[str, bytes]:
    """Compute the older files of a tokenizer folder that an edit changes."""
    names = {before[token_id]: name for token_id, name in renamed.items()}
    gone = {before[token_id] for token_id in dropped}
    files: dict[str, bytes] = {}
    if (content := _read(folder / "vocab.txt")) is not None and names:
        files["vocab.txt"] = _renamed_lines(content, names)
    if (content := _read(folder / "vocab.json")) is not None and names:
        vocabulary = _object(content, folder / "vocab.json")
        changed = {names.get(entry, entry): token_id for entry, token_id in vocabulary.items()}
        files["vocab.json"] = json.dumps(changed, ensure_ascii=False).encode()
    if (content := _read(folder / "merges.txt")) is not None and merges is not None:
        files["merges.txt"] = _merge_lines(content, merges)
    if (content := _read(folder / "added_tokens.json")) is not None and gone:
        added = _object(content, folder / "added_tokens.json")
        left = {entry: token_id for entry, token_id in added.items() if entry not in gone}
        files["added_tokens.json"] = json.dumps(left, ensure_ascii=False, indent=2).encode()
    for name in _SENTENCEPIECE:
        if (content := _read(folder / name)) is not None and names:
            files |= {name: changed_model} if (changed_model := _renamed_pieces(content, names)) else {}
    return files


def _renamed_lines(content: bytes, names: Mapping[str, str]) -> bytes:
    lines = content.decode("utf-8").split("\n")
    return "\n".join(names.get(line.rstrip("\r"), line) for line in lines).encode()


def _merge_lines(content: bytes, merges: Collection[tuple[str, str]]) -> bytes:
    first = content.decode("utf-8").split("\n", 1)[0]
    head = [first] if first.startswith("#version") else []
    return "\n".join([*head, *(" ".join(pair) for pair in merges), ""]).encode()


def _renamed_pieces(content: bytes, names: Mapping[str, str]) -> bytes | None:
    """Rename pieces of a SentencePiece model, and mark them as unused; None if it holds none of them."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from sentencepiece import sentencepiece_model_pb2

    formats: Any = sentencepiece_model_pb2
    model = formats.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:  # files of tiktoken have this name too
        return None
    normal = formats.ModelProto.SentencePiece.NORMAL
    found = [piece for piece in model.pieces if piece.piece in names and piece.type in (normal, _UNUSED)]
    for piece in found:
        piece.piece, piece.type = names[piece.piece], _UNUSED
    return bytes(model.SerializeToString()) if found else None


def _object(content: bytes, path: Path) -> dict[str, int]:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise RepairError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise RepairError(f"{path} is not a JSON object")
    return found


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError as error:
        raise RepairError(f"{path} cannot be read: {error.strerror or error}") from error


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
    """A pipeline after an edit."""

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
