"""Estimate the cost of a measurement through an endpoint, by running it with artificial vectors.

Seven commands send texts, and several choose later ones by the vectors of earlier ones. Counting them from
each plan would state every stage a second time; here, a command counts its texts by its own code.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders import protocol
from stickytoken.encoders.endpoint._client import price
from stickytoken.encoders.endpoint._server import IN_BASE64
from stickytoken.encoders.endpoint.encoder import CHECKED_EVERY, EndpointEncoder
from stickytoken.encoders.roles import Role
from stickytoken.encoders.text_encoder import SENTINELS
from stickytoken.vocabulary import CandidateTokenizer

# Number of random vectors used to compute artificial vectors. The number is a prime, so that
# regularly spaced token ids use all random vectors about equally often.
_RANDOM_VECTORS = 4099
_SEED = 5
# Weight of a text's own random vector, which distinguishes texts with the same tokens in different orders.
_WEIGHT_OF_TEXT = 0.3


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The requests that a measurement will send, and their cost.

    Attributes:
        requests: number of requests, if the server takes them as they are.
        texts: number of texts in these requests.
        tokens: number of tokens in these requests, as the server counts them.
        answered: number of texts that need not be sent, because the cache has their vectors.
        cost: price of the tokens; None if the price is unknown.
        seconds: expected duration if requests are sent one after another.
        most: an upper limit for all stages, including those whose texts depend on earlier results; None if
            there are no such stages.
    """

    requests: int
    texts: int
    tokens: int
    answered: int
    cost: float | None
    seconds: float
    most: CostEstimate | None = None


@dataclass
class _Recorded:
    """What all texts recorded so far add up to, in all roles."""

    texts: set[str] = field(default_factory=set)  # all texts that have been counted, with their prompts
    request_count: int = 0
    requests_at_confirmation: int = 0  # value of `request_count` when a measurement last ended with a check
    confirmation_count: int = 0  # how many measurements have ended with a check
    count_to_send: int = 0  # number of texts that would be sent
    cached_count: int = 0  # number of texts whose vectors are cached
    # Number of tokens in the texts to send; a fraction, because a server's extra tokens per text are an
    # average.
    token_count: float = 0.0
    longest_text: float = 0.0  # number of tokens in the longest text since the first stage began
    has_begun: bool = False  # whether a stage has begun
    # The first stage whose texts depend on earlier results, and the maximum number of texts from then on.
    first_uncertain_stage: str | None = None
    most_uncertain_texts: int = 0
    # The cost of all stages before `first_uncertain_stage`; None until this stage begins.
    cost_of_certain_stages: CostEstimate | None = None


