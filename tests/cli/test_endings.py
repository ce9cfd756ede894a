"""How commands end: exit statuses, and the one line on stderr."""

import errno
import os
import signal
import subprocess
import sys

import pytest

import planted
from stickytoken.cli import console as interrupts
from stickytoken.errors import ModelError

MAIN = planted.COMMAND_LINE


def started(*arguments, code=MAIN):
    """A stickytoken process that Ctrl-C reaches, with its streams in pipes."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# Output


@pytest.mark.slow
def test_characters_that_the_encoding_of_stdout_lacks_are_escaped(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    stdout, stderr = started("published", "sentence-t5-base", "--format", "csv").communicate()
    assert r"\u2581tip" in stdout, stderr


# Ctrl-C


@pytest.mark.slow
@pytest.mark.parametrize(("module", "command"), [("typer", "show"), ("torch", "detect")])
def test_ctrl_c_during_an_import_is_one_line_and_status_130(module, command, bert_folder, tmp_path):
    """The signal arrives when a module is looked for, before it is there."""
    code = f"""
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
{MAIN}
"""
    arguments = [tmp_path] if command == "show" else [bert_folder, "--out", tmp_path / "run"]
    stdout, stderr = (process := started(command, *arguments, code=code)).communicate()
    assert (process.returncode, stdout) == (130, ""), stderr
    (line,) = planted.lines_of(stderr)
    assert line.startswith("interrupted")


PRESSED = "os.kill(os.getpid(), signal.SIGINT)"
ENDINGS = {
    "another error is raised": f"""
    try:
        {PRESSED}
        while True: pass
    except KeyboardInterrupt:
        raise ImportError("numpy failed to import")
""",
    "swallowed": f"""
    try:
        {PRESSED}
        while True: pass
    except KeyboardInterrupt:
        return load(model, **options)
""",
    "pressed again at the end": f"""
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
    {PRESSED}
    while True: pass
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_what_libraries_make_of_an_interrupt_is_an_interrupt(ending, bert_folder, tmp_path):
    code = f"""
import atexit, os, signal, stickytoken.encoders
load = stickytoken.encoders.load_encoder
def load_encoder(model, **options):
{ENDINGS[ending]}
stickytoken.encoders.load_encoder = load_encoder
{MAIN}
"""
    process = started("detect", bert_folder, "--out", tmp_path / "run", code=code)
    _, stderr = process.communicate()
    assert process.returncode == 130
    assert planted.lines_of(stderr)[-1] == "interrupted: run the same command again to continue"
    assert "Traceback" not in stderr
    assert "KeyboardInterrupt" not in stderr


def test_presses_in_quick_succession_are_one_and_a_later_one_counts(monkeypatch):
    monkeypatch.setattr(interrupts, "_received", [])
    clock = iter([100.0, 100.2, 100.9, 101.0])
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: next(clock))
    with pytest.raises(KeyboardInterrupt):
        interrupts._interrupt(signal.SIGINT, None)
    interrupts._interrupt(signal.SIGINT, None)
    interrupts._interrupt(signal.SIGINT, None)
    with pytest.raises(KeyboardInterrupt):
        interrupts._interrupt(signal.SIGINT, None)


def test_a_process_that_ignores_the_signal_goes_on_ignoring_it():
    code = """
import signal
from stickytoken.cli.console import remember_interrupts
signal.signal(signal.SIGINT, signal.SIG_IGN)
remember_interrupts()
print(signal.getsignal(signal.SIGINT).name)
"""
    assert started(code=code).communicate()[0] == "SIG_IGN\n"


# Full disks


@pytest.mark.slow
def test_a_full_disk_behind_stdout_is_one_line(small_run, tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
    with (tmp_path / "out").open("w", encoding="utf-8") as full:
        arguments = [sys.executable, "-c", limit + MAIN, "show", str(small_run.path)]
        ended = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == f"error: the output could not be written: {os.strerror(errno.EFBIG)}\n"


# Pipes


@pytest.mark.parametrize(("closed", "given"), [(2, "show"), (0, "clean")])
def test_a_stream_that_was_closed_before_the_start_is_an_empty_one(closed, given, small_run):
    command = [sys.executable, "-c", MAIN, given, str(small_run.path)]
    closing = f"import os; os.close({closed}); os.execv({sys.executable!r}, {command!r})"
    arguments = [sys.executable, "-c", closing]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False), ended.stderr
    assert bool(ended.stdout) == (closed == 2)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["show", "detect"])
def test_a_reader_that_closes_early_ends_a_command_quietly(
    command, planted_run, bert_folder, sentence_file, tmp_path
):
    reader, writer = os.pipe()
    os.close(reader)
    given = [command, planted_run]
    if command == "detect":
        given = [command, bert_folder, "--sentences", sentence_file, *planted.SMALL_OPTIONS, "--sample", 9]
        given += ["--out", tmp_path / "run", "--quiet"]
    arguments = [sys.executable, "-c", MAIN, *map(str, given)]
    process = subprocess.Popen(arguments, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    stderr = process.communicate()[1]
    assert (process.returncode, stderr) == (141, "")
    if command == "detect":  # a run whose output nobody reads still gets its report
        assert (tmp_path / "run" / "report.html").is_file()


# Errors


def test_an_error_is_one_line_an_interrupt_too_and_a_defect_keeps_its_traceback(monkeypatch, tmp_path):
    def ended(error):
        def fail(_):
            raise error

        monkeypatch.setattr("stickytoken.detection.open_run", fail)
        return planted.command("show", tmp_path, "--quiet")

    result = ended(ModelError("first\n  second"))
    assert (result.exit_code, result.stderr) == (1, "error: first second\n")
    result = ended(KeyboardInterrupt())  # it promises nothing
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")
    assert isinstance(ended(ZeroDivisionError()).exception, ZeroDivisionError)
