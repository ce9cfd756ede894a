"""Vectors through a real server: as the model's own, kept, never asked for twice, whatever goes wrong."""

import hashlib
import json
import math
import os
import random
import sqlite3
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

import planted
import profiled
import tiny
from embedding_server import FAULTS, Behaviour, EmbeddingServer
from interrupted import started
from naming import naming
from stickytoken import detect, load_encoder
from stickytoken.detection.run_folder import LoadingRecord
from stickytoken.encoders import protocol
from stickytoken.encoders.endpoint import _answers, dry_run, encoder as encoder_module
from stickytoken.encoders.endpoint.dry_run import estimate_cost
from stickytoken.encoders.files.spec import EncoderSpec
from stickytoken.encoders.protocol import Encoder, is_encoder, reads_ids
from stickytoken.encoders.roles import Role, in_role
from stickytoken.errors import EncodingError, InputError, ModelError, RunError
from stickytoken.loading import load_from_spec
from stickytoken.methods.profile.plan import most_texts_to_confirm
from stickytoken.settings.endpoint import EndpointOptions
from stickytoken.settings.prompting import Prompting

TEXTS = tiny.sentences(120)


def test_it_is_an_encoder_of_texts_with_the_vectors_of_the_model(serve, encoder):
    endpoint = serve().encoder()
    assert isinstance(endpoint, Encoder)
    assert is_encoder(endpoint)
    assert not reads_ids(endpoint)
    assert load_encoder(endpoint) is endpoint
    assert (endpoint.dimension, endpoint.max_length) == (encoder.dimension, 60)
    assert endpoint.capabilities.noise < 1e-7
    assert endpoint.content_ids(TEXTS) == encoder.content_ids(TEXTS)
    vectors = endpoint.encode([*TEXTS, TEXTS[0]])
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, encoder.encode([*TEXTS, TEXTS[0]]))
    assert endpoint.encode([]).shape == (0, encoder.dimension)
    assert "http" in repr(endpoint)


def test_what_was_answered_is_never_sent_again_but_to_another_port(serve):
    served = serve()
    other = serve()
    first = served.encoder()
    vectors = first.encode(TEXTS)
    first.confirm_answers()
    identity, requests_seen = first.identify(), served.server.seen
    np.testing.assert_array_equal(first.encode(TEXTS[::-1])[::-1], vectors)
    second = served.encoder()
    np.testing.assert_array_equal(second.encode(TEXTS), vectors)
    assert second.identify() == identity
    assert served.server.seen == requests_seen
    assert len(first.answer_cache) == len(TEXTS)
    np.testing.assert_array_equal(other.encoder().encode(TEXTS), vectors)
    assert other.encoder().identify() == identity
    assert other.paid(TEXTS) == sorted(TEXTS)


def test_a_prompt_goes_before_every_text_and_into_the_identity(serve, encoder):
    served = serve()
    plain = served.encoder()
    prompted = served.encoder(prompt="the quick ")
    np.testing.assert_array_equal(prompted.encode(["river"]), encoder.encode(["the quick river"]))
    assert prompted.content_ids(["river"]) == encoder.content_ids(["the quick river"])
    assert prompted.identify() != plain.identify()
    assert (prompted.identify().prompt, prompted.identify().dtype) == ("the quick ", "float32")
    # Without fields of requests, runs of earlier versions can be continued.
    name = b"stickytoken.encoders.endpoint.encoder.EndpointModel"
    assert plain.identify().modules == hashlib.sha256(name).hexdigest()


def test_a_query_prompt_goes_before_queries_in_the_same_session(serve, encoder):
    served = serve()
    asked = []
    prompted = served.encoder(prompt=Prompting("the ", query_prompt="quick "))
    prompted.session.before_sending = lambda: asked.append(True)
    queries = in_role(prompted, Role.QUERY)
    np.testing.assert_array_equal(queries.encode(["river"]), encoder.encode(["quick river"]))
    np.testing.assert_array_equal(prompted.encode(["river"]), encoder.encode(["the river"]))
    assert in_role(queries, Role.DOCUMENT).prompt == "the "
    assert asked == [True]
    assert queries.spending is prompted.spending
    assert queries.client is prompted.client


