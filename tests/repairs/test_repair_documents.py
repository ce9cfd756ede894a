"""What a repair writes for people, repair.json, and the documents that it affects."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import repaired
import tiny
from hostile import HOSTILE
from naming import naming
from stickytoken.errors import RepairError, RunError
from stickytoken.repairs import open_repair, records
from stickytoken.repairs._documents import format_block, format_document, write_documents
from stickytoken.repairs.model_folder import write_model
from stickytoken.repairs.records import REPAIR_FILE
from stickytoken.repairs.result import _tokenize_function
from stickytoken.repairs.tokenizer_edit import ModelEdit, read_pipeline


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tokens_break_no_table_and_stay_visible(name):
    text = format_document(repaired.repair_record(name, "river"))
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "<b>" not in text
    tables = [line for line in text.split("\n") if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in tables} <= {4, 5, 6, 11}


def test_a_repair_that_did_not_verify_is_not_written_as_if_it_had_been():
    failed = repaired.repair_record("river", passed=False)
    for text in (format_document(failed), format_block(failed)):
        assert "NOT VERIFIED" in text
        assert "Do not rely on it" in text
        assert "bit for bit" not in text
    assert "**FAILED**" in format_document(failed)
    unseen = repaired.repair_record("river", passed=None)
    assert "NOT VERIFIED: the verification was switched off" in format_document(unseen)
    record_found = repaired.repair_record("river")
    assert "NOT VERIFIED" not in format_document(record_found) + format_block(record_found)


def test_a_folder_gets_its_documents_and_the_card_keeps_what_it_said(tmp_path):
    record = repaired.repair_record("river", "\x1b[31m")
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# Model\n", encoding="utf-8")
    write_documents(tmp_path, record)
    card = (tmp_path / "README.md").read_text("utf-8")
    assert card.startswith("---\nlicense: mit\n---\n# Model\n\n## Repaired tokens\n")
    names = {"README.md", records.DOCUMENT_FILE, REPAIR_FILE}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert open_repair(tmp_path).record == record


def test_a_repair_is_a_table_in_the_units_of_the_rule():
    (row,) = records.token_rows(repaired.repair_record("river"))
    assert (row["erased_before"], row["erased_after"]) == (0.45, 0.02)
    assert (row["push_before"], row["push_after"]) == (1.9, 0.7)
    assert (row["found_before"], row["found_after"]) == (0.6, 0.9)
    assert (row["verdict_before"], row["verdict_after"]) == ("sticky", "benign")


def test_the_document_shows_all_measures_before_and_after():
    document = format_document(repaired.repair_record("river"))
    assert "| 45% | 2% | 1.9× | 0.7× | 60% | 90% |" in document
    assert "40%" in document
    assert "93%" in document


def test_numbers_that_were_not_measured_are_missing():
    unseen = repaired.repair_record("river", passed=None)
    (row,) = records.token_rows(unseen)
    assert row["push_after"] is None
    assert "| – | – | – | – | – | – |" in format_document(unseen)


def changed(record, **after):
    """The record of one token, with other numbers after the repair."""
    (token,) = record.tokens
    measured = token.after.model_copy(update=after)
    return record.model_copy(update={"tokens": [token.model_copy(update={"after": measured})]})


def test_the_erased_share_of_pieces_is_missing():
    document = format_document(changed(repaired.repair_record("river"), erased=None))
    assert "| 45% | – | 1.9× | 0.7× |" in document


def test_the_document_says_what_the_verification_shares_with_the_detection():
    document = format_document(repaired.repair_record("river"))
    assert all(phrase in document for phrase in ("queries of the detection", "others receive copies"))
    assert "slightly worse in others" in document


def test_a_rounded_zero_has_no_minus_sign():
    document = format_document(changed(repaired.repair_record("river"), push=0.001, erased=-0.001))
    assert "| 45% | 0% | 1.9× | 0.0× |" in document


def test_pieces_are_a_column_only_if_a_token_has_any():
    record = repaired.repair_record("river")
    assert "| read as |" in format_document(record)
    (token,) = record.tokens
    without_pieces = record.model_copy(update={"tokens": [token.model_copy(update={"pieces": []})]})
    assert "read as |" not in format_document(without_pieces)


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    records.require_empty_or_repair(tmp_path / "new")
    records.require_empty_or_repair(tmp_path)  # empty
    (tmp_path / "file.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    mounted = Path(tmp_path.anchor)
    for path in (tmp_path, tmp_path / "file.txt", tmp_path / "link", mounted):
        with pytest.raises(RunError, match=naming(path)):
            records.require_empty_or_repair(path)


@pytest.mark.parametrize("names_path", [True, False])
def test_the_current_folder_is_refused(tmp_path, monkeypatch, names_path):
    """The repaired model would replace it, and whoever is in it would see an empty folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="current folder"):
        records.require_empty_or_repair(tmp_path if names_path else Path())


