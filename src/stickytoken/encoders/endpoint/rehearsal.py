"""Count what a measurement would send to an endpoint, by simulating it without sending anything."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders._stand_in import StandIn
from stickytoken.encoders.checks import require_list
from stickytoken.encoders.endpoint.cost import CostEstimate, price
from stickytoken.encoders.endpoint.encoder import EndpointEncoder

_ROWS = 4099
_SEED = 5
# What tells a text from others, beside its tokens.
_OWN = 0.3


class Rehearsal(StandIn[EndpointEncoder]):
    """An encoder that records the requested texts, and makes up the vectors that are not cached yet.

    Such a vector is the mean of one random vector per token and one of the text, so that copies of a token
    move it as they move a real one. Rounds that are planned from the results of earlier ones become exact as
    soon as those are answered.

    Args:
        encoder: the encoder that it stands for.
        uncertain: name of the stage whose size depends on results, if there is one.
    """

    def __init__(self, encoder: EndpointEncoder, uncertain: str | None = None) -> None:
        super().__init__(encoder)
        self._uncertain = uncertain
        self._certain: CostEstimate | None = None
        self._asked: dict[str, None] = {}
        self._requests = 0
        self._tokens = 0.0
        self._texts = 0
        self._answered = 0

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        """Record the texts and return made-up vectors, shape (n, d)."""
        del allow_zero
        require_list(texts)
        if not texts:
            return np.empty((0, self.dimension), np.float32)
        prompt = self._encoder.endpoint.prompt
        known = self._encoder.endpoint.answers.find([prompt + text for text in dict.fromkeys(texts)])
        self._note(texts, known)
        new = [text for text in texts if prompt + text not in known]
        made_up = {text: self._vector(parts) for text, parts in zip(new, self._parts(new), strict=True)}
        return np.stack([known[prompt + text] if text not in made_up else made_up[text] for text in texts])

    @property
    def makes_up_vectors(self) -> bool:
        """Whether any vector so far was made up, so that a choice by results would mean nothing."""
        return self._texts > 0

    def reached(self, stage: str) -> None:
        """Note the stage that was reached: what is recorded before the uncertain one is certain."""
        if stage == self._uncertain and self._certain is None:
            self._certain = self._noted()

    def estimate(self) -> CostEstimate:
        """Estimate the cost of the recorded texts."""
        noted = self._noted()
        if self._certain is None or self._certain.requests == noted.requests:
            return noted
        return replace(self._certain, most=noted)

    def _noted(self) -> CostEstimate:
        endpoint = self._encoder.endpoint
        tokens = self._tokens + endpoint.checking(self._requests)
        return CostEstimate(
            requests=self._requests,
            texts=self._texts,
            tokens=round(tokens),
            answered=self._answered,
            cost=price(tokens, endpoint.options.price_per_million),
            seconds=endpoint.seconds(self._requests, round(tokens)),
        )

    def _note(self, texts: Sequence[str], known: Collection[str]) -> None:
        endpoint = self._encoder.endpoint
        new = [endpoint.prompt + text for text in dict.fromkeys(texts) if text not in self._asked]
        self._asked.update(dict.fromkeys(texts))
        left = [text for text in new if text not in known]
        self._answered += len(new) - len(left)
        self._texts += len(left)
        self._requests += len(endpoint.batches(left))
        self._tokens += endpoint.counted_by_server(left)

    @cached_property
    def _table(self) -> NDArray[np.float32]:
        """Random vectors, shape (rows, d)."""
        return np.random.default_rng(_SEED).standard_normal((_ROWS, self.dimension), dtype=np.float32)

    def _parts(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text's tokens, or of its words where the tokenizer is unpublished."""
        if not getattr(self.tokenizer, "estimates", False):
            return self.content_ids(texts)
        return [
            [zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in text.split()] for text in texts
        ]

    def _vector(self, ids: Sequence[int]) -> NDArray[np.float32]:
        whole = np.asarray(ids, dtype=np.int64)
        own = int.from_bytes(hashlib.sha256(whole.tobytes()).digest()[:8], "little") % _ROWS
        mean = self._table[whole % _ROWS].mean(axis=0) if len(ids) else 0.0
        return np.asarray(mean + _OWN * self._table[::-1][own], dtype=np.float32)


def estimate_cost(
    encoder: EndpointEncoder, measurement: Callable[[Any], object], uncertain: str | None = None
) -> CostEstimate:
    """Estimate what a measurement would cost, without sending anything.

    Example: ``estimate_cost(encoder, lambda stand_in: detect(stand_in, out=folder))``, with a folder that is
    thrown away.

    Args:
        encoder: the model.
        measurement: called with an encoder that stands for the model; its vectors are made up, and so are the
            results.
        uncertain: name of the stage whose size depends on results; the measurement must then tell the
            stages that it reaches to `reached` of that encoder.
    """
    rehearsal = Rehearsal(encoder, uncertain)
    measurement(rehearsal)
    return rehearsal.estimate()
