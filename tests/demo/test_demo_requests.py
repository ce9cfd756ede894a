"""Requests that no visitor of the page makes: other hosts, direct calls, malformed values, huge texts."""

import http.client
import json
import logging
import socket
from urllib.parse import urlsplit

import pytest

from stickytoken.demo._try import plan_trial
from stickytoken.demo.server import AllowedHosts
from web_app import Events, request

PATHS = [
    ("GET", "/"),
    ("HEAD", "/"),
    ("GET", "/config"),
    ("GET", "/gradio_api/info"),
    ("GET", "/gradio_api/startup-events"),
    ("GET", "/gradio_api/queue/data?session_hash=x"),
    ("GET", "/gradio_api/heartbeat/x"),
    ("GET", "/gradio_api/file=/etc/passwd"),
    ("GET", "/theme.css"),
    ("POST", "/gradio_api/queue/join"),
    ("POST", "/gradio_api/run/respond"),
    ("POST", "/gradio_api/upload"),
]
OTHER_HOSTS = [
    "evil.example",
    "evil.example:7860",
    "127.0.0.1.evil.example",
    "localhost.evil.example:80",
    "evil.example@127.0.0.1",
    "127.0.0.1:1:2",
    "0.0.0.0",
    "192.168.0.1:7860",
    "[::2]",
    "",
]
TRY = (
    "Sentence A, which stays as it is",
    "Sentence B, which gets the copies",
    "Token",
    "Where the copies go",
    "Copies",
)
GOOD = ("the river is old", "a baker opens the window", "river", "suffix", 3)


@pytest.fixture
def computed(monkeypatch):
    """Every trial that is planned: what the app computes."""
    planned = []

    def noted(encoder, question):
        planned.append(question)
        return plan_trial(encoder, question)

    monkeypatch.setattr("stickytoken.demo._try.plan_trial", noted)
    return planned


@pytest.fixture
def events(bert_app):
    return Events(bert_app)


def assert_one_line_and_no_traceback(caplog, capfd):
    assert [each for each in caplog.records if each.exc_info] == []
    refusals = [each.getMessage() for each in caplog.records if each.name.startswith("stickytoken.demo")]
    assert len(refusals) == 1
    assert "\n" not in refusals[0]
    assert len(refusals[0]) < 1000
    assert "Traceback" not in "".join(capfd.readouterr())


# Hosts.


@pytest.mark.parametrize("host", OTHER_HOSTS)
@pytest.mark.parametrize(("method", "path"), PATHS)
def test_another_host_is_refused_everywhere(bert_app, method, path, host):
    body = {"data": []} if method == "POST" else None
    status, said = request(bert_app, method, path, body, {"Host": host})
    assert status in (400, 403)
    assert method == "HEAD" or "this machine only" in said or not host


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST:1", "127.0.0.1:7860", "[::1]:7860"]
)
def test_this_machine_is_served_under_its_own_names(bert_app, host):
    assert request(bert_app, path="/config", headers={"Host": host})[0] == 200


def test_two_hosts_are_one_too_many(bert_app):
    home = urlsplit(bert_app)
    with socket.create_connection((home.hostname, home.port), timeout=60) as connection:
        connection.sendall(b"GET /config HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert connection.recv(100).split()[1] in (b"400", b"403")


@pytest.mark.parametrize("host", ["evil.example", "localhost"])
def test_no_websocket_is_opened(bert_app, host):
    headers = {
        "Host": host,
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    status, _ = request(bert_app, path="/gradio_api/queue/join", headers=headers)
    assert status == 403 or (host == "localhost" and status in (404, 405))


@pytest.mark.parametrize("origin", ["http://evil.example", "http://localhost:1", "null", "http://["])
def test_a_page_of_another_site_cannot_start_a_computation(bert_app, events, computed, origin):
    body = {"data": GOOD, "fn_index": events.find("click", *TRY), "session_hash": "x"}
    status, said = request(bert_app, "POST", "/gradio_api/queue/join", body, {"Origin": origin})
    assert (status, said) == (403, "this app answers its own page only\n")
    assert computed == []


def test_its_own_page_may_say_where_it_comes_from(bert_app):
    assert request(bert_app, path="/config", headers={"Origin": bert_app.rstrip("/")})[0] == 200


def test_a_public_address_is_allowed_when_there_is_one():
    hosts = AllowedHosts()
    assert not hosts.allow("12ab.gradio.live")
    hosts.add("12ab.gradio.live")
    assert hosts.allow("12AB.gradio.live:443")
    assert not hosts.allow("34cd.gradio.live")


# Direct calls.


@pytest.mark.parametrize(
    "path", ["run/respond", "api/respond", "call/respond", "call/v2/respond", "run/none", "upload"]
)
def test_there_is_no_api_to_call(bert_app, computed, path, caplog, capfd):
    status, said = request(bert_app, "POST", f"/gradio_api/{path}", {"data": GOOD})
    assert status == 404
    assert "no API" in said
    assert computed == []
    assert_one_line_and_no_traceback(caplog, capfd)


def test_an_event_that_the_page_does_not_have_is_one_line(bert_app, caplog, capfd):
    body = {"data": GOOD, "fn_index": 999, "session_hash": "x"}
    assert request(bert_app, "POST", "/gradio_api/queue/join", body)[0] == 404
    assert_one_line_and_no_traceback(caplog, capfd)


def test_a_body_beyond_the_limit_is_not_read(bert_app):
    home = urlsplit(bert_app)
    connection = http.client.HTTPConnection(home.hostname, home.port, timeout=60)
    connection.putrequest("POST", "/gradio_api/queue/join")
    connection.putheader("Content-Length", str(10**9))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    assert (
        request(bert_app, "POST", "/gradio_api/queue/join", headers={"Transfer-Encoding": "chunked"})[0]
        == 411
    )


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (4, 0, "copies is 0"),
        (4, 33, "copies is 33"),
        (4, -1, "copies is -1"),
        (4, 2.5, "copies is 2.5"),
        (4, 10**400, "copies is 1000"),
        (4, float("nan"), "copies is nan"),
        (4, float("inf"), "copies is inf"),
        (4, None, "copies is empty"),
        (4, "3", "copies is not a number"),
        (4, [3], "copies is not a number"),
        (4, True, "copies is not a number"),
        (3, "middle", "the place of the copies is unknown"),
        (3, None, "the place of the copies is unknown"),
        (3, {}, "the place of the copies is unknown"),
        (2, None, "the token is empty"),
        (2, 7, "the token is empty"),
        (2, "x" * 10_000, "the token has 10,000 characters"),
        (0, None, "sentence A is empty"),
        (0, 5, "sentence A is empty"),
        (1, ["a"], "sentence B is empty"),
        (1, "x" * 5_000_000, "sentence B has 5,000,000 characters"),
    ],
)
def test_a_bad_value_is_one_line_and_nothing_is_computed(
    events, computed, place, value, reason, caplog, capfd
):
    success, said = events.send(events.find("click", *TRY), *GOOD[:place], value, *GOOD[place + 1 :])
    assert success
    assert "Not computed" in said
    assert reason in said
    assert "headline" not in said
    assert computed == []
    assert_one_line_and_no_traceback(caplog, capfd)


