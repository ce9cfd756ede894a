"""The folder of a detection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stickytoken.detection.schema import SCHEMA_VERSION, RunRecord
from stickytoken.errors import RunError
from stickytoken.measurement.atomic import require_writable
from stickytoken.measurement.identity import differences, settings_values
from stickytoken.measurement.resume import IdentityRecord, Kind
from stickytoken.measurement.store import (
    IDENTITY_FILE,
    PLAN_FILE,
    RUN_FILE,
    TOKENS_FILE,
    VOCABULARY_FILE,
    ResultFolder,
    read_json,
    repair_advice,
    require_version,
    validated,
)
from stickytoken.methods.job import MethodSettings
from stickytoken.methods.registry import method_named
from stickytoken.methods.stored_settings import StoredSettings
from stickytoken.precision import Precision

_SHOWN_VERSION = 40


class RunFolder(ResultFolder):
    """Reads and writes the files of one run."""

    def read_run(self) -> RunRecord:
        """Read run.json.

        Raises:
            RunError: it is missing, damaged, without a schema version, or of another one.
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


def require_usable(path: Path, method: str, settings: MethodSettings) -> None:
    """Refuse a folder that a run cannot go to, before a model is loaded.

    Raises:
        RunError: The folder is locked, cannot be written, or holds other files or a run of another method
            or other settings.
    """
    folder = RunFolder(path)
    if folder.holds_other_files():
        what = "is a file" if path.is_file() else "contains files but no run"
        raise RunError(f"{path} {what}: choose an empty or new folder")
    require_writable(path)
    if not folder.exists():
        return
    with folder.locked():
        earlier_run = RUN.read(folder) if folder.holds_run() else None
        claim = earlier_run or folder.read_record(IDENTITY_FILE, IdentityRecord)
    ours: dict[str, Any] = {"method": method, "settings": settings_values(settings)}
    earlier = {} if claim is None else {name: claim.identity_parts.get(name) for name in ours}
    screens = [(known.get("settings") or {}).get("screen_precision") for known in (ours, earlier)]
    if screens == [Precision.INT8, Precision.BFLOAT16]:  # of a model that does not bear int8
        ours["settings"]["screen_precision"] = Precision.BFLOAT16
    if claim is not None and (different := differences(ours, earlier)):
        raise RunError(
            f"{path} contains a different run (it differs in {', '.join(different)}): choose another folder"
        )


def _require_readable(version: Any, path: Path) -> None:
    if type(version) is not int or version < 1:  # a bool is an int
        found = "missing" if version is None else json.dumps(version)[:_SHOWN_VERSION]
        raise RunError(
            f"{path} is not a valid record (schema_version: {found}, where a whole number from 1 is "
            f"needed): {repair_advice(path)}"
        )
    require_version(version, SCHEMA_VERSION, path)
    if version < SCHEMA_VERSION:
        raise RunError(
            f"{path.parent} was written by an earlier version of stickytoken: run the detection again, in "
            "another folder"
        )


def _is_finished(record: RunRecord, folder: ResultFolder) -> bool:
    files = (PLAN_FILE, VOCABULARY_FILE, TOKENS_FILE)
    return record.result is not None and all((folder.path / name).is_file() for name in files)


RUN = Kind("run", RUN_FILE, lambda folder: RunFolder(folder.path).read_run(), _is_finished)
