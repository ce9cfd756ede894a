"""How commands end: exit statuses, and the one line on stderr."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import planted
from stickytoken.cli import app as group
from stickytoken.cli.output import console as interrupts
from stickytoken.errors import ModelError

MAIN = "from stickytoken.cli.main import main; main()"


def started(*arguments, code=MAIN, **options):
    """A stickytoken process that Ctrl-C reaches, with its streams in pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


# Output


def test_characters_that_the_encoding_of_stdout_lacks_are_escaped():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for form in ("table", "csv"):
        process = started("published", "sentence-t5-base", "--format", form, env=environment)
        stdout, stderr = process.communicate()
        assert process.returncode == 0, stderr
        assert r"\u2581tip" in stdout


# Ctrl-C


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("typer", "show"),
        ("stickytoken.encoders", "detect"),
        ("torch", "detect"),
        ("sentence_transformers", "embed"),
        ("stickytoken.demo.server", "demo"),
    ],
)
def test_ctrl_c_during_an_import_is_one_line_and_status_130(module, command, bert_folder, tmp_path):
    """The signal arrives when a module is looked for, before it is there."""
    (tmp_path / "texts.txt").write_text("a\n")
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
    arguments = {
        "show": ["show", tmp_path],
        "detect": ["detect", bert_folder, "--sample", 5, "--out", tmp_path / "run"],
        "embed": ["embed", bert_folder, "--input", tmp_path / "texts.txt", "--out", tmp_path / "v.parquet"],
        "demo": ["demo", "--port", 0, "--model", bert_folder],
    }[command]
    stdout, stderr = (process := started(*arguments, code=code)).communicate()
    assert (process.returncode, stdout) == (130, ""), stderr
    (line,) = planted.lines_of(stderr)
    assert line.startswith("interrupted")


@pytest.mark.slow
def test_an_error_that_an_interrupt_caused_is_an_interrupt(bert_folder, tmp_path):
    """As libraries do that are interrupted inside foreign code."""
    code = f"""
import os, signal, stickytoken.encoders
def load_encoder(model, **options):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        while True: pass
    except KeyboardInterrupt:
        raise ImportError("numpy failed to import")
stickytoken.encoders.load_encoder = load_encoder
{MAIN}
"""
    ended = planted.program(code, "detect", bert_folder, "--out", tmp_path / "run")
    assert ended.returncode == 130
    assert planted.lines_of(ended.stderr)[-1] == "interrupted: run the same command again to continue"
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_an_interrupt_that_a_library_swallows_ends_the_command_at_its_next_step(bert_folder, tmp_path):
    code = f"""
import os, signal, stickytoken.encoders
load = stickytoken.encoders.load_encoder
def load_encoder(model, **options):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        while True: pass
    except KeyboardInterrupt:
        return load(model, **options)
stickytoken.encoders.load_encoder = load_encoder
{MAIN}
"""
    ended = planted.program(code, "detect", bert_folder, "--out", tmp_path / "run")
    assert ended.returncode == 130
    assert planted.lines_of(ended.stderr)[-1] == "interrupted: run the same command again to continue"


@pytest.mark.slow
def test_an_interrupt_that_comes_again_at_the_end_changes_nothing(bert_folder, tmp_path):
    code = f"""
import atexit, os, signal, stickytoken.encoders
def load_encoder(model, **options):
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    while True: pass
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
from stickytoken.cli.output.console import remember_interrupts
signal.signal(signal.SIGINT, signal.SIG_IGN)
remember_interrupts()
print(signal.getsignal(signal.SIGINT).name)
"""
    assert started(code=code).communicate()[0] == "SIG_IGN\n"


def test_what_is_said_after_an_interrupt_belongs_to_known_commands():
    from stickytoken.cli.app import app

    known = {command.callback.__name__ for command in app.registered_commands}
    assert set(group._AFTER_INTERRUPT) <= known
    assert not interrupts.was_interrupted()


# Full disks


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("form", ["table", "json"])
def test_a_full_disk_behind_stdout_is_one_line(form, small_run):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        arguments = [sys.executable, "-c", MAIN, "show", str(small_run.path), "--format", form]
        ended = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "error: the output could not be written: No space left on device\n"


# Pipes


@pytest.mark.slow
def test_a_reader_that_closes_early_ends_a_command_quietly(planted_run):
    """More than a pipe holds is written to one that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    arguments = ["show", planted_run, "--limit", 1000, "--format", "json"]
    for output in (["--format", "json"], []):
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *map(str, arguments[:4]), *output],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
        )
        stderr = process.communicate()[1]
        assert (process.returncode, stderr) == (141, "")
    os.close(writer)


@pytest.mark.slow
def test_a_run_whose_output_nobody_reads_still_gets_its_report(bert_folder, sentence_file, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    options = ["--sentences", sentence_file, *planted.SMALL_OPTIONS, "--sample", 9, "--out", tmp_path / "run"]
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "detect", str(bert_folder), *map(str, options), "--quiet"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    stderr = process.communicate()[1]
    assert (process.returncode, stderr) == (141, "")
    assert (tmp_path / "run" / "report.html").is_file()


# Errors


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        (["nonsense"], r"No such command 'nonsense' \(see stickytoken --help\)"),
        (["show"], r"Missing argument 'run' \(see stickytoken show --help\)"),
        (["show", "r", "--limit", "0"], r"--limit.*\(see stickytoken show --help\)"),
        (["show", "r", "--limit", "many"], r"--limit"),
        (
            ["show", "r", "--category", "odd"],
            r"--category': 'odd' is not a category: use one of OK, OK_SPECIAL",
        ),
        (["show", "r", "--colour"], r"No such option: --colour"),
        (["tokens", "m", "-q", "-v"], r"use one of --quiet and --verbose"),
        (["detect", "m", "--method", "guess"], r"--method"),
        (["detect", "m", "--budget", "much"], r"--budget"),
        (["explain", "m", "a", "--placement", "inside"], r"--placement"),
        (["impact", "m", "--seed", "-1"], r"--seed"),
        (["demo", "--port", "http"], r"--port"),
        (["report"], r"Missing argument"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_that_names_the_help(arguments, saying):
    planted.refused(*arguments, status=2, saying=saying)
    assert len(planted.lines_of(planted.command(*arguments).stderr)) == 1


def test_an_error_of_several_lines_is_printed_as_one(monkeypatch, tmp_path):
    import stickytoken.detection

    def fail(_):
        raise ModelError("first\n  second")

    monkeypatch.setattr(stickytoken.detection, "open_run", fail)
    result = planted.command("show", tmp_path, "--quiet")
    assert (result.exit_code, result.stderr) == (1, "error: first second\n")


def test_a_defect_keeps_its_traceback(monkeypatch, tmp_path):
    import stickytoken.detection

    def fail(_):
        raise ZeroDivisionError

    monkeypatch.setattr(stickytoken.detection, "open_run", fail)
    assert isinstance(planted.command("show", tmp_path).exception, ZeroDivisionError)
