"""--quiet and --verbose."""

import logging
import warnings

import pytest

import planted
from stickytoken.cli.output.console import (
    Verbosity,
    current_verbosity,
    log_lines,
    show_warnings_as_notes,
    verbosity,
)
from stickytoken.errors import StickyTokenWarning


def few(sentence_file, out):
    return ["--sentences", sentence_file, *planted.SMALL_OPTIONS, "--sample", 9, "--out", out]


def test_quiet_prints_results_and_errors_only(bert_folder, sentence_file, tmp_path):
    loud = planted.command("detect", bert_folder, *few(sentence_file, tmp_path / "run"))
    again = planted.command("detect", bert_folder, *few(sentence_file, tmp_path / "run"), "--quiet")
    fresh = planted.command("detect", bert_folder, *few(sentence_file, tmp_path / "other"), "-q")
    assert "note:" in loud.stderr
    assert "report:" in loud.stderr
    assert again.stdout == loud.stdout
    assert (again.stderr, fresh.stderr) == ("", "")
    assert fresh.exit_code == 0
    refused = planted.command("detect", tmp_path / "absent", "--quiet")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error: no folder")


def test_verbose_says_where_the_model_is_and_how_it_computes(bert_folder, sentence_file, tmp_path):
    result = planted.command("detect", bert_folder, *few(sentence_file, tmp_path / "run"), "-v")
    assert result.exit_code == 0, result.stderr
    lines = result.stderr.splitlines()
    assert f"model: {bert_folder} (folder), weights " in result.stderr
    (line,) = [line for line in lines if line.startswith("computes: ")]
    for part in ("on cpu in float32", "at most 64 tokens", "components"):
        assert part in line
    assert any("batches of at most 1024 tokens on cpu" in each for each in lines)
    plain = planted.command("show", tmp_path / "run", "--verbose")
    assert plain.stdout == result.stdout


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        (Verbosity.QUIET, []),
        (Verbosity.NORMAL, ["note: memory is short"]),
        (Verbosity.VERBOSE, ["note: memory is short", "stickytoken: 3 layers", "another: loaded"]),
    ],
)
def test_log_records_are_lines(capsys, level, shown):
    with verbosity(level), log_lines():
        assert current_verbosity() is level
        logging.getLogger("stickytoken.encoders").warning("memory is %s", "short")
        logging.getLogger("stickytoken.encoders").info("3 layers")
        logging.getLogger("another.library").info("loaded")
    assert current_verbosity() is Verbosity.NORMAL
    assert capsys.readouterr().err.splitlines() == shown


def test_warnings_of_this_package_are_notes_and_others_are_for_verbose(capsys):
    with warnings.catch_warnings():
        show_warnings_as_notes()
        warnings.warn("how it pools is a guess", StickyTokenWarning, stacklevel=1)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        with verbosity(Verbosity.VERBOSE):
            warnings.warn("older", FutureWarning, stacklevel=1)
        with verbosity(Verbosity.QUIET):
            warnings.warn("hidden", StickyTokenWarning, stacklevel=1)
    assert capsys.readouterr().err.splitlines() == ["note: how it pools is a guess", "FutureWarning: older"]
