"""The folder of a detection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stickytoken.detection.schema import SCHEMA_VERSION, RunRecord
from stickytoken.errors import RunError
from stickytoken.measurement.resume import Kind
from stickytoken.measurement.store import (
    PLAN_FILE,
    RUN_FILE,
    TOKENS_FILE,
    VOCABULARY_FILE,
    ResultFolder,
    read_json,
    repair_advice,
    validated,
)
from stickytoken.methods.registry import method_named
from stickytoken.methods.stored_settings import StoredSettings

_SHOWN_VERSION = 40


class RunFolder(ResultFolder):
    """Reads and writes the files of one run."""

    def read_run(self) -> RunRecord:
        """Read run.json.

        Raises:
            RunError: it is missing, damaged, without a schema version or of a newer one.
        """
        if not self.holds_run():
            raise RunError(f"{self.path} is not a run folder: it has no {RUN_FILE}")
        path = self.path / RUN_FILE
        raw = read_json(path)
        if isinstance(raw, Mapping):
            _require_readable(raw.get("schema_version"), path)
        return validated(RunRecord, raw, path)

    def settings_of(self, record: RunRecord) -> StoredSettings:
        """The settings in run.json."""
        defaults = method_named(record.method).settings()
        return StoredSettings(record.settings, defaults, str(self.path / RUN_FILE))


def _require_readable(version: Any, path: Path) -> None:
    if type(version) is not int or version < 1:  # a bool is an int
        found = "missing" if version is None else json.dumps(version)[:_SHOWN_VERSION]
        raise RunError(
            f"{path} is not what a run writes (schema_version: {found}, where a whole number from 1 is "
            f"needed): {repair_advice(path)}"
        )
    if version > SCHEMA_VERSION:
        raise RunError(
            f"{path} has schema version {version}, this stickytoken reads up to {SCHEMA_VERSION}: upgrade it"
        )


def _is_finished(record: RunRecord, folder: ResultFolder) -> bool:
    files = (PLAN_FILE, VOCABULARY_FILE, TOKENS_FILE)
    return record.result is not None and all((folder.path / name).is_file() for name in files)


RUN = Kind("run", RUN_FILE, lambda folder: RunFolder(folder.path).read_run(), _is_finished)
