"""Decide from its pipeline whether a tokenizer encodes text word by word."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_Part: TypeAlias = Mapping[str, Any]

PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
"""Characters allowed next to a boundary."""

STOPS = ".!?"
"""Some pipelines also have a boundary after these, before a letter or digit."""

_MARK = "▁"
# They treat each character alone, or up to the next ASCII character: nothing crosses "x y".
_PLAIN_NORMALIZERS = {"BertNormalizer", "Lowercase", "StripAccents", "NFC", "NFD", "NFKC", "NFKD"}
_LOCAL_NORMALIZERS = _PLAIN_NORMALIZERS | {"Nmt", "Precompiled"}
_WHITESPACE_PRE_TOKENIZERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
# Patterns of Qwen 2 and 3 and Llama 3. No alternative has a space after another character, and "x y" is
# always split at the space.
_KNOWN_PATTERNS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    rf"{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for digits in (r"\p{N}", r"\p{N}{1,3}")
}


@dataclass(frozen=True)
class Boundaries:
    """Where a text may be split.

    A boundary is a single space between two printable ASCII characters whose other neighbours are printable
    ASCII, spaces, or the ends of the text. The ids of a text without added tokens are those of the part
    before a boundary, followed by those of the prefix and the part after the boundary.

    Attributes:
        prefix: put before a part that is encoded without the part before it: a space, or nothing if the
            pipeline itself puts a mark before every text.
        stops: whether a `STOPS` character before an ASCII letter or digit is also followed by a boundary,
            which has no space and no prefix.
    """

    prefix: str
    stops: bool


def boundaries(backend: Tokenizer) -> Boundaries | None:
    """Find the boundaries of a tokenizer from its pipeline; None if there are none.

    The proof is by cases: every step must be known to act on both sides of a boundary independently. A
    pipeline with an unknown step is refused.
    """
    try:
        pipeline = json.loads(backend.to_str())
    except Exception as error:  # the library raises bare Exceptions for steps written in Python
        if type(error) is not Exception:
            raise
        return None
    steps = list(_flat(pipeline["normalizer"], "normalizers"))
    marks = bool(steps) and steps[0]["type"] == "Prepend"
    blank = _normalized_blank(backend, steps)
    contents = added_contents(backend)
    if (
        blank is None
        or not all(map(_keeps_to_one_side, contents))
        or not _one_sequence(pipeline["post_processor"])
        or pipeline["model"].get("dropout")
        or not (
            _cuts_before_blank(pipeline["pre_tokenizer"], blank) or _merges_stop_at_blank(pipeline, blank)
        )
    ):
        return None
    plain = {step["type"] for step in steps} <= _PLAIN_NORMALIZERS and not set(STOPS) & set("".join(contents))
    return Boundaries("" if marks else " ", plain and _cuts_behind_stop(pipeline["pre_tokenizer"]))


def added_contents(backend: Tokenizer) -> frozenset[str]:
    """Return the strings that the library searches for, in plain or normalized text, to find added tokens."""
    added = backend.get_added_tokens_decoder().values()
    normalizer = backend.normalizer
    normalized = [
        normalizer.normalize_str(token.content) for token in added if normalizer and token.normalized
    ]
    return frozenset([*(token.content for token in added), *normalized])


def _flat(part: _Part | None, members: str) -> Iterator[_Part]:
    """Yield the steps of a sequence in order."""
    if part is not None and part["type"] == "Sequence":
        for member in part[members]:
            yield from _flat(member, members)
    elif part is not None:
        yield part


def _normalized_blank(backend: Tokenizer, steps: list[_Part]) -> str | None:
    """Return what the space of a boundary becomes, a space or the mark; None if the sides interact."""
    if backend.normalizer is None:
        return " "
    front = ""
    if steps and steps[0]["type"] == "Prepend":
        # The mark put before a text must be the one that replaces spaces.
        if [step["type"] for step in steps] != ["Prepend", "Replace"] or steps[0]["prepend"] != _MARK:
            return None
        if steps[1]["pattern"] != {"String": " "} or steps[1]["content"] != _MARK:
            return None
        front, steps = _MARK, steps[1:]
    if not all(_is_local(step) for step in steps):
        return None
    blanks = set()
    for character in PRINTABLE:
        alone = backend.normalizer.normalize_str(character).removeprefix(front)
        pair = backend.normalizer.normalize_str(f"{character} {character}").removeprefix(front)
        # A character that becomes a space or nothing would merge with the space.
        if not alone or not set(alone) <= set(PRINTABLE):
            return None
        blanks.add(pair.removeprefix(alone).removesuffix(alone))
    return blanks.pop() if blanks in ({" "}, {_MARK}) else None


def _is_local(step: _Part) -> bool:
    """Check that a step treats both sides of a boundary independently."""
    if step["type"] == "Strip":
        return not step["strip_left"]
    if step["type"] != "Replace":
        return step["type"] in _LOCAL_NORMALIZERS
    content, pattern = step["content"], step["pattern"].get("String")
    if pattern is None:
        return bool(step["pattern"] == {"Regex": " {2,}"})
    if pattern == " ":
        return content in (" ", _MARK)
    # The ends of a replacement must be printable, so that it does not add a space.
    return bool(pattern) and not {" ", _MARK} & set(pattern) and {content[:1], content[-1:]} <= set(PRINTABLE)


def _keeps_to_one_side(content: str) -> bool:
    """Check that an added token can never cross a boundary."""
    beside = {"", *PRINTABLE}
    return not any(
        character in (" ", _MARK)
        and {content[max(place - 1, 0) : place], content[place + 1 : place + 2]} <= beside
        for place, character in enumerate(content)
    )


def _one_sequence(processor: _Part | None) -> bool:
    """Check that the ids of the text are kept as they are, apart from special tokens."""
    return all(
        step["type"] in ("ByteLevel", "BertProcessing", "RobertaProcessing")
        or (
            step["type"] == "TemplateProcessing" and sum("Sequence" in piece for piece in step["single"]) == 1
        )
        for step in _flat(processor, "processors")
    )


def _cuts_before_blank(pre_tokenizer: _Part | None, blank: str) -> bool:
    """Check that no piece crosses a boundary after pre-tokenization."""
    steps = list(_flat(pre_tokenizer, "pretokenizers"))
    kinds = [step["type"] for step in steps]
    if kinds == ["Metaspace"]:
        return bool(steps[0]["split"] and steps[0]["replacement"] == _MARK)
    if blank != " ":
        return False
    if kinds == ["ByteLevel"]:
        return bool(steps[0]["use_regex"])
    if kinds == ["Split", "ByteLevel"]:
        split = steps[0]
        isolated = split["behavior"] == "Isolated" and not split["invert"] and not steps[1]["use_regex"]
        return isolated and split["pattern"].get("Regex") in _KNOWN_PATTERNS
    if kinds == ["WhitespaceSplit", "Metaspace"]:
        return bool(steps[1]["replacement"] == _MARK)
    return len(kinds) == 1 and kinds[0] in _WHITESPACE_PRE_TOKENIZERS


def _cuts_behind_stop(pre_tokenizer: _Part | None) -> bool:
    """Check that a stop and a letter or digit after it are never in one piece."""
    steps = list(_flat(pre_tokenizer, "pretokenizers"))
    kinds = [step["type"] for step in steps]
    return kinds == ["BertPreTokenizer"] or (
        kinds == ["ByteLevel"] and steps[0]["use_regex"] and not steps[0]["add_prefix_space"]
    )


def _merges_stop_at_blank(pipeline: _Part, blank: str) -> bool:
    """Check that byte pair encoding of a whole text never merges across a boundary.

    Merges on both sides are then independent. Unknown characters are not fused across it either, because the
    mark is in the vocabulary. Unigram models never qualify: rounding in their sums depends on earlier text.
    """
    model, steps = pipeline["model"], list(_flat(pipeline["pre_tokenizer"], "pretokenizers"))
    if model["type"] != "BPE" or model["ignore_merges"] or _MARK not in model["vocab"]:
        return False
    if model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        return False
    if not steps or (len(steps) == 1 and steps[0]["type"] == "Split"):
        # Gemma splits at spaces, but the normalizer has replaced all of them.
        whole = blank == _MARK and all(step["pattern"] == {"String": " "} for step in steps)
    else:
        whole = len(steps) == 1 and steps[0]["type"] == "Metaspace" and steps[0]["replacement"] == _MARK
    return whole and not any(
        right.startswith(_MARK) and not left.endswith(_MARK) for left, right in model["merges"]
    )