def test_texts_that_a_server_refuses_are_named_and_found_in_few_requests(serve, encoder):
    bad = "a stone stone"
    served = serve(refused_text="stone stone", empty="refuse")
    endpoint = served.encoder()
    requests_seen = served.server.seen
    vectors = endpoint.encode([bad, *TEXTS], allow_zero=True)
    assert np.isnan(vectors[0]).all()
    np.testing.assert_array_equal(vectors[1:], encoder.encode(TEXTS))
    assert served.paid(TEXTS) == sorted(TEXTS)
    assert (
        served.server.seen - requests_seen <= 2 * 7 + 4
    )  # two requests per halving, and the check of the model
    assert endpoint.spending.pending == pytest.approx(0)
    for text in (bad, ""):
        with pytest.raises(EncodingError, match=naming(repr(text), 400)):
            endpoint.encode(["a", text])


def test_a_token_whose_texts_a_server_refuses_has_no_verdict_and_counts_nowhere(serve, tmp_path):
    endpoint = serve(refused_text="river river").encoder()
    few = {"sentences": profiled.corpus(), "settings": profiled.SMALL}
    run = detect(endpoint, tokens=["river", "stone", "bird"], out=tmp_path / "run", **few)
    (refused,) = run.tokens.filter(token="river").to_dicts()
    assert (refused["verdict"], refused["erased"]) == (None, None)
    assert "river river" in refused["reason"]
    assert run.result.looked_at == run.tokens["verdict"].count() == len(run.tokens) - 1
    assert run.result.confirmed == int(run.tokens["confirmed"].sum())
    assert run.result.sticky == len(run.sticky)


BAD = "the river nan"


@pytest.mark.parametrize("places", [(0,), (30,), (59,), (0, 30), (29, 30), (0, 59)])
@pytest.mark.parametrize("status", [500, 400, 200])
def test_texts_on_which_a_server_fails_cost_no_other_text(serve, encoder, status, places):
    texts = list(TEXTS[:60])
    for place in places:
        texts[place] = f"{BAD} {place}"
    served = serve(bad_text=BAD, bad_status=status)
    endpoint = served.encoder()
    vectors = endpoint.encode(texts, allow_zero=True)
    is_bad = np.isin(np.arange(60), places)
    assert np.isnan(vectors[is_bad]).all()
    good_texts = [text for text in texts if BAD not in text]
    np.testing.assert_array_equal(vectors[~is_bad], encoder.encode(good_texts))
    assert sorted(endpoint.refused) == sorted(texts[index] for index in places)
    assert endpoint.answer_cache.find(texts).keys() == set(good_texts)
    assert served.paid(good_texts) == sorted(good_texts)


@pytest.mark.parametrize(
    ("status", "behaviour", "reason"),
    [
        (413, {}, "HTTP 413, told to"),
        (422, {"plain_errors": True}, "HTTP 422, told to"),
        (403, {"plain_errors": True, "said": "<html>blocked"}, "HTTP 403, a web page"),
        (429, {"retry_after": "0.01"}, "HTTP 429, told to"),
        (429, {"retry_after": None}, "HTTP 429, told to"),
        (503, {"retry_after": None}, "HTTP 503, told to"),
        (502, {"retry_after": None, "plain_errors": True}, "HTTP 502, told to"),
        (500, {"batch_limit": 1}, "HTTP 500, told to"),
        (500, {"usage": None, "base64": "refuse"}, "HTTP 500, told to"),
        (200, {"base64": "ignore"}, "no vector"),
    ],
)
def test_a_failure_on_one_text_is_told_by_its_reason(serve, encoder, status, behaviour, reason):
    endpoint = serve(bad_text=BAD, bad_status=status, **behaviour).encoder()
    vectors = endpoint.encode([*TEXTS[:7], BAD], allow_zero=True)
    np.testing.assert_array_equal(vectors[:7], encoder.encode(TEXTS[:7]))
    assert endpoint.refused == {BAD: reason}


