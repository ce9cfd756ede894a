"""The model that all visitors share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from stickytoken.detection.flagged import flagged_tokens
from stickytoken.detection.run import Run
from stickytoken.detection.run_model import model_difference
from stickytoken.detection.token_evidence import Reopened, reopen
from stickytoken.encoders.protocol import IdReader
from stickytoken.errors import InputError
from stickytoken.insertion import Token
from stickytoken.measurement.records import MeasurementRecord
from stickytoken.vocabulary.benign import match_benign
from stickytoken.vocabulary.categories import Vocabulary, categorize

_RUNS_KEPT = 4
_SEED = 42


class SharedModel:
    """A model that is loaded once. One visitor computes at a time; no visitor's input is kept."""

    def __init__(self, encoder: IdReader) -> None:
        self._encoder = encoder
        self._identity = encoder.identity  # once: nobody changes the model of a server
        # Reentrant: a run is reopened within calls that already hold the lock.
        self._lock = threading.RLock()
        self.vocabulary: Vocabulary = categorize(encoder.tokenizer)
        available = self.vocabulary.available
        self._unread = frozenset(token.id for token in available if not encoder.fits((token.id,)))
        self._reopened: Callable[[Run], Reopened] = lru_cache(_RUNS_KEPT)(self._reopen)

    @property
    def name(self) -> str:
        """The model's name, as the user gave it."""
        return self._encoder.name

    @contextmanager
    def encoder(self) -> Iterator[IdReader]:
        """Hold the model exclusively: neither it nor its tokenizer is thread-safe."""
        with self._lock:
            yield self._encoder

    def is_model_of(self, record: MeasurementRecord) -> bool:
        """Whether a run was made with this model, or a repair began with it."""
        return model_difference(record, self._identity) == []

    def reopened(self, run: Run) -> Reopened:
        """Return a run of this model with its texts encoded; the last few are cached.

        Raises:
            InputError: the run was made with another model.
        """
        if not self.is_model_of(run.record):
            raise InputError(
                f"the run was made with {run.record.model.name} or with other settings of it, but "
                f"{self.name} is loaded: start the app with --run {run.path.name} to compute more for it"
            )
        with self._lock:
            return self._reopened(run)

    def benign(self, token_id: int, run: Run | None, count: int) -> tuple[Token, ...]:
        """Match benign tokens to a token as an explanation does.

        Args:
            token_id: an available token.
            run: its flagged tokens are left out; None leaves out nothing.
            count: how many.

        Raises:
            InputError: there are fewer than three.
        """
        excluded = flagged_tokens(run) | self._unread | {token_id}
        return match_benign(self.vocabulary, token_id, excluded, count, _SEED).tokens

    def _reopen(self, run: Run) -> Reopened:
        return reopen(run, self._encoder, self.vocabulary)
