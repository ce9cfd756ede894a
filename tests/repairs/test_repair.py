"""Repair of a real model, from its run to a folder that anyone loads."""

import errno
import json
import os
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sentence_transformers import SentenceTransformer

import planted
import profiled
import repaired
import stickytoken
import tiny
from interrupted import finished
from naming import naming, says
from stickytoken import RepairSettings, load_encoder
from stickytoken.data import collect_sentences
from stickytoken.errors import (
    InputError,
    ModelError,
    RepairError,
    RunError,
    StickyTokenError,
    StickyTokenWarning,
)
from stickytoken.repairs import _job, repair
from stickytoken.repairs._verification import texts_with
from stickytoken.repairs.recheck import list_used_texts
from stickytoken.repairs.records import DOCUMENT_FILE, REPAIR_FILE
from stickytoken.unit_vectors import exact_unit_vectors

pytestmark = pytest.mark.slow  # whole runs

NAMES = (repaired.WORD, repaired.OTHER)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    saved = repaired.saved_run(tmp_path_factory.mktemp("repairing"), *NAMES)
    assert set(saved.sticky["token"]) == set(NAMES)
    return saved


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return repaired.task_file(tmp_path_factory.mktemp("task"))


@pytest.fixture(scope="module")
def mended(run, task, tmp_path_factory):
    out = tmp_path_factory.mktemp("mended") / "model"
    before = planted.files_of(run.path.parent / "model")
    mended = repair(run, out=out, sentences=repaired.unused_corpus(), task=task)
    assert planted.files_of(run.path.parent / "model") == before
    return mended


def quick(run, out, strategy="auto", **options):
    return repair(run, out=out, settings=RepairSettings(strategy=strategy, verify=False), **options)


def checks_of(repair):
    return [check.name for check in repair.record.verification.checks]


def test_the_repaired_tokens_are_not_sticky(mended):
    assert mended.verified is True, mended.record.verification
    rows = {row["token"]: row for row in mended.tokens.to_dicts()}
    assert set(rows) == set(NAMES)
    for row in rows.values():
        assert row["strategy"] == "relatives"
        assert row["verdict_before"] == "sticky"
        assert row["verdict_after"] == "benign"
        assert row["reason"]


def test_erased_shares_fall_below_their_threshold(mended):
    for row in mended.tokens.to_dicts():
        assert row["erased_before"] > 0.4 > row["erased_after"]


def test_every_check_of_a_new_row_is_made(mended):
    names = ["repaired tokens", "neighbours", "other texts", "fresh process", "tokenizers", "scores"]
    assert checks_of(mended) == names


def finding_of(repair, name):
    (finding,) = [check.finding for check in repair.record.verification.checks if check.name == name]
    return finding


def test_a_task_without_the_repaired_tokens_is_not_scored(mended):
    assert mended.record.verification.scores == []
    assert says(finding_of(mended, "scores"), "none", 24)


def test_the_folder_needs_no_stickytoken(mended):
    assert "stickytoken" not in (mended.path / "modules.json").read_text("utf-8")


def own_run(run, folder):
    """A copy of the run beside the same model, whose report knows no repair of other tests."""
    shutil.copytree(run.path, folder / "run", ignore=shutil.ignore_patterns("repair-*"))
    return stickytoken.open_run(folder / "run")


def test_unknown_characters_may_still_become_the_unknown_token(run, tmp_path):
    corpus = repaired.unused_corpus()
    # In one text of twenty, so that the characters that the tokenizer doesn't know call for no warning.
    texts = [f"{text} 🧳" if index % 20 == 0 else text for index, text in enumerate(corpus.texts)]
    with_emoji = stickytoken.data.collect_sentences(texts, "emoji")
    plain = repair(own_run(run, tmp_path), ["[UNK]"], out=tmp_path / "out", sentences=with_emoji)
    assert plain.tokens["strategy"].to_list() == ["plain-specials"]
    failed = [check.name for check in plain.record.verification.checks if not check.passed]
    assert "unreachable" not in failed


def count_other_texts(repair):
    count = re.search(r"of ([\d,]+) texts", finding_of(repair, "other texts"))[1]
    return int(count.replace(",", ""))


