"""Edit a tokenizer so that it no longer produces certain tokens from text. Token ids do not change."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stickytoken.encoders.files.tokenizer_loading import text_module
from stickytoken.encoders.inputs.tokenizer import find_unknown_id
from stickytoken.errors import RepairError
from stickytoken.repairs import _tokenizer_json
from stickytoken.repairs._tokenizer_json import EditedTokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

_TOKENIZER_FILE = "tokenizer.json"
_TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
_ROLES_FILE = "special_tokens_map.json"

# Maximum number of characters that a message quotes from an error of transformers.
SHOWN_ERROR = 200

# Advice for tokenizers that cannot be edited.
WITHOUT_EDITING = (
    "use the strategy nearest, except for the model's own special tokens, which stickytoken clean can remove "
    "from documents"
)


@dataclass(frozen=True, slots=True)
class ModelEdit:
    """The changes to a model.

    Attributes:
        rows: new rows of the token embeddings, keyed by token id, each of shape (D,).
        unreachable: ids of entries that the tokenizer no longer produces from text. Where the text of an
            unreachable entry occurs, the tokenizer splits it into other entries.
        plain_specials: ids of special or added tokens. Where the text of one of these tokens occurs, the
            tokenizer reads it as plain text. The special tokens that the tokenizer adds before and after
            every text do not change.
        route: route whose embeddings and tokenizer are changed, if the model has several. If None, the
            default route is used.
    """

    rows: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
    unreachable: tuple[int, ...] = ()
    plain_specials: tuple[int, ...] = ()
    route: str | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The tokenizer in a folder, as stored and as loaded.

    Attributes:
        folder: the folder of the tokenizer.
        stored: the content of tokenizer.json; None if there is no such file.
        loaded: the pipeline of the loaded tokenizer, in the format of tokenizer.json.
        tokenizer: the tokenizer that transformers loads; None if the folder is meant for the library
            `tokenizers` alone.
    """

    folder: Path
    stored: dict[str, Any] | None
    loaded: dict[str, Any]
    tokenizer: Any

    @property
    def document(self) -> dict[str, Any]:
        """The stored tokenizer.json, or the loaded pipeline if there is no such file."""
        return self.loaded if self.stored is None else self.stored

    @property
    def pad_id(self) -> int | None:
        """The id of the padding token; None if there is none or it is unknown."""
        return None if self.tokenizer is None else self.tokenizer.pad_token_id

    def uses_stored_steps(self) -> bool:
        """Return whether transformers would use the normalizer and pre-tokenizer of an edited tokenizer.json.

        Some tokenizer classes ignore the stored steps and build their own. To test the class, a small
        tokenizer.json with an unusual normalizer is loaded, together with the config.json of this folder,
        because the model type in config.json can decide which class transformers loads. If the class keeps
        the normalizer, it is assumed to keep the pre-tokenizer as well.

        Returns:
            Whether the class keeps the normalizer; False if the small tokenizer cannot be loaded; True if the
            tokenizer is loaded without transformers.
        """
        if self.tokenizer is None:  # the library `tokenizers` always follows tokenizer.json
            return True
        unusual_normalizer = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}
        model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
        document = {"version": "1.0", "added_tokens": [], "normalizer": unusual_normalizer, "model": model}
        # Edited tokenizers are written with this class, but the model type may override it.
        tokenizer_config = b'{"tokenizer_class": "PreTrainedTokenizerFast"}'
        files = {_TOKENIZER_FILE: json.dumps(document).encode(), _TOKENIZER_CONFIG_FILE: tokenizer_config}
        try:
            tokenizer = _load_edited_tokenizer(files, self.folder)
        except RepairError:
            return False
        loaded = json.loads(tokenizer.backend_tokenizer.to_str())
        return bool(loaded["normalizer"] == unusual_normalizer)


def read_pipeline(model: Path, route: str | None = None) -> Pipeline:
    """Read the tokenizer of a model, as it is stored and as transformers loads it.

    Args:
        model: folder of the model.
        route: route whose tokenizer is read, if the model has several. If None, the default route is used.

    Raises:
        RepairError: the tokenizer cannot be loaded, or is written in Python.
    """
    from tokenizers import Tokenizer

    module = text_module(model, str(model), route)
    folder = module.folder
    path = folder / _TOKENIZER_FILE
    stored = read_object(path) or None  # empty if there is no file
    has_config = any((folder / name).is_file() for name in (_TOKENIZER_CONFIG_FILE, "config.json"))
    # Static models load tokenizer.json without transformers, and transformers cannot load a tokenizer without
    # a configuration. In both cases, tokenizer.json is loaded with the tokenizers library.
    without_transformers = module.is_static or not has_config
    if stored and without_transformers:
        loaded = json.loads(Tokenizer.from_file(str(path)).to_str())
        return Pipeline(folder=folder, stored=stored, loaded=loaded, tokenizer=None)
    tokenizer = _load_with_transformers(folder)
    loaded = json.loads(tokenizer.backend_tokenizer.to_str())
    return Pipeline(folder=folder, stored=stored, loaded=loaded, tokenizer=tokenizer)


