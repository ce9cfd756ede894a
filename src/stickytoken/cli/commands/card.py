"""stickytoken card: what a run found, as a block of a model card."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from stickytoken.cli._loading import command
from stickytoken.cli.options.output import VerbosityOptions, output_option
from stickytoken.cli.output.console import inform, print_document, print_json, status
from stickytoken.errors import InputError


class CardFormat(StrEnum):
    """Formats of a printed block."""

    MD = "md"
    JSON = "json"


@command
def card(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    model_card: Annotated[
        Path | None,
        output_option(help="Put the block into this file, an existing model card in Markdown."),
    ] = None,
    eval_results: Annotated[
        Path | None,
        output_option(help="Also write evaluation results to this YAML file; needs --eval-dataset."),
    ] = None,
    eval_dataset: Annotated[
        str | None,
        output_option(
            help="Benchmark data set on the hub that the evaluation results belong to: owner/name."
        ),
    ] = None,
    push: Annotated[
        str | None,
        output_option(help="Send the block to the card of this repository on the hub: owner/name."),
    ] = None,
    output_format: Annotated[
        CardFormat, output_option("--format", "-f", help="Print the block, or one JSON document.")
    ] = CardFormat.MD,
    *,
    verbosity: VerbosityOptions,
) -> None:
    """Print what a run found as a block for a model card, or put it there. Sends nothing without --push.

    Example: stickytoken card runs/all-MiniLM-L6-v2-profile-0123456789ab --model-card README.md
    """
    from stickytoken.detection import open_run
    from stickytoken.model_cards import card_block, push_card, write_block, write_eval_results

    if eval_results is not None and eval_dataset is None:
        raise InputError(
            "--eval-results needs the benchmark data set that they belong to: pass --eval-dataset"
        )
    if eval_dataset is not None and eval_results is None and push is None:
        raise InputError("--eval-dataset needs --eval-results or --push: pass where the results should go")
    opened = open_run(run)
    block = card_block(opened)
    told: dict[str, Any] = {"run": str(opened.path), "block": block}
    if model_card is not None:
        told |= {"model_card": str(model_card), "changed": write_block(block, model_card)}
        inform(f"{model_card}: {_state(told['changed'])}")
    if eval_results is not None and eval_dataset is not None:
        changed = write_eval_results(opened, eval_dataset, eval_results)
        told |= {"eval_results": str(eval_results), "eval_results_changed": changed}
        inform(f"{eval_results}: {_state(changed)}")
    if push is not None:
        with status(f"sending to {push}"):
            commit = push_card(opened, push, eval_dataset)
        told |= {"pushed": push, "commit": commit}
        inform(f"{push}: {commit or _state(False)}")
    if output_format is CardFormat.JSON:
        print_json(told)
    elif model_card is None and push is None:
        print_document(f"{block}\n")


def _state(changed: bool) -> str:
    return "written" if changed else "unchanged"
