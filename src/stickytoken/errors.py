"""Every error that stickytoken raises on purpose: one base class and a few subclasses.

A message says what was passed, what is wrong with it and what to do. The command line prints these errors
without a traceback. Any other exception is a defect, and its traceback is printed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

# Start of the note on an error that ended a measurement after some shards were finished.
KEPT_NOTE = "finished shards are kept"


class StickyTokenError(Exception):
    """Base class of all errors that a user can cause and fix."""


class StickyTokenWarning(UserWarning):
    """Something that a user should know about results that are still usable."""


class InputError(StickyTokenError):
    """A sentence file, pair file, token or setting that cannot be used."""


class RefusedTextError(InputError):
    """A text that a cleaner was told to refuse."""


class ModelError(StickyTokenError):
    """A model or tokenizer that cannot be found, reached or used."""


class EncodingError(StickyTokenError):
    """A text that the model cannot turn into a usable vector."""


class RunError(StickyTokenError):
    """A run folder that cannot be read, written or continued."""


class RepairError(StickyTokenError):
    """A model or tokenizer that cannot be repaired as asked, or a repaired model that cannot be written."""


class MissingExtraError(StickyTokenError):
    """An optional dependency that is not installed."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs an optional package: pip install 'stickytoken[{extra}]'")


@contextmanager
def reading(name: object, kind: type[StickyTokenError] = InputError) -> Iterator[None]:
    """Turn an error of the operating system into one that names the file or folder being read."""
    try:
        yield
    except OSError as error:
        raise kind(f"{name} cannot be read: {error.strerror or error}") from error


def require_package(package: str, purpose: str, extra: str) -> None:
    """Check that an optional package is installed, without importing it."""
    if find_spec(package) is None:
        raise MissingExtraError(purpose, extra)
