"""Choose the tokens that an audit measures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import polars as pl

from stickytoken.audits.results import FLAGGED, FOUND, NAMED, ORDINARY, SPECIAL, STRONGEST, UNUSUAL
from stickytoken.cleaning import key_function
from stickytoken.detection.naming import TokenSource, available_tokens, token_ids
from stickytoken.detection.run import Run
from stickytoken.encoders.protocol import Encoder, similarity_of
from stickytoken.errors import InputError
from stickytoken.insertion import Token
from stickytoken.methods.profile.documents import PREDICTABLE, DocumentPanel, predict_push
from stickytoken.methods.profile.estimates import EFFECTS_FILE, read_effects
from stickytoken.methods.statistics import Effects
from stickytoken.settings.audit import AuditSettings
from stickytoken.vocabulary import Vocabulary, categorize, choose_joinings, ordinary_ids, special_tokens


@dataclass(frozen=True)
class Candidates:
    """The tokens that an audit may measure.

    Attributes:
        vocabulary: the vocabulary of the model.
        tokens: the entries that can occur in text, keyed by id, written as the settings say. Entries as which
            the tokenizer does not read written copies are left out.
        special_ids: ids of the special tokens among them.
        ordinary_ids: ids of those among them that random tokens are drawn from.
        named_ids: ids of the tokens that the caller named; None if there are none.
        effects: what the run measured of each token, to predict its push; None if that is not possible.
        notes: remarks on the choice, such as why no push can be predicted.
    """

    vocabulary: Vocabulary
    tokens: Mapping[int, Token]
    special_ids: list[int]
    ordinary_ids: list[int]
    named_ids: list[int] | None
    effects: Effects | None
    notes: list[str]


def read_candidates(
    run: Run, encoder: Encoder, settings: AuditSettings, named: TokenSource | None
) -> Candidates:
    """Read the vocabulary, the tokens that the caller named, and what the run measured of all.

    Raises:
        InputError: a named token does not exist, cannot occur in text, or cannot be written as copies.
    """
    similarity = similarity_of(encoder)
    # Copies are written as a run writes them. Otherwise, what stands in the documents could be another token.
    vocabulary = choose_joinings(categorize(encoder.tokenizer), encoder.tokenizer, settings.inserted_as)
    available = [token for token in vocabulary.available if token.id not in vocabulary.unspelled]
    named_ids = None
    if named is not None:
        # `available_tokens` raises an error for a token that cannot occur in text.
        named_tokens = available_tokens(vocabulary, token_ids(vocabulary, named))
        for token in named_tokens:
            if token.id in vocabulary.unspelled:
                raise InputError(
                    f"in a text, the tokenizer reads copies of {token.text!r} (token id {token.id}) as other "
                    "vocabulary entries: leave this token out"
                )
        named_ids = [token.id for token in named_tokens]
    notes = []
    effects = None
    if not run.is_profile:
        notes.append(f"the run of {run.record.method} measured nothing from which a push can be predicted")
    elif similarity not in PREDICTABLE:
        notes.append(f"no push can be predicted, because the model compares vectors by {similarity}")
    elif not (run.path / EFFECTS_FILE).is_file():
        notes.append(f"no push can be predicted, because the run has no {EFFECTS_FILE}")
    else:
        effects = read_effects(run.path)
    return Candidates(
        vocabulary=vocabulary,
        tokens={token.id: token for token in available},
        special_ids=[token.id for token in special_tokens(vocabulary, encoder.tokenizer)],
        ordinary_ids=ordinary_ids(vocabulary, encoder.tokenizer),
        named_ids=named_ids,
        effects=effects,
        notes=notes,
    )


def predict_push_by_id(candidates: Candidates, panel: DocumentPanel) -> dict[int, float]:
    """Predict the push of each token of the run, keyed by token id; empty if it can't be predicted."""
    if candidates.effects is None:
        return {}
    push = predict_push(candidates.effects, panel)
    return dict(zip(candidates.effects.ids.tolist(), push.tolist(), strict=True))


