"""From the options that a user gave to the settings of a method."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stickytoken.cli.options import Method
from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.methods.profile.settings import ProfileSettings
    from stickytoken.methods.std.settings import StdSettings

# Options that are called otherwise than the setting, since --sentences and --pairs name files.
_SETTINGS = {"sentence_count": "sentences", "pair_count": "pairs"}
# Settings that no option sets: the copies of profile are several numbers, those of std are one.
_WITHOUT_OPTION = {"profile": {"copies"}}


def chosen_settings(
    method: Method | None, pairs_file: Path | None, /, **given: Any
) -> StdSettings | ProfileSettings:
    """Settings of the chosen method; pairs choose std, else profile is the default.

    Args:
        method: as asked for.
        pairs_file: if there is one.
        given: what the options of settings say, by their names; None where the user said nothing.

    Raises:
        InputError: an option of the other method, or a value out of range.
    """
    from stickytoken.methods.registry import METHODS

    name = method.value if method is not None else "profile" if pairs_file is None else "std"
    kind = METHODS[name].settings
    known = {field.name for field in fields(kind)} - _WITHOUT_OPTION.get(name, set())
    asked = {}
    for option, value in given.items():
        setting = _SETTINGS.get(option, option)
        if value is not None and setting not in known:
            shown = "--adaptive/--no-adaptive" if option == "adaptive" else f"--{option.replace('_', '-')}"
            other = next(each for each in METHODS if each != name)
            raise InputError(f"{shown} is no option of the method {name}: leave it out, or use {other}")
        if value is not None:
            asked[setting] = value
    settings: StdSettings | ProfileSettings = kind(**asked)
    return settings
