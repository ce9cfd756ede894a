"""Measure named tokens, without a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stickytoken.corpora import Sentences
from stickytoken.corpora.choice import choose_corpus
from stickytoken.corpora.pairs import SentencePair
from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Token
from stickytoken.measurement.progress import ProgressCallback, ignore_progress
from stickytoken.methods.job import Job, MethodSettings
from stickytoken.methods.protocol import ProbedToken
from stickytoken.methods.registry import choose_method
from stickytoken.vocabulary.categories import Vocabulary


def probe(
    encoder: Encoder,
    vocabulary: Vocabulary,
    token_ids: Sequence[int],
    *,
    method: str | None = None,
    sentences: Sentences | str | Path | None = None,
    pairs: Sequence[SentencePair] | str | Path | None = None,
    settings: MethodSettings | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Sequence[ProbedToken]:
    """Measure named tokens, without a run folder.

    Args:
        encoder: the model.
        vocabulary: of the model.
        token_ids: the tokens; with text insertion they must be able to occur in text.
        method: name of the method; None is the one that the settings belong to, else the first that takes
            what is given.
        sentences: the corpus; None is the bundled one.
        pairs: pairs, in place of sentences, for a method that takes them.
        settings: of the method; None is its defaults.
        progress: told of every step.

    Returns:
        What the method measured, one item per token in the order given.

    Raises:
        InputError: a token that cannot be probed, or inputs that cannot be used.
    """
    chosen = choose_method(method, settings, pairs is not None)
    settings = chosen.settings() if settings is None else settings
    tokens = [_token(vocabulary, token_id, settings.insertion) for token_id in token_ids]
    job = Job(encoder, settings, choose_corpus(sentences, pairs), vocabulary, tokens, True, False)
    return chosen.probe(job, progress)


def _token(vocabulary: Vocabulary, token_id: int, insertion: Insertion) -> Token:
    """A token by its id.

    Raises:
        InputError: there is no such id, or text insertion cannot produce it.
    """
    try:
        place = vocabulary.ids.index(token_id)
    except ValueError:
        raise InputError(
            f"the vocabulary has no token id {token_id}: it has {vocabulary.ids[0]} to {vocabulary.ids[-1]}"
        ) from None
    category = vocabulary.categories[place]
    if insertion is Insertion.TEXT and not category.available:
        raise InputError(
            f"token id {token_id} ({vocabulary.tokens[place]!r}) cannot occur in text ({category.value}): "
            "probe it with ids insertion"
        )
    return Token(token_id, vocabulary.decoded[place])