def test_no_text_produces_an_unreachable_entry(run, mended, task, tmp_path):
    options = {"sentences": repaired.unused_corpus(), "task": task}
    settings = RepairSettings(strategy="unreachable")
    split = repair(own_run(run, tmp_path), out=tmp_path / "out", settings=settings, **options)
    # Pieces are judged by their push alone, and these texts do not suffice for documents.
    (failed,) = [check for check in split.record.verification.checks if not check.passed]
    assert says(failed.finding, "2 repaired tokens", "could not be measured")
    assert "unreachable" in checks_of(split)
    # If the tokenizer is edited, the other texts include spellings of the special tokens.
    special_tokens = split.model.tokenizer.get_added_tokens_decoder().values()
    spellings = [text for special_token in special_tokens for text in texts_with(special_token.content)]
    assert count_other_texts(split) == count_other_texts(mended) + len(spellings)
    (token_id,) = run.token(repaired.WORD)["token_id"]
    ids = split.model.tokenizer.encode(f"{repaired.WORD} a {repaired.WORD}{repaired.WORD}").ids
    assert token_id not in ids
    assert len(ids) > 4
    # Pieces are more tokens than one, and erase more whatever they are.
    assert split.tokens["erased_after"].to_list() == [None, None]
    assert split.tokens["erased_before"].null_count() == 0


def test_the_same_call_opens_the_repair(run, mended, task):
    before = planted.files_of(mended.path)
    unfinished_folder = mended.path.with_name(f".{mended.path.name}.repairing")
    (unfinished_folder / "model").mkdir(parents=True)  # the first call was killed after its last step
    again = repair(run.path, out=mended.path, sentences=repaired.unused_corpus(), task=task)
    assert again.record == mended.record
    assert not unfinished_folder.exists()
    assert planted.files_of(mended.path) == before


@pytest.mark.parametrize(
    ("changes", "difference"),
    [({"settings": RepairSettings(seed=5)}, "settings.seed"), ({"tokens": [repaired.WORD]}, "tokens")],
)
def test_another_repair_in_the_same_folder_is_refused(run, mended, task, changes, difference):
    options = {"sentences": repaired.unused_corpus(), "task": task} | changes
    with pytest.raises(RunError, match=naming(mended.path, difference)):
        repair(run, out=mended.path, **options)


def test_the_same_call_restores_the_copy_in_the_run_folder(run, tmp_path):
    own_run = stickytoken.open_run(shutil.copytree(run.path, tmp_path / "run"))
    quick_repair = quick(own_run, tmp_path / "model")
    record_folder = own_run.path / f"repair-{quick_repair.record.identity[:12]}"
    shutil.rmtree(record_folder)
    quick(own_run, tmp_path / "model")
    assert (
        json.loads((record_folder / REPAIR_FILE).read_text("utf-8"))["identity"]
        == quick_repair.record.identity
    )


@pytest.mark.usefixtures("mended")
def test_the_report_of_the_run_knows_the_repair(run):
    document = json.loads(stickytoken.report(run, format="json"))
    (figure,) = [drawn_figure for drawn_figure in document["figures"] if drawn_figure["name"] == "repair"]
    assert {row[0] for row in figure["rows"]} == set(NAMES)
    assert figure["alt"].startswith("Verified.")
    assert any(name.startswith("repair ") for name in document["computed"])
    assert "## What a repair changed" in stickytoken.report(run, format="md")


def embeddings_of(model):
    return model[0].embedding.weight.detach().numpy()


def test_rows_that_still_erase_are_rejected_and_pieces_are_tried_as_text(run, task, tmp_path, monkeypatch):
    (word,) = run.token(repaired.WORD)["token_id"]

    def erasing_rows(model, ids, *_):
        """The present row for one token; for the other, one so long that nothing of a text is left."""
        rows = {token_id: embeddings_of(model)[token_id] for token_id in ids}
        long_row = np.zeros(embeddings_of(model).shape[1], dtype=np.float32)
        long_row[-1] = 30.0  # a direction that no text has
        return {token_id: row if token_id == word else long_row for token_id, row in rows.items()}

    written_at = []

    def note_model(_progress):
        tokenizer_file = tmp_path / ".out.repairing" / "model" / "tokenizer.json"
        if tokenizer_file.is_file():
            written_at.append(tokenizer_file.stat().st_ctime_ns)

    monkeypatch.setattr(_job, "make_related_rows", erasing_rows)
    mended = repair(run, out=tmp_path / "out", task=task, progress=note_model)
    assert len(set(written_at)) == 2  # with rows, and with pieces, which are kept
    assert (mended.path / "tokenizer.json").stat().st_ctime_ns == written_at[-1]
    for token in mended.record.tokens:
        row, pieces = token.tried
        assert row.strategy == "relatives"
        if token.token_id == word:
            assert row.erased == pytest.approx(token.before.erased, abs=0.05)
        else:
            assert row.erased > 0.8
        assert token.strategy == pieces.strategy == "unreachable"
        assert pieces.erased is None
        assert says(token.reason, "rejected", "relatives")


