"""Gather the inputs of a repair: the tokens, their neighbours, the texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stickytoken.corpora import Sentences, load_sentences, text_kinds
from stickytoken.corpora.choice import SentenceSource
from stickytoken.corpora.readability import as_read, readable
from stickytoken.detection.run import Run
from stickytoken.detection.selection import TokenSource, token_ids
from stickytoken.errors import InputError
from stickytoken.repairs._plan import TokenFacts
from stickytoken.repairs._verification import Neighbour
from stickytoken.repairs.tokenizer_edit import splittable
from stickytoken.unit_vectors import unit_vectors
from stickytoken.vocabulary.categories import Vocabulary

if TYPE_CHECKING:
    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder


def named_tokens(run: Run, vocabulary: Vocabulary, tokens: TokenSource | None) -> list[int]:
    """Return the ids of the tokens to repair, without repetitions.

    Args:
        run: a finished run.
        vocabulary: vocabulary of its model.
        tokens: tokens that the user names; None takes the sticky tokens of the run.
    """
    if tokens is None:
        ids: list[int] = run.sticky["token_id"].to_list()
        if not ids:
            raise InputError(f"the run in {run.path} found no sticky tokens: name the tokens to repair")
        return ids
    found = list(dict.fromkeys(token_ids(vocabulary, tokens)))
    for token_id in found:
        vocabulary.place(token_id)  # refuses other ids
    return found


def token_facts(
    encoder: SentenceTransformerEncoder, folder: Path, vocabulary: Vocabulary, ids: Sequence[int]
) -> list[TokenFacts]:
    """Collect what the choice of a strategy depends on."""
    places = {token_id: place for place, token_id in enumerate(vocabulary.ids)}
    special = _matched_first(encoder.user_tokenizer)
    template = {*encoder.template.before, *encoder.template.after}
    reasons = splittable(folder, [token_id for token_id in ids if token_id not in special])
    return [
        TokenFacts(
            token_id,
            vocabulary.tokens[places[token_id]],
            vocabulary.decoded[places[token_id]],
            token_id in special,
            token_id in template,
            reasons.get(token_id),
        )
        for token_id in ids
    ]


def _matched_first(tokenizer: Any) -> frozenset[int]:
    """Return the ids of the entries that a tokenizer matches in text before anything else."""
    added: Mapping[int, Any] | None = getattr(tokenizer, "added_tokens_decoder", None)
    if added is None:
        added = tokenizer.get_added_tokens_decoder()
    return frozenset(added) | frozenset(getattr(tokenizer, "all_special_ids", ()))


def neighbours_of(
    encoder: SentenceTransformerEncoder,
    vocabulary: Vocabulary,
    ids: Sequence[int],
    count: int,
    verdicts: Mapping[int, str],
) -> tuple[Neighbour, ...]:
    """Find the available tokens whose rows are closest to those of the repaired tokens."""
    from stickytoken.inspection import inspector_of

    matrix = inspector_of(encoder).embedding_matrix()
    if matrix is None or not count:
        return ()
    repaired = set(ids)
    others = [token for token in vocabulary.available if token.id not in repaired and token.id < len(matrix)]
    if not others:
        return ()
    rows = np.array([token.id for token in others])
    norms = np.maximum(np.linalg.norm(matrix, axis=1), np.finfo(np.float32).tiny)
    names = dict(zip(vocabulary.ids, vocabulary.tokens, strict=True))
    found: dict[int, Neighbour] = {}
    for token_id in ids:
        cosines = (matrix @ matrix[token_id]) / norms
        for place in np.argsort(-cosines[rows])[:count]:
            token = others[int(place)]
            found.setdefault(token.id, Neighbour(token, names[token_id], verdicts.get(token.id)))
    return tuple(found.values())


def verification_corpus(
    run: Run, given: SentenceSource | None, encoder: SentenceTransformerEncoder
) -> tuple[Sentences, list[str]]:
    """Return the corpus to verify on, and a note where it is not that of the run.

    Args:
        run: a finished run.
        given: a corpus that the user names; None takes that of the run if it can be read again.
        encoder: the model.
    """
    notes = []
    source = run.record.corpus.source
    corpus = load_sentences(given)
    if given is None and source != corpus.source:
        if Path(source).is_file() and run.record.corpus.sentences is not None:
            corpus = load_sentences(Path(source))
        else:
            notes.append(
                f"verified on {corpus.source}, because {source}, which the run was made on, cannot be read "
                "again: pass sentences to verify on your own texts"
            )
    return readable(corpus, encoder.tokenizer, encoder.name), notes


def used_texts(run: Run) -> list[str]:
    """Return the carriers and anchors of a run."""
    texts = run.method.texts(run.plan)
    return list(dict.fromkeys((*texts.carriers, *texts.anchors)))


def mean_direction(encoder: SentenceTransformerEncoder, corpus: Sentences) -> np.ndarray:
    """Return the mean direction of the vectors of texts, of length 1, shape (d,)."""
    kinds = as_read(text_kinds(), encoder.tokenizer)
    texts = list(dict.fromkeys((*kinds.texts, *corpus.texts)))
    fitting = [text for text, ids in zip(texts, encoder.content_ids(texts), strict=True) if encoder.fits(ids)]
    mean = unit_vectors(encoder.encode(fitting)).astype(np.float64).mean(axis=0)
    return np.asarray(mean / np.linalg.norm(mean), dtype=np.float32)
