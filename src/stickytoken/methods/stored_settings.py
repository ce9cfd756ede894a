"""The settings of a finished run, which may come from an earlier version of stickytoken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stickytoken.errors import InputError, RunError
from stickytoken.methods.base import MethodSettings
from stickytoken.methods.measures import Rule
from stickytoken.validation import real_number


@dataclass(frozen=True)
class StoredSettings:
    """The settings of a finished run, as stored in run.json.

    An earlier version may have had other settings. So a setting that is missing has its default, and the
    settings class of the method, which checks its values, is made on request only.
    """

    values: Mapping[str, Any]
    defaults: MethodSettings  # the method's default settings
    file: Path  # run.json

    def number(self, name: str) -> float:
        """Return a setting that is a number."""
        default = getattr(self.defaults, name, None)
        return real_number(f"{name} in {self.file}", self.values.get(name, default))

    def text(self, name: str) -> str:
        """Return a setting as text. If the setting has several values, join them with "or"."""
        value = self.values.get(name, getattr(self.defaults, name, None))
        return " or ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

    @property
    def rule(self) -> Rule:
        """The settings that decide which tokens are sticky, of a run of profile."""
        return Rule(*(self.number(name) for name in Rule._fields))

    def restored(self) -> MethodSettings:
        """Return the settings as an instance of the method's settings class.

        Unknown settings are ignored. Settings that were stored as mappings keep their defaults.

        Raises:
            RunError: A value is not allowed.
        """
        known_names = self.defaults.__dataclass_fields__
        known_values = {
            name: value
            for name, value in self.values.items()
            if name in known_names and not isinstance(value, dict)
        }
        try:
            return replace(self.defaults, **known_values)
        except (TypeError, InputError) as error:
            raise RunError(f"the settings in {self.file.parent} cannot be used: {error}") from error