def test_a_repair_that_does_not_verify_says_so_and_ends_with_status_3(run, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(repaired.unused_corpus().texts), encoding="utf-8")
    task = tmp_path / "pairs.csv"  # has the repaired word, so that it is scored
    pairs = [f"a {word},the {repaired.WORD} {word},{k}" for k, word in enumerate(profiled.WORDS[:6])]
    pairs[0] = pairs[0].replace("a ", '"a\n', 1).replace(",", '",', 1)  # a field of two lines, which is noted
    task.write_text("\n".join(["sentence1,sentence2,score", *pairs]), encoding="utf-8")
    documents = tmp_path / "documents.csv"
    documents.write_text(f"id,text\na,{repaired.WORD}\nb,\nc,{profiled.WORDS[0]}\n", encoding="utf-8")
    command = ["repair", run.path, "--tokens", repaired.WORD, "--strategy", "unreachable", "--seed", 3]
    command += ["--sentences", texts, "--task", task, "--affected", documents, "--out", tmp_path / "out"]
    result = planted.command(*command, "--format", "json")
    assert result.exit_code == 3, result.stderr
    document = json.loads(result.stdout)
    assert document["verified"] is False
    failed = [check["name"] for check in document["verification"]["checks"] if not check["passed"]]
    assert "repaired tokens" in failed
    assert {score["texts"] for score in document["verification"]["scores"]} == {12}
    assert any(says(note, "pairs.csv") for note in document["notes"])
    assert "NOT VERIFIED" in (tmp_path / "out" / DOCUMENT_FILE).read_text("utf-8")
    assert document["affected"]["documents"] == 3
    assert pl.read_parquet(document["affected"]["file"])["id"].to_list() == ["a"]
    again = planted.command(*command)
    assert again.exit_code == 3
    assert says(again.stdout, "FAILED", "repaired tokens")


