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
from stickytoken.repairs import open_repair
from stickytoken.repairs.model_folder import write_model
from stickytoken.repairs.result import REPAIR_FILE
from stickytoken.repairs.tokenizer_edit import ModelEdit, read_pipeline

TEXTS = [*tiny.sentences(60), "a [CLS] b", "", "bird bird bird bird", "river " * 100 + "stone"]


@pytest.fixture(scope="module")
def vocabulary(pristine):
    return read_pipeline(pristine).document["model"]["vocab"]


@pytest.fixture
def repair_of(pristine, tmp_path):
    """A function that edits entries of a model, and opens the repair."""

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
    river, stone, cls = ((vocabulary[each],) for each in ("river", "stone", "[CLS]"))
    repair = repair_of(*{"all": (river, stone, cls), "template": ((), (), cls), "nothing": ()}[name])
    before = SentenceTransformer(str(pristine), device="cpu")
    after = SentenceTransformer(str(repair.path), device="cpu")
    changed = [
        place
        for place, text in enumerate(TEXTS)
        if not np.array_equal(before.encode([text]), after.encode([text]))
    ]
    assert repair.affected(TEXTS, pristine)["index"].to_list() == changed
    assert bool(changed) is (name != "nothing")


def test_the_repaired_entries_in_a_document_are_listed(pristine, vocabulary, repair_of):
    river, stone, cls = (vocabulary[each] for each in ("river", "stone", "[CLS]"))
    repair = repair_of((river,), (stone,), (cls,))
    found = repair.affected(
        iter(["the river", "the stone river", "a [CLS]", "a bird"]), pristine, iter("abcd")
    )
    assert found.rows() == [(0, "a", [river]), (1, "b", sorted([river, stone])), (2, "c", [cls])]
    for names in (["a"], ["a", "b", "c"]):
        with pytest.raises(RepairError, match="not as many names as documents"):
            repair.affected(itertools.repeat("the river", 2), pristine, names)


def test_a_prompt_is_read_before_every_document_and_batches_are_numbered_throughout(
    pristine, vocabulary, repair_of
):
    texts = ["the river" if number == 1400 else "a bird" for number in range(1500)]
    repair = repair_of((vocabulary["river"],))
    assert repair.affected(texts, pristine)["index"].to_list() == [1400]
    shutil.rmtree(repair.path)
    assert repair_of((vocabulary["river"],), prompt="river ").affected(["a bird"], pristine).height == 1


def test_a_bag_of_words_is_read_too(repair_of, tmp_path):
    folder = architectures.saved(architectures.static_model(), tmp_path / "static")
    river = read_pipeline(folder).document["model"]["vocab"]["river"]
    repair = repair_of(unreachable=(river,), model=folder)
    assert repair.affected(["a bird", "the river"], folder).rows() == [(1, [river])]


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
    assert repair.affected(["a bird", "the river"], "tests/tiny", revision="old")["index"].to_list() == [1]
    assert repair.affected(["a rivulet"], "tests/tiny", revision="old")["index"].to_list() == []
    assert repair.affected(["a rivulet"], "tests/tiny")["index"].to_list() == [0]
