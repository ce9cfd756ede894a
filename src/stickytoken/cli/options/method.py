"""Make the option ``--method`` and the options of all methods from the registry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from stickytoken.cli.options.panels import method_option
from stickytoken.errors import InputError
from stickytoken.methods.entry import MethodEntry, Option
from stickytoken.methods.registry import entries, entry_of, method_named

if TYPE_CHECKING:
    from stickytoken.methods.job import MethodSettings


@dataclass(frozen=True)
class MethodOptions:
    """What the user sets of the method; subclasses have a field for every option."""

    def settings(self, pairs_file: Path | None, texts_only: bool = False) -> MethodSettings:
        """Make the settings of the chosen method; without one, of the first that accepts the given options.

        Args:
            pairs_file: if there is one.
            texts_only: whether the model reads only texts, which changes the default of ``--insertion``.

        Raises:
            InputError: an option that the method lacks, or a value out of range.
        """
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
    """Make a class with a field for ``--method`` and for every option of a method.

    Args:
        probe: only the options that `stickytoken probe` takes.
    """
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
