"""Repair of a real model, from its run to a folder that anyone loads."""

import json
import os
import shutil
import signal
import sys

import numpy as np
import polars as pl
import pytest
from sentence_transformers import SentenceTransformer

import planted
import profiled
import repaired
import stickytoken
from interrupted import finished
from stickytoken.encoders import load_encoder
from stickytoken.errors import InputError, ModelError, RepairError, RunError, StickyTokenError
from stickytoken.measurement.engine import ignore_progress
from stickytoken.methods.base import RecheckJob
from stickytoken.methods.profile.other_texts import recheck
from stickytoken.repairs import neighbours_of, repair, used_texts
from stickytoken.repairs.result import DOCUMENT_FILE, REPAIR_FILE
from stickytoken.unit_vectors import exact_unit_vectors
from stickytoken.vocabulary import categorize

pytestmark = pytest.mark.slow  # whole runs

NAMES = (repaired.WORD, repaired.OTHER)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    found = repaired.saved_run(tmp_path_factory.mktemp("repairing"), *NAMES)
    assert set(found.sticky["token"]) == set(NAMES)
    return found


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return repaired.task_file(tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def mended(run, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("mended") / "model"
    before = planted.files_of(run.path.parent / "model")
    found = repair(run, out=out, sentences=repaired.unused_corpus(), task=task)
    assert planted.files_of(run.path.parent / "model") == before
    return found


def quick(run, out, **options):
    return repair(run, out=out, verify=False, **options)


def test_the_repaired_tokens_are_verified_not_to_be_sticky(mended):
    assert mended.verified is True, mended.record.verification
    rows = {row["token"]: row for row in mended.tokens.to_dicts()}
    assert set(rows) == set(NAMES)
    for row in rows.values():
        assert row["strategy"] == "relatives"
        assert row["deviations_before"] > 2
        assert row["deviations_after"] < 1
        assert row["verdict_after"] == "benign"
        assert row["reason"]
    assert "stickytoken" not in (mended.path / "modules.json").read_text("utf-8")
    checks = [check.name for check in mended.record.verification.checks]
    assert checks == "repaired tokens,neighbours,other texts,fresh process,tokenizers,scores".split(",")


def test_no_text_produces_an_entry_that_is_verified_to_be_unreachable(run, task, tmp_path):
    options = {"sentences": repaired.unused_corpus(), "task": task}
    found = repair(run, out=tmp_path / "out", strategy="unreachable", **options)
    assert found.verified is True, found.record.verification
    assert "unreachable" in [check.name for check in found.record.verification.checks]
    (token_id,) = run.token(repaired.WORD)["token_id"]
    ids = found.model.tokenizer.encode(f"{repaired.WORD} a {repaired.WORD}{repaired.WORD}").ids
    assert token_id not in ids
    assert len(ids) > 4


def test_the_same_call_opens_the_repair_and_another_one_is_refused(run, mended, task):
    before = planted.files_of(mended.path)
    left = mended.path.with_name(f".{mended.path.name}.repairing")
    (left / "model").mkdir(parents=True)  # the first call was killed after its last step
    again = repair(run.path, out=mended.path, sentences=repaired.unused_corpus(), task=task)
    assert again.record == mended.record
    assert not left.exists()
    assert planted.files_of(mended.path) == before
    with pytest.raises(RunError, match=r"contains a different repair \(it differs in settings.seed"):
        repair(run, out=mended.path, sentences=repaired.unused_corpus(), task=task, seed=5)
    with pytest.raises(RunError, match="differs in tokens"):
        repair(run, [repaired.WORD], out=mended.path, sentences=repaired.unused_corpus(), task=task)


def test_the_same_call_puts_a_record_into_the_run_folder_that_a_kill_kept_out_of_it(run, tmp_path):
    own = stickytoken.open_run(shutil.copytree(run.path, tmp_path / "run"))
    made = quick(own, tmp_path / "model")
    kept = own.path / f"repair-{made.record.identity[:12]}"
    shutil.rmtree(kept)
    quick(own, tmp_path / "model")
    assert json.loads((kept / REPAIR_FILE).read_text("utf-8"))["identity"] == made.record.identity


@pytest.mark.usefixtures("mended")
def test_the_report_of_the_run_knows_the_repair(run):
    document = json.loads(stickytoken.report(run, format="json"))
    (figure,) = [each for each in document["figures"] if each["name"] == "repair"]
    assert {row[0] for row in figure["rows"]} == set(NAMES)
    assert figure["alt"].startswith("Verified.")
    assert any(name.startswith("repair ") for name in document["computed"])
    assert "## What a repair changed" in stickytoken.report(run, format="md")


def present_rows(matrix, _backend, ids, *_):
    return {token_id: matrix[token_id] for token_id in ids}


def test_pieces_are_measured_as_text_and_what_copies_erase_counts(run, task, tmp_path, monkeypatch):
    monkeypatch.setattr("stickytoken.repairs.rows.related_rows", present_rows)
    (token,) = stickytoken.repair(run, [repaired.WORD], out=tmp_path / "out", task=task).record.tokens
    row, pieces = (each.deviations for each in token.tried)
    assert token.strategy == token.tried[1].strategy == "unreachable"
    assert row == pytest.approx(token.before.deviations, abs=0.1)
    assert pieces <= 0.25
    monkeypatch.setattr("stickytoken.repairs.share_erased", lambda *_: 3.0)
    (token,) = stickytoken.repair(run, [repaired.WORD], out=tmp_path / "other", task=task).record.tokens
    assert {each.deviations for each in token.tried} == {3.0}


def test_a_repair_that_does_not_verify_says_so_and_ends_with_status_3(run, task, tmp_path, monkeypatch):
    monkeypatch.setattr("stickytoken.repairs.rows.related_rows", present_rows)
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(repaired.unused_corpus().texts), encoding="utf-8")
    documents = tmp_path / "documents.csv"
    documents.write_text(f"id,text\na,{repaired.WORD}\nb,\nc,{profiled.WORDS[0]}\n", encoding="utf-8")
    command = ["repair", run.path, "--tokens", repaired.WORD, "--strategy", "relatives", "--seed", 3]
    command += ["--sentences", texts, "--task", task, "--affected", documents, "--out", tmp_path / "out"]
    result = planted.command(*command, "--format", "json")
    assert result.exit_code == 3, result.stderr
    found = json.loads(result.stdout)
    assert found["verified"] is False
    failed = [check["name"] for check in found["verification"]["checks"] if not check["passed"]]
    assert failed == ["repaired tokens"]
    assert "NOT VERIFIED" in (tmp_path / "out" / DOCUMENT_FILE).read_text("utf-8")
    assert found["affected"]["documents"] == 3
    assert pl.read_parquet(found["affected"]["file"])["id"].to_list() == ["a"]
    again = planted.command(*command)
    assert again.exit_code == 3
    assert "FAILED  repaired tokens" in again.stdout


def test_an_unverified_repair_says_so(run, tmp_path):
    found = quick(run, tmp_path / "out", tokens=[repaired.WORD])
    assert found.verified is None
    assert "not verified" in repr(found)
    assert found.tokens["deviations_after"].to_list() == [None]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_texts_of_a_verification_are_those_that_the_run_has_not_used(run):
    encoder = load_encoder(run.path.parent / "model")
    vocabulary = categorize(encoder.tokenizer)
    corpus = profiled.corpus(300)
    assert set(run.plan.carriers) <= {text.rstrip(".") for text in corpus.texts}
    used = used_texts(run)
    job = RecheckJob(encoder, vocabulary, corpus, run.plan, used, profiled.SMALL, 1, True, ignore_progress)
    plan = recheck(job, "again").plan
    ours, theirs = (
        {text.rstrip(".") for text in (*each.carriers, *(anchor.text for anchor in each.anchors))}
        for each in (plan, run.plan)
    )
    assert ours & theirs == set()
    assert len(plan.carriers) == 24


def test_neighbours_are_the_nearest_rows_by_a_plain_sort(run):
    encoder = load_encoder(run.path.parent / "model")
    vocabulary = categorize(encoder.tokenizer)
    rows = encoder.model[0].embedding.weight.detach().numpy().astype(np.float64)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    (token_id,) = run.token(profiled.WORDS[3])["token_id"]
    usable = {token.id for token in vocabulary.available} - {token_id}
    nearest = [k for k in np.argsort(-(units @ units[token_id])) if k in usable][:3]
    found = neighbours_of(encoder, vocabulary, [token_id], 3, {nearest[0]: "benign"})
    verdicts = ["benign", None, None]
    assert [(token.id, verdict) for token, _, verdict in found] == list(zip(nearest, verdicts, strict=True))


def test_a_token_that_nothing_else_repairs_gets_the_row_of_the_nearest_ordinary_one(run, tmp_path):
    found = quick(run, tmp_path / "out", tokens=[repaired.LETTER])
    before, after = (
        load_encoder(each).model[0].embedding.weight.detach().numpy()
        for each in (run.path.parent / "model", found.path)
    )
    (changed,) = np.flatnonzero((before != after).any(axis=1)).tolist()
    low = [pl.col(each) <= pl.col(each).median() for each in ("lift", "contraction")]
    units = exact_unit_vectors(before - before.mean(axis=0))
    ordinary = run.tokens.filter(*low, verdict="benign", category="OK")["token_id"]
    nearest = max({*ordinary} - {changed}, key=lambda each: units[each] @ units[changed])
    assert np.array_equal(after[changed], before[nearest])
    assert f"(that of {run.token(nearest)['token'].item()!r})" in found.record.tokens[0].reason


@pytest.mark.parametrize(
    ("options", "kind", "reason"),
    [
        ({"tokens": ["no such token"]}, InputError, "no token 'no such token'"),
        ({"tokens": [10**6]}, InputError, "no token id 1000000"),
        ({"tokens": []}, InputError, "name at least one"),
        ({"strategy": "magic"}, InputError, "strategy is 'magic': it must be auto or"),
        ({"strategy": "plain-specials"}, RepairError, "not a special token"),
        ({"strategy": "unreachable", "tokens": [repaired.LETTER]}, RepairError, "'!'"),
        ({"task": "no/such.csv"}, InputError, "no task file"),
        ({"encoder": "no/such/model"}, ModelError, "no folder"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_writes_nothing(run, tmp_path, options, kind, reason):
    with pytest.raises(kind, match=reason) as error:
        quick(run, tmp_path / "out", **options)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_run_or_model_that_does_not_suit_is_refused(run, finished_run, bert_folder, tmp_path):
    assert finished_run.sticky.is_empty()
    with pytest.raises(InputError, match="found no sticky tokens: name the tokens"):
        quick(finished_run, tmp_path / "out")
    model = SentenceTransformer(str(run.path.parent / "model"), device="cpu")
    with pytest.raises(RepairError, match="passed as an object"):
        quick(run, tmp_path / "out", encoder=model)
    with pytest.raises(RunError, match="another model"):
        quick(run, tmp_path / "out", encoder=bert_folder)


def test_the_model_folder_is_never_written_into(run, tmp_path):
    folder = run.path.parent / "model"
    before = planted.files_of(folder)
    for out in (folder, folder / "new"):
        with pytest.raises(StickyTokenError, match="folder"):
            quick(run, out)
    assert planted.files_of(folder) == before


def repair_and_die(run, out, module, function):
    setattr(sys.modules[module], function, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    quick(run, out)


@pytest.mark.parametrize(
    ("module", "step"),
    [("stickytoken.repairs.documents", "repair_block"), ("stickytoken.measurement", "move_folder")],
)
def test_a_kill_at_the_end_leaves_no_folder_that_looks_finished(run, tmp_path, module, step):
    assert finished(repair_and_die, str(run.path), tmp_path / "out", module, step) == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert (quick(run, tmp_path / "out").path / REPAIR_FILE).is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_bad_input_is_refused_in_one_line(run, tmp_path):
    command = ("repair", run.path, "--out", tmp_path / "out")
    planted.refused(*command, "--column", "text", saying="without --affected")
    planted.refused(*command, "--affected", tmp_path / "no.csv", saying="no file")
    assert not (tmp_path / "out").exists()
