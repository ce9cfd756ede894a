"""Cut texts into requests. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def cut_into_batches(
    texts: Sequence[str], lengths: Sequence[int], most_texts: int, most_tokens: int
) -> list[list[str]]:
    """Cut distinct texts into requests of texts of similar length, which servers compute fastest.

    The requests depend on the texts alone, not on which of them were answered before: a run that is continued
    sends what the uninterrupted run would have sent, and servers whose vectors depend on the request give the
    same ones.

    Args:
        texts: distinct texts.
        lengths: tokens of each.
        most_texts: largest number of texts in a request.
        most_tokens: largest number of tokens in a request of several texts.
    """
    order = sorted(range(len(texts)), key=lambda place: (lengths[place], texts[place]))
    batches: list[list[str]] = []
    tokens = 0
    for place in order:
        if not batches or len(batches[-1]) == most_texts or tokens + lengths[place] > most_tokens:
            batches.append([])
            tokens = 0
        batches[-1].append(texts[place])
        tokens += lengths[place]
    return batches


def unanswered(batches: Sequence[Sequence[str]], known: Collection[str]) -> list[list[str]]:
    """Leave out the texts that were answered before, and requests without any other."""
    left = ([text for text in batch if text not in known] for batch in batches)
    return [batch for batch in left if batch]