def test_a_text_that_failed_in_an_earlier_session_is_asked_for_once(serve, encoder):
    served = serve(bad_text=BAD)
    served.encoder().encode([*TEXTS[:7], BAD], allow_zero=True)
    again = served.encoder()
    requests_seen = served.server.seen
    assert np.isnan(again.encode([*TEXTS[:7], BAD], allow_zero=True)[-1]).all()
    assert served.server.seen - requests_seen <= 5  # with the check of the model and the control
    requests_seen = served.server.seen
    again.encode([BAD], allow_zero=True)
    assert served.server.seen == requests_seen
    served.server.behaviour.bad_text = None
    np.testing.assert_array_equal(served.encoder().encode([BAD]), encoder.encode([BAD]))


def test_all_texts_may_be_bad(serve):
    endpoint = serve(bad_text=BAD).encoder()
    texts = [f"{BAD} {number}" for number in range(5)]
    assert np.isnan(endpoint.encode(texts, allow_zero=True)).all()
    with pytest.raises(EncodingError, match=naming(repr(f"{BAD} 0"), 4, 500)):
        endpoint.encode(texts)


def test_a_field_that_a_later_server_refuses_is_left_out(serve, encoder):
    served = serve()
    served.encoder()
    endpoint = served.encoder()
    served.server.behaviour.refused_fields = ("encoding_format",)
    np.testing.assert_array_equal(endpoint.encode(TEXTS[:7]), encoder.encode(TEXTS[:7]))
    assert endpoint.client.request_format.encoding == "omitted"
    assert not endpoint.refused


def test_refused_dimensions_are_left_out_if_the_model_has_them_anyway(serve, encoder):
    served = serve(refused_fields=("dimensions",))
    endpoint = served.encoder(request_dimensions=encoder.dimension)
    np.testing.assert_array_equal(endpoint.encode(TEXTS[:7]), encoder.encode(TEXTS[:7]))
    with pytest.raises(ModelError, match=naming(32, 8)):
        served.encoder(request_dimensions=8)


def test_a_cache_of_another_version_is_emptied(serve, encoder):
    served = serve()
    answers = served.encoder().answer_cache
    answers.keep({TEXTS[0]: np.zeros(32, np.float32)})
    answers.close()
    with sqlite3.connect(answers.folder / "answers.sqlite") as connection:
        connection.execute("PRAGMA user_version = 0")
    connection.close()
    np.testing.assert_array_equal(served.encoder().encode(TEXTS[:1]), encoder.encode(TEXTS[:1]))


@pytest.mark.parametrize(
    ("indices", "order"),
    [
        ([None, 1], [0, 1]),
        ([0, 0], [0, 1]),
        (["1", "0"], [1, 0]),
        ([2, None, 1], [2, 0, 1]),
        ([None, 0, 1], [2, 0, 1]),
        ([0.0, 1.0], [0, 1]),
        ([5], [0]),
    ],
)
def test_an_index_is_read_however_it_is_written(indices, order):
    items = []
    for position, index in zip(order, indices, strict=True):
        item = {"embedding": [position, 1.0]}
        if index is not None:
            item["index"] = index
        items.append(item)
    content = json.dumps({"data": items}).encode()
    assert _answers.read_answer(content, len(items)).vectors[:, 0].tolist() == sorted(order)


@pytest.mark.parametrize("indices", [[0, 0, 1], [1, 2, 3], [0, 3, 1], [-1, 0, 1], [2, None, None]])
def test_indices_that_name_no_order_are_refused(indices):
    items = [{"index": index, "embedding": [1.0]} for index in indices]
    with pytest.raises(ValueError, match="indices"):
        _answers.read_answer(json.dumps({"data": items}), 3)


@pytest.mark.slow
def test_more_texts_than_the_server_takes_are_cut_and_halved_and_four_requests_run_at_once(serve):
    served = serve(batch_limit=100, seconds=0.02)
    endpoint = served.encoder()
    endpoint.encode(tiny.sentences(720)[400:])
    assert endpoint.client.most_texts == 64
    served.server.behaviour.batch_limit = 4  # from now on
    served.server.answered.clear()
    endpoint.encode([*TEXTS, *tiny.sentences(400)[120:]])
    assert served.paid(TEXTS) == sorted(TEXTS)
    assert max(map(len, served.server.answered)) <= 4
    assert served.server.most_at_once == 4


