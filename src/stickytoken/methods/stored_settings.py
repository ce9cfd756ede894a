"""Settings as stored in a run folder, possibly written by an older or newer version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from stickytoken.methods.job import MethodSettings
from stickytoken.validation import real_number


@dataclass(frozen=True)
class StoredSettings:
    """The settings of a run.

    Attributes:
        values: from run.json.
        defaults: of the method.
        place: the file, for errors.
    """

    values: Mapping[str, Any]
    defaults: MethodSettings
    place: str

    def number(self, name: str) -> float:
        """A setting that is a number; its default where the run was written before it existed.

        Raises:
            InputError: run.json holds something else.
        """
        return real_number(f"{name} in {self.place}", self.values.get(name, getattr(self.defaults, name)))

    def restored(self) -> MethodSettings:
        """The settings as the method's own class; what is unknown or compound keeps its default.

        Raises:
            InputError: a value is out of range.
        """
        known = {field.name for field in fields(self.defaults)}
        plain = {
            name: value
            for name, value in self.values.items()
            if name in known and not isinstance(value, dict)
        }
        return replace(self.defaults, **plain)

    def text(self, name: str) -> str:
        """A setting as words; several values are joined by "or"."""
        value = self.values.get(name, getattr(self.defaults, name))
        return " or ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
