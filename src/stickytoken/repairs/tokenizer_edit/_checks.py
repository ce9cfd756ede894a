"""Check an edit of a tokenizer by tokenizing with it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stickytoken.errors import RepairError
from stickytoken.repairs.tokenizer_edit._pipeline import Pipeline, shown_entry, transformers_tokenizer

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
