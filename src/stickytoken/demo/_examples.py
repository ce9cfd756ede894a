"""Choose the example shown first and the sentences of the heat-map. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from stickytoken.corpora import Sentences
from stickytoken.reports.content import RunContent
from stickytoken.vocabulary.categories import Category, Vocabulary

_COPIES = 8
_OTHERS = 6
_LISTED = 200
# Short sentences are preferred for the heat-map: they are read in a table.
_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class Example:
    """Inputs of the example shown first.

    Attributes:
        anchor: sentence A.
        carrier: sentence B.
        token_id: the token.
        copies: number of copies.
        why: where token and sentences come from.
    """

    anchor: str
    carrier: str
    token_id: int
    copies: int
    why: str


def worked_example(content: RunContent | None, vocabulary: Vocabulary, corpus: Sentences) -> Example:
    """Choose the worst token of a run with its typical pair; without a run, any token and two sentences.

    Args:
        content: a finished run of the model; None without one.
        vocabulary: of the model.
        corpus: sentences to fall back on.
    """
    sentences = spread(list(corpus.texts), 2)
    if content is None or content.run is None:
        why = "No run of this model is open, so its sticky tokens are not known."
        return Example(sentences[0], sentences[-1], _any_token(vocabulary), _COPIES, why)
    which = "the worst token" if len(content.flagged) else "not sticky, but ranks highest"
    if row := _worst_with_pair(content):
        why = (
            f"It is {which} in the run {content.path.name}; the sentences are a typical unrelated pair of "
            "that run."
        )
        copies = content.evidence.record.pair_copies if content.evidence else _COPIES
        return Example(row["typical_anchor"], row["typical_carrier"], row["token_id"], copies, why)
    own = own_sentences(content, corpus)
    why = f"It is {which} in the run {content.path.name}; the sentences are from that run."
    return Example(own[0], own[-1], worst_token(content), _COPIES, why)


def worst_token(content: RunContent) -> int:
    """Return the first flagged token, or else the one that ranks highest."""
    if content.run is None:
        raise ValueError("an unfinished run has no worst token")
    if len(content.flagged):
        return int(content.flagged["token_id"][0])
    ranked = content.tokens.sort(
        content.method.ranked_by.key, "token_id", descending=[True, False], nulls_last=True
    )
    return int(ranked["token_id"][0])


def listed_tokens(content: RunContent | None) -> list[tuple[int, str]]:
    """Return tokens of a run to choose from, with their verdicts: flagged ones, then ordinary ones."""
    if content is None or content.run is None:
        return []
    listed = [
        (token_id, verdict)
        for token_id, verdict in content.flagged.head(_LISTED).select("token_id", "verdict").iter_rows()
    ]
    if content.evidence is None:
        return listed
    seen = {token_id for token_id, _ in listed}
    shown = content.evidence.tokens.select("token_id", "ordinary").iter_rows()
    return listed + [
        (token_id, "ordinary" if ordinary else "not sticky")
        for token_id, ordinary in shown
        if token_id not in seen
    ]


def own_sentences(content: RunContent | None, corpus: Sentences) -> list[str]:
    """Return the sentences that a run compared with, ordered by topic; else those of a corpus."""
    if content is None or content.plan is None:
        return list(corpus.texts)
    return content.method.texts(content.plan).anchors or list(corpus.texts)


def other_sentences(content: RunContent | None, corpus: Sentences) -> tuple[str, ...]:
    """Return a few sentences on different topics."""
    texts = own_sentences(content, corpus)
    short = [text for text in texts if len(text) <= _CHARACTERS]
    return tuple(spread(short or texts, _OTHERS))


def spread(texts: list[str], count: int) -> list[str]:
    """Return some of the texts, evenly spaced."""
    if len(texts) <= count:
        return texts
    return [texts[(2 * k + 1) * len(texts) // (2 * count)] for k in range(count)]


def _worst_with_pair(content: RunContent) -> dict[str, Any] | None:
    if content.evidence is None:
        return None
    shown = content.evidence.tokens.filter(~pl.col("ordinary") & pl.col("typical_before").is_not_null())
    return shown.head(1).to_dicts()[0] if len(shown) else None


def _any_token(vocabulary: Vocabulary) -> int:
    """Return a special token that can occur in text, or else a word; special tokens are often the worst."""
    entries = zip(vocabulary.ids, vocabulary.categories, strict=True)
    special = [token_id for token_id, category in entries if category is Category.OK_SPECIAL]
    return (special or [token.id for token in vocabulary.available])[0]
