"""The table [tool.stickytoken] of pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stickytoken.errors import InputError
from stickytoken.findings import repository_path, repository_root
from stickytoken.gate._tokens import FailOn
from stickytoken.validation import file_path, visible

_FILE = "pyproject.toml"
_TABLE = "[tool.stickytoken]"
_PATHS = ("folder", "baseline")
_NAMES_OR_PATHS = ("model", "documents")
_HEADER = re.compile(r"\s*\[\s*tool\s*\.\s*stickytoken\s*\]")
_MODEL = re.compile(r"\s*model\s*=")


class ProjectSettings(BaseModel):
    """What a project checks."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: str | None = Field(default=None, min_length=1, description="model or run folder to check")
    revision: str | None = Field(default=None, description="branch, tag or commit of a model on the hub")
    folder: str | None = Field(default=None, min_length=1, description="folder that holds the runs")
    baseline: str | None = Field(default=None, min_length=1, description="run folder of the baseline")
    documents: str | None = Field(default=None, min_length=1, description="documents to search")
    column: str | None = Field(default=None, min_length=1, description="their column with the text")
    fail_on: FailOn | None = Field(default=None, alias="fail-on", strict=False)
    max_tokens: int | None = Field(default=None, alias="max", ge=0)


class Project:
    """The settings of a project and their location.

    Attributes:
        settings: the settings; all None without a table.
        place: file in the repository and line that name the model; None without one.
    """

    def __init__(self, settings: ProjectSettings, place: tuple[str, int] | None = None) -> None:
        self.settings = settings
        self.place = place


def read_project(start: Path) -> Project:
    """Read the nearest pyproject.toml with the table, at or above a folder and within its repository.

    Relative paths in it are relative to its folder.
    """
    root = repository_root(start)
    here = start.absolute()
    for folder in (here, *here.parents):
        file = folder / _FILE
        text = _text_of(file)
        if text is not None and (table := _table_of(file, text)) is not None:
            settings = _resolved(_validated(file, table), folder, here)
            path = repository_path(file, root)
            return Project(settings, None if path is None else (path, _line_of_model(text)))
        if folder == root:
            break
    return Project(ProjectSettings())


def _text_of(file: Path) -> str | None:
    if not file.is_file():
        return None
    try:
        return file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read ({error}): it must be TOML in UTF-8") from error


def _table_of(file: Path, text: str) -> dict[str, Any] | None:
    try:
        table = tomllib.loads(text).get("tool", {}).get("stickytoken")
    except (tomllib.TOMLDecodeError, AttributeError, RecursionError) as error:
        raise InputError(f"{file} is not valid TOML ({error}): correct it") from error
    if table is not None and not isinstance(table, dict):
        raise InputError(f"{file}: tool.stickytoken must be a table, {_TABLE}")
    return table


def _validated(file: Path, table: dict[str, Any]) -> ProjectSettings:
    try:
        return ProjectSettings.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        name = visible(".".join(str(part) for part in first["loc"]))
        known = ", ".join(field.alias or key for key, field in ProjectSettings.model_fields.items())
        if first["type"] == "extra_forbidden":
            raise InputError(f"{file}: {_TABLE} has no entry {name!r}: use {known}") from error
        raise InputError(f"{file}: {name} in {_TABLE} is {first['input']!r}: {first['msg']}") from error


def _resolved(settings: ProjectSettings, folder: Path, here: Path) -> ProjectSettings:
    """Make relative paths relative to the current folder; names on the hub stay as they are."""
    if folder == here:
        return settings
    changes = {}
    for name in (*_PATHS, *_NAMES_OR_PATHS):
        if (value := getattr(settings, name)) is not None:
            path = folder / file_path(name, value)
            if name in _PATHS or path.exists():
                changes[name] = str(path)
    return settings.model_copy(update=changes)


def _line_of_model(text: str) -> int:
    """Return the line that names the model, or else the one that opens the table."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if _HEADER.match(line)), 0)
    for number in range(start + 1, len(lines)):
        if _MODEL.match(lines[number]):
            return number + 1
        if lines[number].lstrip().startswith("["):
            break
    return start + 1
