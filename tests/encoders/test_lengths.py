"""The longest input: what the model reads, what a user asks for, and what is refused."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import saved_models
import tiny
import tiny_architectures as architectures
from naming import naming
from stickytoken import load_encoder
from stickytoken.encoders.fitting import fit_texts
from stickytoken.encoders.roles import Role, in_role
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.insertion import Insertion

LONGEST = architectures.MAX_LENGTH
KNOWN = [word for word in tiny.WORDS if len(word) > 1]


def words(count):
    return " ".join(KNOWN[index % len(KNOWN)] for index in range(count))


def load(folder, max_length, **options):
    return load_encoder(folder, device="cpu", max_length=max_length, **options)


@pytest.fixture
def folder(backbone, tmp_path):
    return lambda name: architectures.saved(architectures.stacked(backbone(name)), tmp_path / "model")


def test_the_first_of_several_texts_that_are_too_long_is_named(model):
    """Only the longest content is looked at first; the error still names the first one that is refused."""
    model.max_seq_length = 6
    texts = [words(4), "quiet " + words(5), words(9)]
    with pytest.raises(EncodingError, match=naming("'quiet", 8, 6)):
        load_encoder(model).encode(texts)


@pytest.mark.parametrize(("length", "prompt"), [(LONGEST, ""), (LONGEST, "the song "), (6, "")])
def test_the_longest_text_is_read_whole_and_a_longer_one_refused(model, length, prompt):
    model.max_seq_length = length
    encoder = load_encoder(model, prompt=prompt)
    room = length - 2 - len(prompt.split())
    longest_text = words(room)
    longer = words(room + 1)
    np.testing.assert_allclose(
        encoder.encode([longest_text]), model.encode([longest_text], prompt=prompt), rtol=0, atol=1e-5
    )
    assert np.abs(encoder.encode([longest_text]) - encoder.encode([words(room - 1)])).max() > 1e-3
    # Texts given twice do not shift the name of the one that is refused.
    with pytest.raises(EncodingError, match=naming(repr(longer[:79])[:-1], length + 1, length)):
        encoder.encode(["stone", "stone", "river", longer, longer])


def test_a_prompt_longer_than_the_model_reads_is_said_to_be_too_long(model):
    with pytest.raises(ModelError, match=naming("prompt", "too long", 96)):
        load_encoder(model, prompt="the river " * 60)


def test_positions_that_start_behind_the_padding_shorten_the_longest_text(folder):
    path = folder("roberta")
    saved_models.edit(path / "tokenizer_config.json", lambda config: config.pop("model_max_length"))
    library = SentenceTransformer(str(path), device="cpu")
    assert library.max_seq_length == LONGEST + 2
    encoder = load(path, None)
    longest_text = " river" * (LONGEST - 2)
    np.testing.assert_allclose(
        encoder.encode([longest_text]), library.encode([longest_text]), rtol=0, atol=1e-5
    )
    with pytest.raises(EncodingError, match=naming(97, 96)):
        encoder.encode([longest_text + " river"])


def test_a_static_model_reads_to_where_its_tokenizer_cuts_and_has_no_limit_to_set(tmp_path):
    model = architectures.static_model()
    path = architectures.saved(model, tmp_path / "static")
    assert load(path, None).max_length is None
    with pytest.raises(InputError, match=naming("max_length", 50, str(path))):
        load(path, 50)
    model.tokenizer.enable_truncation(30)
    encoder = load_encoder(model)
    np.testing.assert_allclose(encoder.encode([words(30)]), model.encode([words(30)]), rtol=0, atol=1e-5)
    with pytest.raises(EncodingError, match=naming(31, 30)):
        encoder.encode([words(31)])


@pytest.mark.parametrize("length", [0, -100])
def test_a_longest_input_below_1_is_refused_before_the_model_is_looked_for(length):
    with pytest.raises(InputError, match=naming("max_length", length, 1)):
        load("no-such/model", length)


@pytest.mark.parametrize("name", ["roberta", "modernbert"])
def test_a_longest_input_beyond_the_positions_is_refused_and_the_last_position_is_read(name, folder):
    path = folder(name)
    with pytest.raises(InputError, match=naming("max_length", LONGEST + 1, LONGEST)):
        load(path, LONGEST + 1)
    encoder = load(path, LONGEST)
    assert encoder.identify().max_length == LONGEST
    ids = (encoder.tokenize([words(9)])[0].ids * 30)[: LONGEST - 2]
    assert encoder.fits(ids)
    assert not encoder.fits([*ids, ids[0]])
    assert np.array_equal(encoder.encode_ids([ids]), load(path, None).encode_ids([ids]))


def test_relative_positions_have_no_end(folder):
    path = folder("t5")
    assert load(path, None).identify().max_length == LONGEST
    encoder = load(path, 1000)
    assert encoder.identify().max_length == 1000
    assert encoder.encode([words(300)]).shape == (1, architectures.DIMENSION)


def test_stretched_rotary_positions_reach_beyond_the_declared_ones(folder):
    path = folder("qwen2")
    rope = {"rope_theta": 10000.0, "rope_type": "default"}
    saved_models.edit(path / "config.json", lambda config: config.update(rope_parameters=rope))
    with pytest.raises(InputError, match=naming("max_length", 300, 96)):
        load(path, 300)
    rope |= {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": LONGEST}
    saved_models.edit(path / "config.json", lambda config: config.update(rope_parameters=rope))
    encoder = load(path, 300)
    ids = (encoder.tokenize([words(9)])[0].ids * 40)[:300]
    assert encoder.encode_ids([ids]).shape == (1, architectures.DIMENSION)


def test_a_shorter_longest_input_needs_room_for_a_text_and_changes_no_vector_but_the_identity(folder):
    path = folder("bert")
    for length, prompt, taken in ((1, "", 2), (2, "", 2), (4, "the song ", 4)):
        with pytest.raises(InputError, match=naming("max_length", length, taken)):
            load(path, length, prompt=prompt)
    with pytest.raises(EncodingError, match=naming(4, 3)):
        load(path, 3).encode(["the river"])
    short = load(path, 3)
    whole_encoder = load(path, None)
    assert np.array_equal(short.encode(["river"]), whole_encoder.encode(["river"]))
    assert (short.identify().max_length, whole_encoder.identify().max_length) == (3, LONGEST)
    assert short.identify() != whole_encoder.identify()


@pytest.mark.parametrize("kind", ["text", "common"])
def test_a_limit_for_the_tokenizer_alone_is_that_of_the_model(kind, folder):
    path = folder("bert")
    settings = {"processing_kwargs": {kind: {"max_length": 16}}}
    saved_models.edit(path / "sentence_bert_config.json", lambda config: config.update(settings))
    library = SentenceTransformer(str(path), device="cpu")
    encoder = load(path, None)
    assert encoder.identify().max_length == 16
    (cut,) = fit_texts(encoder, [words(40)], 0, Insertion.TEXT, "texts")
    np.testing.assert_allclose(encoder.encode([cut.text]), library.encode([words(40)]), rtol=0, atol=1e-5)
    with pytest.raises(EncodingError, match=naming(17, 16)):
        encoder.encode([words(15)])
    encoder.model[0].processing_kwargs = {kind: {"max_length": 12}}
    with pytest.raises(EncodingError, match=naming(13, 12)):
        encoder.encode([words(11)])


@pytest.mark.parametrize("route", [None, "document"])
def test_a_longest_input_holds_for_each_route(route, backbone, tmp_path):
    mean, cls = (architectures.stacked(backbone("bert"), pooling=pooling) for pooling in ("mean", "cls"))
    path = architectures.saved(architectures.router(mean, cls), tmp_path / "router")
    encoder = load(path, 16, route=route)
    # The encoder of queries is made from that of documents, too, as in a run.
    of_documents = in_role(encoder, Role.DOCUMENT)
    for each in (encoder, of_documents, in_role(encoder, Role.QUERY), in_role(of_documents, Role.QUERY)):
        assert each.identify().max_length == 16
        with pytest.raises(EncodingError, match=naming(17, 16)):
            each.encode([words(15)])
    library = SentenceTransformer(str(path), device="cpu")
    queries = in_role(of_documents, Role.QUERY)
    np.testing.assert_allclose(
        queries.encode([words(14)]), library.encode_query([words(14)]), rtol=0, atol=1e-5
    )


def test_a_route_that_reads_any_length_has_no_longest_input(backbone, tmp_path):
    routed = architectures.router(architectures.static_model(), architectures.stacked(backbone("bert")))
    encoder = load(architectures.saved(routed, tmp_path / "router"), 16)
    assert [in_role(encoder, role).max_length for role in (None, Role.DOCUMENT, Role.QUERY)] == [16, 16, None]


def test_a_model_that_keeps_the_end_of_a_long_text_is_refused(folder):
    path = folder("qwen2")
    saved_models.edit(path / "tokenizer_config.json", lambda config: config.update(truncation_side="left"))
    with pytest.raises(ModelError, match=naming(str(path), "truncation_side", "'right'")):
        load(path, None)
    saved_models.edit(
        path / "tokenizer_config.json",
        lambda config: config.update(truncation_side="right", padding_side="left"),
    )
    long_text = words(2 * LONGEST)
    library = SentenceTransformer(str(path), device="cpu")
    encoder = load_encoder(library)
    (cut,) = fit_texts(encoder, [long_text], 0, Insertion.IDS, "texts")
    np.testing.assert_allclose(
        encoder.encode_ids([cut.content.ids]), library.encode([long_text]), rtol=0, atol=1e-5
    )
    # A model may also be changed after it was loaded.
    library.tokenizer.truncation_side = "left"
    with pytest.raises(ModelError, match=naming("truncation_side")):
        encoder.encode(["river"])


def test_a_static_model_that_keeps_the_end_of_a_long_text_is_refused():
    model = architectures.static_model()
    model.tokenizer.enable_truncation(30, direction="left")
    with pytest.raises(ModelError, match=naming("left")):
        load_encoder(model)
