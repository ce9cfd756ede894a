"""What is known about a server, determined before anything else is sent."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from stickytoken.encoders._sentinels import SENTINELS, fingerprint_of
from stickytoken.unit_vectors import exact_unit_vectors

# Tokens in a request: enough to use a server fully, and far below what servers take.
_MOST_TOKENS = 16_384
_LEAST_TOKENS = 256
# Servers that compute on a slow machine answer large requests late. This is how long one may take.
_REQUEST_SECONDS = 5.0


class Long(StrEnum):
    """What a server does with a text that is longer than the model reads."""

    TRUNCATES = "truncates"
    REFUSES = "refuses"
    UNKNOWN = "unknown"
    """No text that was tried was too long."""


class Empty(StrEnum):
    """What a server does with an empty text."""

    VECTOR = "vector"
    ZERO = "zero"
    REFUSES = "refuses"


class Capabilities(BaseModel):
    """How a server behaves, as stored with its answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    dimension: int = Field(description="components of a vector")
    encoding: Literal["base64", "float"]
    batch: int = Field(description="texts that it takes in a request, as far as was tried")
    max_length: int | None = Field(description="tokens that it reads, by the tokenizer that was passed")
    long: Long
    empty: Empty
    normalised: bool = Field(description="whether its vectors have length 1")
    call_noise: float = Field(
        ge=0, description="standard deviation of the cosine of two texts from one call to the next"
    )
    batch_noise: float = Field(ge=0, description="the same from one composition of a request to another")
    least_cosine: float = Field(description="smallest cosine of one text's vectors in any two calls")
    counts_tokens: bool = Field(description="whether it reports the tokens of a request")
    overhead: float = Field(description="tokens that it counts for each text beside those of the text itself")
    tokens_per_unit: float = Field(
        default=1.0, description="tokens that it counts for one that is counted here; 1 with its tokenizer"
    )
    request_seconds: float = Field(ge=0, description="of a request, whatever is in it")
    token_seconds: float = Field(ge=0, description="of each token more")
    requests: int = Field(description="sent to find all this out")
    tokens: int = Field(description="in these requests")
    sentinels: str = Field(description="their vectors: float32 in base64")

    @property
    def noise(self) -> float:
        """Standard deviation of a cosine from one call to the next, for whatever reason."""
        return max(self.call_noise, self.batch_noise)

    @property
    def most_tokens(self) -> int:
        """Largest number of tokens to put into a request, so that it is answered well before its time-out."""
        in_time = _REQUEST_SECONDS / max(self.token_seconds, _REQUEST_SECONDS / _MOST_TOKENS)
        return max(_LEAST_TOKENS, int(in_time))

    @property
    def sentinel_vectors(self) -> NDArray[np.float32]:
        """Vectors of the sentinel texts, shape (n, d)."""
        flat = np.frombuffer(base64.b64decode(self.sentinels), dtype="<f4")
        return flat.reshape(len(SENTINELS), self.dimension)

    @property
    def fingerprint(self) -> str:
        """Identifies the model by the vectors of the sentinel texts."""
        return fingerprint_of(self.sentinel_vectors)

    def drift(self, rows: Sequence[NDArray[np.float32]]) -> float | None:
        """Compare later vectors of the sentinel texts with the first ones.

        Args:
            rows: vectors of the sentinel texts, in their order.

        Returns:
            The smallest cosine, where it is lower than noise explains; else None.
        """
        if any(len(row) != self.dimension for row in rows):
            return 0.0
        cosines = (exact_unit_vectors(np.stack(rows)) * exact_unit_vectors(self.sentinel_vectors)).sum(axis=1)
        least = float(cosines.min())
        # A cosine of 1 - x is off by x: as far as the noisiest pair of calls was, several times over.
        return least if 1 - least > max(_DRIFT, _DRIFT_OF_NOISE * (1 - self.least_cosine)) else None


_DRIFT = 1e-3
_DRIFT_OF_NOISE = 4.0


def packed(vectors: NDArray[np.float32]) -> str:
    """Write vectors as base64."""
    return base64.b64encode(vectors.astype("<f4").tobytes()).decode("ascii")
