"""Make the option ``--method`` and the options of all methods from the registry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from stickytoken.cli.options.output import method_option, texts_option
from stickytoken.cli.options.texts import ImpactTokens
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Placement, Side
from stickytoken.methods.entry import MethodEntry, Option
from stickytoken.methods.registry import entries, entry_of, method_named

if TYPE_CHECKING:
    from stickytoken.methods.job import MethodSettings


@dataclass(frozen=True)
class MethodOptions:
    """What the user sets of the method; subclasses have a field for every option."""

    def settings(self, pairs_file: Path | None, texts_only: bool = False) -> MethodSettings:
        """Make the settings of the chosen method, or of the first that accepts the given options."""
        from stickytoken.methods.job import suited

        said = {each.name: getattr(self, each.name) for each in fields(self)}
        method = said.pop("method")
        entry = entry_of(None if method is None else str(method), pairs_file is not None)
        known = {option.name: option for option in entry.options}
        asked = {}
        for name, value in said.items():
            if value is None:
                continue
            if name not in known:
                raise _lacking(name, entry)
            asked[known[name].setting] = value
        settings: MethodSettings = method_named(entry.name).settings(**asked)
        return settings if "insertion" in asked else suited(settings, texts_only)


def method_options(*, probe: bool) -> type[MethodOptions]:
    """Make a class with a field for ``--method`` and for every option of a method."""
    found = [("method", _method_annotation(), field(default=None))]
    for name, owners in _by_name(probe).items():
        found.append((name, _annotation(owners), field(default=None)))
    return make_dataclass("GivenMethodOptions", found, bases=(MethodOptions,), frozen=True)


def _by_name(probe: bool) -> dict[str, list[tuple[MethodEntry, Option]]]:
    found: dict[str, list[tuple[MethodEntry, Option]]] = {}
    for entry in entries():
        for option in entry.options:
            if option.probe or not probe:
                found.setdefault(option.name, []).append((entry, option))
    return found


def _method_annotation() -> Any:
    names = StrEnum("MethodName", [(entry.name, entry.name) for entry in entries()])  # type: ignore[misc]
    said = ". ".join(f"{entry.name}: {entry.summary}" for entry in entries())
    without = entry_of(None, pairs_given=False).name
    with_pairs = entry_of(None, pairs_given=True).name
    default = without if without == with_pairs else f"{without}, or {with_pairs} with --pairs"
    return Annotated[names | None, method_option("--method", help=f"{said}. Default: {default}.")]


def _annotation(owners: Sequence[tuple[MethodEntry, Option]]) -> Any:
    option = owners[0][1]
    return Annotated[
        option.kind | None,
        method_option(option.flag, help=f"{option.help} Default: {_defaults(owners)}.", min=option.least),
    ]


def _defaults(owners: Sequence[tuple[MethodEntry, Option]]) -> str:
    """Return the default, with the names of methods if they differ or some lack the option."""
    if len(owners) == len(entries()) and len({option.default for _, option in owners}) == 1:
        return owners[0][1].default
    return ", ".join(f"{option.default} ({entry.name})" for entry, option in owners)


def _lacking(name: str, entry: MethodEntry) -> InputError:
    owners = dict(_owners(name))
    flag = next(iter(owners.values())).flag
    return InputError(
        f"{flag} is not an option of the method {entry.name}: leave it out, or use {' or '.join(owners)}"
    )


def _owners(name: str) -> Iterator[tuple[str, Option]]:
    for entry in entries():
        for option in entry.options:
            if option.name == name:
                yield entry.name, option


CopiesInText: TypeAlias = Annotated[
    int, method_option("--copies", min=1, help="Number of copies of a token in a text.")
]
IntervalConfidence: TypeAlias = Annotated[
    float, method_option("--confidence", help="Coverage of the intervals.")
]
AnySeed: TypeAlias = Annotated[int, method_option("--seed", min=0, help="Seed of all random sampling.")]


class Preset(StrEnum):
    """Sets of tasks."""

    PAPER = "paper"


@dataclass(frozen=True, slots=True)
class MeasuredOptions:
    """What is measured."""

    task: Annotated[
        list[str] | None, texts_option(help="Task file, BEIR folder, or name of an MTEB task. Repeatable.")
    ] = None
    preset: Annotated[
        Preset | None, texts_option(help="paper: the sixteen MTEB tasks of Chen et al. 2025.")
    ] = None
    intrusion: Annotated[
        str | None,
        texts_option(
            help="Also measure how far copies push random documents into search results: a BEIR folder, a "
            "file of documents, or bundled."
        ),
    ] = None
    tokens: ImpactTokens = None


@dataclass(frozen=True, slots=True)
class MeasuringOptions:
    """How it is measured; the names are those of the settings."""

    copies: CopiesInText = 8
    placement: Annotated[Placement, method_option(help="Where the copies go.")] = Placement.RANDOM
    side: Annotated[
        Side, method_option(help="Which texts get copies; a second sentence counts as a document.")
    ] = Side.DOCUMENT
    insertion: Annotated[
        Insertion,
        method_option(help="ids: the model sees exactly n copies. text: copies are inserted as words."),
    ] = Insertion.IDS
    sticky: Annotated[
        int, method_option(min=1, help="Maximum number of sticky tokens of the run to use.")
    ] = 5
    benign: Annotated[int, method_option(min=1, help="Matched benign tokens per sticky token.")] = 8
    seeds: Annotated[int, method_option("--repetitions", min=1, help="Number of random repetitions.")] = 1
    resamples: Annotated[int, method_option(min=100, help="Number of bootstrap samples.")] = 1000
    confidence: IntervalConfidence = 0.9
    seed: AnySeed = 42


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
