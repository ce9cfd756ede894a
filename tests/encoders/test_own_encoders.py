"""Classes of the user's own as encoders, and what is refused in one line."""

import numpy as np
import pytest
import torch

import tiny
from stickytoken.detection import detect
from stickytoken.encoders import load_encoder
from stickytoken.encoders.protocol import is_encoder, reads_ids, require_ids
from stickytoken.errors import EncodingError, ModelError
from stickytoken.explanation import explain
from stickytoken.insertion import Insertion
from stickytoken.methods.profile.anchors import ProfileSettings
from stickytoken.methods.std import StdSettings
from word_bag import WordBag

TEXTS = tiny.sentences(12)


def bag(**options):
    return WordBag(tiny.wordpiece_tokenizer(), **options)


def test_members_are_found_without_being_computed():
    class Costly:
        @property
        def identity(self):
            raise AssertionError("computed")

        name = device = max_length = dimension = tokenizer = content_ids = fits = encode = None

    assert is_encoder(Costly())
    assert not reads_ids(Costly())


@pytest.mark.parametrize(
    "kind",
    [
        lambda rows: torch.tensor(np.array(rows), requires_grad=True),
        lambda rows: torch.tensor(np.array(rows)).bfloat16(),
        lambda rows: np.array(rows, dtype=np.float64),
        lambda rows: [row.tolist() for row in rows],
    ],
)
def test_vectors_may_be_tensors_arrays_or_lists(kind):
    class Other(WordBag):
        def encode(self, texts):
            return kind(super().encode(texts))

    assert np.allclose(load_encoder(Other()).encode(TEXTS), np.array(WordBag().encode(TEXTS)), atol=2e-2)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (np.zeros((3, 0)), r"shape \(3, 0\) for 3 texts"),
        (np.zeros(3), r"shape \(3,\) for 3 texts"),
        (np.zeros((2, 4)), r"shape \(2, 4\) for 3 texts"),
        ([[1.0], [1.0, 2.0], [3.0]], "not an array of numbers"),
        (None, r"shape \(\) for 3 texts"),
    ],
)
def test_vectors_that_cannot_be_used_are_refused(found, said):
    class Broken(WordBag):
        def encode(self, texts):
            return found

    with pytest.raises(EncodingError, match=f"bag: .*{said}"):
        load_encoder(Broken()).encode(["a", "b", "c"])


@pytest.mark.parametrize("model", [object(), None, {"encode": 1}, torch.nn.Linear(2, 2), WordBag])
def test_an_object_that_encodes_nothing_is_told_what_it_lacks(model):
    said = (
        "WordBag is a class: pass an object" if model is WordBag else rf"type {type(model).__name__} .*lacks"
    )
    with pytest.raises(ModelError, match=said):
        load_encoder(model)


def test_without_a_tokenizer_texts_are_encoded_and_detection_is_refused(tmp_path):
    encoder = load_encoder(WordBag())
    assert encoder.encode(["a bird"]).shape == (1, 16)
    assert encoder.identity.dimension == 16
    with pytest.raises(ModelError, match=r"bag has no tokenizer.*attribute `tokenizer`"):
        detect(encoder, out=tmp_path / "run")


def test_the_identity_follows_the_vectors_or_the_fingerprint():
    plain, other = load_encoder(bag()), load_encoder(bag(seed=1))
    assert plain.identity == load_encoder(bag()).identity
    assert plain.identity.weights != other.identity.weights
    own = bag()
    encoder = load_encoder(own)
    own.seed = 1
    assert encoder.identity == other.identity
    own.fingerprint = "version 1"
    named = encoder.identity
    own.seed = 2
    assert encoder.identity == named
    own.fingerprint = lambda: "version 2"
    assert encoder.identity.weights != named.weights


def test_what_needs_ids_says_so_in_one_line(tmp_path):
    encoder = load_encoder(bag())
    low = ProfileSettings(insertion=Insertion.TEXT, screen_precision="bfloat16")
    for run in (
        lambda: require_ids(encoder, "explain"),
        lambda: explain(encoder, ["stone"]),
        lambda: detect(encoder, settings=ProfileSettings(), out=tmp_path / "ids"),
        lambda: detect(encoder, settings=low, out=tmp_path / "low"),
        lambda: detect(encoder, settings=StdSettings(insertion=Insertion.IDS), out=tmp_path / "std"),
    ):
        with pytest.raises(ModelError, match=r"needs token ids, and bag encodes texts only"):
            run()
