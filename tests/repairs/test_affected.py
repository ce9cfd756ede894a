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


@pytest.fixture
def affected(pristine, tmp_path):
    """A function that edits a model, and lists the documents that this affects."""

    def listed(texts, rows=(), unreachable=(), plain_specials=(), model=pristine, **options):
        new = {token_id: np.ones(32, dtype=np.float32) for token_id in rows}
        write_model(model, tmp_path / "out", ModelEdit(new, unreachable, plain_specials))
        strategies = dict.fromkeys(rows, "distil")  # any that is not about tokenization
        strategies |= dict.fromkeys(unreachable, "unreachable")
        strategies |= dict.fromkeys(plain_specials, "plain-specials")
        (token,) = repaired.repair_record("any").tokens
        tokens = [
            token.model_copy(update={"token_id": token_id, "strategy": strategy})
            for token_id, strategy in strategies.items()
        ]
        return affected_documents(model, tmp_path / "out", tokens, texts, **options)

    return listed


@pytest.mark.parametrize("name", ["all", "template", "nothing"])
def test_affected_documents_are_those_whose_vectors_change(name, pristine, vocabulary, affected, tmp_path):
    river, stone, cls = ((vocabulary[each],) for each in ("river", "stone", "[CLS]"))
    edit = {"all": (river, stone, cls), "template": (cls,), "nothing": ()}[name]
    found = affected(TEXTS, *edit)
    before = SentenceTransformer(str(pristine), device="cpu")
    after = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    changed = [
        place
        for place, text in enumerate(TEXTS)
        if not np.array_equal(before.encode([text]), after.encode([text]))
    ]
    assert found["index"].to_list() == changed
    assert bool(changed) is (name != "nothing")


def test_the_repaired_entries_in_a_document_are_listed(vocabulary, affected):
    texts = ["the river", "the stone river", "a [CLS]", "a bird"]
    river, stone, cls = (vocabulary[each] for each in ("river", "stone", "[CLS]"))
    found = affected(iter(texts), (river,), (stone,), (cls,), ids=iter("abcd"))
    assert found.rows() == [(0, "a", [river]), (1, "b", sorted([river, stone])), (2, "c", [cls])]


def test_a_prompt_with_a_repaired_entry_affects_every_document(vocabulary, affected):
    assert affected(["a bird"], (vocabulary["river"],), prompt="river ").height == 1


def test_documents_of_many_batches_are_numbered_throughout(vocabulary, affected):
    texts = ("the river" if number == 1400 else "a bird" for number in range(1500))
    assert affected(texts, (vocabulary["river"],))["index"].to_list() == [1400]


def test_a_bag_of_words_is_read_too(affected, tmp_path):
    folder = architectures.saved(architectures.static_model(), tmp_path / "static")
    river = read_pipeline(folder).document["model"]["vocab"]["river"]
    found = affected(["a bird", "the river"], unreachable=(river,), model=folder)
    assert found.rows() == [(1, [river])]


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]])
def test_names_must_match_the_documents(names, vocabulary, affected):
    with pytest.raises(RepairError, match="not as many names as documents"):
        affected(itertools.repeat("the river", 2), (vocabulary["river"],), ids=names)


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
    write_model(pristine, out, ModelEdit(unreachable=(token.token_id,)))
    (out / REPAIR_FILE).write_text(record.model_copy(update={"tokens": [token]}).model_dump_json(), "utf-8")
    found = open_repair(out)
    texts = ["a bird", "the river"]
    assert found.affected(texts, "tests/tiny", revision="old")["index"].to_list() == [1]
    assert found.affected(["a rivulet"], "tests/tiny", revision="old")["index"].to_list() == []
    assert found.affected(["a rivulet"], "tests/tiny")["index"].to_list() == [0]