LATER = {"schema_version": 99, "an_entry": "that this version does not know"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((content, REPAIR_FILE) for content in ("", "{", "[]", '{"schema_version": 3}')),
        ('{"schema_version": 1}', naming(1, "repair")),
        (json.dumps(repaired.repair_record("river").model_dump(mode="json") | LATER), naming(99)),
    ],
)
def test_a_damaged_or_newer_record_is_an_error_in_one_line(tmp_path, content, message):
    (tmp_path / REPAIR_FILE).write_text(content, encoding="utf-8")
    with pytest.raises(RunError, match=message) as error:
        open_repair(tmp_path)
    assert "\n" not in str(error.value)


def test_a_run_folder_keeps_the_records_of_its_repairs(tmp_path):
    older = repaired.repair_record("river")
    newer = older.model_copy(update={"identity": "f" * 64, "started": "2026-02-01T00:00:00+00:00"})
    for record in (older, newer):
        records.keep_copy(tmp_path, record)
    (tmp_path / "repair-broken").mkdir()
    (tmp_path / "repair-broken" / REPAIR_FILE).write_text("{", encoding="utf-8")
    repairs_found, unread = records.repairs_in(tmp_path)
    assert repairs_found == (newer, older)
    assert len(unread) == 1
    assert json.loads((tmp_path / "repair-0123456789ab" / REPAIR_FILE).read_text("utf-8"))["model"] == "model"


TEXTS = [*tiny.sentences(60), "a [CLS] b", "", "bird bird bird bird", "river " * 100 + "stone"]


@pytest.fixture(scope="module")
def vocabulary(pristine):
    return read_pipeline(pristine).document["model"]["vocab"]


@pytest.fixture
def repair_of(pristine, tmp_path):
    def edited(rows=(), unreachable=(), plain_specials=(), model=pristine, prompt=""):
        new = {token_id: np.ones(32, dtype=np.float32) for token_id in rows}
        write_model(model, tmp_path / "out", ModelEdit(new, unreachable, plain_specials))
        strategies = dict.fromkeys(rows, "relatives") | dict.fromkeys(unreachable, "unreachable")
        strategies |= dict.fromkeys(plain_specials, "plain-specials")
        record = repaired.repair_record("any")
        tokens = [
            record.tokens[0].model_copy(update={"token_id": token_id, "strategy": strategy})
            for token_id, strategy in strategies.items()
        ]
        changes = {"tokens": tokens, "identity_parts": {"encoder": {"prompt": prompt}}}
        written = record.model_copy(update=changes).model_dump_json()
        (tmp_path / "out" / REPAIR_FILE).write_text(written, "utf-8")
        return open_repair(tmp_path / "out")

    return edited


@pytest.mark.parametrize("name", ["all", "template", "nothing"])
def test_affected_documents_are_those_whose_vectors_change(name, pristine, vocabulary, repair_of):
    river, stone, cls = ((vocabulary[word],) for word in ("river", "stone", "[CLS]"))
    repair = repair_of(*{"all": (river, stone, cls), "template": ((), (), cls), "nothing": ()}[name])
    before = SentenceTransformer(str(pristine), device="cpu")
    after = SentenceTransformer(str(repair.path), device="cpu")
    changed = [
        number
        for number, text in enumerate(TEXTS)
        if not np.array_equal(before.encode([text]), after.encode([text]))
    ]
    assert repair.affected(TEXTS, pristine)["index"].to_list() == changed
    assert bool(changed) is (name != "nothing")


