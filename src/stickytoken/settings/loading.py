"""The settings for loading a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stickytoken.settings import PYTHON_ONLY, PositiveCount, check_settings


@dataclass(frozen=True)
class RecordedLoading:
    """The loading settings that a run records, because they affect its results or identify the model files.

    Attributes:
        revision: Branch, tag or commit on the hub.
        route: Route through an asymmetric model: query, document, or another route of the model. Default: the
            model's default route.
        dtype: Precision: float32, float16, bfloat16, or tf32 on CUDA. Default: the run's precision, or
            float32.
        truncate_dim: Use only the first N components of every vector. Default: all.
        max_length: Maximum input length in tokens, including special tokens. Default: the model's own limit.

    Raises:
        InputError: A value has the wrong type or is out of range.
    """

    revision: str | None = None
    route: str | None = None
    dtype: str | None = None
    truncate_dim: PositiveCount | None = None
    max_length: Annotated[PositiveCount | None, PYTHON_ONLY] = None

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class LoadingSettings(RecordedLoading):
    """How a model is loaded, and on which device it runs.

    Attributes:
        trust_remote_code: Run Python code from the model's repository.
        device: cpu, cuda, cuda:1 or mps. Default: the best available device.
        token_budget: Maximum number of tokens in a batch; the default depends on the device.

    Raises:
        InputError: A value has the wrong type or is out of range.
    """

    trust_remote_code: bool = False
    device: str | None = None
    token_budget: PositiveCount | None = None