def test_a_run_folder_that_cannot_be_written_costs_only_the_report(run, tmp_path, monkeypatch):
    closed = shutil.copytree(run.path, tmp_path / "a run", ignore=shutil.ignore_patterns("repair-*"))
    make_directory = Path.mkdir

    def refuse_in_run(path, *arguments, **options):
        # What a read-only folder does, which root may write.
        if path.is_relative_to(closed):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        make_directory(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", refuse_in_run)
    out = tmp_path / "out"
    command = ("repair", closed, "--no-verify", "--tokens", repaired.WORD, "--out", out)
    for _ in range(2):  # the second call opens the finished repair
        with pytest.warns(StickyTokenWarning, match=naming(out, closed)):
            result = planted.command(*command)
        assert result.exit_code == 0, result.stderr
        assert says(result.stdout, out)
        assert "stickytoken report" not in result.stderr
    assert not list(closed.glob("repair-*"))
    monkeypatch.undo()
    result = planted.command(*command)
    assert f"stickytoken report {shlex.quote(str(closed))}" in result.stderr
    assert len(list(closed.glob("repair-*"))) == 1


def test_an_unverified_repair_says_so(run, tmp_path):
    repair_found = quick(run, tmp_path / "out", tokens=[repaired.WORD])
    assert repair_found.verified is None
    assert repair_found.record.notes == []  # such as one on the texts of a verification
    assert "not verified" in repr(repair_found)
    assert repair_found.tokens["push_after"].to_list() == [None]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_unverified_repair_needs_no_texts_that_the_run_has_left(run, tmp_path):
    used = collect_sentences(list_used_texts(run), "used texts")
    with pytest.raises(InputError, match=naming("used", "used texts")):
        repair(run, out=tmp_path / "out", sentences=used, tokens=[repaired.WORD])
    assert quick(run, tmp_path / "out", sentences=used, tokens=[repaired.WORD]).verified is None


def test_a_token_that_nothing_else_repairs_gets_the_row_of_the_nearest_ordinary_one(run, tmp_path):
    repair_found = quick(run, tmp_path / "out", tokens=[repaired.LETTER])
    before, after = (
        embeddings_of(load_encoder(folder).model) for folder in (run.path.parent / "model", repair_found.path)
    )
    (changed,) = np.flatnonzero((before != after).any(axis=1)).tolist()
    low = pl.col("erased") <= pl.col("erased").median()
    units = exact_unit_vectors(before - before.mean(axis=0))
    ordinary = run.tokens.filter(low, verdict="benign", category="OK")["token_id"]
    nearest = max({*ordinary} - {changed}, key=lambda row: units[row] @ units[changed])
    assert np.array_equal(after[changed], before[nearest])
    assert f"({run.token(nearest)['token'].item()!r})" in repair_found.record.tokens[0].reason


@pytest.mark.parametrize(
    ("options", "kind", "reason"),
    [
        ({"tokens": ["no such token"]}, InputError, "'no such token'"),
        ({"tokens": [10**6]}, InputError, naming(10**6)),
        ({"strategy": "magic"}, InputError, naming("strategy", "'magic'", "auto")),
        ({"strategy": "plain-specials"}, RepairError, naming("plain-specials")),
        ({"strategy": "unreachable", "tokens": [repaired.LETTER]}, RepairError, "'!'"),
        ({"task": "no/such.csv"}, InputError, "no/such.csv"),
        ({"encoder": "no/such/model"}, ModelError, "no/such/model"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_writes_nothing(run, tmp_path, options, kind, reason):
    with pytest.raises(kind, match=reason) as error:
        quick(run, tmp_path / "out", **options)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def rowless_run(tmp_path_factory):
    """A run of a model whose tokenizer has a special token that the embedding matrix has no row for."""
    root = tmp_path_factory.mktemp("rowless")
    model = tiny.sentence_transformer(tiny.bert_backbone(root / "backbone", words=profiled.WORDS))
    model.tokenizer.add_special_tokens({"additional_special_tokens": ["<extra>"]})
    model.save(str(root / "model"))
    return profiled.detect_profile(load_encoder(root / "model", device="cpu"), root / "run", sample=40)


@pytest.mark.parametrize(
    "settings",
    [RepairSettings(), RepairSettings(strategy="nearest", verify=False)],
    ids=["verified", "nearest"],
)
def test_a_token_without_a_row_is_refused(rowless_run, tmp_path, settings):
    token_id = rowless_run.vocabulary.filter(token="<extra>")["token_id"].item()
    with pytest.raises(RepairError, match=naming("'<extra>'", token_id)):
        repair(rowless_run, [token_id], out=tmp_path / "model", settings=settings)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("named", [("river", "<extra>"), ("<extra>", "river")])
def test_a_token_without_a_row_beside_another_is_the_one_that_is_refused(rowless_run, tmp_path, named):
    vocabulary = rowless_run.vocabulary
    ids = [vocabulary.filter(token=token)["token_id"].item() for token in named]
    with pytest.raises(RepairError, match=naming("'<extra>'")):
        quick(rowless_run, tmp_path / "model", strategy="nearest", tokens=ids)


def test_the_text_of_a_token_without_a_row_becomes_plain(rowless_run, tmp_path):
    token_id = rowless_run.vocabulary.filter(token="<extra>")["token_id"].item()
    mended = quick(rowless_run, tmp_path / "model", tokens=[token_id])
    assert mended.tokens["strategy"].to_list() == ["plain-specials"]


def test_a_run_or_model_that_does_not_suit_is_refused(run, finished_run, bert_folder, tmp_path):
    assert finished_run.sticky.is_empty()
    with pytest.raises(InputError, match=naming(finished_run.path)):
        quick(finished_run, tmp_path / "out")
    with pytest.raises(InputError):
        quick(run, tmp_path / "out", tokens=[])
    model = SentenceTransformer(str(run.path.parent / "model"), device="cpu")
    with pytest.raises(RepairError, match=naming(load_encoder(model).name)):
        quick(run, tmp_path / "out", encoder=model)
    with pytest.raises(RunError, match=naming(run.path, "weights")):
        quick(run, tmp_path / "out", encoder=bert_folder)


def test_the_model_folder_is_never_written_into(run, tmp_path):
    folder = run.path.parent / "model"
    before = planted.files_of(folder)
    for out in (folder, folder / "new"):
        with pytest.raises(StickyTokenError, match=naming(out)):
            quick(run, out)
    assert planted.files_of(folder) == before


def repair_and_die(run, out, module, function):
    setattr(sys.modules[module], function, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    quick(run, out)


def test_an_interrupt_after_the_model_is_written_says_so(run, tmp_path, monkeypatch):
    documents = tmp_path / "documents.csv"
    documents.write_text(f"id,text\na,{repaired.WORD}\n", encoding="utf-8")
    out = tmp_path / "out"
    command = ("repair", run.path, "--no-verify", "--strategy", "nearest", "--affected", documents)

    def interrupt(*_, **options):
        del options
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("stickytoken.repairs.result.find_affected_in", interrupt)
        result = planted.command(*command, "--out", out)
    assert result.exit_code == 130
    assert says(planted.lines_of(result.stderr)[-1], "interrupted", f"finished: {out}", "to continue")
    assert "nothing was written" not in result.stderr
    assert planted.command(*command, "--out", out).exit_code == 0
    monkeypatch.setattr("stickytoken.repair", interrupt)
    result = planted.command(*command, "--out", tmp_path / "other")
    assert says(planted.lines_of(result.stderr)[-1], "nothing was written")


def test_a_list_of_affected_documents_that_fails_hides_neither_model_nor_result(run, tmp_path, monkeypatch):
    documents = tmp_path / "documents.csv"
    documents.write_text(f"id,text\na,{repaired.WORD}\n", encoding="utf-8")
    out = tmp_path / "out"
    command = ("repair", run.path, "--no-verify", "--strategy", "nearest", "--affected", documents)

    def refuse(*_):
        raise RunError("no space for the list")

    monkeypatch.setattr("stickytoken.repairs.result.find_affected_in", refuse)
    result = planted.command(*command, "--out", out)
    assert result.exit_code == 1
    assert says(planted.lines_of(result.stderr)[-1], "error: no space for the list", f"finished: {out}")
    assert says(result.stdout, f"repaired model: {out}")
    result = planted.command(*command, "--out", out, "--format", "json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert says(planted.lines_of(result.stderr)[-1], f"finished: {out}")


@pytest.mark.parametrize(
    ("module", "step"),
    [("stickytoken.repairs._documents", "format_block"), ("stickytoken.measurement.store", "move_folder")],
)
def test_a_kill_at_the_end_leaves_no_folder_that_looks_finished(run, tmp_path, module, step):
    assert finished(repair_and_die, str(run.path), tmp_path / "out", module, step) == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert (quick(run, tmp_path / "out").path / REPAIR_FILE).is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_run_folder_may_be_written_with_a_tilde(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(run.path.parent))
    options = ("--no-verify", "--strategy", "nearest", "--out", tmp_path / "out")
    result = planted.command("repair", f"~/{run.path.name}", *options)
    assert result.exit_code == 0, result.stderr
    assert f"stickytoken report {shlex.quote(str(run.path))}" in result.stderr


def test_bad_input_is_refused_in_one_line(run, tmp_path):
    command = ("repair", run.path, "--out", tmp_path / "out")
    for option, value in (("--column", "text"), ("--template", "{title}. {text}"), ("--set", "delimiter=;")):
        planted.assert_refused(*command, option, value, saying=naming(option, value, "--affected"))
    planted.assert_refused(*command, "--affected", tmp_path / "no.csv", saying=naming(tmp_path / "no.csv"))
    documents = tmp_path / "out-affected.parquet"  # where the affected ones of them would be listed
    pl.DataFrame({"text": ["the river"]}).write_parquet(documents)
    planted.assert_refused(*command, "--affected", documents, saying=naming(documents))
    assert pl.read_parquet(documents)["text"].to_list() == ["the river"]
    assert not (tmp_path / "out").exists()
