"""Vectors through a real server: as the model's own, kept, and never asked for twice."""

import hashlib
import os
import time

import numpy as np
import pytest

import planted
import tiny
from interrupted import started
from stickytoken.encoders import load_encoder
from stickytoken.encoders.protocol import Encoder, is_encoder, reads_ids
from stickytoken.errors import EncodingError, InputError, ModelError, RunError

TEXTS = tiny.sentences(120)


def test_it_is_an_encoder_of_texts_with_the_vectors_of_the_model(serve, encoder):
    found = serve().encoder()
    assert isinstance(found, Encoder)
    assert is_encoder(found)
    assert not reads_ids(found)
    assert load_encoder(found) is found
    assert (found.dimension, found.max_length, found.noise < 1e-7) == (encoder.dimension, 60, True)
    assert found.content_ids(TEXTS) == encoder.content_ids(TEXTS)
    vectors = found.encode([*TEXTS, TEXTS[0]])
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, encoder.encode([*TEXTS, TEXTS[0]]))
    assert found.encode([]).shape == (0, encoder.dimension)
    assert "http" in repr(found)


def test_what_was_answered_is_never_sent_again_but_to_another_port(serve):
    served, other = serve(), serve()
    first = served.encoder()
    vectors = first.encode(TEXTS)
    identity, seen = first.identity, served.server.seen
    np.testing.assert_array_equal(first.encode(TEXTS[::-1])[::-1], vectors)
    second = served.encoder()
    np.testing.assert_array_equal(second.encode(TEXTS), vectors)
    assert second.identity == identity
    assert served.server.seen == seen
    assert len(first.answers) == len(TEXTS)
    np.testing.assert_array_equal(other.encoder().encode(TEXTS), vectors)
    assert other.encoder().identity == identity
    assert other.paid(TEXTS) == sorted(TEXTS)


def test_a_prompt_goes_before_every_text_and_into_the_identity(serve, encoder):
    served = serve()
    plain, prompted = served.encoder(), served.encoder(prompt="the quick ")
    np.testing.assert_array_equal(prompted.encode(["river"]), encoder.encode(["the quick river"]))
    assert prompted.content_ids(["river"]) == encoder.content_ids(["the quick river"])
    assert prompted.identity != plain.identity
    assert (prompted.identity.prompt, prompted.identity.dtype) == ("the quick ", "float32")


def test_runs_of_earlier_versions_can_be_continued(serve):
    found = serve().encoder().identity
    name = b"stickytoken.encoders.endpoint.encoder.EndpointModel"
    assert found.modules == hashlib.sha256(name).hexdigest()


def test_texts_that_a_server_refuses_are_named_and_found_in_few_requests(serve, encoder):
    bad = "a stone stone"
    served = serve(refused_text="stone stone", empty="refuse")
    found = served.encoder()
    seen = served.server.seen
    vectors = found.encode([bad, *TEXTS], allow_zero=True)
    assert not vectors[0].any()
    np.testing.assert_array_equal(vectors[1:], encoder.encode(TEXTS))
    assert served.paid(TEXTS) == sorted(TEXTS)
    assert served.server.seen - seen <= 2 * 7 + 4  # two requests per halving, and the check of the model
    assert found.spending.pending == pytest.approx(0)
    for text in (bad, ""):
        with pytest.raises(EncodingError, match=rf"refuses the text '{text}' \(HTTP 400, "):
            found.encode(["a", text])


def test_more_texts_than_the_server_takes_are_cut_and_halved_and_four_requests_run_at_once(serve):
    served = serve(batch_limit=100, seconds=0.02)
    found = served.encoder()
    assert found.capabilities.batch == 64
    served.server.behaviour.batch_limit = 4  # from now on
    served.server.answered.clear()
    found.encode([*TEXTS, *tiny.sentences(400)[120:]])
    assert served.paid(TEXTS) == sorted(TEXTS)
    assert max(map(len, served.server.answered)) <= 4
    assert served.server.most_at_once == 4


def test_another_model_under_the_name_ends_the_run_with_a_reason(serve):
    served = serve()
    served.encoder().encode(TEXTS[:10])
    served.server.behaviour.wrong = True
    with pytest.raises(ModelError, match=r"has changed.*cosine of 0\.|-0\.") as caught:
        served.encoder().encode(TEXTS[10:20])
    assert "\n" not in str(caught.value)
    served.encoder().encode(TEXTS[:10])  # what was answered stays


def test_other_dimensions_are_refused(serve):
    served = serve(batch_limit=4)
    found = served.encoder()
    served.server.behaviour.faults.extend([None, "other dimension"])
    with pytest.raises(EncodingError, match="has 3 components, and those before it had 32"):
        found.encode(TEXTS[:40])
    with pytest.raises(ModelError, match="vectors of 32 components, not the 8"):
        serve().encoder(dimensions=8)


def test_a_damaged_file_of_answers_is_named(serve):
    served = serve()
    found = served.encoder()
    found.answers.close()
    (found.answers.folder / "answers.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(RunError, match=r"answers in .* cannot be used.*move it away"):
        served.encoder()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "cpu", "revision": "main"}, "device, revision cannot be set"),
        ({"tokenizer": None}, "hides its vocabulary: pass its tokenizer"),
        ({"tokenizer": "x", "candidates": ["a"]}, "tokenizer and candidates"),
    ],
)
def test_options_that_no_endpoint_has_are_refused(serve, options, said):
    with pytest.raises(InputError, match=said):
        serve().encoder(**options)


def encode_many(name, tokenizer, cache, loaded):
    os.environ["STICKYTOKEN_CACHE"] = str(cache)
    found = load_encoder(name, tokenizer=str(tokenizer), max_length=60)
    loaded.set()
    found.encode(TEXTS)


@pytest.mark.slow
def test_a_killed_process_loses_no_answer(serve, encoder, bert_folder, own_cache):
    served = serve(seconds=0.05, batch_limit=4)
    answers = served.encoder().answers
    loaded = planted.processes().Event()
    process = started(encode_many, served.name, bert_folder, own_cache, loaded)
    while not loaded.wait(0.1):
        assert process.is_alive()
    while len(answers) < 24:
        time.sleep(0.01)
    process.kill()
    process.join()
    time.sleep(0.2)  # requests in flight are answered to nobody
    assert len(answers) < len(TEXTS)
    np.testing.assert_array_equal(served.encoder().encode(TEXTS), encoder.encode(TEXTS))
    assert len(served.paid(TEXTS)) <= len(TEXTS) + 4 * 4