def test_a_token_behind_the_stored_maximum_length_counts(pristine, vocabulary, repair_of, tmp_path):
    """A loaded model may read more than its files say, if it is told so."""
    model = Path(shutil.copytree(pristine, tmp_path / "model"))
    stored = json.loads((model / "tokenizer_config.json").read_text("utf-8"))
    (model / "tokenizer_config.json").write_text(json.dumps(stored | {"model_max_length": 8}), "utf-8")
    repair = repair_of((vocabulary["river"],), model=model)
    text = "a bird " * 5 + "river"
    before, after = (SentenceTransformer(str(folder), device="cpu") for folder in (model, repair.path))
    for loaded in (before, after):
        loaded.max_seq_length = 32
    assert not np.array_equal(before.encode([text]), after.encode([text]))
    assert repair.affected([text, "a bird " * 6], model).rows() == [(0, [vocabulary["river"]])]


def test_the_ids_of_a_document_do_not_depend_on_the_others(tmp_path):
    """The file of a static model's tokenizer may say that it pads a batch to its longest text."""
    tokenizer = tiny.wordpiece_tokenizer().backend_tokenizer
    tiny.static_model(tokenizer, torch.ones(tokenizer.get_vocab_size(), 4)).save(str(tmp_path / "model"))
    tokenizer.enable_padding()
    (path,) = (tmp_path / "model").rglob("tokenizer.json")
    tokenizer.save(str(path))
    read_ids = _tokenize_function(tmp_path / "model", None)
    assert read_ids(["the river", "the old river and the stone"])[0] == read_ids(["the river"])[0]


def test_the_repaired_entries_in_a_document_are_listed(pristine, vocabulary, repair_of):
    river, stone, cls = (vocabulary[word] for word in ("river", "stone", "[CLS]"))
    repair = repair_of((river,), (stone,), (cls,))
    affected_documents = repair.affected(
        iter(["the river", "the stone river", "a [CLS]", "a bird"]), pristine, iter("abcd")
    )
    assert affected_documents.rows() == [(0, "a", [river]), (1, "b", sorted([river, stone])), (2, "c", [cls])]
    for names in (["a"], ["a", "b", "c"]):
        with pytest.raises(RepairError):
            repair.affected(itertools.repeat("the river", 2), pristine, names)


def test_a_prompt_is_read_before_every_document_and_batches_are_numbered_throughout(
    pristine, vocabulary, repair_of
):
    texts = ["the river" if number == 1400 else "a bird" for number in range(1500)]
    repair = repair_of((vocabulary["river"],))
    assert repair.affected(texts, pristine)["index"].to_list() == [1400]
    shutil.rmtree(repair.path)
    assert repair_of((vocabulary["river"],), prompt="river ").affected(["a bird"], pristine).height == 1


def test_documents_are_tokenized_by_the_revision_that_was_repaired(
    pristine, vocabulary, repair_of, hub_cache
):
    root = hub_cache / "models--tests--tiny"
    for revision, commit, word in (("old", "a" * 40, "river"), ("main", "b" * 40, "rivulet")):
        folder = Path(shutil.copytree(pristine, root / "snapshots" / commit))
        for name in ("tokenizer.json", "vocab.txt"):
            if (file := folder / name).is_file():
                file.write_text(file.read_text("utf-8").replace("river", word), "utf-8")
        (root / "refs").mkdir(exist_ok=True)
        (root / "refs" / revision).write_text(commit, "utf-8")
    repair = repair_of(unreachable=(vocabulary["river"],))
    for options, affected in (({"revision": "old"}, [0]), ({}, [1])):
        affected_documents = repair.affected(["the river", "a rivulet"], "tests/tiny", **options)
        assert affected_documents["index"].to_list() == affected