def choose_tokens(
    run: Run,
    candidates: Candidates,
    predicted: Mapping[int, float],
    copied_words: Sequence[str],
    settings: AuditSettings,
) -> dict[int, str]:
    """Choose the tokens to measure, up to ``settings.tokens`` for each of these groups.

    - Named: the caller names them. All of them are measured, and beside them only ordinary tokens.
    - Flagged: the run flags them.
    - Special: special tokens that text can produce.
    - Unusual: their vectors are unusual.
    - Found: the documents already contain copies of them. Tokens with the most copies come first.
    - Strongest: they are expected to push most.
    - Ordinary: random tokens, which show what copies of any token do.

    Of special and unusual tokens, those with the largest predicted push come first. Of flagged tokens, those
    with the largest predicted push take turns with those that the run lists first. A token that fits several
    groups is in the first of these groups. So a flagged token that is measured because it is special, unusual
    or found, as there was no room for it otherwise, is a flagged one, too.

    Args:
        run: the run of the model.
        candidates: the tokens.
        predicted: the predicted push, keyed by token id; empty if there is none.
        copied_words: words that documents already contain copies of, in descending order of the number of
            copies.
        settings: settings of the audit.

    Returns:
        The group of each token to measure, keyed by token id.
    """
    limit = settings.tokens
    named_ids = candidates.named_ids

    def by_prediction(ids: Iterable[int]) -> list[int]:
        # Tokens with equal predictions, or without any, keep their order.
        return sorted(ids, key=lambda token_id: -predicted.get(token_id, 0.0))

    worst_flagged = run.sticky["token_id"].to_list()  # worst first
    # Most flagged tokens hide documents, which no predicted push tells. So they are also taken in the order
    # of the run, in turn.
    in_turn = zip(by_prediction(worst_flagged), worst_flagged, strict=True)
    flagged = list(dict.fromkeys(chain.from_iterable(in_turn)))  # each only once
    strongest = run.strongest(limit)["token_id"].to_list()
    if predicted:
        strongest = by_prediction(sorted(predicted))
    tokens = candidates.tokens
    ids = candidates.ordinary_ids
    order = np.random.default_rng([settings.seed, len(ids), 2]).permutation(len(ids)).tolist()
    shuffled_ids = [ids[position] for position in order]
    # In descending precedence, for a token that fits several groups.
    ids_by_group = {
        FLAGGED: flagged,
        SPECIAL: by_prediction(candidates.special_ids),
        UNUSUAL: by_prediction(_find_unusual(run)),
        FOUND: find_tokens_of_words(tokens.values(), copied_words, run.normalizer),
        STRONGEST: [token_id for token_id in strongest if token_id not in flagged],
        ORDINARY: [token_id for token_id in shuffled_ids if token_id not in flagged],
    }
    group_by_id: dict[int, str] = {}
    if named_ids is not None:
        group_by_id = dict.fromkeys(named_ids, NAMED)
        ids_by_group = {ORDINARY: ids_by_group[ORDINARY]}
    for group, group_ids in ids_by_group.items():
        # Tokens that cannot occur in text are not in `tokens`.
        new_ids = [token_id for token_id in group_ids if token_id in tokens and token_id not in group_by_id]
        group_by_id |= dict.fromkeys(new_ids[:limit], group)
    for token_id, group in group_by_id.items():
        if group != NAMED and token_id in flagged:
            group_by_id[token_id] = FLAGGED
    return group_by_id


def _find_unusual(run: Run) -> list[int]:
    if not run.is_profile:  # other methods don't compare the vectors of tokens
        return []
    is_unusual = pl.col("vector_deviation") >= run.settings.unusual
    unusual = run.tokens.filter(is_unusual).sort("vector_deviation", "token_id", descending=[True, False])
    ids: list[int] = unusual["token_id"].to_list()
    return ids


def find_tokens_of_words(tokens: Iterable[Token], words: Sequence[str], normalizer: str | None) -> list[int]:
    """Return the ids of the tokens whose text is one of these words, in the order of the words.

    The words come from a scan, which writes them as the model's normaliser does. Words that consist of
    several tokens are left out. If the normaliser makes several tokens equal, the token whose text equals the
    word is used, or else the token with the lowest id.
    """
    key_of = key_function(normalizer)  # texts that the normaliser makes equal have the same key
    id_of_text: dict[str, int] = {}
    id_of_key: dict[str, int] = {}
    # Tokens come in ascending order of id, so the lowest id stays.
    for token in tokens:
        text = token.text.strip()
        id_of_text.setdefault(text, token.id)
        id_of_key.setdefault(key_of(text), token.id)
    ids = []
    for word in words:
        token_id = id_of_text.get(word, id_of_key.get(key_of(word)))
        if token_id is not None and word:
            ids.append(token_id)
    return list(dict.fromkeys(ids))
