"""Whether a tokenizer encodes a text word by word, read off its pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_Part: TypeAlias = Mapping[str, Any]

PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
"""The characters that may stand beside a boundary."""

STOPS = ".!?"
"""Behind these, before a letter or digit, some pipelines have a boundary too."""

_MARK = "▁"
# Each character by itself, or up to the next ASCII character: nothing reaches over "x y".
_PLAIN_NORMALIZERS = {"BertNormalizer", "Lowercase", "StripAccents", "NFC", "NFD", "NFKC", "NFKD"}
_LOCAL_NORMALIZERS = _PLAIN_NORMALIZERS | {"Nmt", "Precompiled"}
_WHITESPACE_PRE_TOKENIZERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
# None of their alternatives holds a blank behind another character, and "x y" is always cut at the blank:
# Qwen 2 and 3, Llama 3.
_KNOWN_PATTERNS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    rf"{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for digits in (r"\p{N}", r"\p{N}{1,3}")
}


@dataclass(frozen=True)
class Boundaries:
    """Where a text may be cut.

    A boundary is a single space between two printable ASCII characters whose other neighbours are
    printable ASCII, spaces, or the ends of the text. The ids of a text without added tokens are those of
    what stands before a boundary, followed by those of the prefix and what stands behind the boundary.

    Attributes:
        prefix: what to put before words that are encoded without the words before them: a space, or
            nothing where the pipeline itself puts a mark before a text.
        stops: whether there is a boundary, then without a space and a prefix, behind a `STOPS` before an
            ASCII letter or digit, too.
    """

    prefix: str
    stops: bool


def boundaries(backend: Tokenizer) -> Boundaries | None:
    """Boundaries of a tokenizer, read off its pipeline; None where there are none.

    The proof is by cases: every step must be known to act on both sides of a boundary by itself. A
    pipeline with any other step is refused, whether it deserves it or not.
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
    """What the library searches a text, or a normalized text, for to find added tokens."""
    added = backend.get_added_tokens_decoder().values()
    normalizer = backend.normalizer
    normalized = [
        normalizer.normalize_str(token.content) for token in added if normalizer and token.normalized
    ]
    return frozenset([*(token.content for token in added), *normalized])


def _flat(part: _Part | None, members: str) -> Iterator[_Part]:
    """The steps of a sequence, in order."""
    if part is not None and part["type"] == "Sequence":
        for member in part[members]:
            yield from _flat(member, members)
    elif part is not None:
        yield part


def _normalized_blank(backend: Tokenizer, steps: list[_Part]) -> str | None:
    """What the space of a boundary becomes, a space or the mark; None where a side sees the other."""
    if backend.normalizer is None:
        return " "
    front = ""
    if steps and steps[0]["type"] == "Prepend":
        # The mark put before a word must be the one that its space becomes.
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
        # What became a blank or nothing would join the blank.
        if not alone or not set(alone) <= set(PRINTABLE):
            return None
        blanks.add(pair.removeprefix(alone).removesuffix(alone))
    return blanks.pop() if blanks in ({" "}, {_MARK}) else None


def _is_local(step: _Part) -> bool:
    """Whether a step treats both sides of a boundary as it would treat each alone."""
    if step["type"] == "Strip":
        return not step["strip_left"]
    if step["type"] != "Replace":
        return step["type"] in _LOCAL_NORMALIZERS
    content, pattern = step["content"], step["pattern"].get("String")
    if pattern is None:
        return bool(step["pattern"] == {"Regex": " {2,}"})
    if pattern == " ":
        return content in (" ", _MARK)
    # A replaced end of a word must stay the end of a word.
    return bool(pattern) and not {" ", _MARK} & set(pattern) and {content[:1], content[-1:]} <= set(PRINTABLE)


def _keeps_to_one_side(content: str) -> bool:
    """Whether an added token can never be found over a boundary."""
    beside = {"", *PRINTABLE}
    return not any(
        character in (" ", _MARK)
        and {content[max(place - 1, 0) : place], content[place + 1 : place + 2]} <= beside
        for place, character in enumerate(content)
    )


def _one_sequence(processor: _Part | None) -> bool:
    """Whether the ids of the text are kept as they are, special tokens aside."""
    return all(
        step["type"] in ("ByteLevel", "BertProcessing", "RobertaProcessing")
        or (
            step["type"] == "TemplateProcessing" and sum("Sequence" in piece for piece in step["single"]) == 1
        )
        for step in _flat(processor, "processors")
    )


def _cuts_before_blank(pre_tokenizer: _Part | None, blank: str) -> bool:
    """Whether no part that the model sees reaches from before a boundary to behind it."""
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
    """Whether a stop and a letter or digit behind it are never in one part."""
    steps = list(_flat(pre_tokenizer, "pretokenizers"))
    kinds = [step["type"] for step in steps]
    return kinds == ["BertPreTokenizer"] or (
        kinds == ["ByteLevel"] and steps[0]["use_regex"] and not steps[0]["add_prefix_space"]
    )


def _merges_stop_at_blank(pipeline: _Part, blank: str) -> bool:
    """Whether byte pair encoding of a whole text never merges over a boundary.

    Merges on both sides are then independent. Unknown characters are not fused over it either, as the
    mark is known. A Unigram model has no such case: rounding of its sums depends on what came before.
    """
    model, steps = pipeline["model"], list(_flat(pipeline["pre_tokenizer"], "pretokenizers"))
    if model["type"] != "BPE" or model["ignore_merges"] or _MARK not in model["vocab"]:
        return False
    if model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        return False
    if not steps or (len(steps) == 1 and steps[0]["type"] == "Split"):
        # Gemma looks for spaces where none are left.
        whole = blank == _MARK and all(step["pattern"] == {"String": " "} for step in steps)
    else:
        whole = len(steps) == 1 and steps[0]["type"] == "Metaspace" and steps[0]["replacement"] == _MARK
    return whole and not any(
        right.startswith(_MARK) and not left.endswith(_MARK) for left, right in model["merges"]
    )
