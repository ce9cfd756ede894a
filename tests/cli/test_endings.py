"""How commands end: exit statuses, and one line on stderr that says what is wrong."""

import errno
import os
import re
import signal
import subprocess
import sys
from contextlib import nullcontext

import pytest
from sentence_transformers import SentenceTransformer

import planted
from naming import naming
from stickytoken.cli import console as interrupts
from stickytoken.errors import ModelError

MAIN = planted.COMMAND_LINE


def started(*arguments, code=MAIN):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_characters_that_the_encoding_of_stdout_lacks_are_escaped(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    stdout, stderr = started("published", "sentence-t5-base", "--format", "csv").communicate()
    assert r"\u2581tip" in stdout, stderr


@pytest.mark.slow
@pytest.mark.parametrize(("module", "command"), [("typer", "show"), ("torch", "detect")])
def test_ctrl_c_during_an_import_is_one_line_and_status_130(module, command, bert_folder, tmp_path):
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


ENDINGS = {
    "another error is raised": "try: press()\n    except KeyboardInterrupt: raise ImportError('numpy')",
    "swallowed": "try: press()\n    except KeyboardInterrupt: return load(model, **options)",
    "pressed again at the end": "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n    press()",
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_what_libraries_make_of_an_interrupt_is_an_interrupt(ending, bert_folder, tmp_path):
    code = f"""
import atexit, os, signal, time, stickytoken.loading
load = stickytoken.loading.load_encoder
def press():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
    raise SystemExit("the signal did not interrupt")
def load_encoder(model, **options):
    # It is called twice, and a press that soon follows another is ignored.
    stickytoken.loading.load_encoder = load
    {ENDINGS[ending]}
stickytoken.loading.load_encoder = load_encoder
{MAIN}
"""
    process = started("detect", bert_folder, "--out", tmp_path / "run", code=code)
    _, stderr = process.communicate()
    assert process.returncode == 130
    assert planted.lines_of(stderr)[-1] == "interrupted: run the same command again to continue"
    assert not re.search("Traceback|KeyboardInterrupt", stderr)


def test_quick_presses_of_ctrl_c_count_as_one(monkeypatch):
    monkeypatch.setattr(interrupts, "_received", [])
    clock = iter([100.0, 100.2, 100.9, 101.0])
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: next(clock))
    for counts in (True, False, False, True):
        with pytest.raises(KeyboardInterrupt) if counts else nullcontext():
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


@pytest.mark.slow
def test_a_full_disk_behind_stdout_is_one_line(small_run, tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
    with (tmp_path / "out").open("w", encoding="utf-8") as full:
        arguments = [sys.executable, "-c", limit + MAIN, "show", str(small_run.path)]
        ended = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == f"error: the output could not be written: {os.strerror(errno.EFBIG)}\n"


@pytest.mark.slow
@pytest.mark.parametrize(("closed_stream", "command"), [(2, "show"), (0, "clean")])
def test_a_stream_closed_before_the_start_is_empty(closed_stream, command, small_run):
    started = [sys.executable, "-c", MAIN, command, str(small_run.path)]
    closing = f"import os; os.close({closed_stream}); os.execv({sys.executable!r}, {started!r})"
    arguments = [sys.executable, "-c", closing]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    # Standard input without documents is an error.
    expected = 0 if closed_stream == 2 else 1
    assert (ended.returncode, "Traceback" in ended.stderr) == (expected, False), ended.stderr
    assert bool(ended.stdout) == (closed_stream == 2)


@pytest.mark.slow
def test_documents_for_a_closed_stdout_are_an_error(scanned_run, write, tmp_path):
    path = write("own.txt", "air [SEP] flow\n")
    started = [sys.executable, "-c", MAIN, "clean", str(scanned_run), str(path)]
    closing = "import os, sys; os.close(1); os.execv(sys.argv[1], sys.argv[1:])"
    for options, status in (([], 1), (["--out", str(tmp_path / "out.txt")], 0)):
        arguments = [sys.executable, "-c", closing, *started, *options]
        ended = subprocess.run(arguments, stderr=subprocess.PIPE, text=True, check=False)
        assert ended.returncode == status, ended.stderr
        assert ("--out" in ended.stderr) == (status == 1)
    assert (tmp_path / "out.txt").read_text() == "air flow\n"


@pytest.mark.slow
def test_a_reader_that_closes_early_ends_a_command_quietly(bert_folder, sentence_file, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    arguments = ["detect", bert_folder, "--sentences", sentence_file, *planted.SMALL_OPTIONS, "--sample", 9]
    arguments = [sys.executable, "-c", MAIN, *map(str, arguments), "--out", str(tmp_path / "run"), "--quiet"]
    process = subprocess.Popen(arguments, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    stderr = process.communicate()[1]
    assert (process.returncode, stderr) == (141, "")
    assert (tmp_path / "run" / "report.html").is_file()  # though nobody reads the output


def test_only_a_defect_prints_a_traceback(monkeypatch, tmp_path):
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
    failed = ModelError("no vector")
    failed.add_note("a library adds this")
    failed.add_note("finished shards are kept: 3 in runs/a")
    assert ended(failed).stderr == "error: no vector; finished shards are kept: 3 in runs/a\n"


# Bad input


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        ("nonsense", naming("'nonsense'", "stickytoken --help")),
        ("show", naming("'run'", "stickytoken show --help")),
        ("show r --limit many", naming("--limit", "stickytoken show --help")),
        ("show r --colour", naming("--colour")),
        ("show r --category odd", naming("'--category'", "'odd'", "OK", "OK_SPECIAL")),
        ("tokens m -q -v", naming("--quiet", "--verbose")),
        ("detect m n", "extra argument"),
        ("detect m --set workers=2", naming("workers", "engine=ray")),
        ("scan r d --set workers=0", "--set workers"),
        ("check m --out x.json", naming("--out", "json", "junit", "sarif")),
        ("check m --fail-on odd", naming("'odd'", "sticky", "mild", "serious", "severe")),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(tmp_path, monkeypatch, arguments, saying):
    monkeypatch.chdir(tmp_path)
    planted.assert_refused(*arguments.split(), status=2, saying=saying)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        ("detect MODEL --device toaster", naming("device", "'toaster'", "cpu")),
        ("detect MODEL --tokens ~x", naming("'~x'")),
        ("detect MODEL --sentences absent.txt", naming("'absent.txt'")),
        ("detect MODEL --set pairs=p.csv --column a", naming("--column", "--sentences")),
        ("detect absent/model", naming("'absent/model'", "cache")),
        ("detect MODEL --max-cost 1", naming("max_cost", "endpoint")),
        ("detect http://localhost:1/v1#m --set tokenizer=MODEL --max-cost 1", "price"),
        ("tokens http://localhost:1/v1#m", naming("vocabulary", "tokenizer")),
    ],
)
def test_input_that_cannot_be_used_is_one_line(bert_folder, tmp_path, monkeypatch, arguments, saying):
    monkeypatch.chdir(tmp_path)
    planted.assert_refused(*arguments.replace("MODEL", str(bert_folder)).split(), saying=saying)


@pytest.mark.slow
def test_a_command_that_failed_on_its_input_blocks_nothing(bert_folder, sentence_file, tmp_path):
    damaged = SentenceTransformer(str(bert_folder), device="cpu")
    damaged[0].model.embeddings.word_embeddings.weight.data[50] = float("nan")
    damaged.save(str(tmp_path / "damaged"))
    options = ("--sentences", sentence_file, *planted.SMALL_OPTIONS, "--sample", 5, "--out")
    saying = naming("vector", "finite")
    planted.assert_refused("detect", tmp_path / "damaged", *options, tmp_path / "other", saying=saying)
    arguments = ("detect", bert_folder, *options, tmp_path / "run")
    planted.assert_refused(*arguments, "--set", "sentence-count=1000", saying=naming("sentences", 1000))
    assert planted.command(*arguments).exit_code == 0


EXIT = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count()))  # runs last
from stickytoken.cli._options import garbage_collector_paused
with garbage_collector_paused():
    import numpy
print(gc.get_freeze_count() > 0, gc.isenabled())
"""


def test_loaded_objects_are_collected_at_exit():
    """Otherwise, libraries such as triton would report leaks after every command."""
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "0"]
