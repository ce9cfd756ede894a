"""Which run a model is checked by: one that is proven to be of this very model, or none."""

import json
import os
import shutil
import subprocess
import sys

import pytest

import planted
import profiled
import stickytoken
from stickytoken.detection import run as model_files
from stickytoken.detection.run import Run, is_model_of, look_at_model, open_run, record_model
from stickytoken.errors import InputError, ModelError, RunError
from stickytoken.gate import check

CHECK = """
import json, sys
import stickytoken
found = stickytoken.check(sys.argv[1], folder=sys.argv[2])
print(json.dumps([found.outcome.value, str(found.run), "torch" in sys.modules]))
"""


@pytest.fixture
def own(planted_profile, tmp_path, monkeypatch):
    """A model and the folder of its runs, which a test may change; files count as settled at once."""
    monkeypatch.setattr(model_files, "_SETTLED", 0)
    model, run = planted_profile
    shutil.copytree(model, tmp_path / "model")
    shutil.copytree(run, tmp_path / "runs" / "run")
    return tmp_path / "model", tmp_path / "runs"


def recorded(model, run):
    record_model(run, open_run(run).record, look_at_model(str(model)))
    return (run / "model.json").is_file()


def known(model, run):
    files = look_at_model(str(model))
    return files is not None and is_model_of(run, open_run(run).record, files.fingerprint())


