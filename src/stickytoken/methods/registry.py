"""The detection methods. To add one: a folder next to this module, and its entry in `_BUILT_IN`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from stickytoken.errors import InputError
from stickytoken.methods import profile, std
from stickytoken.methods.entry import MethodEntry
from stickytoken.validation import shown

if TYPE_CHECKING:
    from stickytoken.methods.base import AnyMethod, MethodSettings

# The first one is the default.
_BUILT_IN = (profile.ENTRY, std.ENTRY)
_entries: dict[str, MethodEntry] = {}


def register(entry: MethodEntry) -> None:
    if entry.name in _entries:
        raise InputError(f"a method {entry.name!r} is already registered: choose another name")
    for option in entry.options:
        for other in _entries.values():
            for known in other.options:
                if known.name == option.name and (known.kind, known.help) != (option.kind, option.help):
                    raise InputError(
                        f"{option.flag} of the method {entry.name} differs from {known.flag} of the method "
                        f"{other.name}: give it the same kind and help, or another name"
                    )
    _entries[entry.name] = entry


def unregister(name: str) -> None:
    del _entries[name]
    method_named.cache_clear()


def entries() -> tuple[MethodEntry, ...]:
    return tuple(_entries.values())


def entry_of(name: object, pairs_given: bool) -> MethodEntry:
    if name is None:
        return next(entry for entry in entries() if entry.takes_pairs or not pairs_given)
    if not isinstance(name, str) or name not in _entries:
        raise InputError(f"method {shown(name)} is unknown: use {' or '.join(_entries)}")
    return _entries[name]


@cache
def method_named(name: str) -> AnyMethod:
    entry = entry_of(name, pairs_given=False)
    method: AnyMethod = entry.load()
    method.entry = entry
    return method


def choose_method(name: str | None, settings: MethodSettings | None, pairs_given: bool) -> AnyMethod:
    """Find the method: by name, by its settings, or else the first that fits the corpus."""
    chosen = method_named(entry_of(name, pairs_given and settings is None).name)
    if settings is not None and not isinstance(settings, chosen.settings):
        own = next((known for known in _entries if isinstance(settings, method_named(known).settings)), None)
        if own is None or name is not None:
            raise InputError(
                f"the settings are of type {type(settings).__name__}, which the method {chosen.entry.name!r} "
                f"does not take: pass a {chosen.settings.__name__}"
            )
        chosen = method_named(own)
    if pairs_given and not chosen.entry.takes_pairs:
        others = " or ".join(entry.name for entry in entries() if entry.takes_pairs)
        raise InputError(
            f"the method {chosen.entry.name} takes no pairs: pass sentences, or use the method {others}"
        )
    return chosen


for _entry in _BUILT_IN:
    register(_entry)