def test_another_model_under_the_name_ends_the_run_with_a_reason(serve):
    served = serve()
    first = served.encoder()
    first.encode(TEXTS[:10])
    first.confirm_answers()
    served.server.behaviour.wrong = True
    with pytest.raises(ModelError, match=naming(served.name, first.answer_cache.folder)) as caught:
        served.encoder().encode(TEXTS[10:20])
    assert "\n" not in str(caught.value)
    served.encoder().encode(TEXTS[:10])  # what was answered stays


@pytest.fixture
def check_every_four(monkeypatch):
    for module in (encoder_module, dry_run):
        monkeypatch.setattr(module, "CHECKED_EVERY", 4)
    monkeypatch.setattr(encoder_module, "MOST_TEXTS", 10)


@pytest.mark.usefixtures("check_every_four")
def test_answers_of_another_model_do_not_stay_in_the_cache(serve, encoder):
    served = serve()
    endpoint = served.encoder()
    endpoint.encode(TEXTS[:40])  # four requests, so that they are checked
    endpoint.encode(TEXTS[40:50])
    served.server.behaviour.wrong = True
    endpoint.encode(TEXTS[50:60])
    assert len(endpoint.answer_cache) == 60
    with pytest.raises(ModelError, match=naming(served.name)):
        endpoint.encode(TEXTS[60:])
    assert endpoint.answer_cache.find(TEXTS).keys() == set(TEXTS[:40])
    served.server.behaviour.wrong = False
    np.testing.assert_array_equal(served.encoder().encode(TEXTS), encoder.encode(TEXTS))


@pytest.mark.usefixtures("check_every_four")
def test_a_short_run_is_checked_at_its_end(serve):
    served = serve()
    endpoint = served.encoder()
    served.server.behaviour.wrong = True
    endpoint.encode(TEXTS[:10])
    with pytest.raises(ModelError, match=naming(served.name)):
        protocol.confirm_answers(protocol.EncoderWrapper(endpoint))
    assert len(endpoint.answer_cache) == 0


@pytest.mark.usefixtures("check_every_four")
def test_many_small_calls_send_few_checks(serve):
    served = serve()
    endpoint = served.encoder()
    before = served.server.seen
    for text in TEXTS[:40]:
        endpoint.encode([text])
    assert served.server.seen - before == 40 + 2 * 40 // 4
    endpoint.confirm_answers()  # nothing was sent since the last check
    assert served.server.seen - before == 40 + 2 * 40 // 4


@pytest.mark.usefixtures("check_every_four")
def test_unchecked_answers_of_an_earlier_session_are_checked_before_they_are_used(serve, encoder):
    served = serve()
    served.encoder()
    served.server.behaviour.wrong = True
    ended = served.encoder()
    ended.session.requests_since_check = 0  # the model was changed after its first check
    ended.encode(TEXTS[:10])
    with pytest.raises(ModelError, match=naming(served.name)):
        served.encoder().encode(TEXTS[:10])
    served.server.behaviour.wrong = False
    np.testing.assert_array_equal(served.encoder().encode(TEXTS[:10]), encoder.encode(TEXTS[:10]))


@pytest.mark.usefixtures("check_every_four")
def test_checks_are_estimated(serve):
    served = serve()
    endpoint = served.encoder()

    def measurement(measured):
        measured.encode(TEXTS[:105])
        protocol.confirm_answers(measured)
        protocol.confirm_answers(measured)

    before = served.server.seen, served.server.tokens
    estimate = estimate_cost(endpoint, measurement)
    measurement(endpoint)
    assert served.server.seen - before[0] == estimate.requests == 11 + 2 * 3
    assert served.server.tokens - before[1] == pytest.approx(estimate.tokens, rel=0.05)


