"""The documents that a repair affects are those whose vectors change."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import repaired
import tiny
import tiny_architectures as architectures
from stickytoken.errors import RepairError
from stickytoken.repairs.model_folder import write_model
from stickytoken.repairs.result import REPAIR_FILE, affected_documents, open_repair
from stickytoken.repairs.tokenizer_edit import ModelEdit, read_pipeline

TEXTS = [*tiny.sentences(60), "a [CLS] b", "", "bird bird bird bird", "river " * 100 + "stone"]


@pytest.fixture(scope="module")
def vocabulary(pristine):
    return read_pipeline(pristine).document["model"]["vocab"]


def edits(vocabulary):
    row = {vocabulary["river"]: np.ones(32, dtype=np.float32)}
    stone = (vocabulary["stone"],)
    return {
        "rows": ModelEdit(row),
        "all": ModelEdit(row, stone, (vocabulary["[CLS]"],)),
        "template": ModelEdit({vocabulary["[CLS]"]: np.ones(32, dtype=np.float32)}),
        "nothing": ModelEdit(),
    }


@pytest.mark.parametrize("name", ["all", "template", "nothing"])
def test_affected_documents_are_those_whose_vectors_change(name, pristine, vocabulary, tmp_path):
    edit = edits(vocabulary)[name]
    write_model(pristine, tmp_path / "out", edit)
    before = SentenceTransformer(str(pristine), device="cpu")
    after = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    changed = [
        place
        for place, text in enumerate(TEXTS)
        if not np.array_equal(before.encode([text]), after.encode([text]))
    ]
    found = affected_documents(pristine, edit, TEXTS)
    assert found["index"].to_list() == changed
    assert bool(changed) is (name != "nothing")


def test_the_repaired_entries_in_a_document_are_listed(pristine, vocabulary):
    edit = edits(vocabulary)["all"]
    texts = ["the river", "the stone river", "a [CLS]", "a bird"]
    found = affected_documents(pristine, edit, iter(texts), iter("abcd"))
    river, stone, cls = (vocabulary[each] for each in ("river", "stone", "[CLS]"))
    assert found.rows() == [
        (0, "a", [river]),
        (1, "b", sorted([river, stone])),
        (2, "c", [cls]),
    ]


def test_a_prompt_with_a_repaired_entry_affects_every_document(pristine, vocabulary):
    edit = edits(vocabulary)["rows"]
    assert affected_documents(pristine, edit, ["a bird"], prompt="river ").height == 1


def test_documents_of_many_batches_are_numbered_throughout(pristine, vocabulary):
    texts = ("the river" if number == 1400 else "a bird" for number in range(1500))
    assert affected_documents(pristine, edits(vocabulary)["rows"], texts)["index"].to_list() == [1400]


def test_a_bag_of_words_is_read_too(tmp_path):
    folder = architectures.saved(architectures.static_model(), tmp_path / "static")
    river = read_pipeline(folder).document["model"]["vocab"]["river"]
    edit = ModelEdit(unreachable=(river,))
    assert affected_documents(folder, edit, ["a bird", "the river"]).rows() == [(1, [river])]


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]])
def test_names_must_match_the_documents(names, pristine, vocabulary):
    with pytest.raises(RepairError, match="not as many names as documents"):
        affected_documents(pristine, edits(vocabulary)["rows"], itertools.repeat("the river", 2), names)


def test_documents_are_tokenized_by_the_revision_that_was_repaired(pristine, vocabulary, hub_cache, tmp_path):
    root = hub_cache / "models--tests--tiny"
    for revision, commit, word in (("old", "a" * 40, "river"), ("main", "b" * 40, "rivulet")):
        folder = Path(shutil.copytree(pristine, root / "snapshots" / commit))
        for name in ("tokenizer.json", "vocab.txt"):
            if (file := folder / name).is_file():
                file.write_text(file.read_text("utf-8").replace("river", word), "utf-8")
        (root / "refs").mkdir(exist_ok=True)
        (root / "refs" / revision).write_text(commit, "utf-8")
    record = repaired.repair_record("river")
    token = record.tokens[0].model_copy(update={"token_id": vocabulary["river"]})
    out = tmp_path / "out"
    out.mkdir()
    (out / REPAIR_FILE).write_text(record.model_copy(update={"tokens": [token]}).model_dump_json(), "utf-8")
    found = open_repair(out)
    texts = ["a bird", "the river"]
    assert found.affected(texts, "tests/tiny", revision="old")["index"].to_list() == [1]
    assert found.affected(texts, "tests/tiny")["index"].to_list() == []
