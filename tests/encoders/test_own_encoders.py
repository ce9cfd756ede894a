"""Classes of the user's own as encoders, and what is refused in one line."""

import numpy as np
import pytest
import torch

import tiny
from stickytoken.corpora import Sentences
from stickytoken.detection import detect
from stickytoken.encoders import load_encoder
from stickytoken.encoders.protocol import is_encoder, reads_ids, require_ids
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.explanation import explain
from stickytoken.insertion import Insertion
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.std.settings import StdSettings
from word_bag import WordBag

TEXTS = tiny.sentences(12)


def bag():
    return WordBag(tiny.wordpiece_tokenizer())


def test_a_class_with_encode_and_a_tokenizer_becomes_an_encoder_of_texts():
    own = bag()
    encoder = load_encoder(own)
    assert (encoder.name, encoder.device, encoder.dimension, encoder.max_length) == ("bag", "cpu", 16, None)
    found = encoder.encode(["the stone", "a bird", "the stone"])
    assert np.allclose(found[0], own.vector("the stone"))
    assert own.calls[-1] == ["the stone", "a bird"]
    assert encoder.content_ids(["a bird"]) == own.tokenizer(["a bird"], add_special_tokens=False)["input_ids"]


def test_members_are_found_without_being_computed():
    class Costly:
        @property
        def identity(self):
            raise AssertionError("computed")

        name = device = max_length = dimension = tokenizer = content_ids = fits = encode = None

    assert is_encoder(Costly())
    assert not reads_ids(Costly())


@pytest.mark.parametrize(
    "tensor",
    [
        lambda rows: torch.tensor(np.array(rows), requires_grad=True),
        lambda rows: torch.tensor(np.array(rows)).bfloat16(),
        lambda rows: np.array(rows, dtype=np.float64),
        lambda rows: [row.tolist() for row in rows],
    ],
)
def test_vectors_may_be_tensors_arrays_or_lists(tensor):
    class Other(WordBag):
        def encode(self, texts):
            return tensor(super().encode(texts))

    assert np.allclose(load_encoder(Other()).encode(TEXTS), np.array(WordBag().encode(TEXTS)), atol=2e-2)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (np.zeros((3, 0)), r"shape \(3, 0\) for 3 texts"),
        (np.zeros(3), r"shape \(3,\) for 3 texts"),
        (np.zeros((2, 4)), r"shape \(2, 4\) for 3 texts"),
        ([[1.0], [1.0, 2.0], [3.0]], "not an array of numbers"),
        (None, r"shape \(\) for 3 texts|no array"),
        (np.full((3, 4), np.nan), "'a'.*not finite"),
        (np.zeros((3, 4)), "'a'.*zero"),
    ],
)
def test_vectors_that_cannot_be_used_are_refused(found, said):
    class Broken(WordBag):
        def encode(self, texts):
            return found

    with pytest.raises(EncodingError, match=f"bag: .*{said}"):
        load_encoder(Broken()).encode(["a", "b", "c"])


@pytest.mark.parametrize("model", [object(), 3, None, {"encode": 1}, torch.nn.Linear(2, 2)])
def test_an_object_that_encodes_nothing_is_told_what_it_lacks(model):
    with pytest.raises(
        ModelError, match=rf"type {type(model).__name__} .*lacks the method encode\(texts\)"
    ) as caught:
        load_encoder(model)
    assert "\n" not in str(caught.value)


def test_a_class_in_place_of_an_object_is_refused():
    with pytest.raises(ModelError, match=r"WordBag is a class: pass an object of it, WordBag\("):
        load_encoder(WordBag)


def test_options_of_loading_are_refused_for_what_is_loaded():
    with pytest.raises(InputError, match="device, revision cannot be set on bag"):
        load_encoder(bag(), device="cpu", revision="main")


def test_a_text_longer_than_the_class_says_is_refused_by_its_name():
    own = bag()
    own.max_length = 6
    encoder = load_encoder(own)
    assert encoder.encode(["the old river sings"]).shape == (1, 16)
    with pytest.raises(EncodingError, match=r"'the old river sings on'.*7 tokens.*reads 6"):
        encoder.encode(["the old river sings on"])


def test_without_a_tokenizer_texts_are_encoded_and_detection_is_refused(tmp_path):
    encoder = load_encoder(WordBag())
    assert encoder.encode(["a bird"]).shape == (1, 16)
    assert encoder.identity.dimension == 16
    with pytest.raises(ModelError, match=r"bag has no tokenizer.*attribute `tokenizer`"):
        detect(encoder, out=tmp_path / "run")


def test_the_identity_follows_the_vectors_or_the_fingerprint():
    plain, other = load_encoder(bag()), load_encoder(WordBag(tiny.wordpiece_tokenizer(), seed=1))
    assert plain.identity == load_encoder(bag()).identity
    assert plain.identity.weights != other.identity.weights
    own = bag()
    encoder = load_encoder(own)
    before = encoder.identity
    own.seed = 1
    assert encoder.identity == other.identity != before
    own.fingerprint = "version 1"
    named = encoder.identity
    own.seed = 2
    assert encoder.identity == named
    own.fingerprint = lambda: "version 2"
    assert encoder.identity.weights != named.weights


def test_what_needs_ids_says_so_in_one_line(tmp_path):
    encoder = load_encoder(bag())
    for run in (
        lambda: require_ids(encoder, "explain"),
        lambda: explain(encoder, ["stone"]),
        lambda: detect(encoder, settings=ProfileSettings(), out=tmp_path / "ids"),
        lambda: detect(
            encoder,
            settings=ProfileSettings(insertion=Insertion.TEXT, screen_precision="bfloat16"),
            out=tmp_path / "low",
        ),
        lambda: detect(encoder, settings=StdSettings(insertion=Insertion.IDS), out=tmp_path / "std"),
    ):
        with pytest.raises(ModelError, match=r"needs token ids, and bag encodes texts only") as caught:
            run()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["profile", "std"])
def test_detection_with_texts_needs_nothing_but_texts(tmp_path, method):
    settings = (
        ProfileSettings(insertion=Insertion.TEXT, budget=4)
        if method == "profile"
        else StdSettings(sentences=40, scoring_pairs=4, validation_pairs=4, copies=2)
    )
    sentences = Sentences(tuple(tiny.sentences(900)), "test")
    encoder = load_encoder(bag())
    run = detect(encoder, sentences=sentences, settings=settings, out=tmp_path / "run")
    assert run.tokens.height > 40
    again = detect(load_encoder(bag()), sentences=sentences, settings=settings, out=tmp_path / "run")
    assert again.tokens.equals(run.tokens)
