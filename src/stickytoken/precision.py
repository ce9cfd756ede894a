"""Arithmetic that is faster and less exact than a model's own."""

from __future__ import annotations

from enum import StrEnum


class Precision(StrEnum):
    """What matrix products are computed in."""

    TF32 = "tf32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    INT8 = "int8"
