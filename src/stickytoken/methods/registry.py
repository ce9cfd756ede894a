"""The registry of detection methods.

To add a method, write a module or package in this folder and a class for its settings, and register an entry
for it below.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from stickytoken.errors import InputError
from stickytoken.methods import MethodEntry
from stickytoken.settings import command_line_types
from stickytoken.settings.profile import ProfileSettings
from stickytoken.settings.std import StdSettings
from stickytoken.validation import shown

if TYPE_CHECKING:
    from stickytoken.methods.base import AnyMethod, MethodSettings

_PROFILE = MethodEntry(
    name="profile",
    summary="measures every token, with an interval",
    settings=ProfileSettings,
    takes_pairs=False,
    load=lambda: import_module("stickytoken.methods.profile").ProfileMethod(),
)
_STD = MethodEntry(
    name="std",
    summary="the method of Chen et al. 2025",
    settings=StdSettings,
    takes_pairs=True,
    load=lambda: import_module("stickytoken.methods.std").StdMethod(),
)
# The first method is the default.
_BUILT_IN = (_PROFILE, _STD)
_entries: dict[str, MethodEntry] = {}


def register(entry: MethodEntry) -> None:
    """Add a method.

    Raises:
        InputError: The name is taken, or another method has a setting with the same name but another type.
    """
    if entry.name in _entries:
        raise InputError(f"a method {entry.name!r} is already registered: choose another name")
    for name, field_type in command_line_types(entry.settings).items():
        for other in _entries.values():
            known_type = command_line_types(other.settings).get(name, field_type)
            if (known_type.kind, known_type.repeated) != (field_type.kind, field_type.repeated):
                raise InputError(
                    f"the setting {name} of the method {entry.name} differs from {name} of the method "
                    f"{other.name}: give it the same type, or another name"
                )
    _entries[entry.name] = entry


def unregister(name: str) -> None:
    """Remove the method with this name."""
    del _entries[name]
    method_named.cache_clear()


def entries() -> tuple[MethodEntry, ...]:
    """Return the entries of all methods, the default first."""
    return tuple(_entries.values())


def entry_of(name: object, pairs_given: bool) -> MethodEntry:
    """Return the entry of the named method.

    If ``name`` is None, return the first entry that accepts the input: pairs if ``pairs_given``, otherwise
    sentences.

    Raises:
        InputError: The method is unknown.
    """
    if name is None:
        return next(entry for entry in entries() if entry.takes_pairs or not pairs_given)
    if not isinstance(name, str) or name not in _entries:
        raise InputError(f"method {shown(name)} is unknown: use {' or '.join(_entries)}")
    return _entries[name]


@cache
def method_named(name: str) -> AnyMethod:
    """Return the method with this name. A method is loaded on the first call with its name."""
    entry = entry_of(name, pairs_given=False)
    method: AnyMethod = entry.load()
    method.entry = entry
    return method


def choose_method(name: str | None, settings: MethodSettings | None, pairs_given: bool) -> AnyMethod:
    """Return the named method.

    If ``name`` is None, return the method that the settings belong to. If ``settings`` is None as well,
    return the first method that accepts the input.

    Raises:
        InputError: The method is unknown, or does not accept the settings or the pairs.
    """
    entry = _chosen_entry(name, settings, pairs_given)
    if settings is not None and not isinstance(settings, entry.settings):
        raise InputError(
            f"the settings are of type {type(settings).__name__}, which the method {entry.name!r} does not "
            f"take: pass a {entry.settings.__name__}"
        )
    if pairs_given and not entry.takes_pairs:
        others = " or ".join(other.name for other in entries() if other.takes_pairs)
        raise InputError(
            f"the method {entry.name} takes no pairs: pass sentences, or use the method {others}"
        )
    return method_named(entry.name)


def _chosen_entry(name: str | None, settings: MethodSettings | None, pairs_given: bool) -> MethodEntry:
    """Return the entry that `choose_method` selects, without checking that it accepts settings and pairs."""
    if name is None and settings is not None:
        matching = [entry for entry in entries() if isinstance(settings, entry.settings)]
        return matching[0] if matching else entries()[0]
    return entry_of(name, pairs_given)


for _entry in _BUILT_IN:
    register(_entry)
