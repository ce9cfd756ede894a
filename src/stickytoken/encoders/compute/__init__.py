"""Packed and low-precision linear layers on a CPU."""

from __future__ import annotations
