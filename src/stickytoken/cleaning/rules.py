"""What to look for in a document: words, special tokens and the length of a run, as plain JSON values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from stickytoken.errors import InputError
from stickytoken.validation import list_of, shown, whole_number

if TYPE_CHECKING:
    from stickytoken.detection import Run


_VERSION = 1

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
    longest_run: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", _texts("words", self.words))
        object.__setattr__(self, "specials", _texts("specials", self.specials))
        object.__setattr__(self, "longest_run", whole_number("longest_run", self.longest_run, least=2))

    def to_json(self) -> dict[str, Any]:
        """Return the rules as JSON values."""
        return {
            "version": _VERSION,
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
        if version != _VERSION:
            raise InputError(
                f"the rules have the version {shown(version)}, and this version of stickytoken reads "
                f"{_VERSION}: write them again"
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


# Words and signs that are common in every text.
_BY_LANGUAGE = (
    "“ ” ‘ ’ – — … • ·",
    # English
    "the of and to a in is that it for on with as by at from this be are was were been being or an not "
    "no nor but if so than then too very can could will would shall should may must do does did have "
    "has had having i me my we us our you your he him his she her they them their its who which what "
    "when where why how all any both each few more most other some such only own same these those there "
    "here into onto over under about after before between through during above below up down out off "
    "again once also just because while within without per one two three",
    # French, German
    "le la les un une des de du et ou en au aux dans par pour sur avec sans est sont que qui ne pas "
    "ce se sa son ses il elle ils elles nous vous je",
    "der die das den dem des ein eine einer eines einem einen und oder in im zu zur zum von vom mit "
    "auf für an am bei aus nach ist sind nicht auch sich es er sie wir ich als wie dass",
    # Spanish, Italian, Portuguese
    "el la los las un una unos unas de del y o e en a al por para con sin es son que no se su sus lo "
    "le les como más pero",
    "il lo la i gli le un uno una di del della dei delle e o in a al alla da dal con per su è sono "
    "che non si come ma",
    "o a os as um uma de do da dos das e ou em no na nos nas por para com sem é são que não se mais",
    # Dutch; Swedish, Danish and Norwegian; Polish and Czech; Turkish
    "de het een en of in op van voor met te aan bij uit is zijn niet dat die er ook als om door",
    "en ett et den det och og att at som i på av af til till for för med är er inte",
    "i a w we z ze na do nie się że to o po od dla jest są v s k se je že si by",
    "ve bir bu da de için ile çok ne o",
    # Russian and Ukrainian; Greek; Arabic; Hebrew; Hindi; Chinese
    "и в во не на с со что а по от за из к у о до как это для но же бы та і й з що є",
    "και το η ο τα της του των σε με για από που να δεν",
    "في من على إلى و أن عن مع هذا هذه لا ما",
    "של את על לא זה עם הוא",
    "के का की में है और से को पर यह",
    "的 了 是 在 不 一 有 和 我 他 这 這 人 中 为 為 之 以 与 與 等 上 年 大 国 國 日 月",
)
COMMON = frozenset(" ".join(_BY_LANGUAGE).split())


def alternation(texts: Iterable[str]) -> str:
    groups: dict[str, list[str]] = {}
    for text in sorted(set(texts) - {""}):
        groups.setdefault(text[0], []).append(text[1:])
    branches = []
    for first, rests in groups.items():
        rest = alternation(rests)
        branches.append(re.escape(first) + (f"(?:{rest})?" if rest and "" in rests else rest))
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})" if branches else ""


def rules_of_run(run: Run) -> CleaningRules:
    import polars as pl

    from stickytoken.detection.run_folder import is_flagged
    from stickytoken.vocabulary import Kind, WordMark, kind_of

    vocabulary = run.vocabulary.filter(pl.col("category").is_in(("OK", "OK_SPECIAL")))
    specials = [
        decoded.strip()
        for token, decoded, category in vocabulary.select("token", "decoded", "category").iter_rows()
        if len(decoded.strip()) >= 3  # a shorter one is a sign that texts are full of
        and kind_of(token, decoded, category, WordMark.NONE) is Kind.SPECIAL
    ]
    flagged = [str(text).strip() for text in run.tokens.filter(is_flagged())["decoded"]]
    words = [text for text in flagged if text and text not in specials]
    return CleaningRules(
        words=tuple(dict.fromkeys(words)), specials=tuple(dict.fromkeys([*specials, *WELL_KNOWN_SPECIALS]))
    )
