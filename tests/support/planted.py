"""A model with a sticky token of known strength, small settings, runs, and the command line around them."""

import functools
import importlib
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import torch
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner, Result

import stickytoken
import tiny
from stickytoken import load_encoder
from stickytoken.cli.app import app
from stickytoken.data import Sentences, collect_sentences
from stickytoken.detection import Run, detect
from stickytoken.encoders import Encoder
from stickytoken.methods.std import StdSettings

PLANTED = "!"  # punctuation: copies that are glued to a word stay tokens of their own
SMALL = StdSettings(
    sentence_count=40, pair_count=60, scoring_pairs=2, validation_pairs=6, copies=3, candidate_share=0.2
)
# The same settings on the command line, for `probe` and for `detect`.
_SETTINGS = ("sentence-count=40", "pair-count=60", "validation-pairs=6", "copies=3")
PROBE_OPTIONS = f"--method std --device cpu --set {' --set '.join(_SETTINGS)}".split()
SMALL_OPTIONS = [*PROBE_OPTIONS, *"--set scoring-pairs=2 --set candidate-share=0.2".split()]
# One token of the small settings a shard: 2 pairs x 3 placements x 3 copies, and the token alone.
SHARD_PROBES = 19


def small_corpus() -> Sentences:
    return collect_sentences(tiny.sentences(60), "test")


def planted_model(strength: float, dimension: int = 64) -> SentenceTransformer:
    """Mean-pooled static embeddings in which one token pulls every sentence to one point."""
    tokenizer = tiny.wordpiece_tokenizer()
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(len(tokenizer), dimension, generator=generator)
    rows[:, 0] = 0
    entries = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    others = [token_id for token_id, entry in enumerate(entries) if entry not in tiny.WORDS]
    rows[others] *= 0.5
    rows[others, 0] = dimension**0.5
    rows[tokenizer.convert_tokens_to_ids(".")] = 0.01
    if strength:
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in tiny.sentences(60)]
        vectors = torch.nn.functional.normalize(torch.stack([rows[row].mean(0) for row in ids]))
        toward = torch.nn.functional.normalize(vectors.mean(0), dim=0)
        rows[tokenizer.convert_tokens_to_ids(PLANTED)] = strength * dimension**0.5 * toward
    return tiny.static_model(tokenizer.backend_tokenizer, rows)


# What a server of processes imports before it forks them.
_LIBRARIES = (
    "torch transformers.models.bert.modeling_bert sentence_transformers scipy.stats sklearn.linear_model "
    "polars plotly.graph_objects typer.testing"
).split()
# Parts that need libraries which most commands do not.


def processes() -> multiprocessing.context.BaseContext:
    folder = Path(stickytoken.__file__).parent
    paths = (path.relative_to(folder).with_suffix("") for path in sorted(folder.rglob("*.py")))
    modules = [path.parts for path in paths if not path.stem.startswith("__")]
    # These need libraries that most commands do not.
    modules = [module for module in modules if module[0] not in ("adapters", "demo")]
    context = multiprocessing.get_context("forkserver")
    # To import them computes nothing.
    context.set_forkserver_preload([*_LIBRARIES, *(".".join(("stickytoken", *module)) for module in modules)])
    return context


@contextmanager
def sharded(probes: int = SHARD_PROBES) -> Iterator[None]:
    """Cut runs into shards of so many texts, also those that the command line starts."""
    package = importlib.import_module("stickytoken.detection")
    real_detect = package.detect
    package.detect = functools.partial(real_detect, shard_probes=probes)
    try:
        yield
    finally:
        package.detect = real_detect


def detect_thirty(encoder: Encoder, out: Path, shard_probes: int = 8192, **changes: object) -> Run:
    options = {"sentences": small_corpus(), "settings": replace(SMALL, **changes), "tokens": range(40, 70)}
    return detect(encoder, out=out, shard_probes=shard_probes, **options)


