"""What is announced is what is sent, as the server counts it."""

import tempfile

import pytest

import profiled
import tiny
from embedding_server import Behaviour, EmbeddingServer
from stickytoken.encoders import load_encoder
from stickytoken.encoders.endpoint.encoder import estimate_cost

CHANGES = {"insertion": "words"}
SENTENCES = tiny.sentences(200)


def test_the_estimate_is_what_the_server_counts(serve):
    served = serve()
    found, server = served.encoder(), served.server
    texts = [*SENTENCES, *tiny.WORDS, *(f"{SENTENCES[0]} {' '.join([word] * 8)}" for word in tiny.WORDS)]
    estimate = estimate_cost(found, lambda stand_in: stand_in.encode(texts))
    before = server.seen, server.tokens
    found.encode(texts)
    assert server.seen - before[0] == estimate.requests
    assert server.tokens - before[1] == pytest.approx(estimate.tokens, rel=0.05)
    assert estimate.most is None


def test_what_depends_on_results_is_told_apart(serve):
    found = serve().encoder()

    def measurement(stand_in):
        stand_in.encode(SENTENCES[:20])
        stand_in.reached("chosen by results")
        stand_in.encode(SENTENCES[:50])
        stand_in.reached("chosen by results")

    estimate = estimate_cost(found, measurement, "chosen by results")
    assert (estimate.texts, estimate.most.texts) == (20, 50)
    assert estimate.tokens < estimate.most.tokens
    together = estimate_cost(found, lambda stand_in: stand_in.encode(SENTENCES[:50]))
    assert (together.tokens, together.most) == (estimate.most.tokens, None)


def test_choices_by_results_are_believed_once_all_vectors_are_real(serve):
    found = serve().encoder()
    found.encode(SENTENCES[:20])

    def measurement(stand_in):
        stand_in.encode(SENTENCES[:20])
        assert not stand_in.makes_up_vectors
        stand_in.encode(SENTENCES[:21])
        assert stand_in.makes_up_vectors

    assert estimate_cost(found, measurement).answered == 20


@pytest.mark.slow
def test_a_detection_costs_what_is_estimated_after_the_pilot_and_about_that_before(tmp_path, own_cache):
    profiled.planted_model(2).save(str(tmp_path / "model"))
    server = EmbeddingServer(load_encoder(tmp_path / "model", device="cpu"), Behaviour())
    with server.running() as url:
        encoder = load_encoder(f"{url}#mini", tokenizer=str(tmp_path / "model"), max_length=60)

        def estimated():
            with tempfile.TemporaryDirectory() as folder:
                return estimate_cost(
                    encoder, lambda stand_in: profiled.detect_profile(stand_in, f"{folder}/out", **CHANGES)
                ).tokens

        def step_taken(step):
            if step.stage == "screen" and step.done == 0:
                later.append(server.tokens + estimated())

        before, later = server.tokens, []
        first = before + estimated()
        profiled.detect_profile(encoder, tmp_path / "run", progress=step_taken, **CHANGES)
    assert server.tokens - before == pytest.approx(first - before, rel=0.15)
    assert server.tokens - before == pytest.approx(later[0] - before, rel=0.05)
