"""A corpus: distinct sentences, where they came from, and what they are about if known."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stickytoken.errors import InputError


@dataclass(frozen=True)
class Sentences:
    """Distinct, non-blank sentences in a fixed order.

    Attributes:
        texts: the sentences.
        source: where they came from, for people.
        topics: the topic of each sentence, where the corpus says so.
        blank: blank lines that were left out.
        duplicates: repeated sentences that were left out.
    """

    texts: tuple[str, ...]
    source: str
    topics: tuple[str, ...] | None = None
    blank: int = 0
    duplicates: int = 0

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def fingerprint(self) -> str:
        """sha256 over the sentences in order."""
        return _digest(self.texts)

    @property
    def fingerprint_with_topics(self) -> str:
        """sha256 over the sentences and their topics; that of the sentences where they have none."""
        return self.fingerprint if self.topics is None else _digest((*self.texts, *self.topics))

    def sample(self, count: int, seed: int) -> tuple[str, ...]:
        """Draw ``count`` sentences without replacement.

        Raises:
            InputError: the corpus has fewer.
        """
        if count > len(self.texts):
            raise InputError(
                f"{self.source} has {len(self.texts)} distinct sentences, {count} are asked for: "
                f"pass a larger corpus, or ask for at most {len(self.texts)}"
            )
        chosen = np.random.default_rng(seed).choice(len(self.texts), size=count, replace=False)
        return tuple(self.texts[k] for k in chosen)


def _digest(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


class _Clean(NamedTuple):
    texts: tuple[str, ...]
    kept: tuple[int, ...]
    blank: int
    duplicates: int


def collect_sentences(
    texts: Iterable[str | None], source: str, topics: Sequence[str] | None = None
) -> Sentences:
    """Drop blank and repeated sentences; white space around a sentence is cut off.

    Raises:
        InputError: nothing is left.
    """
    clean = _clean(texts)
    if not clean.texts:
        raise InputError(f"{source} holds no sentence: every line is blank")
    return Sentences(
        texts=clean.texts,
        source=source,
        topics=tuple(topics[k] for k in clean.kept) if topics is not None else None,
        blank=clean.blank,
        duplicates=clean.duplicates,
    )


def _clean(texts: Iterable[str | None]) -> _Clean:
    first_seen: dict[str, int] = {}
    blank = duplicates = 0
    for position, text in enumerate(texts):
        stripped = (text or "").strip()
        if not stripped:
            blank += 1
        elif stripped in first_seen:
            duplicates += 1
        else:
            first_seen[stripped] = position
    return _Clean(tuple(first_seen), tuple(first_seen.values()), blank, duplicates)
