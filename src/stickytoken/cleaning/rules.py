"""Rules for what to find in a document: words, special tokens and repetitions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stickytoken.errors import InputError, panics_as_errors, reading
from stickytoken.validation import beginning, file_path, list_of, shown, whole_number

if TYPE_CHECKING:
    from stickytoken.detection import Run


_VERSION = 1

# Control tokens of common model families, which are searched for regardless of the model, because ordinary
# text does not contain them and several servers fail on them.
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
        words: Texts of flagged vocabulary entries, also of special tokens.
        specials: Texts that a tokenizer reads as special tokens.
        normalized_specials: Those of ``specials`` that it also reads from other spellings, such as ``<UNK>``,
            which the normaliser makes equal.
        longest_run: Maximum number of times that a word or short phrase may occur in a row.
        normalizer: The normaliser of the model's tokenizer, in JSON as the tokenizers library writes it. It
            decides which spellings of a word are the same to the model. If None, it isn't known, and only
            words that are spelled alike are the same.
        allowed: Words and special tokens that are no finding.
        known: Digests of texts that have no finding; see `text_digest`.

    Examples:
        >>> from stickytoken.cleaning import CleaningRules
        >>> stickytoken.Cleaner(CleaningRules(specials=("<pad>",)))("a <pad> bird")
        'a bird'
    """

    words: tuple[str, ...] = ()
    specials: tuple[str, ...] = WELL_KNOWN_SPECIALS
    normalized_specials: tuple[str, ...] = ()
    longest_run: int = 3
    normalizer: str | None = None
    allowed: tuple[str, ...] = ()
    known: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.normalizer is not None:
            _require_normalizer(self.normalizer)
        # Assigning to `self` is not possible, because the class is frozen.
        for name in ("words", "specials", "normalized_specials", "allowed", "known"):
            object.__setattr__(self, name, _require_texts(name, getattr(self, name)))
        object.__setattr__(self, "longest_run", whole_number("longest_run", self.longest_run, 2))

    def extended(
        self, words: Iterable[str] = (), allow: str | Path | None = None, known: str | Path | None = None
    ) -> CleaningRules:
        """Return these rules with further entries.

        Args:
            words: Further words.
            allow: A file of words and special tokens that are no finding, one on each line.
            known: A file of texts that have no finding, as ``scan --set write-known=FILE`` writes it.

        Raises:
            InputError: A file cannot be read.
        """
        more_allowed = () if allow is None else read_list(allow, "the allowed words")
        more_known = () if known is None else read_list(known, "the known documents")
        return replace(
            self,
            words=(*self.words, *words),
            allowed=(*self.allowed, *more_allowed),
            known=(*self.known, *more_known),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the rules as JSON values."""
        return {
            "version": _VERSION,
            "words": list(self.words),
            "specials": list(self.specials),
            "normalized_specials": list(self.normalized_specials),
            "longest_run": self.longest_run,
            "normalizer": None if self.normalizer is None else json.loads(self.normalizer),
            "allowed": list(self.allowed),
            "known": list(self.known),
        }

    @classmethod
    def from_json(cls, value: object) -> CleaningRules:
        """Read rules from JSON values.

        Raises:
            InputError: The values do not form valid rules, or their format version is not the one that this
                version of stickytoken reads.
        """
        if not isinstance(value, Mapping):
            raise InputError(f"the rules are {shown(value)}: pass what to_json returned")
        version = value.get("version")
        if version != _VERSION:
            raise InputError(
                f"the rules have the version {shown(version)}, but this version of stickytoken reads version "
                f"{_VERSION}: write them again with `stickytoken clean RUN --rules-out FILE`"
            )
        value = {"normalized_specials": [], **value}  # rules that were written before it have no such entry
        field_names = [field.name for field in fields(cls)]
        unknown = sorted(str(name) for name in set(value) - {*field_names, "version"})
        missing = [name for name in field_names if name not in value]
        if unknown or missing:
            defect = f"have the unknown entry {unknown[0]!r}" if unknown else f"lack the entry {missing[0]!r}"
            raise InputError(
                f"the rules {defect}: write them again with `stickytoken clean RUN --rules-out FILE`"
            )
        arguments = {name: value[name] for name in field_names}
        if arguments["normalizer"] is not None:  # an object here, and its JSON text in the rules
            arguments["normalizer"] = json.dumps(arguments["normalizer"])
        return cls(**arguments)


# Half of a character in UTF-16, which JSON may contain. No document does, and no tokenizer takes it.
_SURROGATE = re.compile("[\ud800-\udfff]")


def _require_texts(name: str, values: Iterable[str]) -> tuple[str, ...]:
    texts = list_of("texts", name, values)
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{name} contains {shown(text)}: pass only texts that are not blank")
        if _SURROGATE.search(text):
            raise InputError(f"{name} contains {shown(text)}, which is not valid Unicode: correct it")
    return tuple(dict.fromkeys(texts))


def _require_normalizer(description: object) -> None:
    from stickytoken.cleaning._units import key_function

    try:
        if not isinstance(description, str):
            raise TypeError("it is not JSON text")
        with panics_as_errors():
            key_function(description)("a")  # some damage shows only when a word is normalised
    except Exception as error:  # the tokenizers library raises bare Exceptions
        raise InputError(
            f"normalizer is {shown(description)}, which the tokenizers library cannot read ({error}): write "
            "the rules again with `stickytoken clean RUN --rules-out FILE`"
        ) from error


# Number of hexadecimal digits of a digest, enough for a thousand million texts.
_DIGITS = 24


def text_digest(text: str) -> str:
    """Return the digest by which a file of known texts names a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


# Maximum number of characters of a finding that a file of known texts shows.
_NOTED_CHARACTERS = 60


def format_known_line(digest: str, name: str, findings: Iterable[str]) -> str:
    """Return a line of a file of known texts.

    Args:
        digest: The digest of the text; see `text_digest`.
        name: The id of the document.
        findings: What was found in it, for the person who reviews the file.
    """
    note = beginning(", ".join(findings), _NOTED_CHARACTERS)
    # Ids and findings may contain line ends, which would begin another entry.
    return f"{digest}  # {name}: {note}".translate(_SPACES_FOR_LINE_ENDS)


_SPACES_FOR_LINE_ENDS = {ord(character): " " for character in "\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029"}


def read_list(path: str | Path, what: str) -> list[str]:
    """Read a file of allowed words or of known texts: one on each line. Text after " # " is a comment.

    Args:
        path: The file.
        what: How errors name the file, such as "the allowed words".

    Raises:
        InputError: The file cannot be read.
    """
    list_path = file_path(what, path)
    with reading(list_path):
        lines = list_path.read_text("utf-8-sig").splitlines()
    entries = []
    for line in lines:
        # With a space at each end, a comment may be the whole line, and empty.
        entry, _, _ = f" {line} ".partition(" # ")
        if entry.strip():
            entries.append(entry.strip())
    return entries


def match_any(texts: Iterable[str]) -> str:
    """Return a regular expression that matches any of the texts, the longest one if several match.

    Texts with a common prefix share a branch, so that the texts are not tried one by one at each position:
    "able", "abled" and "air" become ``a(?:ble(?:d)?|ir)``.
    """
    rests_by_first: dict[str, list[str]] = {}
    for text in sorted(set(texts) - {""}):
        rests_by_first.setdefault(text[0], []).append(text[1:])
    branches = []
    for first_character, rests in rests_by_first.items():
        rest_pattern = match_any(rests)
        if rest_pattern and "" in rests:  # the character alone is one of the texts
            rest_pattern = f"(?:{rest_pattern})?"
        branches.append(re.escape(first_character) + rest_pattern)
    if len(branches) > 1:
        return f"(?:{'|'.join(branches)})"
    return branches[0] if branches else ""


# Minimum length of a special token to search for, in characters. Shorter ones are ordinary punctuation.
_SHORTEST_SPECIAL = 3


def rules_of_run(run: Run) -> CleaningRules:
    """Return the rules for the tokens that a run flags and the special tokens of its model."""
    import polars as pl

    texts_of_special = [str(text).strip() for text in run.vocabulary.filter("special")["decoded"]]
    specials = [text for text in texts_of_special if len(text) >= _SHORTEST_SPECIAL]
    texts_of_sticky = run.tokens.filter(pl.col("verdict") == "sticky")["decoded"]
    words = [str(text).strip() for text in texts_of_sticky]
    return CleaningRules(
        words=tuple(dict.fromkeys(word for word in words if word)),  # a token may be nothing but a space
        specials=tuple(dict.fromkeys([*specials, *WELL_KNOWN_SPECIALS])),
        normalized_specials=run.normalized_specials,
        normalizer=run.normalizer,
    )
