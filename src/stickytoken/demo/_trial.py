"""A trial: copies of a token in one of two sentences, compared with benign tokens. Pure but for encoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import IdReader
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Placement, Token, TokenizedText, copies_as_ids
from stickytoken.methods.probes import KeyedPaths
from stickytoken.methods.symptoms import SYMPTOM_COPIES
from stickytoken.unit_vectors import exact_unit_vectors

Matrix = NDArray[np.float64]
Ids = tuple[int, ...]

_SEED = 42
_KEY = 0


@dataclass(frozen=True, slots=True)
class Question:
    """Inputs of a trial.

    Attributes:
        anchor: the sentence that stays unchanged.
        carrier: the sentence that gets the copies.
        token: the token.
        placement: where the copies go.
        copies: number of copies, at least 1.
        benign: tokens to compare with; the first one is shown in the heat-map.
        others: up to 24 more sentences for the heat-map.
    """

    anchor: str
    carrier: str
    token: Token
    placement: Placement
    copies: int
    benign: tuple[Token, ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class Trial:
    """The texts to encode; pure data.

    Attributes:
        question: the question it answers.
        counts: numbers of copies on the curve, 0 first, ascending.
        anchor: content ids.
        curves: content ids of the carrier, by token (the one asked for first) and number of copies.
        names: of the sentences in the heat-map: A is the anchor, B the carrier, C and so on the others; those
            without room for the copies are left out.
        texts: these sentences.
        plain: their content ids.
        with_token: the same with the copies.
        with_benign: the same with copies of the first benign token; empty if there is none.
    """

    question: Question
    counts: tuple[int, ...]
    anchor: Ids
    curves: tuple[tuple[Ids, ...], ...]
    names: tuple[str, ...]
    texts: tuple[str, ...]
    plain: tuple[Ids, ...]
    with_token: tuple[Ids, ...]
    with_benign: tuple[Ids, ...]


@dataclass(frozen=True)
class Answer:
    """Cosine similarities.

    Attributes:
        trial: what was encoded.
        curve: of the two sentences, by number of copies.
        benign: the same for every benign token, shape (tokens, counts).
        plain: of the sentences of the heat-map, shape (texts, texts).
        with_token: rows with the copies, columns without.
        with_benign: the same with copies of the benign token; None if there is none.
    """

    trial: Trial
    curve: list[float]
    benign: Matrix
    plain: Matrix
    with_token: Matrix
    with_benign: Matrix | None

    @property
    def before(self) -> float:
        """Similarity without copies."""
        return self.curve[0]

    @property
    def after(self) -> float:
        """Similarity with the copies asked for."""
        return self.curve[self._place]

    @property
    def benign_after(self) -> list[float]:
        """The same with copies of each benign token."""
        return [float(value) for value in self.benign[:, self._place]]

    @property
    def _place(self) -> int:
        return self.trial.counts.index(self.trial.question.copies)


def plan_trial(encoder: IdReader, question: Question) -> Trial:
    """Insert the copies, at the same places for every token."""
    texts = (question.anchor, question.carrier, *question.others)
    tokenized = encoder.tokenize(texts)
    anchor, carrier = tokenized[:2]
    for name, text in (("sentence A", anchor), ("sentence B", carrier)):
        if not text.words:
            raise InputError(f"{name} has no tokens that {encoder.name} knows: write one with words")
    room = [n for n in (0, question.copies) if _fits(encoder, carrier, question, n)]
    _require_room(encoder, question, carrier, anchor, room)
    counts = tuple(
        n
        for n in sorted({0, question.copies, *SYMPTOM_COPIES})
        if n <= question.copies or _fits(encoder, carrier, question, n)
    )
    tokens = (question.token, *question.benign)
    # In the heat-map copies go into every sentence; those without room for them are left out.
    kept = [k for k, text in enumerate(tokenized) if text.words and _fits(encoder, text, question)]

    def filled(token: Token) -> tuple[Ids, ...]:
        return tuple(_with_copies(token, tokenized[k], question, question.copies, k) for k in kept)

    return Trial(
        question,
        counts,
        anchor.ids,
        tuple(tuple(_with_copies(token, carrier, question, n, 1) for n in counts) for token in tokens),
        tuple(ascii_uppercase[k] for k in kept),
        tuple(texts[k] for k in kept),
        tuple(tokenized[k].ids for k in kept),
        filled(question.token),
        filled(question.benign[0]) if question.benign else (),
    )


def measure_trial(encoder: IdReader, trial: Trial) -> Answer:
    """Encode everything in one call and compare."""
    curves = [ids for row in trial.curves for ids in row]
    parts = [[trial.anchor], curves, trial.plain, trial.with_token, trial.with_benign]
    units = exact_unit_vectors(encoder.encode_ids([ids for part in parts for ids in part]))
    anchor, inserted, plain, token, benign = np.split(units, np.cumsum([len(part) for part in parts])[:-1])
    similarities = (inserted @ anchor[0]).reshape(len(trial.curves), len(trial.counts))
    return Answer(
        trial,
        [float(value) for value in similarities[0]],
        similarities[1:],
        plain @ plain.T,
        token @ plain.T,
        benign @ plain.T if len(benign) else None,
    )


def _require_room(
    encoder: IdReader, question: Question, carrier: TokenizedText, anchor: TokenizedText, room: Sequence[int]
) -> None:
    longest = encoder.max_length
    if 0 not in room or not encoder.fits(anchor.ids):
        name, text = ("B", carrier) if 0 not in room else ("A", anchor)
        raise InputError(
            f"sentence {name} has {len(text.ids)} tokens, more than {encoder.name} reads ({longest} with its "
            "special tokens): shorten it"
        )
    if question.copies not in room:
        raise InputError(
            f"sentence B has {len(carrier.ids) + question.copies} tokens with {question.copies} copies, "
            f"more than {encoder.name} reads ({longest} including special tokens): shorten it or use fewer "
            "copies"
        )


def _fits(encoder: IdReader, text: TokenizedText, question: Question, copies: int | None = None) -> bool:
    count = question.copies if copies is None else copies
    return encoder.fits((*text.ids, *(question.token.id,) * count))


def _with_copies(token: Token, text: TokenizedText, question: Question, copies: int, place: int) -> Ids:
    if copies == 0:
        return text.ids
    path: tuple[int, ...] = ()
    if question.placement is Placement.RANDOM:
        most = max(question.copies, SYMPTOM_COPIES[-1])
        paths = KeyedPaths(_SEED, _KEY, (len(text.words),), most, Insertion.IDS)
        # Independent of the token, so that all tokens have the same places.
        (path, *_) = paths.of(Token(place, ""))
    return copies_as_ids(token, text, question.placement, copies, path)
