"""How to read every number of a report."""

from __future__ import annotations

from stickytoken.methods.protocol import AnyMethod

_SHARED = {
    "sticky token": "A vocabulary entry whose copies draw unrelated texts together, whatever these are "
    "about.",
    "u": "The model's mean similarity: the mean cosine over all pairs of vocabulary embeddings. Texts with a "
    "lower similarity count as unrelated here.",
    "lift": "How far the cosine similarity of unrelated texts rises when copies of the token go into one of "
    "them, on average. 0.1 means: a pair at 0.05 is at 0.15 afterwards.",
    "validation rate": "The share of unrelated pairs whose similarity rises. No rate is high by itself: "
    "compare with other tokens.",
    "kind": "Special: a control token. Unused: a placeholder. Byte: a piece of a character. Symbol: neither "
    "letters nor digits. Subword: goes on a word. Whole word: a word or the beginning of one.",
    "category": "What a round trip through the tokenizer says. OK and OK_SPECIAL can occur in text.",
}


def glossary(method: AnyMethod) -> dict[str, str]:
    """Words and their meanings, of a method."""
    return _SHARED | dict(method.glossary)