def test_a_record_connects_to_the_endpoint_again_with_what_the_user_chooses_before_it(serve):
    served = serve(required_fields={"input_type": "passage"})
    first = served.encoder(truncate_dim=8, prompt="a: ", request_fields='{"input_type": "passage"}')
    record = LoadingRecord.model_validate_json(LoadingRecord.of(first.spec).model_dump_json())
    again = load_from_spec(record.complete(EncoderSpec(model=served.name)))
    assert again.spec == first.spec
    assert again.identify() == first.identify()
    chosen = EncoderSpec(
        model=served.name,
        truncate_dim=4,
        prompting=Prompting("b: "),
        candidates="strings.txt",
        endpoint=EndpointOptions(price_per_million=1.0),
    )
    fields = replace(chosen.endpoint, request_fields='{"input_type": "passage"}')
    assert record.complete(chosen) == replace(chosen, dtype="float32", max_length=60, endpoint=fields)
    in_a_folder = record.complete(EncoderSpec(model="folder"))
    assert (in_a_folder.truncate_dim, in_a_folder.prompting.prompt) == (8, "a: ")
    assert (in_a_folder.tokenizer, in_a_folder.max_length, in_a_folder.endpoint) == (None, None, None)


def test_other_dimensions_are_refused(serve):
    served = serve()
    endpoint = served.encoder()
    endpoint.client.most_texts = 4
    served.server.behaviour.faults.extend([None, "other dimension"])
    with pytest.raises(EncodingError, match=naming(3, 32)):
        endpoint.encode(TEXTS[:40])
    with pytest.raises(ModelError, match=naming(32, 8)):
        serve().encoder(request_dimensions=8)


def test_vectors_are_truncated_after_they_are_kept_whole(serve, encoder):
    served = serve()
    first = served.encoder()
    full_vectors = first.encode(TEXTS)
    first.confirm_answers()
    requests_seen = served.server.seen
    endpoint = served.encoder(truncate_dim=8)
    np.testing.assert_array_equal(endpoint.encode(TEXTS), full_vectors[:, :8])
    assert served.server.seen == requests_seen
    assert (endpoint.dimension, endpoint.identify().dimension, endpoint.spec.truncate_dim) == (8, 8, 8)
    assert endpoint.encode([]).shape == (0, 8)


def test_new_vectors_of_a_truncated_model_are_truncated(serve):
    served = serve()
    truncated = served.encoder(truncate_dim=8).encode(TEXTS)
    np.testing.assert_array_equal(truncated, served.encoder().encode(TEXTS)[:, :8])


def test_a_rehearsal_has_vectors_of_the_truncated_length(serve):
    endpoint = serve().encoder(truncate_dim=8)
    shapes = []
    estimate_cost(endpoint, lambda stand_in: shapes.append(stand_in.encode(TEXTS[:3]).shape))
    assert shapes == [(3, 8)]


def test_a_damaged_file_of_answers_is_named_and_closed(serve, monkeypatch):
    served = serve()
    endpoint = served.encoder()
    endpoint.answer_cache.close()
    connections = []

    def connect(*arguments, **options):
        connections.append(connect_to_database(*arguments, **options))
        return connections[-1]

    connect_to_database = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)
    (endpoint.answer_cache.folder / "answers.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(RunError, match=naming(endpoint.answer_cache.folder)):
        served.encoder()
    assert connections
    for connection in connections:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "cpu", "revision": "main"}, naming("revision", "device")),
        ({"layer": 1}, naming("layer")),
        ({"truncate_dim": 33}, naming("truncate_dim", 33, 32)),
        ({"tokenizer": None}, naming("vocabulary", "tokenizer")),
        ({"tokenizer": "x", "candidates": ["a"]}, naming("tokenizer", "candidates")),
    ],
)
def test_options_that_no_endpoint_has_are_refused(serve, options, said):
    with pytest.raises(InputError, match=said):
        serve().encoder(**options)


def encode_many(name, tokenizer, cache, loaded):
    os.environ["STICKYTOKEN_CACHE"] = str(cache)
    endpoint = load_encoder(name, tokenizer=str(tokenizer), max_length=60)
    loaded.set()
    endpoint.encode(TEXTS)


@pytest.mark.slow
def test_a_killed_process_loses_no_answer(serve, encoder, bert_folder, own_cache):
    served = serve(seconds=0.05, batch_limit=4)
    answers = served.encoder().answer_cache
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


