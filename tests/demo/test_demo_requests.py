"""Requests that no visitor of the page makes: other hosts, direct calls, malformed values, huge texts."""

import json
import logging
import socket
from urllib.parse import urlsplit

import pytest

from naming import says
from stickytoken.demo.context import SharedModel
from web_app import FILTERS, TRY, Events, request

JOIN = "/gradio_api/queue/join"
GOOD = ("the river is old", "a baker opens the window", "river", "suffix", 3)


@pytest.fixture
def computed(monkeypatch):
    used = []
    encoder = SharedModel.encoder
    monkeypatch.setattr(SharedModel, "encoder", lambda model: (used.append(model), encoder(model))[1])
    return used


@pytest.fixture
def events(bert_app):
    return Events(bert_app)


@pytest.fixture
def logged(caplog, capfd):
    """A function that requires one line in the log, and no traceback anywhere."""

    def one_line():
        assert [record for record in caplog.records if record.exc_info] == []
        (message,) = [
            record.getMessage() for record in caplog.records if record.name.startswith("stickytoken.demo")
        ]
        assert "\n" not in message
        assert len(message) < 1000
        assert "Traceback" not in "".join(capfd.readouterr())
        caplog.clear()

    return one_line


@pytest.mark.parametrize(
    ("method", "path", "host"),
    [
        ("GET", "/", "evil.example"),
        ("HEAD", "/", "evil.example:7860"),
        ("GET", "/config", "127.0.0.1.evil.example"),
        ("GET", "/gradio_api/queue/data?session_hash=x", "evil.example@127.0.0.1"),
        ("GET", "/gradio_api/heartbeat/x", "127.0.0.1:1:2"),
        ("GET", "/gradio_api/file=/etc/passwd", "0.0.0.0"),
        ("GET", "/theme.css", "[::2]"),
        ("POST", JOIN, "192.168.0.1:7860"),
        ("GET", "/", ""),
    ],
)
def test_another_host_is_refused_everywhere(bert_app, method, path, host):
    body = {"data": []} if method == "POST" else None
    status, _ = request(bert_app, method, path, body, {"Host": host})
    assert status == 400


def test_this_machine_is_served_under_its_own_names_and_to_its_own_page(bert_app):
    for host in ("localhost", "[::1]", "LOCALHOST:1", "127.0.0.1:7860", "[::1]:7860"):
        assert request(bert_app, path="/config", headers={"Host": host})[0] == 200
    assert request(bert_app, path="/config", headers={"Origin": bert_app.rstrip("/")})[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost"])
def test_no_websocket_is_opened(bert_app, host):
    headers = {"Host": host, "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    status, _ = request(bert_app, path=JOIN, headers=headers | key)
    assert status in (400, 403) or (host == "localhost" and status in (404, 405))


@pytest.mark.parametrize("origin", ["http://evil.example", "http://localhost:1", "null", "http://["])
def test_a_page_of_another_site_cannot_start_a_computation(bert_app, events, computed, origin):
    body = {"data": GOOD, "fn_index": events.find("click", *TRY), "session_hash": "x"}
    status, answer = request(bert_app, "POST", JOIN, body, {"Origin": origin})
    assert (status, answer) == (403, "this app answers its own page only\n")
    assert computed == []


def status_of(url, head):
    """The status with which a request is answered that no library would send."""
    home = urlsplit(url)
    with socket.create_connection((home.hostname, home.port), timeout=60) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode())
        return int(connection.recv(100).split()[1])


def test_reports_of_the_listed_runs_are_served_and_no_other_file(app, logged):
    status, page = request(app, path="/report/0")
    assert status == 200
    assert page.startswith("<!doctype html>")
    for path in ("/report/99", "/report/../config", "/report/-1"):
        status, _ = request(app, path=path)
        assert status == 404
    status, _ = request(app, path="/report/0", headers={"Host": "evil.example"})
    assert status == 400


def test_two_hosts_are_one_too_many(bert_app):
    head = "GET /config HTTP/1.1\r\nHost: localhost\r\nHost: evil.example"
    assert status_of(bert_app, head) in (400, 403)


def test_there_is_no_api_and_no_event_that_the_page_does_not_have(bert_app, computed, logged):
    for path in ("run/respond", "call/v2/respond", "upload"):
        status, answer = request(bert_app, "POST", f"/gradio_api/{path}", {"data": GOOD})
        assert (status, "no API" in answer) == (404, True)
        logged()
    assert request(bert_app, "POST", JOIN, {"data": GOOD, "fn_index": 999, "session_hash": "x"})[0] == 404
    logged()
    assert computed == []


def test_a_body_beyond_the_limit_is_not_read(bert_app):
    head = f"POST {JOIN} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {10**9}"
    assert status_of(bert_app, head) == 413
    assert request(bert_app, "POST", JOIN, headers={"Transfer-Encoding": "chunked"})[0] == 411


@pytest.mark.parametrize(
    "values", [(), (*GOOD, 1), ({"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, *GOOD[1:])]
)
def test_values_that_the_page_does_not_send_are_one_line(events, computed, values, logged):
    success, message = events.send(events.find("click", *TRY), *values)
    assert not success
    assert "does not fit this page" in message
    assert computed == []
    logged()


def test_a_good_request_is_computed(events, computed):
    success, message = events.send(events.find("click", *TRY), *GOOD)
    assert success
    assert says(message, "3 copies", "river")
    assert len(computed) == 1


def test_values_that_are_refused_are_one_line_and_nothing_is_computed(app, computed, logged):
    """`test_demo_trial.py` has what else is refused."""
    events = Events(app)
    look = ("input", "Run", "Token to show")
    for event, values, named in (
        (("click", *TRY), (*GOOD[:4], 33), ["copies", 33]),
        (("click", *TRY), (GOOD[0], "x" * 5_000_000, *GOOD[2:]), ["sentence B", "5,000,000"]),
        (look, (["second"], 5), ["no run", "name"]),
        (look, ("second", "x"), ["no token", "id"]),
        (look, ("second", 10**8), [10**8]),
        (("input", "Run"), ({},), ["no run", "name"]),
        (("input", *FILTERS), ("second", "", "sticky", [], []), ["verdict", "list"]),
    ):
        success, message = events.send(events.find(*event), *values)
        assert success
        assert "Not computed" in message
        assert says(message, *named)
        assert "headline" not in message
        assert computed == [] or event[1:] != TRY
        logged()
    chosen = events.find("select", "Run")
    clicked = {"index": [0, 0], "value": "x", "row_value": ["x"] * 30}
    success, message = events.send(chosen, "second", event_data=clicked)
    assert success
    assert says(message, "no token", "id")
    logged()
    assert not events.send(chosen, "second", event_data=[1])[0]
    logged()


def test_a_defect_is_logged_with_its_traceback_and_leaves_no_answer(events, monkeypatch, caplog):
    monkeypatch.setattr(SharedModel, "encoder", lambda model: 1 / 0)
    success, message = events.send(events.find("click", *TRY), *GOOD)
    assert success
    assert "The app failed" in message
    assert "headline" not in message
    (record,) = [log_record for log_record in caplog.records if log_record.levelno == logging.ERROR]
    assert record.exc_info[0] is ZeroDivisionError
    assert json.loads(message)["data"][1]["visible"] is False
