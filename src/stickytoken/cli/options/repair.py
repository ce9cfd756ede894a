"""Options of `stickytoken repair`, in groups."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from stickytoken.cli.options.measuring import AnySeed
from stickytoken.cli.options.panels import method_option, texts_option
from stickytoken.cli.options.texts import ImpactTokens


class RepairStrategy(StrEnum):
    """What is done about a token."""

    AUTO = "auto"
    UNREACHABLE = "unreachable"
    PLAIN_SPECIALS = "plain-specials"
    PIECES = "pieces"
    RELATIVES = "relatives"
    DISTIL = "distil"
    KEEP_MEANING = "keep-meaning"
    COLLAPSE = "collapse"
    CENTRE = "centre"


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """What is repaired, and how; the names are those of `stickytoken.repair`."""

    tokens: ImpactTokens = None
    strategy: Annotated[
        RepairStrategy,
        method_option(
            help="auto: special tokens become plain text, and other tokens get a new row or, if no row is "
            "ordinary, are split into pieces. Any other strategy applies to all tokens."
        ),
    ] = RepairStrategy.AUTO
    sentences: Annotated[
        str | None,
        texts_option(
            help="Texts to verify on, as for detect. Default: texts of the run's corpus that it did not use."
        ),
    ] = None
    task: Annotated[
        str | None,
        texts_option(
            help="Task to score before and after: a task file, a BEIR folder, or the name of an MTEB task. "
            "Default: a packaged one."
        ),
    ] = None
    verify: Annotated[
        bool,
        method_option("--verify/--no-verify", help="Detect again on other texts, and compare the models."),
    ] = True
    seed: AnySeed = 4242


@dataclass(frozen=True, slots=True)
class AffectedOptions:
    """Documents that may have to be encoded again."""

    affected: Annotated[
        Path | None,
        texts_option(
            help="Also list which documents in this txt, csv, tsv, jsonl or parquet file must be encoded "
            "again."
        ),
    ] = None
    column: Annotated[
        str | None, texts_option(help="Column of --affected with the texts. Default: found by name.")
    ] = None
