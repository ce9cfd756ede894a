"""The entry point of the stickytoken command. It imports little, so that Ctrl-C is handled from the start."""

from __future__ import annotations

import io
import os
import sys

from stickytoken.cli import console


def prepare_stream(stream: object, *, utf8: bool) -> None:
    """Make a stream escape characters that its encoding cannot represent.

    Args:
        stream: stdout or stderr.
        utf8: Whether to write UTF-8. This is needed on Windows, where redirected output is in the system's
            locale encoding by default.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return
    stream.reconfigure(errors="backslashreplace")
    if utf8:
        stream.reconfigure(encoding="utf-8")


def main() -> None:
    """Run the command line, and exit with its status."""
    # Let threads sleep while they wait for each other. By default, they keep the processor busy, which makes
    # commands much slower if another program needs it. torch reads this variable while it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    console.remember_interrupts()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the parent process closed this stream
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    prepare_stream(sys.stdout, utf8=os.name == "nt")
    prepare_stream(sys.stderr, utf8=os.name == "nt")
    try:
        from stickytoken.cli.app import app

        console.show_warnings_as_notes()
        status = app(standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        console.silence_stdout()
        status = console.CLOSED_PIPE
    except (Exception, KeyboardInterrupt) as error:
        # The last part of the output is written when stdout is flushed, which fails if the disk is full.
        if isinstance(error, OSError) and console.means_full_disk(error):
            console.silence_stdout()
            sys.stderr.write(f"error: the output could not be written: {error.strerror}\n")
            sys.exit(1)
        # A library may have turned KeyboardInterrupt into another error, so after Ctrl-C any error counts as
        # an interruption.
        if not console.was_interrupted():
            raise
        sys.stderr.write("interrupted\n")
        status = console.INTERRUPTED
    sys.exit(status)