# What is announced is what is sent, as the server counts it.

SENTENCES = tiny.sentences(200)


def test_the_estimate_is_what_the_server_counts(serve):
    served = serve()
    endpoint = served.encoder()
    server = served.server
    texts = [*SENTENCES, *tiny.WORDS, *(f"{SENTENCES[0]} {' '.join([word] * 8)}" for word in tiny.WORDS)]
    estimate = estimate_cost(endpoint, lambda stand_in: stand_in.encode(texts))
    before = server.seen, server.tokens
    endpoint.encode(texts)
    assert server.seen - before[0] == estimate.requests
    assert server.tokens - before[1] == pytest.approx(estimate.tokens, rel=0.05)
    assert estimate.most is None


def test_queries_are_estimated_with_their_own_prompt(serve):
    served = serve()
    endpoint = served.encoder(prompt=Prompting("the ", query_prompt=f"{' '.join(tiny.WORDS[:20])}: "))
    server = served.server
    documents, both, queries = SENTENCES[:30], SENTENCES[30:40], SENTENCES[40:70]

    def measurement(encoder):
        encoder.encode([*documents, *both])
        of_queries = in_role(encoder, Role.QUERY)
        of_queries.encode([*both, *queries])
        assert in_role(of_queries, Role.QUERY) is of_queries
        in_role(of_queries, Role.DOCUMENT).encode(documents)

    estimate = estimate_cost(endpoint, measurement)
    before = server.seen, server.tokens
    measurement(endpoint)
    assert estimate.texts == len(documents) + 2 * len(both) + len(queries)
    assert server.seen - before[0] == estimate.requests
    assert server.tokens - before[1] == pytest.approx(estimate.tokens, rel=0.05)
    again = estimate_cost(endpoint, measurement)
    assert (again.texts, again.tokens, again.answered) == (0, 0, estimate.texts)


def test_what_depends_on_results_is_told_apart(serve):
    endpoint = serve().encoder()

    def measurement(stand_in):
        stand_in.expect_uncertain("chosen by results", most_texts=40)
        stand_in.reached("first")
        stand_in.encode(SENTENCES[:20])
        stand_in.reached("chosen by results")
        stand_in.encode(SENTENCES[:50])
        stand_in.reached("chosen by results")

    estimate = estimate_cost(endpoint, measurement)
    assert (estimate.texts, estimate.most.texts) == (20, 90)
    longest = max(endpoint.count_by_server([text]) for text in SENTENCES[:50])
    assert estimate.most.tokens == math.ceil(90 * longest)
    together = estimate_cost(endpoint, lambda stand_in: stand_in.encode(SENTENCES[:50]))
    assert (together.texts, together.most) == (50, None)
    assert estimate.tokens < together.tokens < estimate.most.tokens


def test_what_was_answered_costs_nothing(serve):
    endpoint = serve().encoder()
    endpoint.encode(SENTENCES[:20])
    estimate = estimate_cost(endpoint, lambda stand_in: stand_in.encode(SENTENCES[:21]))
    assert (estimate.answered, estimate.texts) == (20, 1)


@pytest.mark.slow
def test_a_detection_costs_what_is_estimated_once_the_tokens_to_confirm_are_known(tmp_path, own_cache):
    profiled.planted_model(3).save(str(tmp_path / "model"))
    server = EmbeddingServer(load_encoder(tmp_path / "model", device="cpu"), Behaviour())
    with server.running() as url:
        encoder = load_encoder(f"{url}#mini", tokenizer=str(tmp_path / "model"), max_length=60)

        def estimated():
            def rehearsed(stand_in):
                most_texts = most_texts_to_confirm(profiled.SMALL, len(encoder.tokenizer.entries))
                stand_in.expect_uncertain("confirm-1", most_texts)
                return profiled.detect_profile(
                    stand_in,
                    f"{folder}/out",
                    insertion="words",
                    progress=lambda step: stand_in.reached(step.stage),
                )

            with tempfile.TemporaryDirectory() as folder:
                return estimate_cost(encoder, rehearsed)

        def step_taken(step):
            if step.stage == "screen" and step.done == 0:
                later[step.stage] = (server.tokens - before, estimated())

        before = server.tokens
        later = {}
        first = estimated()
        profiled.detect_profile(encoder, tmp_path / "run", progress=step_taken, insertion="words")
        paid = server.tokens - before
    # Before the screen, nobody knows how many tokens will be confirmed.
    assert first.tokens < paid <= first.most.tokens
    spent, estimate = later["screen"]
    assert spent + estimate.tokens < paid <= spent + estimate.most.tokens


