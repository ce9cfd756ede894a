"""Audits that were finished, interrupted or killed, and are called again."""

import json
import shutil
import signal
import time
from dataclasses import asdict
from pathlib import Path

import pytest

import planted
from audited import SMALL
from interrupted import started, wait_for_shards
from naming import naming
from stickytoken.audits import Audit, audit, audits_in, open_audit, wording
from stickytoken.encoders.model_encoder import ModelEncoder
from stickytoken.errors import RunError
from stickytoken.methods.profile.documents import DocumentStage
from stickytoken.methods.profile.estimates import EFFECTS_FILE


def test_an_audit_of_an_earlier_version_is_refused_with_what_to_do(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "audit")
    record = json.loads((tmp_path / "audit" / "audit.json").read_text("utf-8"))
    (tmp_path / "audit" / "audit.json").write_text(json.dumps(record | {"schema_version": 2}), "utf-8")
    with pytest.raises(RunError, match=naming("version", "audit")):
        open_audit(tmp_path / "audit")


def test_a_finished_audit_is_opened_and_found_in_its_run(finished, tampered_run, texts, queries):
    again = audit(tampered_run, texts, queries=queries, settings=SMALL, progress=pytest.fail)
    assert again.path == finished.path
    audits_found, unread = audits_in(tampered_run)
    assert finished.path in [audit_found.path for audit_found in audits_found]
    assert unread == ()
    assert isinstance(open_audit(finished.path), Audit)


def test_suggested_commands_name_files_and_folders_as_they_are_called_now(
    finished, tampered_run, texts, queries, tmp_path
):
    moved_run = Path(shutil.copytree(tampered_run, tmp_path / "moved"))
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file in files:
        rows = [json.dumps({"text": text}) for text in texts]
        file.write_text("\n".join(rows), "utf-8")
    first, again = [
        audit(run, file, queries=queries, settings=SMALL, out=tmp_path / "audit")
        for run, file in zip((tampered_run, moved_run), files, strict=True)
    ]
    assert again.record.identity == first.record.identity
    assert wording.title(again) == wording.title(first).replace("a.jsonl", "b.jsonl")
    for step in wording.next_steps(again):
        assert str(tampered_run) not in step.command
        assert str(files[0]) not in step.command
    (in_moved, *_), _ = audits_in(moved_run)
    assert str(moved_run) in wording.next_steps(in_moved)[0].command


def test_an_audit_of_a_model_loads_it_once(finished, tampered_run, texts, queries, tmp_path):
    model = Path(shutil.copytree(tampered_run.parent / "model", tmp_path / "model"))

    def remove_when_loaded(step):
        if step.stage == "load" and step.done:
            shutil.rmtree(model)

    measured = audit(
        model,
        texts,
        queries=queries,
        runs=tampered_run.parent,
        settings=SMALL,
        progress=remove_when_loaded,
    )
    assert not model.exists()
    assert measured.path == finished.path


@pytest.mark.parametrize("names_run", [True, False])
def test_an_audit_identifies_its_model_once(tampered_run, texts, queries, tmp_path, monkeypatch, names_run):
    identify = ModelEncoder.identify
    calls = []

    def identify_and_count(encoder):
        calls.append(encoder)
        return identify(encoder)

    monkeypatch.setattr(ModelEncoder, "identify", identify_and_count)
    source = tampered_run if names_run else tampered_run.parent / "model"
    runs = None if names_run else tampered_run.parent
    measured = audit(source, texts, queries=queries, runs=runs, settings=SMALL, out=tmp_path / "audit")
    assert len(calls) == 1  # each hashes all weights
    assert measured.record.identity_parts["encoder"] == asdict(identify(calls[0]))


def test_an_audit_whose_table_was_deleted_has_its_notes_once(tampered_run, texts, queries, tmp_path):
    without_audits = shutil.ignore_patterns("audit-*")  # other tests may have written one
    run = Path(shutil.copytree(tampered_run, tmp_path / "run", ignore=without_audits))
    (run / EFFECTS_FILE).unlink()  # there is a note on this
    first = audit(run, texts, queries=queries, settings=SMALL)
    (first.path / "documents.parquet").unlink()
    again = audit(run, texts, queries=queries, settings=SMALL)
    assert sum(EFFECTS_FILE in note for note in first.record.notes) == 1
    assert len(set(first.record.notes)) == len(first.record.notes)
    assert again.record.notes == first.record.notes


class InterruptionError(Exception):
    pass


def test_an_interrupted_audit_continues_with_the_same_numbers(
    finished, tampered_run, texts, queries, tmp_path
):
    steps = []

    def interrupt(step):
        steps.append(step)
        if step.stage == "in documents" and step.done > 0.5 * step.total:
            raise InterruptionError

    with pytest.raises(InterruptionError):
        audit(
            tampered_run,
            texts,
            queries=queries,
            settings=SMALL,
            out=tmp_path / "audit",
            progress=interrupt,
        )
    with pytest.raises(RunError, match=naming(tmp_path / "audit", "finished")):
        open_audit(tmp_path / "audit")
    later = []
    measured = audit(
        tampered_run,
        texts,
        queries=queries,
        settings=SMALL,
        out=tmp_path / "audit",
        progress=later.append,
    )
    assert measured.tokens.equals(finished.tokens)
    assert measured.documents.equals(finished.documents)
    assert {step.stage for step in steps} == {"scan", "index", "queries", "in documents"}
    done_earlier = next(step for step in later if step.stage == "in documents")
    assert done_earlier.done
    assert done_earlier.computed == 0


def slow_audit(run, texts, queries, folder):
    """The audit of `finished`, slow enough to be killed; runs in a process of its own."""
    measure = DocumentStage.measure

    def paused(stage, tokens, vectors):
        time.sleep(0.05 * len(tokens))
        return measure(stage, tokens, vectors)

    DocumentStage.measure = paused
    audit(run, texts, queries=queries, settings=SMALL, out=folder)


@pytest.mark.slow
def test_an_audit_that_is_killed_and_continued_has_the_same_tables(
    finished, tampered_run, texts, queries, tmp_path
):
    folder = tmp_path / "audit"
    for shard_count in (1, 4):
        process = started(slow_audit, tampered_run, texts, queries, folder)
        wait_for_shards(process, folder, shard_count)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        with pytest.raises(RunError, match=naming(folder, "finished")):
            open_audit(folder)
    shards = planted.shards_of(folder)
    measured = audit(tampered_run, texts, queries=queries, settings=SMALL, out=folder)
    kept = {name: shard for name, shard in planted.shards_of(folder).items() if name in shards}
    assert kept == shards
    assert measured.tokens.equals(finished.tokens)
    assert measured.documents.equals(finished.documents)


def test_a_continued_audit_counts_the_time_of_all_sessions(finished, tampered_run, texts, queries, tmp_path):
    folder = tmp_path / "audit"
    shutil.copytree(finished.path, folder)
    record = json.loads((folder / "audit.json").read_text("utf-8"))
    (folder / "audit.json").write_text(json.dumps(record | {"result": None}), "utf-8")
    (folder / "time.json").write_text('{"seconds": 5000.0}', "utf-8")
    assert audit(tampered_run, texts, queries=queries, settings=SMALL, out=folder).result.seconds > 5000
