"""Panels of --help in their order, and what makes an option of each."""

from __future__ import annotations

from functools import partial

import typer

MODEL = "Model"
TEXTS = "Tokens and texts"
ENDPOINT = "Models behind an endpoint"
METHOD = "Method"
COMPUTATION = "Computation"
LANGUAGE_MODELS = "Language models"
OUTPUT = "Output"

model_option = partial(typer.Option, rich_help_panel=MODEL)
texts_option = partial(typer.Option, rich_help_panel=TEXTS)
method_option = partial(typer.Option, rich_help_panel=METHOD)
endpoint_option = partial(typer.Option, rich_help_panel=ENDPOINT)
computation_option = partial(typer.Option, rich_help_panel=COMPUTATION)
language_option = partial(typer.Option, rich_help_panel=LANGUAGE_MODELS)
output_option = partial(typer.Option, rich_help_panel=OUTPUT)