# Whatever goes wrong on the way: the same vectors and bill in the end, or a line that says why not.


@pytest.mark.parametrize(
    ("asked", "least"), [("0.2", 0.2), ("date+2", 1.0), ("date-100", 0.0), ("soon", 0.0)]
)
def test_a_server_is_left_alone_as_long_as_it_asks_for(serve, encoder, asked, least):
    served = serve(batch_limit=8, retry_after=asked)
    endpoint = served.encoder()
    served.server.behaviour.faults.extend([None, *["429"] * (6 if least < 1 else 1)])
    waits = []
    endpoint.session.waits = lambda reason, seconds: waits.append(seconds)
    began = time.monotonic()
    np.testing.assert_array_equal(endpoint.encode(TEXTS), encoder.encode(TEXTS))
    assert time.monotonic() - began >= least
    assert bool(waits) == (least >= 1)
    assert served.paid(TEXTS) == sorted(TEXTS)


@pytest.mark.parametrize("asked", ["-5", "nan", "inf", "9" * 400])
def test_what_is_no_time_to_wait_is_not_waited_for(asked):
    assert _answers.seconds_to_wait({"retry-after": asked}) is None


@pytest.mark.slow
def test_a_slow_answer_is_asked_for_again_in_halves(serve, encoder):
    served = serve(seconds_per_text=0.012)
    endpoint = served.encoder(request_seconds=0.7)
    served.server.answered.clear()
    np.testing.assert_array_equal(endpoint.encode(TEXTS), encoder.encode(TEXTS))
    assert min(map(len, served.server.answered)) <= 30


@pytest.mark.parametrize(
    ("told", "encoding"),
    [
        ({"shuffle": True}, "base64"),
        ({"index": "none"}, "base64"),
        ({"index": "omit-zero"}, "base64"),
        ({"index": "omit-zero", "shuffle": True}, "base64"),
        ({"index": "zeros"}, "base64"),
        ({"index": "strings", "shuffle": True}, "base64"),
        ({"base64": "ignore"}, "base64"),
        ({"base64": "refuse"}, "float"),
        ({"refused_fields": ("encoding_format",)}, "omitted"),
    ],
)
def test_all_forms_of_an_answer_are_read(serve, encoder, told, encoding):
    endpoint = serve(**told).encoder()
    np.testing.assert_array_equal(endpoint.encode(TEXTS), encoder.encode(TEXTS))
    assert endpoint.server.encoding == encoding


def test_a_server_that_does_not_say_which_vector_is_which_is_refused(serve):
    served = serve(index="twice")
    with pytest.raises(ModelError, match=naming(served.name)):
        served.encoder()


@pytest.mark.parametrize(
    ("fault", "said", "behaviour"),
    [
        ("500", naming(500, "told to"), {"retry_after": None}),
        ("429", naming(429, "told to"), {"retry_after": "0.05"}),
        ("error body", naming("the model is overloaded"), {}),
        ("429", naming(429, "told to"), {"retry_after": "3600"}),
        (
            "429",
            naming("credit", 429, "You exceeded"),
            {"said": "You exceeded your current quota: insufficient_quota"},
        ),
    ],
)
def test_a_server_that_stays_broken_ends_the_run_with_its_reason(serve, fault, said, behaviour):
    served = serve(batch_limit=32, **behaviour)
    endpoint = served.encoder(patience=0.4)
    served.server.behaviour.faults.extend([None, *[fault] * 1000])
    with pytest.raises(ModelError, match=said) as caught:
        endpoint.encode(TEXTS)
    assert "\n" not in str(caught.value)
    assert endpoint.spending.pending == pytest.approx(0)
    served.server.behaviour.faults.clear()
    endpoint.encode(TEXTS)
    assert sorted(set(served.paid(TEXTS))) == sorted(TEXTS)


