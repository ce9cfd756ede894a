"""An edit of a tokenizer, and the files that it changes."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stickytoken.errors import RepairError
from stickytoken.repairs.tokenizer_edit._pipeline import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    Pipeline,
    entries_of,
    pre_tokenizer_steps,
    read_object,
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


_ROLES_FILE = "special_tokens_map.json"


@dataclass(frozen=True, slots=True)
class TokenizerEdit:
    """What text may no longer reach; the ids of all entries are kept."""

    unreachable: tuple[int, ...] = ()  # entries whose text becomes other entries
    # Special or added tokens whose text becomes plain text; the tokenizer still puts them around a text.
    plain_specials: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.unreachable or self.plain_specials)


def splittable(folder: Path, ids: Sequence[int]) -> dict[int, str | None]:
    """Say for each entry why it cannot be made unreachable together with those before it; None if it can.

    Raises:
        RepairError: The folder has no tokenizer that can be edited.
    """
    pipeline = read_pipeline(folder)
    return reasons_against(pipeline.document, list(dict.fromkeys(ids)), pipeline.can_change_steps)


def edited_tokenizer(folder: Path, edit: TokenizerEdit) -> dict[str, bytes]:
    """Compute the files that an edit changes: new content by file name, relative to the model folder.

    Raises:
        RepairError: An entry cannot be edited so; the message names it and says why.
    """
    if not edit:
        return {}
    pipeline = read_pipeline(folder)
    plain = tuple(dict.fromkeys(edit.plain_specials))
    unreachable = tuple(dict.fromkeys(edit.unreachable))
    for token_id in (*plain, *unreachable):
        pipeline.entry(token_id)
    rebuilt = bool(plain) or pipeline.stored is None
    document = _as_loaded(pipeline) if rebuilt else pipeline.document
    renamed: dict[int, str] = {}
    if unreachable:
        removed = without_entries(document, unreachable, pipeline.can_change_steps)
        if removed.model.get("ignore_merges") and not rebuilt:
            # The steps change too, not the vocabulary alone.
            rebuilt, document = True, _as_loaded(pipeline)
            removed = without_entries(document, unreachable, pipeline.can_change_steps)
        document = document | {"model": removed.model}
        if removed.word_beginnings:
            document = document | {"pre_tokenizer": _cutting(document, removed.word_beginnings)}
        renamed |= removed.renamed
    pad_id = getattr(pipeline.tokenizer, "pad_token_id", None)
    if plain:
        document, names = with_plain_specials(document, plain, pad_id)
        renamed |= names
    after = _tokenizer(document)
    texts = _texts_with(pipeline, (*unreachable, *plain), renamed)
    _require_out_of_reach(pipeline, document, after, texts)
    files = _vocabulary_files(pipeline, document, renamed, edit)
    files[TOKENIZER_FILE] = _as_json(document)
    if rebuilt and pipeline.tokenizer is not None:
        pad_name = renamed.get(pad_id) if pad_id in plain else None
        config = _config_of_pipeline(pipeline, document, plain, pad_name)
        files[CONFIG_FILE] = _as_json(config)
        if roles := read_object(pipeline.folder / _ROLES_FILE):
            files[_ROLES_FILE] = _as_json(_special_tokens_map(roles, config))
        _require_honoured(pipeline, files, after, texts.values())
    place = pipeline.folder.relative_to(folder)
    return {str(place / name): content for name, content in files.items()}


def _as_loaded(pipeline: Pipeline) -> dict[str, Any]:
    """Return the pipeline that transformers makes of the files, with the lengths of tokenizer.json."""
    if pipeline.tokenizer is None:
        return pipeline.document
    return pipeline.loaded | {key: (pipeline.stored or {}).get(key) for key in ("truncation", "padding")}


def _cutting(document: dict[str, Any], beginnings: Sequence[str]) -> dict[str, Any]:
    """Cut entries off the beginnings of words, the longest first."""
    alternatives = "|".join(re.escape(each) for each in sorted(beginnings, key=len, reverse=True))
    pattern = {"Regex": rf"\A(?:{alternatives})"}
    step = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [*pre_tokenizer_steps(document), step]}


# What may stand around the text of an entry.
_SHAPES = ("{}", " {}", "{0} {0} {0}", "{0}{0}", "a {} b", "a{}b", '"{}"')
_RUN = "one one one one two"


def _texts_with(pipeline: Pipeline, ids: Sequence[int], renamed: Mapping[int, str]) -> dict[int, list[str]]:
    """Write every edited entry alone, repeated and within other text."""
    before = _tokenizer(pipeline.document)
    found = {}
    for token_id in ids:
        entry = pipeline.entry(token_id)
        decoded = before.decode([token_id], skip_special_tokens=False)
        texts = sorted({entry, renamed.get(token_id, entry), decoded})
        found[token_id] = [shape.format(text) for text in texts for shape in _SHAPES]
    return found


def _require_out_of_reach(
    pipeline: Pipeline, document: dict[str, Any], after: Tokenizer, texts: Mapping[int, Sequence[str]]
) -> None:
    model = document["model"]
    unknown = {model.get("unk_id"), after.token_to_id(str(model.get("unk_token")))}
    for token_id in set(texts) - unknown:
        for text in texts[token_id]:
            if token_id in after.encode(text, add_special_tokens=False).ids:
                entry = shown_entry(pipeline.entry(token_id), token_id)
                raise RepairError(f"{entry} cannot be edited: text such as {text!r} still reaches it")
    sizes = _tokenizer(pipeline.document).get_vocab_size(), after.get_vocab_size()
    if sizes[0] != sizes[1]:
        raise RepairError(
            f"the tokenizer in {pipeline.folder} cannot be edited: it has {sizes[0]} entries, and "
            f"{sizes[1]} after the edit"
        )


def _require_honoured(
    pipeline: Pipeline, files: Mapping[str, bytes], after: Tokenizer, texts: Iterable[Sequence[str]]
) -> None:
    """Load the edited tokenizer with transformers, which may rebuild it from its vocabulary."""
    with tempfile.TemporaryDirectory() as place:
        if (config := pipeline.folder / "config.json").is_file():
            shutil.copyfile(config, Path(place) / config.name)
        for name, content in files.items():
            (Path(place) / name).write_bytes(content)
        tokenizer = transformers_tokenizer(Path(place))
    loaded = _whole(tokenizer.backend_tokenizer)
    for text in (_RUN, *(text for own in texts for text in own)):
        if loaded.encode(text).ids != after.encode(text).ids:
            raise RepairError(
                f"the tokenizer in {pipeline.folder} cannot be edited so: transformers rebuilds a "
                f"{type(tokenizer).__name__} from its vocabulary, and reads {text!r} otherwise than "
                "tokenizer.json says; choose a strategy that changes rows"
            )


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


def _config_of_pipeline(
    pipeline: Pipeline, document: Mapping[str, Any], plain: Collection[int], pad_name: str | None
) -> dict[str, Any]:
    """Write the configuration that makes transformers follow tokenizer.json.

    A class such as BertTokenizer rebuilds its pipeline from the vocabulary. `PreTrainedTokenizerFast` does
    not, but it looks for every token that has a role (``cls_token``) in text, so tokens that are plain text
    have none.
    """
    tokenizer, stored = pipeline.tokenizer, read_object(pipeline.folder / CONFIG_FILE)

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
    return {key: value for key, value in config.items() if value is not None or key not in roles}


def _special_tokens_map(stored: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Leave in special_tokens_map.json what still has a role."""

    def content(token: Any) -> Any:
        return token.get("content") if isinstance(token, dict) else token

    left = set(config.get("additional_special_tokens", ()))
    kept = {}
    for key, value in stored.items():
        if key in _EXTRA:
            kept[key] = [each for each in value if content(each) in left]
        elif key in config:
            kept[key] = value if content(value) == config[key] else config[key]
    return kept


def _as_json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()


_SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
_UNUSED = 5  # type of a SentencePiece entry that no text is cut into


def _vocabulary_files(
    pipeline: Pipeline, document: dict[str, Any], renamed: Mapping[int, str], edit: TokenizerEdit
) -> dict[str, bytes]:
    """Compute the older files of a tokenizer folder that an edit changes."""
    folder, before = pipeline.folder, entries_of(pipeline.document)
    names = {before[token_id]: name for token_id, name in renamed.items()}
    gone = {before[token_id] for token_id in edit.plain_specials}
    files: dict[str, bytes] = {}
    if names and (content := _read(folder / "vocab.txt")) is not None:
        lines = content.decode("utf-8").split("\n")
        files["vocab.txt"] = "\n".join(names.get(line.rstrip("\r"), line) for line in lines).encode()
    if names and (vocabulary := read_object(folder / "vocab.json")):
        changed = {names.get(entry, entry): token_id for entry, token_id in vocabulary.items()}
        files["vocab.json"] = json.dumps(changed, ensure_ascii=False).encode()
    merges = merge_pairs(document["model"]) if edit.unreachable else None
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


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError as error:
        raise RepairError(f"{path} cannot be read: {error.strerror or error}") from error
