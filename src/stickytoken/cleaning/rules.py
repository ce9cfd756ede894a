"""What to look for in a document: words, special tokens and the length of a run, as plain JSON values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from stickytoken.errors import InputError
from stickytoken.validation import list_of, shown, whole_number

RULES_VERSION = 1
_LONGEST_RUN = 3

# Control tokens of widespread model families. No ordinary text contains them, and more than one server fails
# on them, so they are looked for whatever the model of the run is.
WELL_KNOWN_SPECIALS = (
    "<|endoftext|>", "<|startoftext|>", "<|endofprompt|>", "<|padding|>",
    "<|im_start|>", "<|im_end|>", "<|im_sep|>",
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<|eom_id|>",
    "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
    "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|return|>", "<|call|>",
    "<|channel|>", "<|message|>",
    "<start_of_turn>", "<end_of_turn>",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CleaningRules:
    """What `find_spans` looks for.

    Attributes:
        words: Texts of flagged vocabulary entries. Letter case, accents and width make no difference.
        specials: Texts that a tokenizer reads as special tokens. Letter case makes a difference.
        longest_run: The most often that a word or short phrase may be repeated without a break.
    """

    words: tuple[str, ...] = ()
    specials: tuple[str, ...] = WELL_KNOWN_SPECIALS
    longest_run: int = _LONGEST_RUN

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", _texts("words", self.words))
        object.__setattr__(self, "specials", _texts("specials", self.specials))
        object.__setattr__(self, "longest_run", whole_number("longest_run", self.longest_run, least=2))

    def to_json(self) -> dict[str, Any]:
        """Return the rules as JSON values."""
        return {
            "version": RULES_VERSION,
            "words": list(self.words),
            "specials": list(self.specials),
            "longest_run": self.longest_run,
        }

    @classmethod
    def from_json(cls, value: object) -> CleaningRules:
        """Read rules from JSON values.

        Raises:
            InputError: They are not rules, or were written by a newer version.
        """
        if not isinstance(value, Mapping):
            raise InputError(f"the rules are {shown(value)}: pass what to_json returned")
        version = value.get("version")
        if version != RULES_VERSION:
            raise InputError(
                f"the rules have the version {shown(version)}, and this version of stickytoken reads "
                f"{RULES_VERSION}: write them again"
            )
        known = {field.name for field in fields(cls)}
        if unknown := sorted(str(name) for name in set(value) - known - {"version"}):
            raise InputError(f"the rules have the unknown entry {unknown[0]!r}: write them again")
        return cls(**{name: value[name] for name in known if name in value})


def _texts(name: str, values: Iterable[str]) -> tuple[str, ...]:
    texts = list_of("texts", name, values)
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{name} contains {shown(text)}: each must be a text that is not blank")
    return tuple(dict.fromkeys(texts))
