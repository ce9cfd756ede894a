"""Run folders that somebody else has changed: one line of error from every command, never a traceback."""

import shutil

import polars as pl
import pytest

import planted
import profiled
from stickytoken import load_encoder

COMMANDS = {
    "show": (),
    "card": (),
    "report": ("--format", "md"),
    "check": (),
    "clean": ("documents.txt",),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("foreign")
    profiled.planted_model(1.5).save(str(folder / "model"))
    return profiled.detect_profile(load_encoder(folder / "model", device="cpu"), folder / "run").path


def changed(**columns):
    return lambda table: table.with_columns(**columns)


HALF = pl.int_range(pl.len()) % 2 == 0
CHANGES = {
    "tokens.parquet": {
        "lift as text": changed(lift=pl.col("lift").cast(pl.String)),
        "severity as numbers": changed(severity=pl.lit(3)),
        "no rows": lambda table: table.clear(),
        "lifts not numbers": changed(lift=pl.lit(float("nan"))),
        "tokens unknown": changed(token=pl.when(HALF).then("token")),
        "ids twice": changed(token_id=pl.lit(7)),
        "no verdict": changed(verdict=pl.lit(None, dtype=pl.String)),
        "a column missing": lambda table: table.drop("lift_low"),
    },
    "vocabulary.parquet": {
        "entries unknown": changed(token=pl.when(HALF).then("token")),
        "a long entry": changed(token=pl.lit("a b" * 100_000), decoded=pl.lit("a b" * 100_000)),
        "no rows": lambda table: table.clear(),
        "ids missing": lambda table: table.drop("token_id"),
    },
    "evidence.parquet": {
        "other ids": changed(token_id=pl.col("token_id") + 10**6),
        "no rows": lambda table: table.clear(),
    },
}


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, change) for name, changes in CHANGES.items() for change in changes],
    ids=lambda value: value.replace(" ", "-"),
)
def test_every_command_ends_in_a_line(run, name, change, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "documents.txt").write_text("the river sings\n", encoding="utf-8")
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    path = folder / name
    CHANGES[name][change](pl.read_parquet(path)).write_parquet(path)
    for command, arguments in COMMANDS.items():
        result = planted.command(command, folder, *arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            command,
            result.exception,
        )
        if result.exit_code not in (0, 10):
            said = [
                line for line in result.stderr.splitlines() if line.startswith(("error:", "inconclusive:"))
            ]
            assert said, (command, result.stderr)
