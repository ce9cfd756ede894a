"""The glossary of a report."""

from __future__ import annotations

from stickytoken.methods.protocol import AnyMethod

_SHARED = {
    "sticky token": "A vocabulary entry whose copies draw unrelated texts together, whatever the texts are "
    "about.",
    "u": "The model's mean similarity: the mean cosine over all pairs of vocabulary embeddings. Texts with a "
    "lower similarity count as unrelated.",
    "lift": "How far the cosine similarity of unrelated texts rises on average when copies of the token go "
    "into one of them. A lift of 0.1 takes a pair from 0.05 to 0.15.",
    "validation rate": "The share of unrelated pairs whose similarity rises. A rate means little by itself: "
    "compare it with those of other tokens.",
    "entry": "Special: a control token. Unused: a placeholder. Byte: a piece of a character. Symbol: neither "
    "letters nor digits. Subword: continues a word. Whole word: a word or its beginning.",
    "category": "Whether decoding and encoding gives the entry back. OK and OK_SPECIAL can appear in text.",
}


def glossary(method: AnyMethod) -> dict[str, str]:
    """Return the words of a method with their meanings."""
    return _SHARED | dict(method.glossary)
