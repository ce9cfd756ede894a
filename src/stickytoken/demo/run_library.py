"""The runs that the app can show: those named, those in a folder, and the packaged example."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stickytoken.detection.run_folder import RunFolder
from stickytoken.detection.schema import RunRecord
from stickytoken.errors import RunError, StickyTokenError
from stickytoken.measurement.store import RUN_FILE
from stickytoken.reports.content import RunContent, read_content
from stickytoken.visible_text import visible

EXAMPLE = Path(__file__).parent / "example" / "all-MiniLM-L6-v2"
_MOST_FOUND = 50


@dataclass(frozen=True)
class ListedRun:
    """A run that can be opened.

    Attributes:
        label: its distinct name in the app.
        path: its folder.
        record: run.json.
    """

    label: str
    path: Path
    record: RunRecord


class RunLibrary:
    """Runs by label; each is read on first use and then kept.

    Args:
        listed: the runs; the app opens with the first.
        left_out: why folders that look like runs are missing.
    """

    def __init__(self, listed: Sequence[ListedRun], left_out: Sequence[str] = ()) -> None:
        self._listed = {run.label: run for run in listed}
        self._read: dict[str, RunContent] = {}
        self._lock = threading.Lock()
        self.left_out = tuple(left_out)

    @property
    def labels(self) -> list[str]:
        """Names of all runs."""
        return list(self._listed)

    def record(self, label: str) -> RunRecord:
        """run.json of a run."""
        return self._listed[label].record

    def content(self, label: object) -> RunContent:
        """Return a run by its label.

        Raises:
            RunError: no run has that label, or it cannot be read.
        """
        if not isinstance(label, str) or label not in self._listed:
            raise RunError("there is no run with that name: choose one from the list")
        with self._lock:
            if label not in self._read:
                self._read[label] = read_content(self._listed[label].path)
            return self._read[label]


def find_runs(named: Sequence[Path], folder: Path, example: Path = EXAMPLE) -> RunLibrary:
    """List the named runs, then those in a folder, newest first, then the packaged example.

    Args:
        named: run folders; one that cannot be read is an error.
        folder: whose run folders are listed; it need not exist.
        example: the packaged run.

    Raises:
        RunError: a named folder is not a run, is damaged or has a newer schema.
    """
    listed = [_listed_run(path.expanduser()) for path in named]
    taken = {_resolved(path) for path in named}
    found: list[ListedRun] = []
    left_out: list[str] = []
    for path in _runs_in(folder):
        if _resolved(path) in taken:
            continue
        try:
            found.append(_listed_run(path))
        except StickyTokenError as error:
            left_out.append(_one_line(error))
    listed += found if named else _from_first_readable(found, left_out)
    if (example / RUN_FILE).is_file():
        label = f"{example.name} (example that comes with stickytoken)"
        listed.append(ListedRun(label, example, RunFolder(example).read_run()))
    return RunLibrary(_distinct(listed), left_out)


def _listed_run(path: Path) -> ListedRun:
    if not RunFolder(path).exists():
        raise RunError(f"no run folder {str(path)!r}")
    record = RunFolder(path).read_run()
    name = visible(path.resolve().name)
    return ListedRun(name if record.result else f"{name} (not finished)", path, record)


def _from_first_readable(listed: Sequence[ListedRun], left_out: list[str]) -> Sequence[ListedRun]:
    """Drop unreadable runs from the front of the list: the app opens with the first one."""
    for place, run in enumerate(listed):
        try:
            read_content(run.path)
        except StickyTokenError as error:
            left_out.append(_one_line(error))
        else:
            return listed[place:]
    return []


def _one_line(error: StickyTokenError) -> str:
    return " ".join(visible(str(error)).split())


def _runs_in(folder: Path) -> list[Path]:
    try:
        found = [path.parent for path in folder.glob(f"*/{RUN_FILE}")]
        return sorted(found, key=lambda path: (-path.stat().st_mtime, path.name))[:_MOST_FOUND]
    except OSError:
        return []  # nobody named this folder, so an unreadable one is no error


def _resolved(path: Path) -> Path:
    return path.expanduser().resolve()


def _distinct(listed: list[ListedRun]) -> list[ListedRun]:
    labels = [run.label for run in listed]
    return [
        replace(run, label=f"{run.label}, {visible(str(run.path))}") if labels.count(run.label) > 1 else run
        for run in listed
    ]
