"""A guarded model is the model, but for the texts that it is given."""

import copy
import pickle

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import tiny
from naming import naming
from stickytoken import Cleaner, detect, guard, load_encoder, probe
from stickytoken.cleaning import CleaningRules
from stickytoken.errors import InputError, RunError

CLEAN = ["the quiet river sings.", "a bird near the market", "able to sign"]
TEXTS = tiny.sentences(50)
DIRTY = ["stone stone stone stone the quiet river sings.", "a bird [SEP] near the market", "able to sign"]


class OwnModel(SentenceTransformer):
    def twice(self, text):
        return self.encode([text, text])


@pytest.fixture(scope="module")
def model(bert_folder):
    model = SentenceTransformer(str(bert_folder), device="cpu")
    model.prompts = {"query": "find: ", "document": "stone stone stone stone: "}
    return model


@pytest.fixture
def guarded(model, cleaner):
    return guard(model, cleaner)


def same(vectors, expected):
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_it_encodes_what_the_model_would_encode_after_cleaning(model, guarded):
    for method in ("encode", "encode_query", "encode_document"):
        same(getattr(guarded, method)(DIRTY), getattr(model, method)(CLEAN))
    same(guarded.encode(DIRTY[0]), model.encode(CLEAN[0]))
    same(guarded.encode(np.array(DIRTY), batch_size=2), model.encode(CLEAN))
    # Without findings, vectors are the same to the last bit.
    assert np.array_equal(guarded.encode(TEXTS), model.encode(TEXTS))
    # Prompts, as here that of documents, stay as they are.
    options = {"prompt": "[SEP] stone stone stone stone: "}
    same(guarded.encode(DIRTY, **options), model.encode(CLEAN, **options))


def test_of_pairs_messages_and_inputs_of_several_kinds_the_texts_are_cleaned(guarded, model):
    pairs = [("able able able able the river", "a [SEP] bird"), ("one", "two")]
    cleaned = [("the river", "a bird"), ("one", "two")]
    assert guarded.preprocess(pairs)["input_ids"].tolist() == model.preprocess(cleaned)["input_ids"].tolist()
    picture = object()
    sound = "able able able able.wav"
    inputs = {"text": "able able able able river", "image": picture, "audio": sound}
    assert guarded._clean_input(inputs) == {"text": "river", "image": picture, "audio": sound}
    assert inputs["text"] == "able able able able river"

    def messages(first, second):
        content = [{"type": "text", "text": first}, {"type": "image", "image": 1}]
        return [{"role": "user", "content": content}, {"role": "[SEP]", "content": second}]

    assert guarded._clean_input(messages("a [SEP] bird", "[SEP] the river")) == messages(
        "a bird", "the river"
    )


def test_it_takes_the_place_of_the_model_which_does_not_change(model, cleaner):
    before = dict(vars(model)), model.encode(DIRTY)
    guarded = guard(model, cleaner)
    assert guarded.max_seq_length == model.max_seq_length
    assert guarded.prompts == model.prompts
    assert guarded[0] is model[0]
    guarded.encode(DIRTY)
    guarded.prompts["new"] = "x"
    guarded.append(torch.nn.Identity())
    assert type(model) is SentenceTransformer
    assert vars(model).keys() == before[0].keys()
    assert "new" not in model.prompts
    assert len(model) == len(guarded) - 1
    same(model.encode(DIRTY), before[1])
    twice = guard(guarded, other := Cleaner(CleaningRules()))
    assert (twice.cleaner, type(twice)) == (other, type(guarded))


def test_a_model_of_a_class_of_its_own_keeps_it(bert_folder, cleaner):
    own_model = OwnModel(str(bert_folder), device="cpu")
    guarded = guard(own_model, cleaner)
    assert isinstance(guarded, OwnModel)
    same(guarded.twice(DIRTY[0]), own_model.encode([CLEAN[0]] * 2))
    for again in (copy.deepcopy(guarded), pickle.loads(pickle.dumps(guarded))):  # as other processes get it
        same(again.encode(DIRTY), own_model.encode(CLEAN))
    assert type(guarded.unguarded) is OwnModel


def test_a_saved_model_is_the_plain_one(guarded, model, tmp_path):
    guarded.save_pretrained(str(tmp_path / "model"))
    again = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert type(again) is SentenceTransformer
    same(again.encode(DIRTY), model.encode(DIRTY))
    same(guarded.unguarded.encode(DIRTY), model.encode(DIRTY))


def test_texts_with_findings_are_told(model, cleaner):
    reports = []
    told = guard(model, cleaner, on_found=lambda *report: reports.append(report))
    left = "very very very very good"
    same(told.encode([*DIRTY, left]), model.encode([*CLEAN, left]))
    assert sorted(text for text, _ in reports) == sorted([*DIRTY[:2], left])
    removed = {removal.what for _, cleaned in reports for removal in cleaned.removals}
    reported = {span.what for _, cleaned in reports for span in cleaned.reported}
    assert (removed, reported) == ({"stone", "[SEP]"}, {"very"})


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda model, cleaner: guard("all-MiniLM-L6-v2", cleaner), InputError, naming("'all-MiniLM-L6-v2'")),
        (lambda model, cleaner: guard(model, "no/such/run"), RunError, naming("no/such/run")),
        (lambda model, cleaner: guard(model, {"words": []}), InputError, naming("rules")),
        (lambda model, cleaner: guard(model, cleaner, on_found=3), InputError, naming("on_found", 3)),
    ],
)
def test_what_cannot_be_used_is_refused(model, cleaner, make, error, message):
    with pytest.raises(error, match=message):
        make(model, cleaner)


@pytest.mark.parametrize("use", [load_encoder, detect, lambda model: probe(model, ["able"])])
def test_what_measures_tokens_refuses_a_guard_that_would_be_bypassed(guarded, use):
    with pytest.raises(InputError, match=naming("unguarded")):
        use(guarded)
    assert load_encoder(guarded.unguarded).dimension