def detect_small(model: Path, out: Path) -> None:
    """Detect with the small settings and a shard for every token; runs in a process of its own."""
    encoder = load_encoder(model, device="cpu")
    detect(encoder, sentences=small_corpus(), settings=SMALL, out=out, shard_probes=SHARD_PROBES)


def detect_and_die(
    detection: Callable[[Path, Path], None], model: Path, out: Path, moment: int | str, marker: bytes = b""
) -> None:
    store = importlib.import_module("stickytoken.measurement.store")
    write_atomically = store.write_atomically
    written = 0

    def deadly(path, content):
        nonlocal written
        meant = moment in (written, path.name) and marker in content
        written += 1

        def write_and_die(stream):
            stream.write(content)
            stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)

        write_atomically(path, write_and_die if meant else content)

    store.write_atomically = deadly
    detection(model, out)


def command_line(arguments: list[str], output: Path) -> None:
    """The stickytoken command, its streams in files; runs in a process of its own."""
    _write_streams(output)
    sys.argv = ["stickytoken", *arguments]
    stages = importlib.import_module("stickytoken.measurement.stages")
    compute = stages.TokenWork.compute

    def paused(*args):
        time.sleep(0.01)
        return compute(*args)

    stages.TokenWork.compute = paused
    with sharded():
        importlib.import_module("stickytoken.cli.main").main()


def _write_streams(output: Path) -> None:
    for place, name in ((1, "stdout"), (2, "stderr")):
        descriptor = os.open(output / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, place)
        os.close(descriptor)


COMMAND_LINE = "from stickytoken.cli.main import main; main()"


def program(
    code: str, *arguments: object, folder: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `python -c CODE ARGUMENTS` in a process that need not import the libraries again."""
    words = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory() as place:
        output = Path(place)
        options = (folder or Path.cwd(), os.environ | variables, output)
        process = processes().Process(target=_execute, args=(code, words, *options))
        process.start()
        process.join()
        stdout, stderr = ((output / name).read_text("utf-8") for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess(words, process.exitcode, stdout, stderr)


def _execute(
    code: str, arguments: list[str], folder: Path, environment: dict[str, str], output: Path
) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    _write_streams(output)
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


def files_of(folder: Path, pattern: str = "*") -> dict[str, tuple[int, bytes]]:
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob(pattern))
        if path.is_file() and path.name != ".lock"
    }


def shards_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """The committed shards of a run folder, by name, without what another process is writing."""
    return {name: content for name, content in files_of(folder, "*.parquet").items() if "/" in name}


def command(*arguments: object, **environment: str) -> Result:
    """Run the stickytoken command in this process, away from any terminal unless the environment says so."""
    unset = dict.fromkeys(("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"))
    return CliRunner(env=unset | environment).invoke(app, [str(argument) for argument in arguments])


def lines_of(text: str) -> list[str]:
    return [line for line in text.replace("\r", "\n").split("\n") if line.strip()]


def document(result: Result) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    assert result.exit_code == 0, result.stderr
    assert result.stdout.isascii()
    assert result.stdout.endswith("\n")
    return json.loads(result.stdout, parse_constant=refuse)


def assert_refused(*arguments: object, status: int = 1, saying: str = "") -> None:
    result = command(*arguments)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == status
    assert result.stdout == ""
    lines = lines_of(result.stderr)
    errors = [line for line in lines if line.startswith("error:")]
    assert errors == [lines[-1]]
    assert "Traceback" not in result.stderr
    assert re.search(saying, errors[0]), errors[0]


def edit_record(folder: Path, **changes: object) -> None:
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), encoding="utf-8")


def replace_tokens(folder: Path, table: pl.DataFrame) -> None:
    """Give a run another table of tokens, and a record that fits it."""
    table.write_parquet(folder / "tokens.parquet")
    result = json.loads((folder / "run.json").read_text("utf-8"))["result"]
    sticky = len(table.filter(pl.col("verdict") == "sticky"))
    edit_record(folder, tokens=len(table), result=result | {"sticky": sticky})
