"""Change what text reaches in a tokenizer, without changing any token id."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stickytoken.encoders.loading.resolution import text_module
from stickytoken.errors import RepairError
from stickytoken.repairs import _pipeline

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

_TOKENIZER_FILE, _CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
_ROLES_FILE = "special_tokens_map.json"


# What is left where a tokenizer cannot be edited.
WITHOUT_EDITING = (
    "give other tokens than the model's own special ones a new row (keep-meaning or nearest), and remove the "
    "others from documents with stickytoken clean"
)


@dataclass(frozen=True, slots=True)
class ModelEdit:
    rows: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)  # by token id, each (hidden size,)
    unreachable: tuple[int, ...] = ()  # entries whose text becomes other entries; their ids stay
    # Special or added tokens whose text becomes plain text; the tokenizer still puts them around a text.
    plain_specials: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Pipeline:
    folder: Path
    stored: dict[str, Any] | None  # tokenizer.json, if there is one
    loaded: dict[str, Any]  # the pipeline of the loaded tokenizer, in the form of tokenizer.json
    tokenizer: Any  # of transformers; None if the folder is meant for `tokenizers` alone

    @property
    def document(self) -> dict[str, Any]:
        return self.loaded if self.stored is None else self.stored

    def can_change_steps(self) -> bool:
        if self.tokenizer is None:
            return True
        step = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}
        model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
        document = {"version": "1.0", "added_tokens": [], "normalizer": step, "model": model}
        config = b'{"tokenizer_class": "PreTrainedTokenizerFast"}'
        files = {_TOKENIZER_FILE: json.dumps(document).encode(), _CONFIG_FILE: config}
        try:
            loaded = _loaded_by_transformers(files, self.folder)
        except RepairError:
            return False
        return bool(json.loads(loaded.backend_tokenizer.to_str())["normalizer"] == step)


def read_pipeline(model: Path) -> Pipeline:
    from tokenizers import Tokenizer

    module = text_module(model, str(model))
    folder = module.folder
    path = folder / _TOKENIZER_FILE
    stored = read_object(path) or None
    bare = not any((folder / name).is_file() for name in (_CONFIG_FILE, "config.json"))
    if stored and (bare or module.is_static):
        return Pipeline(folder, stored, json.loads(Tokenizer.from_file(str(path)).to_str()), None)
    tokenizer = _transformers_tokenizer(folder)
    return Pipeline(folder, stored, json.loads(tokenizer.backend_tokenizer.to_str()), tokenizer)


def _transformers_tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # anything may be wrong with the files, and each class says it in its own way
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise RepairError(f"the tokenizer in {folder} cannot be loaded: {reason}") from error
    if not isinstance(getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
        raise RepairError(
            f"the tokenizer in {folder} is a {type(tokenizer).__name__}, written in Python: only fast "
            f"tokenizers can be edited; {WITHOUT_EDITING}"
        )
    return tokenizer


def _loaded_by_transformers(files: Mapping[str, bytes], model: Path) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        if (config := model / "config.json").is_file():
            shutil.copyfile(config, Path(folder) / config.name)
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        return _transformers_tokenizer(Path(folder))


def read_object(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found


def splittable(folder: Path, ids: Sequence[int]) -> dict[int, str | None]:
    """Say of each entry why it cannot become unreachable together with those before it; None if it can."""
    if not ids:
        return {}
    pipeline = read_pipeline(folder)
    vocabulary = _pipeline.Vocabulary(pipeline.document, pipeline.can_change_steps)
    reasons: dict[int, str | None] = {}
    for token_id in dict.fromkeys(ids):
        accepted = [each for each, reason in reasons.items() if reason is None]
        reasons[token_id] = vocabulary.reason_against(token_id, accepted)
    return reasons


def edited_tokenizer(folder: Path, edit: ModelEdit) -> dict[str, bytes]:
    plain, unreachable = edit.plain_specials, edit.unreachable
    if not (plain or unreachable):
        return {}
    pipeline = read_pipeline(folder)
    # The pipeline that transformers makes of the files, with the lengths of tokenizer.json.
    as_loaded = pipeline.document
    if pipeline.tokenizer is not None:
        lengths = {key: (pipeline.stored or {}).get(key) for key in ("truncation", "padding")}
        as_loaded = pipeline.loaded | lengths
    rebuilt = bool(plain) or pipeline.stored is None
    document = as_loaded if rebuilt else pipeline.document
    renamed: dict[int, str] = {}
    if unreachable:
        changed, renamed = _pipeline.Vocabulary(document, pipeline.can_change_steps).without(unreachable)
        if changed["model"].get("ignore_merges") and not rebuilt:
            # The steps change too, not the vocabulary alone.
            rebuilt = True
            changed, renamed = _pipeline.Vocabulary(as_loaded, pipeline.can_change_steps).without(unreachable)
        document = changed
    pad_id = getattr(pipeline.tokenizer, "pad_token_id", None)
    if plain:
        document, names = _pipeline.with_plain_specials(document, plain, pad_id)
        renamed |= names
    after = _tokenizer(document)
    texts = _require_out_of_reach(pipeline, document, after, (*unreachable, *plain), renamed)
    files = _vocabulary_files(pipeline, document, renamed, edit)
    files[_TOKENIZER_FILE] = _as_json(document)
    if rebuilt and pipeline.tokenizer is not None:
        files |= _config_files(pipeline, document, plain, renamed.get(pad_id) if pad_id in plain else None)
        tokenizer = _loaded_by_transformers(files, pipeline.folder)
        loaded = _whole(tokenizer.backend_tokenizer)
        for text in ("one one one one two", *texts):
            if loaded.encode(text).ids != after.encode(text).ids:
                raise RepairError(
                    f"the tokenizer in {pipeline.folder} cannot be edited so: transformers rebuilds a "
                    f"{type(tokenizer).__name__} from its vocabulary, and reads {text!r} otherwise than "
                    "tokenizer.json says; choose a strategy that changes rows"
                )
    inside = pipeline.folder.relative_to(folder)
    return {str(inside / name): content for name, content in files.items()}


# What may stand around the text of an entry.
_SHAPES = ("{}", " {}", "{0} {0} {0}", "{0}{0}", "a {} b", "a{}b", '"{}"')


def _require_out_of_reach(
    pipeline: Pipeline,
    document: dict[str, Any],
    after: Tokenizer,
    ids: Sequence[int],
    renamed: Mapping[int, str],
) -> list[str]:
    entries, before = _pipeline.entries_of(pipeline.loaded), _tokenizer(pipeline.document)
    texts = {}
    for token_id in ids:
        decoded = before.decode([token_id], skip_special_tokens=False)
        written = sorted({entries[token_id], renamed.get(token_id, entries[token_id]), decoded})
        texts[token_id] = [shape.format(text) for text in written for shape in _SHAPES]
    model = document["model"]
    unknown = {model.get("unk_id"), after.token_to_id(str(model.get("unk_token")))}
    for token_id in set(ids) - unknown:
        for text in texts[token_id]:
            if token_id in after.encode(text, add_special_tokens=False).ids:
                entry = _pipeline.shown_entry(entries[token_id], token_id)
                raise RepairError(f"{entry} cannot be edited: text such as {text!r} still reaches it")
    if (size := before.get_vocab_size()) != (left := after.get_vocab_size()):
        raise RepairError(
            f"the tokenizer in {pipeline.folder} cannot be edited: it has {size} entries, and {left} after "
            "the edit"
        )
    return [text for token_id in ids for text in texts[token_id]]


def _tokenizer(document: dict[str, Any]) -> Tokenizer:
    from tokenizers import Tokenizer

    return _whole(Tokenizer.from_str(json.dumps(document)))


def _whole(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _as_json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()


_EXTRA = ("additional_special_tokens", "extra_special_tokens")
# Settings of classes that build their own pipeline; the pipeline is in tokenizer.json now.
_OF_CLASSES = {"add_bos_token", "add_eos_token", "auto_map", "from_slow", "legacy"}
_OF_CLASSES |= {"vocab_file", "tokenizer_file"}
_SETTINGS = ("model_max_length", "padding_side", "truncation_side", "clean_up_tokenization_spaces")


def _config_files(
    pipeline: Pipeline, document: Mapping[str, Any], plain: Collection[int], pad_name: str | None
) -> dict[str, bytes]:
    """Make transformers follow tokenizer.json: `PreTrainedTokenizerFast` does, but for tokens with a role."""
    tokenizer = pipeline.tokenizer
    stored, stored_roles = (read_object(pipeline.folder / name) for name in (_CONFIG_FILE, _ROLES_FILE))

    def is_plain(token: str) -> bool:
        return tokenizer.convert_tokens_to_ids(token) in plain

    named = tokenizer.special_tokens_map.items()
    roles = {role: str(token) for role, token in named if isinstance(token, str)}
    config = {key: value for key, value in stored.items() if key not in (*_EXTRA, *_OF_CLASSES)}
    config |= {
        role: None if pad_name is not None or is_plain(token) else token for role, token in roles.items()
    }
    if pad_name is not None:
        config |= {"pad_token": pad_name, "split_special_tokens": True}
    else:
        extra = map(str, getattr(tokenizer, "extra_special_tokens", ()))
        if kept := [token for token in extra if not is_plain(token)]:
            config["additional_special_tokens"] = kept
    config["added_tokens_decoder"] = {
        str(added["id"]): {key: value for key, value in added.items() if key != "id"}
        for added in document["added_tokens"]
    }
    config |= {key: getattr(tokenizer, key) for key in _SETTINGS if getattr(tokenizer, key, None) is not None}
    config["model_input_names"] = list(tokenizer.model_input_names)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config = {key: value for key, value in config.items() if value is not None or key not in roles}
    files = {_CONFIG_FILE: _as_json(config)}
    if not stored_roles:
        return files

    def content(token: Any) -> Any:
        return token.get("content") if isinstance(token, dict) else token

    left = set(config.get("additional_special_tokens", ()))
    roles_left: dict[str, Any] = {}
    for key, value in stored_roles.items():
        if key in _EXTRA:
            roles_left[key] = [each for each in value if content(each) in left]
        elif key in config:
            roles_left[key] = value if content(value) == config[key] else config[key]
    return files | {_ROLES_FILE: _as_json(roles_left)}


_SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
_UNUSED = 5  # type of a SentencePiece entry that no text is cut into


def _vocabulary_files(
    pipeline: Pipeline, document: dict[str, Any], renamed: Mapping[int, str], edit: ModelEdit
) -> dict[str, bytes]:
    folder, before = pipeline.folder, _pipeline.entries_of(pipeline.document)
    names = {before[token_id]: name for token_id, name in renamed.items()}
    gone = {before[token_id] for token_id in edit.plain_specials}
    files: dict[str, bytes] = {}
    if names and (content := _read(folder / "vocab.txt")) is not None:
        lines = content.decode("utf-8").split("\n")
        files["vocab.txt"] = "\n".join(names.get(line.rstrip("\r"), line) for line in lines).encode()
    if names and (vocabulary := read_object(folder / "vocab.json")):
        changed = {names.get(entry, entry): token_id for entry, token_id in vocabulary.items()}
        files["vocab.json"] = json.dumps(changed, ensure_ascii=False).encode()
    merges = _pipeline.merge_pairs(document["model"]) if edit.unreachable else None
    if merges is not None and (content := _read(folder / "merges.txt")) is not None:
        first = content.decode("utf-8").split("\n", 1)[0]
        head = [first] if first.startswith("#version") else []
        files["merges.txt"] = "\n".join([*head, *(" ".join(pair) for pair in merges), ""]).encode()
    if gone and (added := read_object(folder / "added_tokens.json")):
        left = {entry: token_id for entry, token_id in added.items() if entry not in gone}
        files["added_tokens.json"] = json.dumps(left, ensure_ascii=False, indent=2).encode()
    for name in _SENTENCEPIECE if names else ():
        if (content := _read(folder / name)) is not None and (pieces := _renamed_pieces(content, names)):
            files[name] = pieces
    return files


def _renamed_pieces(content: bytes, names: Mapping[str, str]) -> bytes | None:
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


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