def checked(model, runs):
    """Outcome, run, and whether torch was loaded, of a check in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHECK, str(model), str(runs)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_files_of_a_model_are_enough_once_it_was_loaded(own):
    model, runs = own
    assert check(model, folder=runs).run == runs / "run"
    assert (runs / "run" / "model.json").is_file()
    assert checked(model, runs) == ["closed", str(runs / "run"), False]
    renamed = model.rename(model.with_name("renamed"))
    assert checked(renamed, runs) == ["closed", str(runs / "run"), False]


@pytest.mark.slow
def test_a_detection_of_a_named_model_records_its_files_and_of_a_loaded_one_nothing(own, tmp_path):
    """The owner of a loaded model may have changed it since."""
    model, _ = own
    assert known(model, profiled.detect_profile(str(model), tmp_path / "new").path)
    encoder = stickytoken.load_encoder(model)
    assert not (profiled.detect_profile(encoder, tmp_path / "newer").path / "model.json").exists()


@pytest.mark.slow
def test_the_command_records_the_files_unless_an_option_changes_the_model(
    planted_folder, planted_options, tmp_path, monkeypatch
):
    monkeypatch.setattr(model_files, "_SETTLED", 0)
    for place, (options, records) in enumerate({(): True, ("--prompt", "the "): False}.items()):
        run = tmp_path / str(place)
        arguments = [*planted_options, "--out", run, "--set", "report=false", *options]
        assert planted.command("detect", planted_folder, *arguments).exit_code == 0
        assert (run / "model.json").is_file() is records


def test_one_changed_byte_or_name_is_another_model(own):
    model, runs = own
    assert recorded(model, runs / "run")
    files = [path for path in model.rglob("*") if path.is_file()]
    assert len(files) >= 3
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert not known(model, runs / "run"), path
        path.write_bytes(whole)
        assert known(model, runs / "run")
    (model / "more.json").write_text("{}")
    assert not known(model, runs / "run")
    (model / "more.json").unlink()
    (model / "README.md").rename(model / "README.txt")
    assert not known(model, runs / "run")
    (model / "README.txt").rename(model / "README.md")
    model.rename(model.with_name("linked"))
    model.symlink_to(model.with_name("linked"))  # links are read through
    assert known(model, runs / "run")


def test_another_version_of_what_reads_the_files_proves_nothing(own, monkeypatch):
    model, runs = own
    assert recorded(model, runs / "run")
    versions = model_files.package_versions() | {"tokenizers": "0.0.1"}
    monkeypatch.setattr(model_files, "package_versions", lambda: versions)
    assert not known(model, runs / "run")


def test_a_record_of_another_run_or_a_damaged_one_proves_nothing_and_is_replaced(own):
    model, runs = own
    assert recorded(model, runs / "run")
    path = runs / "run" / "model.json"
    record = json.loads(path.read_text("utf-8"))
    record["encoder"]["weights"] = "0" * 64
    for content in (json.dumps(record), "", "[]", '{"files": 3}'):
        path.write_text(content, encoding="utf-8")
        assert not known(model, runs / "run"), content
    assert recorded(model, runs / "run")
    assert known(model, runs / "run")


def test_files_that_may_have_changed_or_cannot_be_recorded_are_not(own, monkeypatch):
    model, runs = own
    seen = look_at_model(str(model))
    (model / "modules.json").write_text((model / "modules.json").read_text("utf-8") + "\n", encoding="utf-8")
    record_model(runs / "run", open_run(runs / "run").record, seen)
    assert not (runs / "run" / "model.json").exists()
    with monkeypatch.context() as young:
        young.setattr(model_files, "_SETTLED", 10**15)
        assert not recorded(model, runs / "run")

    def refuse(*_):
        raise RunError("the disk is full")

    monkeypatch.setattr(model_files.RunFolder, "write_record", refuse)
    assert not recorded(model, runs / "run")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("adapter_config.json", "{}"),
        ("modules.json", '[{"type": "my_code.Module", "path": ""}]'),
        ("modules.json", '[{"type": "sentence_transformers.models.Dense", "path": "../other"}]'),
        ("sentence_bert_config.json", '{"tokenizer_name_or_path": "elsewhere"}'),
        ("pipe", None),
    ],
)
def test_a_model_with_parts_elsewhere_or_a_pipe_is_always_loaded(own, name, content):
    if content is None:
        os.mkfifo(own[0] / name)
    else:
        (own[0] / name).write_text(content, encoding="utf-8")
    assert look_at_model(str(own[0])) is None


def test_the_newest_run_over_the_whole_vocabulary_is_taken(own):
    model, runs = own

    def copy(name, **changes):
        shutil.copytree(runs / "run", runs / name)
        record = json.loads((runs / name / "run.json").read_text("utf-8"))
        (runs / name / "run.json").write_text(json.dumps(record | changes), encoding="utf-8")

    parts = json.loads((runs / "run" / "run.json").read_text("utf-8"))["identity_parts"]
    copy("later", started="2040-01-01T00:00:00+00:00")
    copy("unfinished", started="2041-01-01T00:00:00+00:00", result=None)
    copy("part", started="2042-01-01T00:00:00+00:00", identity_parts=parts | {"tokens": "0" * 64})
    copy("other", started="2043-01-01T00:00:00+00:00", identity_parts=parts | {"encoder": {"weights": "0"}})
    copy("damaged", schema_version=99)
    found = check(model, folder=runs)
    assert found.run == runs / "later"
    assert any("damaged" in note and "skipped" in note for note in found.notes)
    assert check(model, folder=runs / "run").run == runs / "run"


def test_a_model_that_no_run_fits_is_refused_or_measured(own, pristine):
    with pytest.raises(RunError, match="is of a different model than"):
        check(pristine, folder=own[1] / "run")
    # The tiny tokenizer reads letters, so this takes a model that knows its words alone.
    model = own[0].with_name("foreign")
    profiled.foreign_model().save(str(model))
    with pytest.raises(InputError, match="does not know"):
        check(model, folder=own[1])


def test_a_missing_run_is_made_where_the_runs_are_and_found_the_next_time(own, monkeypatch):
    model, runs = own
    made = []

    def detect(encoder, *, out, progress):
        made.append(out)
        return profiled.detect_profile(encoder, out)

    monkeypatch.setattr(sys.modules["stickytoken.gate"], "detect", detect)
    shutil.rmtree(runs / "run")
    first = check(model, folder=runs)
    assert first.run.parent == runs
    second = check(model, folder=runs)
    assert (second.run, len(made)) == (first.run, 1)


def test_a_model_object_is_compared_by_identity_and_a_run_is_taken(own):
    model, runs = own
    encoder = stickytoken.load_encoder(model)
    assert check(encoder, folder=runs).run == check(Run(runs / "run")).run == runs / "run"
    with pytest.raises(InputError, match="revision"):
        check(encoder, folder=runs, revision="main")


@pytest.mark.parametrize("source", [None, "", "./nowhere"])
def test_what_is_no_model_and_no_run_is_refused(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ModelError, InputError)):
        check(source)
