"""Keep the libraries underneath from writing between our lines."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from stickytoken.cli.output import tell
from stickytoken.errors import StickyTokenWarning

if TYPE_CHECKING:
    from typing import TextIO


def quiet_warnings() -> None:
    """Drop other packages' warnings; print our own as a note."""
    warnings.simplefilter("ignore")
    warnings.simplefilter("always", StickyTokenWarning)
    warnings.showwarning = _show


def quiet_libraries() -> None:
    """Switch off transformers' progress bars and log lines; called before a model is loaded."""
    # Read by transformers when it is imported, so that nothing slips out before the calls below.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    del category, filename, lineno, file, line
    tell(f"note: {message}")