def _load_with_transformers(folder: Path) -> Any:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # tokenizer classes raise different errors for damaged files
        message = " ".join(str(error).split())[:SHOWN_ERROR]  # on one line
        reason = message or type(error).__name__
        raise RepairError(f"the tokenizer in {folder} cannot be loaded: {reason}") from error
    if not isinstance(getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
        raise RepairError(
            f"the tokenizer in {folder} is a {type(tokenizer).__name__}, written in Python: only fast "
            f"tokenizers can be edited; {WITHOUT_EDITING}"
        )
    return tokenizer


def _load_edited_tokenizer(files: Mapping[str, bytes], model: Path) -> Any:
    """Return the tokenizer that transformers makes of some files beside the config.json of a model.

    ``files`` has their contents, keyed by name.
    """
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        config = model / "config.json"
        if config.is_file():
            shutil.copyfile(config, folder / config.name)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return _load_with_transformers(folder)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file. If there is no file, return an empty object."""
    if not path.is_file():
        return {}
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


def reasons_against_splitting(
    folder: Path, ids: Sequence[int], route: str | None = None
) -> dict[int, str | None]:
    """Return why each entry cannot be made unreachable by splitting its text into other tokens.

    Entries are tested one after another, each together with all entries accepted so far, because an entry may
    be a piece of another entry.

    Args:
        folder: folder of the model.
        ids: ids of the entries.
        route: route whose tokenizer is examined, if the model has several. If None, the default route is
            used.

    Returns:
        The reason why each entry cannot be made unreachable, or None if it can, keyed by token id.
    """
    if not ids:
        return {}
    pipeline = read_pipeline(folder, route)
    vocabulary = _tokenizer_json.EditableVocabulary(pipeline.document, pipeline.uses_stored_steps)
    accepted: list[int] = []
    reasons: dict[int, str | None] = {}
    for token_id in dict.fromkeys(ids):  # each once
        reason = vocabulary.reason_against(token_id, accepted)
        reasons[token_id] = reason
        if reason is None:
            accepted.append(token_id)
    return reasons


def edit_tokenizer(folder: Path, edit: ModelEdit) -> dict[str, bytes]:
    """Return the files of a model's tokenizer after an edit.

    Args:
        folder: folder of the model, which is not changed.
        edit: the entries to make unreachable from text, and the special tokens whose text becomes plain text.
            The new rows of the edit are ignored.

    Returns:
        The new contents of the files that change, keyed by path inside the folder; empty if the edit does not
        concern the tokenizer.

    Raises:
        RepairError: the tokenizer cannot be edited, or can still produce an entry that was made unreachable.
    """
    if not (edit.plain_specials or edit.unreachable):
        return {}
    pipeline = read_pipeline(folder, edit.route)
    edited = _edit_document(pipeline, edit)
    before = _make_tokenizer(pipeline.document)
    after = _make_tokenizer(edited.document)
    entries = _tokenizer_json.entries_of(pipeline.loaded)
    edited_entries = {token_id: entries[token_id] for token_id in (*edit.unreachable, *edit.plain_specials)}
    # Check that no text produces an edited entry, and that no entry was lost.
    texts: dict[int, list[str]] = {}  # texts that might produce an entry, keyed by its id
    for token_id, entry in edited_entries.items():
        decoded = before.decode([token_id], skip_special_tokens=False)
        new_name = edited.new_names.get(token_id, entry)  # the old name if the entry was not renamed
        spellings = sorted({entry, decoded, new_name})
        texts[token_id] = [template.format(spelling) for spelling in spellings for template in _ATTEMPTS]
    _require_never_produced(edited_entries, after, edited.document, texts)
    size_before = before.get_vocab_size()
    size_after = after.get_vocab_size()
    if size_before != size_after:
        raise RepairError(
            f"the tokenizer in {pipeline.folder} cannot be edited: it has {size_before} entries, and "
            f"{size_after} after the edit"
        )
    files = _edit_vocabulary_files(pipeline, edited, edit)
    files[_TOKENIZER_FILE] = _encode_json(edited.document)
    if edited.is_rebuilt and pipeline.tokenizer is not None:  # otherwise, the configuration stays as it is
        config = _make_config(pipeline, edited, edit.plain_specials)
        files[_TOKENIZER_CONFIG_FILE] = _encode_json(config)
        stored_roles = read_object(pipeline.folder / _ROLES_FILE)
        if stored_roles:
            files[_ROLES_FILE] = _encode_json(_make_special_tokens_map(stored_roles, config))
        # Check that transformers follows the edited tokenizer.json.
        every_text = [text for texts_of_entry in texts.values() for text in texts_of_entry]
        _require_same_in_transformers(pipeline, after, files, every_text)
    tokenizer_path = pipeline.folder.relative_to(folder)  # a module may have a folder of its own
    return {str(tokenizer_path / name): content for name, content in files.items()}


def _edit_document(pipeline: Pipeline, edit: ModelEdit) -> EditedTokenizer:
    """Edit the content of tokenizer.json.

    If only the vocabulary and the merges change, the stored tokenizer.json is edited. If other steps of the
    tokenizer or its added tokens change, or there is no stored tokenizer.json, the content is rebuilt from
    the tokenizer that transformers loads, which may differ from the stored tokenizer.json.
    """
    rebuilt_document = pipeline.document
    if pipeline.tokenizer is not None:
        # transformers may have changed truncation and padding when it loaded the tokenizer.
        stored = pipeline.stored or {}
        stored_limits = {key: stored.get(key) for key in ("truncation", "padding")}
        rebuilt_document = pipeline.loaded | stored_limits
    is_rebuilt = bool(edit.plain_specials) or pipeline.stored is None
    document = rebuilt_document if is_rebuilt else pipeline.document
    new_names: dict[int, str] = {}
    if edit.unreachable:
        vocabulary = _tokenizer_json.EditableVocabulary(document, pipeline.uses_stored_steps)
        changed = vocabulary.without(edit.unreachable)
        # With ignore_merges, more than the vocabulary and the merges may have changed: the tokenizer looks up
        # whole words, and has an additional pre-tokenizer. So the stored document cannot be used, and the
        # entries are removed from the rebuilt document instead.
        looks_up_words = bool(changed.document["model"].get("ignore_merges"))
        if looks_up_words and not is_rebuilt:
            is_rebuilt = True
            vocabulary = _tokenizer_json.EditableVocabulary(rebuilt_document, pipeline.uses_stored_steps)
            changed = vocabulary.without(edit.unreachable)
        document = changed.document
        new_names |= changed.new_names
    if edit.plain_specials:
        changed = _tokenizer_json.make_specials_plain(document, edit.plain_specials, pipeline.pad_id)
        document = changed.document
        new_names |= changed.new_names
    return EditedTokenizer(document, new_names, is_rebuilt)


# Templates of texts from which the tokenizer might still produce an entry. The entry's text replaces the
# braces.
_ATTEMPTS = ("{}", " {}", "{0} {0} {0}", "{0}{0}", "a {} b", "a{}b", '"{}"')


def _require_never_produced(
    entries: Mapping[int, str],
    after: Tokenizer,
    document: Mapping[str, Any],
    texts: Mapping[int, Sequence[str]],
) -> None:
    """Raise an error if a text that might produce an entry still does, with the edited tokenizer ``after``.

    ``entries`` and ``texts`` are keyed by token id. ``document`` is the tokenizer.json of ``after``.
    """
    # Unknown text still becomes the unknown token, even if the text of this token is now plain text.
    for token_id in entries.keys() - {find_unknown_id(document["model"])}:
        for text in texts[token_id]:
            if token_id in after.encode(text, add_special_tokens=False).ids:
                entry = _tokenizer_json.name_entry(entries[token_id], token_id)
                raise RepairError(f"{entry} cannot be edited: text such as {text!r} still produces it")


# A text that a tokenizer reads differently from all others if it merges or drops repeated words.
_TEXT_WITH_REPETITIONS = "one one one one two"


def _require_same_in_transformers(
    pipeline: Pipeline, expected: Tokenizer, files: Mapping[str, bytes], texts: Sequence[str]
) -> None:
    """Raise an error unless transformers reads these files as a tokenizer that is equal to ``expected``."""
    tokenizer = _load_edited_tokenizer(files, pipeline.folder)
    loaded = _remove_limits(tokenizer.backend_tokenizer)
    for text in (_TEXT_WITH_REPETITIONS, *texts):
        if loaded.encode(text).ids != expected.encode(text).ids:
            raise RepairError(
                f"the tokenizer in {pipeline.folder} cannot be edited: transformers rebuilds a "
                f"{type(tokenizer).__name__} from its vocabulary, and tokenizes {text!r} differently from "
                "tokenizer.json; choose a strategy that changes rows"
            )


def _make_tokenizer(document: Mapping[str, Any]) -> Tokenizer:
    from tokenizers import Tokenizer

    return _remove_limits(Tokenizer.from_str(json.dumps(document)))


def _remove_limits(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _encode_json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()


# Keys of tokenizer_config.json that list special tokens without a role. The role of a special token is, for
# example, pad_token or sep_token.
_EXTRA_KEYS = ("additional_special_tokens", "extra_special_tokens")
# These settings tell a tokenizer class how to build its pipeline. They are dropped, because the edited
# tokenizer.json contains the whole pipeline.
_DROPPED_SETTINGS = {
    "add_bos_token",
    "add_eos_token",
    "auto_map",
    "from_slow",
    "legacy",
    "vocab_file",
    "tokenizer_file",
}
# Settings whose values are taken from the loaded tokenizer. If tokenizer_config.json does not contain one of
# them, the original class used its own default, which may differ from that of `PreTrainedTokenizerFast`.
_SETTINGS_OF_LOADED = ("model_max_length", "padding_side", "truncation_side", "clean_up_tokenization_spaces")


def _make_config(
    pipeline: Pipeline, edited: EditedTokenizer, plain_specials: Collection[int]
) -> dict[str, Any]:
    """Return the content of tokenizer_config.json after an edit.

    Special tokens that are now read as plain text lose their roles, such as ``sep_token``. The class becomes
    `PreTrainedTokenizerFast`, because the original class may ignore parts of the edited tokenizer.json and
    build its own instead. What the original class decided is therefore written into the settings.
    """
    tokenizer = pipeline.tokenizer
    stored = read_object(pipeline.folder / _TOKENIZER_CONFIG_FILE)
    # `_make_role_settings` lists the extra special tokens that remain, so the stored lists are dropped.
    dropped_keys = {*_EXTRA_KEYS, *_DROPPED_SETTINGS}
    config: dict[str, Any] = {key: value for key, value in stored.items() if key not in dropped_keys}
    for key, value in _make_role_settings(pipeline, edited, plain_specials).items():
        if value is None:  # no token has this role any more
            config.pop(key, None)
        else:
            config[key] = value
    added_tokens = {}
    for added in edited.document["added_tokens"]:
        added_tokens[str(added["id"])] = {key: value for key, value in added.items() if key != "id"}
    config["added_tokens_decoder"] = added_tokens
    for key in _SETTINGS_OF_LOADED:
        value = getattr(tokenizer, key, None)
        if value is not None:
            config[key] = value
    config["model_input_names"] = list(tokenizer.model_input_names)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    return config


def _make_role_settings(
    pipeline: Pipeline, edited: EditedTokenizer, plain_specials: Collection[int]
) -> dict[str, Any]:
    """Return the settings of tokenizer_config.json that give special tokens their roles, after an edit.

    A role that no token has any more, such as ``sep_token``, is None.
    """
    tokenizer = pipeline.tokenizer

    def becomes_plain_text(token: str) -> bool:
        return tokenizer.convert_tokens_to_ids(token) in plain_specials

    roles = {role: token for role, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    pad_id = pipeline.pad_id
    if pad_id is not None and pad_id in plain_specials:
        # Padding needs a token, so the padding token keeps its role under a new name. The setting
        # split_special_tokens makes the tokenizer read this name in a text as plain text, and likewise the
        # text of every other token that has a role. But the tokenizer must still find these other tokens in a
        # text, so they lose their roles.
        without_roles: dict[str, Any] = dict.fromkeys(roles)  # None for every role
        return without_roles | {"pad_token": edited.new_names[pad_id], "split_special_tokens": True}
    settings: dict[str, Any] = {
        role: None if becomes_plain_text(token) else token for role, token in roles.items()
    }
    extra_tokens = [str(token) for token in getattr(tokenizer, "extra_special_tokens", ())]
    remaining_tokens = [token for token in extra_tokens if not becomes_plain_text(token)]
    if remaining_tokens:
        settings["additional_special_tokens"] = remaining_tokens
    return settings


def _make_special_tokens_map(stored_roles: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of special_tokens_map.json after an edit.

    The file names the token of each role, such as ``sep_token``. Roles that the edit took from all tokens are
    left out.

    Args:
        stored_roles: the old content.
        config: the content of tokenizer_config.json after the edit, which has the remaining roles.
    """
    extra_tokens = set(config.get("additional_special_tokens", ()))
    remaining: dict[str, Any] = {}
    for key, value in stored_roles.items():
        if key in _EXTRA_KEYS:
            remaining[key] = [token for token in value if _get_text(token) in extra_tokens]
        elif key in config:
            # The stored value may have properties besides its text.
            is_unchanged = _get_text(value) == config[key]
            remaining[key] = value if is_unchanged else config[key]
    return remaining


def _get_text(token: Any) -> Any:
    # Older files store the text of a token alone, newer ones with its properties.
    return token.get("content") if isinstance(token, dict) else token


_SENTENCEPIECE_FILES = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
# Type of SentencePiece entries that are never produced from text.
_UNUSED = 5


def _edit_vocabulary_files(pipeline: Pipeline, edited: EditedTokenizer, edit: ModelEdit) -> dict[str, bytes]:
    """Return the new contents of vocabulary files in older formats, keyed by file name.

    Only files that the folder has, and that the edit changes, are returned.
    """
    folder = pipeline.folder
    entries = _tokenizer_json.entries_of(pipeline.document)
    # Keyed by the old string, because these files know entries by their strings.
    new_names = {entries[token_id]: name for token_id, name in edited.new_names.items()}
    files: dict[str, bytes] = {}
    if new_names:
        files |= _rename_in_files(folder, new_names)
    merges_file = folder / "merges.txt"
    merges = _tokenizer_json.merge_pairs(edited.document["model"])
    if edit.unreachable and merges is not None and merges_file.is_file():
        first_line = merges_file.read_bytes().decode("utf-8").split("\n", 1)[0]
        lines = [first_line] if first_line.startswith("#version") else []
        lines += [" ".join(pair) for pair in merges]
        lines.append("")  # the file ends with a newline
        files[merges_file.name] = "\n".join(lines).encode()
    plain_entries = {entries[token_id] for token_id in edit.plain_specials}
    added_tokens = read_object(folder / "added_tokens.json")
    if plain_entries and added_tokens:
        remaining = {
            entry: token_id for entry, token_id in added_tokens.items() if entry not in plain_entries
        }
        files["added_tokens.json"] = json.dumps(remaining, ensure_ascii=False, indent=2).encode()
    return files


def _rename_in_files(folder: Path, new_names: Mapping[str, str]) -> dict[str, bytes]:
    """Return the contents of a folder's vocabulary files with renamed entries, keyed by file name.

    ``new_names`` is keyed by the old names.
    """
    files: dict[str, bytes] = {}
    lines_file = folder / "vocab.txt"
    if lines_file.is_file():
        # Each line has one entry, and its number is the token id. Only "\n" ends a line, because an entry may
        # be another character at which `splitlines` would split.
        lines = lines_file.read_bytes().decode("utf-8").split("\n")
        renamed_lines = [new_names.get(line.rstrip("\r"), line) for line in lines]
        files[lines_file.name] = "\n".join(renamed_lines).encode()
    vocabulary = read_object(folder / "vocab.json")
    if vocabulary:
        renamed = {new_names.get(entry, entry): token_id for entry, token_id in vocabulary.items()}
        files["vocab.json"] = json.dumps(renamed, ensure_ascii=False).encode()
    for name in _SENTENCEPIECE_FILES:
        path = folder / name
        if path.is_file():
            content = _rename_pieces(path.read_bytes(), new_names)
            if content is not None:
                files[name] = content
    return files


def _rename_pieces(content: bytes, new_names: Mapping[str, str]) -> bytes | None:
    """Rename entries of a SentencePiece model, and mark them as unused.

    ``content`` is the content of its file; ``new_names`` is keyed by the old names.

    Returns:
        The changed content; None if the model has none of the entries, or if the file is not a SentencePiece
        model.
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from sentencepiece import sentencepiece_model_pb2

    formats: Any = sentencepiece_model_pb2
    model = formats.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        # A tiktoken file can have the same name as a SentencePiece model.
        return None
    # Only normal and unused entries are renamed. Control tokens and bytes keep their names and types.
    normal = formats.ModelProto.SentencePiece.NORMAL
    renamed_pieces = [
        piece for piece in model.pieces if piece.piece in new_names and piece.type in (normal, _UNUSED)
    ]
    if not renamed_pieces:
        return None
    for piece in renamed_pieces:
        piece.piece = new_names[piece.piece]
        piece.type = _UNUSED
    return bytes(model.SerializeToString())
