"""Measure named tokens, without a run folder."""

from __future__ import annotations

from collections.abc import Sequence

from stickytoken.corpora.choice import PairSource, SentenceSource, choose_corpus
from stickytoken.corpora.readability import readable
from stickytoken.detection.selection import TokenSource, token_ids
from stickytoken.encoders.loading.load import AnyModel, load_encoder, reads_texts_only
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Token
from stickytoken.measurement.progress import ProgressCallback, ignore_progress
from stickytoken.methods.job import Job, MethodSettings, suited
from stickytoken.methods.protocol import ProbedToken
from stickytoken.methods.registry import choose_method
from stickytoken.validation import require_callable
from stickytoken.vocabulary.categories import Vocabulary, categorize
from stickytoken.vocabulary.writing import written


def probe(
    encoder: AnyModel,
    tokens: TokenSource,
    *,
    method: str | None = None,
    sentences: SentenceSource | None = None,
    pairs: PairSource | None = None,
    settings: MethodSettings | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Sequence[ProbedToken]:
    """Measure named tokens, without a run folder.

    Args:
        encoder: the model: anything that `load_encoder` takes, an encoder included.
        tokens: ids or texts of tokens, or a file of them; with text insertion they must be able to occur
            in text.
        method: name of the method; None is the one that the settings belong to, else the first that takes
            what is given.
        sentences: the corpus: a list of sentences, or anything that `load_sentences` takes; None is the
            bundled corpus.
        pairs: pairs, or a file of them, in place of sentences, for a method that takes them.
        settings: of the method; None is its defaults, and insertion as words where a model reads only texts.
        progress: told of every step.

    Returns:
        What the method measured, one item per token in the order given.

    Raises:
        InputError: a token that cannot be probed, or inputs that cannot be used.
    """
    chosen = choose_method(method, settings, pairs is not None)
    settings = suited(chosen.settings(), reads_texts_only(encoder)) if settings is None else settings
    require_callable("progress", progress)
    corpus = choose_corpus(sentences, pairs)
    encoder = load_encoder(encoder)
    corpus = readable(corpus, encoder.tokenizer, encoder.name)
    vocabulary = written(categorize(encoder.tokenizer), encoder.tokenizer, settings.insertion)
    probed = [_token(vocabulary, token, settings.insertion) for token in token_ids(vocabulary, tokens)]
    job = Job(encoder, settings, corpus, vocabulary, probed, True, False)
    return chosen.probe(job, progress)


def _token(vocabulary: Vocabulary, token_id: int, insertion: Insertion) -> Token:
    """A token by its id."""
    place = vocabulary.place(token_id)
    category = vocabulary.categories[place]
    if insertion is not Insertion.IDS and not category.available:
        raise InputError(
            f"token id {token_id} ({vocabulary.tokens[place]!r}) cannot occur in text ({category.value}): "
            "probe it with ids insertion"
        )
    return vocabulary.token(place)
