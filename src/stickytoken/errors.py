"""The errors that stickytoken raises deliberately; all of them share one base class.

Each message says what was passed, what is wrong with it and what to do. The command line prints these errors
without a traceback. Any other exception is a bug, and its traceback is printed.
"""

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

# When an error stops a measurement that has already finished some shards, the error gets a note that begins
# with this text.
KEPT_NOTE = "finished shards are kept"

_PACKAGE = __name__.partition(".")[0]


class StickyTokenError(Exception):
    """Base class of all errors that a user can cause and fix.

    Examples:
        >>> try:
        ...     stickytoken.open_run("nowhere")
        ... except stickytoken.StickyTokenError as error:
        ...     print(type(error).__name__)
        RunError
    """


class StickyTokenWarning(UserWarning):
    """A caveat about results that are still usable.

    Examples:
        >>> import warnings
        >>> warnings.simplefilter("error", stickytoken.StickyTokenWarning)  # stop instead of warning
    """


def warn(message: str) -> None:
    """Give a StickyTokenWarning that names the line that called stickytoken, not a line inside it.

    Python shows the same warning once for each line, so it would hide those of later calls.
    """
    level = 1
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame = frame.f_back
        level += 1
    warnings.warn(message, StickyTokenWarning, stacklevel=level)


class InputError(StickyTokenError):
    """A sentence file, pair file, token or setting cannot be used.

    Examples:
        >>> stickytoken.ProfileSettings(seed=-1)
        Traceback (most recent call last):
            ...
        stickytoken.errors.InputError: seed is -1: it must be at least 0
    """


class ModelError(StickyTokenError):
    """A model or tokenizer cannot be found, reached or used.

    Examples:
        >>> stickytoken.load_encoder("no/such-model")
        Traceback (most recent call last):
            ...
        stickytoken.errors.ModelError: no model 'no/such-model': ...
    """


class EncodingError(StickyTokenError):
    """The model returned no usable vector for a text.

    Examples:
        >>> import numpy as np
        >>> def embed(texts):
        ...     return np.zeros((len(texts), 2), dtype=np.float32)
        >>> stickytoken.load_encoder(embed, candidates=["river"]).encode(["the river"])
        Traceback (most recent call last):
            ...
        stickytoken.errors.EncodingError: embed: the vector of the text 'the river' is zero, ...
    """


class RunError(StickyTokenError):
    """A run folder cannot be read, written or continued.

    Examples:
        >>> stickytoken.open_run("nowhere")
        Traceback (most recent call last):
            ...
        stickytoken.errors.RunError: no run folder 'nowhere': ...
    """


class RepairError(StickyTokenError):
    """A model or tokenizer cannot be repaired as requested, or its repaired copy cannot be saved.

    Examples:
        >>> settings = stickytoken.RepairSettings(strategy="plain-specials")
        >>> stickytoken.repair(run, ["river"], out="mended", settings=settings, encoder=model)
        Traceback (most recent call last):
            ...
        stickytoken.errors.RepairError: token 'river' (id 2314) cannot be repaired by plain-specials: ...
    """


class MissingExtraError(StickyTokenError):
    """An optional dependency is not installed.

    Examples:
        >>> raise stickytoken.MissingExtraError("a report", "report")
        Traceback (most recent call last):
            ...
        stickytoken.errors.MissingExtraError: a report needs an optional package: ...
    """

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs an optional package: pip install 'stickytoken[{extra}]'")


@contextmanager
def reading(name: object, kind: type[StickyTokenError] = InputError) -> Iterator[None]:
    """Turn an error in a ``with`` block, which reads a file, into a StickyTokenError that names the file.

    The errors are that the file cannot be read and, if the block decodes it, that it is not UTF-8.

    Args:
        name: The file or folder to name in the message.
        kind: Class of the error to raise.
    """
    try:
        yield
    except BrokenPipeError:  # of an output, to which the block writes what it reads
        raise
    except OSError as error:
        raise kind(f"{name} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise kind(
            f"{name} is not UTF-8 text (byte {error.start}): convert it, or pass another file"
        ) from error


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turn a panic in a ``with`` block, which calls a library written in Rust, into a ValueError.

    The class of a panic is no Exception, and the tokenizers library does not export it.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(str(error)) from error


def require_package(package: str, purpose: str, extra: str) -> None:
    """Raise MissingExtraError unless an optional package is installed; the package is not imported.

    Args:
        package: Import name of the package.
        purpose: What the package is needed for, such as ``a report``; the error message begins with this
            phrase.
        extra: The extra of stickytoken that installs the package.
    """
    if find_spec(package) is None:
        raise MissingExtraError(purpose, extra)
