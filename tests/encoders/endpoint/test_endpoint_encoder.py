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
from stickytoken.encoders.endpoint._answers import Answers, answers_folder
from stickytoken.encoders.endpoint.options import parse_address
from stickytoken.encoders.protocol import Encoder, is_encoder, reads_ids
from stickytoken.errors import EncodingError, InputError, ModelError, RunError

TEXTS = tiny.sentences(300)


def test_it_is_an_encoder_of_texts_with_the_vectors_of_the_model(serve, encoder):
    served = serve()
    found = served.encoder()
    assert isinstance(found, Encoder)
    assert is_encoder(found)
    assert not reads_ids(found)
    assert load_encoder(found) is found
    assert (found.dimension, found.max_length, found.noise < 1e-7) == (encoder.dimension, 60, True)
    assert found.content_ids(TEXTS) == encoder.content_ids(TEXTS)
    vectors = found.encode([*TEXTS, TEXTS[0]])
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors[:-1], encoder.encode(TEXTS))
    np.testing.assert_array_equal(vectors[-1], vectors[0])
    assert found.encode([]).shape == (0, encoder.dimension)
    assert "http" in repr(found)


def test_what_was_answered_is_never_sent_again(serve):
    served = serve()
    first = served.encoder()
    vectors = first.encode(TEXTS)
    identity, seen = first.identity, served.server.seen
    np.testing.assert_array_equal(first.encode(TEXTS[::-1])[::-1], vectors)
    second = served.encoder()
    np.testing.assert_array_equal(second.encode(TEXTS), vectors)
    assert second.identity == identity
    assert served.server.seen == seen
    assert len(first.endpoint.answers) == len(TEXTS)


def test_the_same_model_at_another_port_is_asked_again_and_has_the_same_identity(serve):
    first, second = serve(), serve()
    vectors = first.encoder().encode(TEXTS)
    np.testing.assert_array_equal(second.encoder().encode(TEXTS), vectors)
    assert second.encoder().identity == first.encoder().identity
    assert sorted(set(TEXTS) & set(second.server.texts)) == sorted(TEXTS)


def test_a_prompt_goes_before_every_text_and_into_the_identity(serve, encoder):
    served = serve()
    plain, prompted = served.encoder(), served.encoder(prompt="the quick ")
    np.testing.assert_array_equal(prompted.encode(["river"]), encoder.encode(["the quick river"]))
    assert prompted.content_ids(["river"]) == encoder.content_ids(["the quick river"])
    assert prompted.identity != plain.identity
    assert prompted.identity.prompt == "the quick "


def test_texts_that_are_too_long_are_refused_by_their_name_before_they_are_sent(serve):
    served = serve()
    found = served.encoder(max_length=8)
    seen = served.server.seen
    with pytest.raises(EncodingError, match=r"'river river.*10 tokens.*reads 8"):
        found.encode(["river " * 10])
    assert served.server.seen == seen


def test_a_text_that_the_server_refuses_is_named_and_the_others_are_kept(serve):
    served = serve(refused_text="stone stone")
    found = served.encoder()
    texts = [*TEXTS[:20], "a stone stone"]
    with pytest.raises(EncodingError, match=r"refuses the text 'a stone stone' \(HTTP 400, this text"):
        found.encode(texts)
    seen = served.server.seen
    assert not found.encode(texts, allow_zero=True)[-1].any()
    assert served.server.seen == seen


def test_more_texts_than_the_server_takes_are_cut_and_halved(serve):
    served = serve(batch_limit=100)
    found = served.encoder()
    assert found.capabilities.batch == 64
    served.server.behaviour.batch_limit = 10  # from now on
    served.server.answered.clear()
    found.encode(TEXTS)
    assert sorted(served.server.texts) == sorted(TEXTS)
    assert max(map(len, served.server.answered)) <= 10


def test_four_requests_run_beside_each_other(serve):
    served = serve(seconds=0.02, batch_limit=1)
    found = served.encoder()
    found.encode(TEXTS[:50])
    assert served.server.most_at_once == 4


def test_another_model_under_the_name_ends_the_run_with_a_reason(serve):
    served = serve()
    served.encoder().encode(TEXTS[:10])
    served.server.behaviour.wrong = True
    with pytest.raises(ModelError, match=r"has changed.*cosine of 0\.|-0\.") as caught:
        served.encoder().encode(TEXTS[10:20])
    assert "\n" not in str(caught.value)
    served.encoder().encode(TEXTS[:10])  # what was answered stays


def test_another_dimension_in_the_middle_is_refused(serve):
    served = serve(batch_limit=4)
    found = served.encoder()
    served.server.behaviour.faults.extend([None, "other dimension"])
    with pytest.raises(EncodingError, match="has 3 components, and those before it had 32"):
        found.encode(TEXTS[:40])


def test_dimensions_that_the_model_does_not_have_are_refused(serve):
    with pytest.raises(ModelError, match="vectors of 32 components, not the 8"):
        serve().encoder(dimensions=8)


def test_a_damaged_file_of_answers_is_named(serve):
    served = serve()
    found = served.encoder()
    found.endpoint.answers.close()
    (found.endpoint.answers.folder / "answers.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(RunError, match=r"answers in .* cannot be used.*move it away"):
        served.encoder()


def test_options_that_no_endpoint_has_are_refused(serve):
    served = serve()
    with pytest.raises(InputError, match="device, revision cannot be set"):
        served.encoder(device="cpu", revision="main")
    with pytest.raises(InputError, match="hides its vocabulary: pass its tokenizer"):
        served.encoder(tokenizer=None)
    with pytest.raises(InputError, match="tokenizer and candidates"):
        served.encoder(tokenizer="x", candidates=["a"])


def encode_many(name, tokenizer, cache, loaded):
    """Encode texts of an endpoint; runs in a process of its own."""
    os.environ["STICKYTOKEN_CACHE"] = str(cache)
    found = load_encoder(name, tokenizer=str(tokenizer), max_length=60)
    loaded.set()
    found.encode(tiny.sentences(300))


@pytest.mark.slow
def test_a_killed_process_loses_no_answer(serve, bert_folder, own_cache):
    served = serve(seconds=0.05, batch_limit=8)
    loaded = planted.processes().Event()
    process = started(encode_many, served.name, bert_folder, own_cache, loaded)
    while not loaded.wait(0.1):
        assert process.is_alive()
    answers = Answers(answers_folder(parse_address(served.name), None))
    while len(answers) < 40:
        time.sleep(0.01)
    answers.close()
    process.kill()
    process.join()
    time.sleep(0.2)  # requests in flight are answered to nobody
    found = served.encoder()
    kept = len(found.endpoint.answers)
    vectors = found.encode(TEXTS)
    asked = [text for text in served.server.texts if text in set(TEXTS)]
    assert kept >= 40
    assert len(asked) - len(set(asked)) <= 4 * 8
    assert len(asked) <= 300 + len(asked) - kept
    whole = hashlib.sha256(vectors.tobytes()).hexdigest()
    fresh = serve(seconds=0.0, batch_limit=8).encoder()
    assert hashlib.sha256(fresh.encode(TEXTS).tobytes()).hexdigest() == whole
