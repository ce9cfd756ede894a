"""Whether a tokenizer encodes a text word by word, read off its pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_Part: TypeAlias = Mapping[str, Any]

PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
"""The characters that may stand beside a boundary."""

_MARK = "▁"
# Each character by itself, or up to the next ASCII character: nothing reaches over "x y".
_LOCAL_NORMALIZERS = {
    *("BertNormalizer", "Lowercase", "Nmt", "StripAccents", "NFC", "NFD", "NFKC", "NFKD", "Precompiled")
}
_WHITESPACE_PRE_TOKENIZERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
# None of their alternatives holds a blank behind another character, and "x y" is always cut at the blank:
# Qwen 2 and 3, Llama 3.
_KNOWN_PATTERNS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    rf"{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for digits in (r"\p{N}", r"\p{N}{1,3}")
}


def word_prefix(backend: Tokenizer) -> str | None:
    """What to put before a word that is encoded without the words before it.

    A boundary is a single space between two printable ASCII characters whose other neighbours are
    printable ASCII, spaces, or the ends of the text. Where the result is not None, the ids of a text
    without added tokens are those of what stands before a boundary, followed by those of the prefix and
    what stands behind the boundary. The proof is by cases: every step of the pipeline must be known to
    act on both sides by itself. A pipeline with any other step is refused, whether it deserves it or not.

    Returns:
        A space; nothing, where the pipeline itself puts a mark before a text; or None, where words cannot
        be encoded by themselves.
    """
    try:
        pipeline = json.loads(backend.to_str())
    except Exception as error:  # the library raises bare Exceptions for steps written in Python
        if type(error) is not Exception:
            raise
        return None
    steps = list(_flat(pipeline["normalizer"], "normalizers"))
    marks = bool(steps) and steps[0]["type"] == "Prepend"
    if marks and (steps[0]["prepend"] != _MARK or len(steps) != 2):
        return None
    prefix = "" if marks else " "
    blank = _normalized_blank(backend, steps[marks:], front=_MARK if marks else "")
    if blank is None or (marks and blank != _MARK):
        return None
    if not all(_keeps_to_one_side(backend, token) for token in pipeline["added_tokens"]):
        return None
    if not _one_sequence(pipeline["post_processor"]) or pipeline["model"].get("dropout"):
        return None
    separate = _cuts_before_blank(pipeline["pre_tokenizer"], blank) or _merges_stop_at_blank(pipeline, blank)
    return prefix if separate else None


def _flat(part: _Part | None, members: str) -> Iterator[_Part]:
    """The steps of a sequence, in order."""
    if part is not None and part["type"] == "Sequence":
        for member in part[members]:
            yield from _flat(member, members)
    elif part is not None:
        yield part


def _normalized_blank(backend: Tokenizer, steps: list[_Part], front: str) -> str | None:
    """What the space of a boundary becomes, a space or the mark; None where a side sees the other."""
    if not all(_is_local(step) for step in steps):
        return None
    if backend.normalizer is None:
        return " "
    blanks = set()
    for character in PRINTABLE:
        alone = backend.normalizer.normalize_str(character).removeprefix(front)
        pair = backend.normalizer.normalize_str(f"{character} {character}")
        blanks.add(pair.removeprefix(front).removeprefix(alone).removesuffix(alone))
        # What became a blank or nothing would join the blank.
        if not alone or not set(alone) <= set(PRINTABLE):
            return None
    return blanks.pop() if blanks in ({" "}, {_MARK}) else None


def _is_local(step: _Part) -> bool:
    if step["type"] == "Strip":
        return not step["strip_left"]
    if step["type"] == "Replace":
        content, (kind, pattern) = step["content"], *step["pattern"].items()
        if kind == "Regex":
            return bool(pattern == " {2,}")
        if pattern == " ":
            return content in (" ", _MARK)
        # A replaced end of a word must stay the end of a word.
        return " " not in pattern and content[:1] in set(PRINTABLE) and content[-1:] in set(PRINTABLE)
    return step["type"] in _LOCAL_NORMALIZERS


def _keeps_to_one_side(backend: Tokenizer, token: _Part) -> bool:
    """Whether an added token can never be found over a boundary."""
    content = token["content"]
    if token["normalized"] and backend.normalizer is not None:
        content = backend.normalizer.normalize_str(content)
    beside = {"", *PRINTABLE}
    return not any(
        character in (" ", _MARK) and {content[max(place - 1, 0) : place], content[place + 1 : place + 2]} <= beside
        for place, character in enumerate(content)
    )


def _one_sequence(processor: _Part | None) -> bool:
    """Whether the ids of the text are kept as they are, special tokens aside."""
    return all(
        step["type"] in ("ByteLevel", "BertProcessing", "RobertaProcessing")
        or (step["type"] == "TemplateProcessing" and sum("Sequence" in piece for piece in step["single"]) == 1)
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
