"""What every encoder does, whatever stands behind it; and what those that read token ids do as well."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sentence_transformers import SentenceTransformer

import tiny
import tiny_architectures as architectures
import tiny_decoders
from naming import naming
from stickytoken import load_encoder
from stickytoken.data.tasks import find_task
from stickytoken.detection import detect
from stickytoken.encoders import Encoder, IdEncoder
from stickytoken.encoders.protocol import is_encoder, reads_ids, require_ids
from stickytoken.encoders.text_encoder import require_whole_texts_read
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.evaluation import compare
from stickytoken.explanation import explain
from stickytoken.insertion import Insertion
from stickytoken.language_models.module import CausalPrompt
from stickytoken.machine import Precision
from stickytoken.methods.std import StdSettings
from stickytoken.settings.profile import ProfileSettings
from word_bag import WordBag

CLOSE = {"rtol": 0, "atol": 1e-5}
TEXTS = [*tiny.sentences(7), "stone"]


@dataclass
class Subject:
    again: Callable[[], Encoder]
    tokenizer: Any
    weights: tuple[torch.nn.Parameter, ...] = ()  # whose values can be changed in place
    last: tuple[torch.nn.Parameter, ...] = ()  # that make every vector zero when they are zero
    own: WordBag | None = None
    library: SentenceTransformer | None = None

    def __post_init__(self):
        self.encoder = self.again()

    def change(self, *, through_data=False):
        if self.own is not None:
            self.own.seed += 1
        for weight in self.weights:
            with torch.no_grad():
                (weight.data if through_data else weight).copy_(weight.flip(0) * 1.5)

    def scale(self, factor):
        if self.own is not None:
            self.own.scale = factor
        for weight in self.last:
            with torch.no_grad():
                weight.mul_(factor)


def _sentence_transformer(backbone):
    model = architectures.stacked(backbone("bert"))
    layers = model[0].model.encoder.layer
    norm = layers[-1].output.LayerNorm
    return _loaded(model, layers[0].attention.self.query.weight, norm.weight, norm.bias)


def _last_token(backbone):
    model = architectures.stacked(backbone("qwen2"), pooling="lasttoken")
    return _loaded(model, model[0].model.layers[0].mlp.gate_proj.weight, model[0].model.norm.weight)


def _static(_):
    model = architectures.static_model()
    model.tokenizer.enable_truncation(60)
    return _loaded(model, model[0].embedding.weight, model[0].embedding.weight)


def _loaded(model, weight, *last):
    return Subject(lambda: load_encoder(model), model.tokenizer, (weight,), last)


def _prompted(_):
    options = {"prompt": "prompteol", "token_prepending": True, "start": 1, "exit": 3, "layer": -1}
    module = CausalPrompt(*tiny_decoders.decoder("qwen2"), **options)
    model, decoder = SentenceTransformer(modules=[module], device="cpu"), module.model
    weights = (decoder.layers[0].mlp.gate_proj.weight, decoder.get_input_embeddings().weight)
    return Subject(
        lambda: load_encoder(model), module.tokenizer, weights, (decoder.norm.weight,), library=model
    )


def _own_class(_):
    word_bag = WordBag(tiny.wordpiece_tokenizer())
    word_bag.max_length = 60
    return Subject(lambda: load_encoder(word_bag), word_bag.tokenizer, own=word_bag)


READS_IDS = {
    "SentenceTransformer": _sentence_transformer,
    "last token": _last_token,
    "static": _static,
    "prompted": _prompted,
}
ALL = {**READS_IDS, "own class": _own_class}


@pytest.fixture(params=list(ALL))
def subject(request, backbone) -> Subject:
    return ALL[request.param](backbone)


@pytest.fixture(params=list(READS_IDS))
def with_ids(request, backbone) -> Subject:
    return READS_IDS[request.param](backbone)


def test_it_is_an_encoder_of_float32_vectors_in_the_order_of_the_texts(subject):
    encoder = subject.encoder
    assert isinstance(encoder, Encoder)
    assert is_encoder(encoder)
    assert load_encoder(encoder) is encoder
    assert encoder.device == "cpu"
    with pytest.raises(InputError, match=naming("revision", "device", encoder.name)):
        load_encoder(encoder, device="cpu", revision="main")
    with pytest.raises(InputError, match=naming("encode", "'river'")):
        encoder.encode("river")
    for wrong in (None, {"river"}, pl.DataFrame({"text": ["river"]}), np.array([["river"]])):
        with pytest.raises(InputError, match=naming("encode")):
            encoder.encode(wrong)
    for wrong, position in ((["river", None], 2), (np.array([1.0]), 1)):
        with pytest.raises(InputError, match=naming("encode", position)):
            encoder.encode(wrong)

    vectors = encoder.encode([*TEXTS, TEXTS[0]])
    assert (vectors.dtype, vectors.shape) == (np.float32, (len(TEXTS) + 1, encoder.dimension))
    np.testing.assert_array_equal(vectors[-1], vectors[0])
    np.testing.assert_allclose(encoder.encode(TEXTS[::-1])[::-1], vectors[:-1], **CLOSE)
    one_by_one = np.concatenate([encoder.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(one_by_one, vectors[:-1], **CLOSE)
    assert encoder.encode([]).shape == (0, encoder.dimension)


def test_a_text_too_long_is_refused_by_its_name(subject):
    encoder = subject.encoder
    text = "the river " * encoder.max_length
    assert encoder.fits(encoder.content_ids(["river"])[0])
    assert not encoder.fits(encoder.content_ids([text])[0])
    with pytest.raises(EncodingError, match=naming("'the river the", encoder.max_length)) as caught:
        encoder.encode(["river", text])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("factor", "said"), [(0.0, "zero"), (float("nan"), "not finite")])
def test_vectors_that_cannot_be_used_are_refused_by_the_text(subject, factor, said):
    subject.scale(factor)
    with pytest.raises(EncodingError, match=naming("'the river'", said)):
        subject.encoder.encode(["the river"])
    if factor == 0:
        assert not subject.encoder.encode(["the river"], allow_zero=True).any()


def test_identity_and_vectors_follow_weights_changed_in_place(subject):
    encoder = subject.encoder
    before = encoder.identify()
    vectors = encoder.encode(TEXTS)
    assert before == encoder.identify() == subject.again().identify()
    assert (before.dimension, before.max_length) == (encoder.dimension, encoder.max_length)
    for through_data in (False, True):
        subject.change(through_data=through_data)
        assert encoder.identify() == subject.again().identify()
        assert encoder.identify().weights != before.weights
        changed = encoder.encode(TEXTS)
        assert np.abs(changed - vectors).max() > 1e-3
        np.testing.assert_allclose(changed, subject.again().encode(TEXTS), rtol=0, atol=1e-6)
        if subject.library is not None:
            np.testing.assert_allclose(subject.library.encode(TEXTS), changed, **CLOSE)
        before, vectors = encoder.identify(), changed


def test_a_token_added_to_the_users_tokenizer_is_read(subject):
    encoder = subject.encoder
    before = encoder.identify()
    size = len(encoder.tokenizer.entries)
    subject.tokenizer.add_tokens(["zebra"])
    assert encoder.identify().tokenizer == subject.again().identify().tokenizer != before.tokenizer
    assert len(encoder.tokenizer.entries) == size + 1
    assert encoder.content_ids(["a zebra"]) == subject.again().content_ids(["a zebra"])


def test_ids_give_the_vectors_of_their_texts(with_ids):
    encoder = with_ids.encoder
    assert isinstance(encoder, IdEncoder)
    assert reads_ids(encoder)
    assert require_ids(encoder, "explain") is encoder
    ids = [list(text.ids) for text in encoder.tokenize(TEXTS)]
    assert ids == encoder.content_ids(TEXTS)
    vectors = encoder.encode_ids([*ids, ids[0]])
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors[-1], vectors[0])
    np.testing.assert_allclose(vectors[:-1], encoder.encode(TEXTS), **CLOSE)
    assert encoder.encode_ids([]).shape == (0, encoder.dimension)


def test_ids_that_it_does_not_read_or_whose_vector_is_zero_are_refused(with_ids):
    encoder = with_ids.encoder
    ids, long = encoder.content_ids(["the river", "the river " * encoder.max_length])
    for wrong, value in ((long, encoder.max_length), ([-1], -1), ([10**6], 10**6)):
        with pytest.raises(EncodingError, match=naming(value)):
            encoder.encode_ids([wrong])
    with_ids.scale(0.0)
    with pytest.raises(EncodingError, match=naming("'the river")):
        encoder.encode_ids([ids])
    assert not encoder.encode_ids([ids], allow_zero=True).any()


@pytest.mark.slow
def test_a_lower_precision_is_an_encoder_of_its_own_identity_and_follows_the_weights(with_ids):
    encoder, precision = with_ids.encoder, Precision.BFLOAT16
    own_identity = encoder.identify()
    lower = encoder.at(precision)
    assert encoder.at(precision) is lower is not encoder
    assert encoder.at(None) is encoder
    assert (own_identity.dtype, lower.identify().dtype) == ("float32", "bfloat16")
    assert encoder.identify() == own_identity
    assert with_ids.again().at(precision).identify() == lower.identify()
    for through_data in (False, True):
        before = encoder.at(precision).encode(TEXTS)
        with_ids.change(through_data=through_data)
        assert encoder.identify() != own_identity
        after = encoder.at(precision).encode(TEXTS)
        np.testing.assert_array_equal(after, with_ids.again().at(precision).encode(TEXTS))
        assert np.abs(after - before).max() > 1e-4


def test_members_are_found_without_being_computed():
    class Costly:
        @property
        def dimension(self):
            raise AssertionError("computed")

        name = device = identify = max_length = tokenizer = content_ids = fits = encode = None

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
        (np.zeros((3, 0)), naming("(3, 0)", 3)),
        (np.zeros(3), naming("(3,)", 3)),
        (np.zeros((2, 4)), naming("(2, 4)", 3)),
        ([[1.0], [1.0, 2.0], [3.0]], naming("list")),
        (None, naming("()", 3)),
    ],
)
def test_vectors_that_cannot_be_used_are_refused(found, said):
    class Broken(WordBag):
        def encode(self, texts):
            return found

    with pytest.raises(EncodingError, match=said):
        load_encoder(Broken()).encode(["a", "b", "c"])


@pytest.mark.parametrize("model", [object(), None, {"encode": 1}, torch.nn.Linear(2, 2), WordBag])
def test_an_object_that_encodes_nothing_is_told_what_it_lacks(model):
    values = ("WordBag", "class") if model is WordBag else (type(model).__name__, "lacks")
    with pytest.raises(ModelError, match=naming(*values)):
        load_encoder(model)


def test_without_a_tokenizer_texts_are_encoded_and_detection_is_refused(tmp_path):
    encoder = load_encoder(WordBag())
    assert encoder.encode(["a bird"]).shape == (1, 16)
    assert encoder.identify().dimension == 16
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("sentence1\tsentence2\tscore\na bird\ta tree\t1\na\ta\t2\na\tb\t0\n")
    assert compare(encoder, find_task(str(pairs))[0]).scores[0].encoding == "as it is"
    with pytest.raises(ModelError, match=naming("bag", "tokenizer")):
        detect(encoder, out=tmp_path / "run")


def test_the_longest_input_is_that_of_the_tokenizer_unless_another_is_passed():
    tokenizer = tiny.wordpiece_tokenizer(max_length=20)
    assert load_encoder(WordBag().encode, tokenizer=tokenizer.backend_tokenizer).max_length is None
    assert load_encoder(WordBag(tokenizer)).max_length == 20
    assert load_encoder(WordBag().encode, tokenizer=tokenizer).max_length == 20
    assert load_encoder(WordBag().encode, tokenizer=tokenizer, max_length=12).max_length == 12


@pytest.mark.parametrize(("words_read", "max_length"), [(64, None), (64, 32), (500, None)])
def test_an_object_that_cuts_long_texts_is_refused_unless_it_says_so(words_read, max_length):
    texts = [" ".join(tiny.sentences(count)) for count in (4, 60)]

    def embed(texts):
        return WordBag().encode([" ".join(text.split()[:words_read]) for text in texts])

    tokenizer = tiny.wordpiece_tokenizer().backend_tokenizer  # it declares no limit
    encoder = load_encoder(embed, tokenizer=tokenizer, max_length=max_length)
    if words_read == 64 and max_length is None:
        with pytest.raises(ModelError, match=naming("embed", "max_length")):
            require_whole_texts_read(encoder, texts)
    else:
        require_whole_texts_read(encoder, texts)


def test_the_identity_follows_the_vectors_or_the_fingerprint():
    plain = load_encoder(WordBag(tiny.wordpiece_tokenizer()))
    other = load_encoder(WordBag(tiny.wordpiece_tokenizer(), seed=1))
    assert plain.identify() == load_encoder(WordBag(tiny.wordpiece_tokenizer())).identify()
    assert plain.identify().weights != other.identify().weights
    word_bag = WordBag(tiny.wordpiece_tokenizer())
    encoder = load_encoder(word_bag)
    word_bag.seed = 1
    assert encoder.identify() == other.identify()
    word_bag.fingerprint = "version 1"
    named = encoder.identify()
    word_bag.seed = 2
    assert encoder.identify() == named
    word_bag.fingerprint = lambda: "version 2"
    assert encoder.identify().weights != named.weights


def test_what_needs_ids_says_so_in_one_line(tmp_path):
    encoder = load_encoder(WordBag(tiny.wordpiece_tokenizer()))
    low = ProfileSettings(insertion=Insertion.TEXT, screen_precision="bfloat16")
    for run in (
        lambda: require_ids(encoder, "explain"),
        lambda: explain(encoder, ["stone"]),
        lambda: detect(encoder, settings=ProfileSettings(insertion=Insertion.IDS), out=tmp_path / "ids"),
        lambda: detect(encoder, settings=low, out=tmp_path / "low"),
        lambda: detect(encoder, settings=StdSettings(insertion=Insertion.IDS), out=tmp_path / "std"),
    ):
        with pytest.raises(ModelError, match=naming("ids", "bag")):
            run()