@pytest.mark.slow
def test_a_server_that_is_restarted_in_the_middle_is_waited_for(encoder, bert_folder):
    first = EmbeddingServer(encoder, Behaviour(batch_limit=8, seconds=0.02))
    second = EmbeddingServer(encoder, Behaviour(batch_limit=8))
    with ExitStack() as running:
        url = running.enter_context(first.running())
        endpoint = load_encoder(f"{url}#mini", tokenizer=str(bert_folder), max_length=60)
        vectors = {}
        thread = threading.Thread(target=lambda: vectors.update(all=endpoint.encode(TEXTS)))
        thread.start()
        while thread.is_alive() and len(set(first.texts) & set(TEXTS)) < 40:
            time.sleep(0.005)
        first.behaviour.faults.extend(["drop"] * 64)  # what is connected still
        running.close()
        time.sleep(0.3)
        with second.running(int(url.split(":")[2].split("/")[0])):
            thread.join()
    np.testing.assert_array_equal(vectors["all"], encoder.encode(TEXTS))
    assert len(set(second.texts) & set(TEXTS)) >= 20


def test_a_redirect_takes_the_texts_along_and_not_the_key(serve, encoder, monkeypatch):
    monkeypatch.setenv("STICKYTOKEN_API_KEY", "sk-planted-0123456789")
    served = serve()
    other = serve()
    endpoint = served.encoder()
    served.server.behaviour.elsewhere = f"{other.url.replace('127.0.0.1', 'localhost')}/embeddings"
    served.server.behaviour.faults.append("redirect")
    np.testing.assert_array_equal(endpoint.encode(TEXTS), encoder.encode(TEXTS))
    assert set(other.server.authorizations) == {""}
    assert "sk-planted" in served.server.authorizations[0]


def test_whatever_a_server_does_to_requests_the_vectors_and_the_bill_are_right(serve, encoder):
    # A text is given up after three failures, so none may meet more than two faults.
    served = serve(faults_per_text=2)
    endpoint = served.encoder()
    endpoint.client.most_texts = 4
    before, noted = served.server.tokens, endpoint.spending.tokens
    faults = [*FAULTS, "no json", *[None] * 14]
    random.Random(0).shuffle(faults)
    served.server.behaviour.faults.extend(faults)
    np.testing.assert_array_equal(endpoint.encode(TEXTS), encoder.encode(TEXTS))
    assert set(served.server.harmed) == {*FAULTS, "no json"}
    assert served.paid(TEXTS) == sorted(TEXTS)
    # An answer that was lost is counted by what it may have cost.
    further_tokens = (endpoint.spending.tokens - noted) - (served.server.tokens - before)
    assert 0 <= further_tokens <= 40
    served.server.behaviour.faults.clear()
    served.server.behaviour.faults.append("web page")
    np.testing.assert_array_equal(endpoint.encode(["the last stone"]), encoder.encode(["the last stone"]))
    assert served.server.harmed["web page"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "faults"), [(3000, ("nan", "drop", "short", "500", "429")), (3501, ())])
def test_the_largest_sum_is_never_exceeded_whatever_the_server_does(serve, limit, faults):
    served = serve()
    texts = tiny.sentences(400)
    endpoint = served.encoder(price_per_million=1e6, max_cost=limit)
    endpoint.client.most_texts = 8
    served.server.behaviour.faults.extend([*[None] * 10, *faults])
    with pytest.raises(RunError, match=naming("cost", limit)):
        endpoint.encode(texts)
    assert limit - 8 * 30 * (2 + len(faults)) < served.server.tokens <= limit
    served.encoder().encode(texts)
    assert served.paid(texts) == sorted(texts)


def test_nothing_is_found_out_for_more_than_the_largest_sum(serve):
    served = serve()
    with pytest.raises(RunError, match=naming("cost", 0, "0 requests")):
        served.encoder(price_per_million=1.0, max_cost=0)
    assert served.server.seen == 0
