"""How to read every number of a report."""

from __future__ import annotations

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
_PROFILE = {
    "interval": "The values that the lift may have, given that only some texts were tried; at the confidence "
    "that the settings name. The text, not the pair, is the unit of sampling.",
    "sd": "The lift beyond an ordinary token's, in standard deviations of the model's own similarities, so "
    "that models can be compared.",
    "severity": "By sd: below 0.2 negligible, from 0.2 mild, from 0.5 serious, from 0.8 severe (Cohen's "
    "small, medium and large effects). At 0.8 an unrelated text looks as similar as one that beats four in "
    "five of the unrelated ones.",
    "verdict": "Sticky: a lift that matters, too rare to be chance, on most texts. Topical: such a lift on "
    "part of the texts only, which is meaning at work and no defect. Benign: everything else.",
    "universality": "The share of the groups of texts, by topic and of vocabulary entries, that the token "
    "lifts more than an ordinary one. Sticky tokens exceed 0.7.",
    "lift floor": "The lift that 70 % of the groups exceed.",
    "contraction": "How much of the difference between similarities is gone: 0 leaves the meaning, 1 erases "
    "it.",
    "fixed point": "The similarity that all pairs are pulled to.",
    "q value": "The share of false alarms to expect among tokens that stand out at least as much.",
}
_STD = {
    "sticky score": "The paper's score: how far, and how often, copies reduce the distance of a few sentence "
    "pairs.",
    "candidates": "The tokens with the highest scores. Only these are validated.",
    "verdict": "Sticky: a validation rate beyond an outlier rule over the candidates. Tokens without a "
    "verdict were not validated, which is not the same as benign.",
}


def glossary(method: str) -> dict[str, str]:
    """Words and their meanings, of a method."""
    return _SHARED | (_PROFILE if method == "profile" else _STD)