@pytest.mark.parametrize(
    "values",
    [(), GOOD[:2], (*GOOD, 1), ({"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, *GOOD[1:])],
)
def test_values_that_the_page_does_not_send_are_one_line(events, computed, values, caplog, capfd):
    success, said = events.send(events.find("click", *TRY), *values)
    assert not success
    assert "does not fit this page" in said
    assert computed == []
    assert_one_line_and_no_traceback(caplog, capfd)


def test_a_good_request_is_computed(events, computed):
    success, said = events.send(events.find("click", *TRY), *GOOD)
    assert success
    assert "3 copies of river" in said
    assert len(computed) == 1


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (0, "volcano", "the vocabulary has no token"),
        (2, 33, "copies is 33"),
        (3, 1, "texts is 1"),
        (4, None, "benign tokens is empty"),
    ],
)
def test_an_explanation_that_is_refused_is_one_line(events, place, value, reason, caplog, capfd):
    good = ["river", "suffix", 3, 2, 3, False]
    good[place] = value
    labels = ("Token", "Where the copies go", "Copies", "Texts", "Benign tokens", "Attribution")
    success, said = events.send(events.find("click", *labels), *good)
    assert success
    assert reason in said
    assert "headline" not in said
    assert_one_line_and_no_traceback(caplog, capfd)


EVIDENCE = ("input", "Run", "Token to show")
FILTERS = ("input", "Run", "Search", "Verdict", "Entry", "Script")


@pytest.mark.parametrize(
    ("event", "values", "reason"),
    [
        (EVIDENCE, (["second"], 5), "no run with that name"),
        (EVIDENCE, (None, 5), "no run with that name"),
        (EVIDENCE, ("second", "x"), "no token with that id"),
        (EVIDENCE, ("second", 10**20), "no token with that id"),
        (EVIDENCE, ("second", 10**8), "token id 100000000"),
        (("input", "Run"), ({},), "no run with that name"),
        (FILTERS, ("second", "", "sticky", [], []), "verdict is not a list"),
        (FILTERS, ("second", "", [], [3], []), "entry is not a list"),
        (("input", "Run", "Compared with"), ("second", "second"), "choose two"),
        (("input", "Run", "Compared with"), ("second", 5), "no run with that name"),
    ],
)
def test_a_run_or_token_that_no_list_offers_is_one_line(app, event, values, reason, caplog, capfd):
    events = Events(app)
    success, said = events.send(events.find(*event), *values)
    assert success
    assert "Not computed" in said
    assert reason in said
    assert_one_line_and_no_traceback(caplog, capfd)


def test_a_row_of_a_table_that_has_no_id_is_one_line(app, caplog, capfd):
    events = Events(app)
    chosen = events.find("select", "Run")
    success, said = events.send(
        chosen, "second", event_data={"index": [0, 0], "value": "x", "row_value": ["x"] * 30}
    )
    assert success
    assert "no token with that id" in said
    assert_one_line_and_no_traceback(caplog, capfd)
    caplog.clear()
    success, said = events.send(chosen, "second", event_data=[1])
    assert not success
    assert_one_line_and_no_traceback(caplog, capfd)


def test_a_defect_is_logged_with_its_traceback_and_leaves_no_answer(events, monkeypatch, caplog):
    def broken(encoder, question):
        raise ZeroDivisionError("no such thing")

    monkeypatch.setattr("stickytoken.demo._try.plan_trial", broken)
    success, said = events.send(events.find("click", *TRY), *GOOD)
    assert success
    assert "The app failed" in said
    assert "headline" not in said
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.exc_info[0] is ZeroDivisionError
    assert json.loads(said)["data"][1]["visible"] is False
