"""Titles of the panels of --help, in their order."""

from __future__ import annotations

MODEL = "Model"
TEXTS = "Tokens and texts"
METHOD = "Method"
COMPUTATION = "Computation"
LANGUAGE_MODELS = "Language models"
OUTPUT = "Output"