class DryRun(protocol.EncoderWrapper[EndpointEncoder]):
    """Stands in for the encoder of an endpoint, and records texts instead of sending them.

    A text with a cached vector gets the cached vector. A text without a cached vector gets an artificial
    vector, which is the mean of one random vector per token, plus a small random vector for the text. Copies
    of a token therefore move an artificial vector roughly as they move a real vector.
    """

    def __init__(self, encoder: EndpointEncoder, recorded: _Recorded | None = None) -> None:
        """Wrap the encoder whose requests are to be estimated.

        Args:
            encoder: the encoder of the endpoint; no texts are sent to its server.
            recorded: where texts are counted; if None, a new count begins.
        """
        super().__init__(encoder)
        self._recorded = recorded or _Recorded()

    def in_role(self, role: Role | None) -> DryRun:
        """Return the stand-in for the encoder of texts in a role, which counts together with this one."""
        of_role = self._encoder.in_role(role)
        return self if of_role is self._encoder else DryRun(of_role, self._recorded)

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        """Count the texts that would be sent, and return the cached or artificial vectors of all texts.

        ``allow_zero`` has no effect, because no vector is checked.

        Returns:
            Vectors of shape (texts, d).
        """
        del allow_zero
        texts = protocol.texts_of(texts)
        if not texts:
            return np.empty((0, self.dimension), np.float32)
        prompt = self._encoder.prompt
        # The cached vectors, keyed by text with the prompt. Artificial vectors are added below.
        vectors = self._encoder.answer_cache.find([prompt + text for text in dict.fromkeys(texts)])
        self._count_texts(texts, vectors.keys())
        uncached_texts = [text for text in texts if prompt + text not in vectors]
        ids_of_texts = self._token_ids_or_hashes(uncached_texts)
        for text, token_ids in zip(uncached_texts, ids_of_texts, strict=True):
            vectors[prompt + text] = self._make_artificial_vector(token_ids)
        return np.stack([vectors[prompt + text] for text in texts])[:, : self._encoder.truncate_dim]

    def _count_texts(self, texts: Sequence[str], cached: Collection[str]) -> None:
        """Count each text that has not been counted before. ``cached`` has the texts with cached vectors."""
        recorded = self._recorded
        distinct_texts = dict.fromkeys(self._encoder.prompt + text for text in texts)
        new_texts = [text for text in distinct_texts if text not in recorded.texts]
        to_send = [text for text in new_texts if text not in cached]
        recorded.cached_count += len(new_texts) - len(to_send)
        recorded.count_to_send += len(to_send)
        recorded.request_count += len(self._encoder.batches(to_send))
        recorded.token_count += self._encoder.count_by_server(to_send)
        # The texts of later stages are estimated to be as long as the longest text so far. Texts from before
        # the first stage don't count, because they are only there to be chosen from.
        if recorded.has_begun:
            lengths = [self._encoder.count_by_server([text]) for text in new_texts]
            recorded.longest_text = max([recorded.longest_text, *lengths])
        recorded.texts.update(new_texts)

    def _token_ids_or_hashes(self, texts: Sequence[str]) -> list[list[int]]:
        if not isinstance(self.tokenizer, CandidateTokenizer):
            return self.content_ids(texts)
        # A `CandidateTokenizer` stands in for an unpublished one, and only estimates numbers of tokens. So
        # hashes of the words take the place of token ids.
        hashes_of_texts: list[list[int]] = []
        for text in texts:
            words = [word.encode("utf-8", "surrogatepass") for word in text.split()]
            hashes_of_texts.append([zlib.crc32(word) for word in words])
        return hashes_of_texts

    def confirm_answers(self) -> None:
        """Count the check with which a measurement ends, unless the measurement has no new texts."""
        recorded = self._recorded
        if recorded.request_count > recorded.requests_at_confirmation:
            recorded.confirmation_count += 1
            recorded.requests_at_confirmation = recorded.request_count

    def expect_uncertain(self, first_stage: str, most_texts: int) -> None:
        """Record that from a stage on, texts depend on earlier results, and how many there are at most."""
        self._recorded.first_uncertain_stage = first_stage
        self._recorded.most_uncertain_texts = most_texts

    def reached(self, stage: str) -> None:
        """Record that a stage has begun; at the first uncertain stage, keep the cost of the stages before it.

        A stage may be reported again after it has begun, which changes nothing.
        """
        recorded = self._recorded
        recorded.has_begun = True
        if stage == recorded.first_uncertain_stage and recorded.cost_of_certain_stages is None:
            recorded.cost_of_certain_stages = self._sum_recorded_cost()

    def estimate(self) -> CostEstimate:
        """Return the estimate for the recorded texts.

        If a stage has begun whose texts depend on earlier results, the estimate covers only the stages before
        it. `CostEstimate.most` covers all stages, as if each text were as long as the longest.
        """
        recorded = self._recorded
        total = self._sum_recorded_cost()
        if recorded.cost_of_certain_stages is None:  # no text depends on earlier results
            return total
        # The total includes the few texts that artificial vectors led to in uncertain stages.
        most_texts = total.texts + recorded.most_uncertain_texts
        most_tokens = max(total.tokens, math.ceil(most_texts * recorded.longest_text))
        most = replace(
            total,
            texts=most_texts,
            tokens=most_tokens,
            cost=price(most_tokens, self._encoder.options.price_per_million),
        )
        return replace(recorded.cost_of_certain_stages, most=most)

    def _sum_recorded_cost(self) -> CostEstimate:
        """Return the requests and the cost of all texts recorded so far."""
        encoder = self._encoder
        recorded = self._recorded
        server = encoder.server
        # To check that the model is the same, the encoder sends the fixed texts again after every
        # CHECKED_EVERY requests, of which some may have been sent before the dry run, and at the end of a
        # measurement (a confirmation).
        check_count = 0
        if recorded.request_count:
            check_count = (encoder.session.requests_since_check + recorded.request_count) // CHECKED_EVERY
            check_count += recorded.confirmation_count
        requests_of_check = [list(SENTINELS)]  # a list of texts for each request
        if server.encoding != "omitted":  # the check asks for one text in base64, too
            requests_of_check.append([SENTINELS[IN_BASE64]])
        tokens_of_check = sum(map(encoder.count_by_server, requests_of_check))
        token_count = recorded.token_count + check_count * tokens_of_check
        whole_tokens = round(token_count)
        request_count = recorded.request_count + check_count * len(requests_of_check)
        # Every request takes a fixed time, and every token adds to it.
        seconds = request_count * server.request_seconds + whole_tokens * server.token_seconds
        return CostEstimate(
            requests=request_count,
            texts=recorded.count_to_send,
            tokens=whole_tokens,
            answered=recorded.cached_count,
            cost=price(token_count, encoder.options.price_per_million),
            seconds=seconds,
        )

    @cached_property
    def _random_vectors(self) -> NDArray[np.float32]:
        shape = (_RANDOM_VECTORS, self._encoder.server.dimension)
        return np.random.default_rng(_SEED).standard_normal(shape, dtype=np.float32)

    def _make_artificial_vector(self, ids: Sequence[int]) -> NDArray[np.float32]:
        token_ids = np.asarray(ids, dtype=np.int64)
        hash_of_ids = int.from_bytes(hashlib.sha256(token_ids.tobytes()).digest()[:8], "little")
        vector = _WEIGHT_OF_TEXT * self._random_vectors[hash_of_ids % _RANDOM_VECTORS]
        if len(ids) > 0:  # the mean of one random vector per token
            vector = vector + self._random_vectors[token_ids % _RANDOM_VECTORS].mean(axis=0)
        return np.asarray(vector, dtype=np.float32)  # shape (d,)


def estimate_cost(encoder: EndpointEncoder, measurement: Callable[[Any], object]) -> CostEstimate:
    """Estimate what a measurement would cost, by running it with artificial vectors instead of the server.

    Args:
        encoder: the encoder of the endpoint.
        measurement: a function that takes a `DryRun` and runs the measurement with the `DryRun` as encoder.
            If some of its texts depend on earlier results, it calls `DryRun.expect_uncertain` first, and
            `DryRun.reached` when a stage begins.
    """
    dry_run = DryRun(encoder)
    measurement(dry_run)
    return dry_run.estimate()
