"""The entry point of the stickytoken command: it imports little, so that Ctrl-C is handled early."""

from __future__ import annotations

import io
import os
import sys

from stickytoken.cli.console import (
    CLOSED_PIPE,
    INTERRUPTED,
    is_full,
    remember_interrupts,
    silence_stdout,
    was_interrupted,
)


def main() -> None:
    # Threads that wait for one another sleep. By default they spin, which costs most of the speed as soon as
    # another program wants the processor; torch reads this when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    remember_interrupts()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by what started the command
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for what its encoding lacks
    try:
        from stickytoken.cli.app import app
        from stickytoken.cli.console import show_warnings_as_notes

        show_warnings_as_notes()
        status = app(standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
        status = CLOSED_PIPE
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, OSError) and is_full(error):  # what was buffered did not fit
            silence_stdout()
            sys.stderr.write(f"error: the output could not be written: {error.strerror}\n")
            sys.exit(1)
        if not was_interrupted():
            raise
        sys.stderr.write("interrupted\n")
        status = INTERRUPTED
    sys.exit(status)
