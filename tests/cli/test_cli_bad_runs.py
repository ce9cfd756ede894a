"""Run folders that cannot be used, through the command line."""

import os
import shutil
import subprocess
from pathlib import Path

import polars as pl
import pytest

import planted
import tiny


@pytest.fixture(scope="module")
def small(bert_folder, sentence_file):
    """What a small detection is called with."""
    return [bert_folder, "--sentences", sentence_file, *planted.SMALL_OPTIONS]


@pytest.fixture(scope="module")
def finished(small, tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    result = planted.command("detect", *small, "--sample", "30", "--out", folder)
    assert result.exit_code == 0, result.stderr
    return folder


@pytest.fixture
def run_copy(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def detect_into(folder, small, saying, *others):
    planted.refused("detect", *small, "--sample", "30", *others, "--out", folder, saying=saying)


def test_a_folder_that_is_no_run_is_refused(small, sentence_file, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_bytes(b"nothing")
    for folder in (sentence_file.parent, tmp_path / "notes"):
        planted.refused("show", folder, saying="is not a run folder: it has no run.json")
        detect_into(folder, small, "contains files but no run: choose an empty or new folder")
    planted.refused("show", tmp_path / "absent", saying="no run folder")
    planted.refused("show", sentence_file, saying="is not a run folder")
    assert sentence_file.read_text("utf-8").startswith(tiny.sentences(1)[0])


def test_a_run_that_is_not_finished_is_not_shown_but_continued(small, run_copy):
    planted.edit_record(run_copy, result=None)
    planted.refused("show", run_copy, saying="is not finished: run the same command again to continue it")
    result = planted.command("detect", *small, "--sample", "30", "--out", run_copy)
    assert result.exit_code == 0
    assert planted.command("show", run_copy).stdout == result.stdout


def test_the_folder_of_another_run_is_refused_with_what_differs(small, run_copy):
    before = planted.files_of(run_copy)
    for others, names in (
        (["--seed", "1"], "settings.seed"),
        (["--insertion", "ids"], "settings.insertion"),
        (["--prompt", "the bird:"], "encoder.prompt"),
        (["--dtype", "bfloat16"], "encoder.dtype, encoder.weights"),
        (["--copies", "2", "--sentence-count", "50"], "settings.copies, settings.sentences"),
    ):
        saying = rf"contains a different run .it differs in {names}.: choose another folder"
        detect_into(run_copy, small, saying, *others)
    assert planted.files_of(run_copy) == before


def test_a_run_of_a_newer_version_is_refused(small, run_copy):
    planted.edit_record(run_copy, schema_version=4, novelty={})
    saying = "has schema version 4, but this stickytoken reads versions up to 3: upgrade stickytoken"
    planted.refused("show", run_copy, saying=saying)
    detect_into(run_copy, small, saying)


def test_damaged_files_of_a_run_are_named(small, finished, tmp_path):
    for name, content in (
        ("run.json", b""),
        ("run.json", b'{"schema_version": 1'),
        ("plan.json", b"{}"),
        ("tokens.parquet", b"PAR1"),
    ):
        folder = Path(shutil.copytree(finished, tmp_path / "run", dirs_exist_ok=True))
        (folder / name).write_bytes(content)
        planted.refused("show", folder, saying=name)
        detect_into(folder, small, name)


def test_a_result_table_without_its_columns_is_named(run_copy):
    pl.DataFrame({"token": ["a"]}).write_parquet(run_copy / "tokens.parquet")
    planted.refused("show", run_copy, saying="tokens.parquet")


@pytest.mark.slow
def test_a_run_folder_that_another_process_writes_is_refused(small, tmp_path):
    saying = "is being written by another process: wait for it, or choose another folder"
    with planted.held(tmp_path / "run"):
        detect_into(tmp_path / "run", small, saying)
    result = planted.command("detect", *small, "--sample", "5", "--out", tmp_path / "run")
    assert result.exit_code == 0


def test_a_run_folder_that_cannot_be_written_is_refused(small, sentence_file, tmp_path):
    detect_into(sentence_file / "run", small, "sentences.txt is a file")
    if os.geteuid() == 0:  # permissions do not hold root back, a file system for reading only does
        disk = tmp_path / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("this machine does not let a test mount a file system")
        try:
            detect_into(disk / "run", small, "cannot be written: .*disk is read-only")
        finally:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
    else:
        (tmp_path / "closed").mkdir(mode=0o500)
        detect_into(tmp_path / "closed" / "run", small, "cannot be written: .*closed is read-only")


@pytest.mark.slow
def test_a_command_that_failed_on_its_input_does_not_block_its_folder(small, tmp_path):
    wrong = [*small, "--sentence-count", "1000", "--out", tmp_path / "run"]
    planted.refused("detect", *wrong, saying="has 60 distinct sentences, but 1000 are needed")
    right = [*small, "--sample", "5", "--out", tmp_path / "run"]
    assert planted.command("detect", *right).exit_code == 0
