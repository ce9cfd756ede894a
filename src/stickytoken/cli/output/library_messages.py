"""Log records and warnings of libraries, as lines on stderr."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stickytoken.cli.output.console import inform
from stickytoken.cli.output.verbosity import Verbosity, current_verbosity
from stickytoken.errors import StickyTokenWarning

if TYPE_CHECKING:
    from typing import TextIO

_PACKAGE = "stickytoken"
_LEVELS = {
    Verbosity.QUIET: logging.ERROR,
    Verbosity.NORMAL: logging.WARNING,
    Verbosity.VERBOSE: logging.DEBUG,
}


@contextmanager
def log_lines() -> Iterator[None]:
    """Print log records on stderr during a block, as far as the verbosity allows.

    Normally these are the warnings of this package. Verbose adds what this package resolved, and the
    messages of the libraries underneath.
    """
    verbose = current_verbosity() is Verbosity.VERBOSE
    package, root = logging.getLogger(_PACKAGE), logging.getLogger()
    before = package.level, package.propagate, root.level
    logger, handler = root if verbose else package, _LogLines()
    logger.addHandler(handler)
    package.setLevel(_LEVELS[current_verbosity()])
    package.propagate = verbose
    root.setLevel(logging.INFO if verbose else root.level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        level, package.propagate, root_level = before
        package.setLevel(level)
        root.setLevel(root_level)


def show_warnings_as_notes() -> None:
    """Print this package's warnings as notes, and those of other packages with `--verbose` alone."""
    warnings.simplefilter("default")
    warnings.simplefilter("always", StickyTokenWarning)
    warnings.showwarning = _show_warning


class _LogLines(logging.Handler):
    """Prints a record as a line: a warning of this package as a note, others under their library's name."""

    def emit(self, record: logging.LogRecord) -> None:
        library = record.name.partition(".")[0]
        note = library == _PACKAGE and record.levelno >= logging.WARNING
        inform(f"{'note' if note else library}: {record.getMessage()}")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    del filename, lineno, file, line
    if issubclass(category, StickyTokenWarning):
        inform(f"note: {message}")
    elif current_verbosity() is Verbosity.VERBOSE:
        inform(f"{category.__name__}: {message}")
