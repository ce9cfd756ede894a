"""The web app as a visitor meets it: served by this process, used in a headless browser."""

import contextlib
import http.client
import json
import re
import uuid
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from stickytoken import load_encoder, load_sentences
from stickytoken.validation import visible

ATTACKS = (
    "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "<svg onload=alert(3)>",
    "[bold]evil[/bold]", "{{constructor}}${alert(4)}", "'\" onmouseover='alert(5)", "\u202egnp.exe",
    "\x1b[31mred", "![i](http://evil.example/i.png)", "<a href=javascript:alert(6)>a</a>",
)  # fmt: skip
SHOWN = tuple(visible(text) for text in ATTACKS)
TOKEN = re.compile("^Token")
# Labels of the fields that the buttons of the tabs send.
SENTENCES = ("Sentence A, which stays as it is", "Sentence B, which gets the copies")
TRY = (*SENTENCES, "Token", "Where the copies go", "Copies")
WHY = ("First text", "Second text", "Whole words in place of tokens")
FILTERS = ("Run", "Search", "Verdict", "Entry", "Script")
TABS = ("Try", "Why similar", "Explore")
WIDE: dict[str, Any] = {"viewport": {"width": 1400, "height": 900}}


def context_of(model, runs=(), folder=Path("no-such-folder"), examples=()):
    """Model and runs of an app; without the packaged examples unless they are asked for."""
    pytest.importorskip("gradio", reason="gradio is not installed")
    from stickytoken.demo.context import SharedModel, find_runs, make_context

    library = find_runs([Path(run) for run in runs], folder, examples)
    return make_context(SharedModel(load_encoder(model)), library, load_sentences(None))


@lru_cache(maxsize=4)
def _events(startup):
    from stickytoken.demo.server import make_app

    return list(make_app(startup).fns.values())


def _find_event(startup, trigger, labels):
    (event,) = [
        event
        for event in _events(startup)
        if tuple(field.label for field in event.inputs) == labels
        and trigger in [name for _, name in event.targets]
    ]
    return event


def event_of(startup, trigger, *labels):
    """What the page of an app does when a trigger is used, given values of the fields with these labels."""
    return _find_event(startup, trigger, labels).fn


def values_after(startup, trigger, inputs, event_data):
    """What the fields with an id show after an event and those that the page sends after it.

    ``inputs`` has the values of the event's inputs, keyed by label. ``event_data`` is passed after them.
    """
    event = _find_event(startup, trigger, tuple(inputs))
    value_of = {field: inputs[field.label] for field in event.inputs}
    more = [event_data]
    while event is not None:
        outputs = event.fn(*(value_of[field] for field in event.inputs), *more)
        for field, output in zip(event.outputs, outputs, strict=True):
            if not isinstance(output, dict):
                value_of[field] = output
            elif "value" in output:  # an update without a value leaves the value as it is
                value_of[field] = output["value"]
        more = []
        event = next((later for later in _events(startup) if later.trigger_after == event._id), None)
    return {field.elem_id: value for field, value in value_of.items() if field.elem_id}


def started(context):
    from stickytoken.demo.context import Startup

    startup = Startup(context.model.name, context.library)
    startup.finish(lambda: context)
    return startup


def plots(answer):
    return [value for value in answer if hasattr(value, "to_plotly_json")]


def serving(context):
    return serving_startup(started(context))


@contextmanager
def serving_startup(startup):
    pytest.importorskip("gradio", reason="gradio is not installed")
    from stickytoken.demo.server import make_app, serve

    served = serve(make_app(startup), startup.library, 0, share=False)
    try:
        yield served.url
    finally:
        served.close()


@contextmanager
def browsing(browser, url, **options):
    with opened_early(browser, url, **options) as (page, heard):
        page.wait_for_selector("#try-answer .headline")
        yield page, heard


@contextmanager
def opened_early(browser, url, **options):
    """The page before the worked example stands in it, and complaints, dialogs and requests to others."""
    context = browser.new_context(**options)
    page = context.new_page()
    heard = []
    home = urlsplit(url).netloc

    def complains(message):
        if message.type in ("error", "warning"):
            heard.append(f"console: {message.text}")

    def asks(request):
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and address.netloc != home:
            heard.append(f"request: {request.url}")

    page.on("console", complains)
    page.on("pageerror", lambda error: heard.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (heard.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", asks)
    page.goto(url)
    yield page, heard
    context.close()


def open_tab(page, name):
    button = page.get_by_role("tab", name=name, exact=True)
    if button.is_visible():
        button.click()
    else:  # a narrow page has the tabs that find no room in a menu
        page.locator(".overflow-menu button").first.click()
        page.locator(".overflow-dropdown").get_by_text(name, exact=True).click()
    return page.get_by_role("tabpanel").filter(visible=True)


def error(page):
    return page.locator(".message.error").filter(visible=True)


def drawn(page, count):
    page.wait_for_function(
        "count => [...document.querySelectorAll('.js-plotly-plot[role=img]')]"
        ".filter(each => each.querySelector('.main-svg')).length >= count",
        arg=count,
    )


def named(page):
    return page.locator("#try-answer .lead .token").first


def first_cells(page):
    return page.locator("#explore-table [role=gridcell].first-column")


def rows(page):
    return [text.strip() for text in first_cells(page).all_inner_texts() if text.strip()]


def request(url, method="GET", path="/", body=None, headers=None):
    home = urlsplit(url)
    connection = http.client.HTTPConnection(home.hostname, home.port, timeout=60)
    content = None if body is None else json.dumps(body).encode()
    usual = {} if content is None else {"content-type": "application/json"}
    with contextlib.closing(connection):
        connection.request(method, path, content, usual | (headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")


class Events:
    """The events of a served page, sent as its script sends them."""

    def __init__(self, url):
        self._url = url
        self._config = json.loads(request(url, path="/config")[1])

    def find(self, trigger, *labels):
        fields = {
            component["id"]: component["props"].get("label") for component in self._config["components"]
        }
        (event_index,) = [
            event["id"]
            for event in self._config["dependencies"]
            if tuple(fields[field_id] for field_id in event["inputs"]) == labels
            and trigger in [name for _, name in event["targets"]]
        ]
        return event_index

    def send(self, event, *values, **more):
        session = uuid.uuid4().hex
        body = {"data": values, "fn_index": event, "session_hash": session} | more
        status, answer = request(self._url, "POST", "/gradio_api/queue/join", body)
        assert status == 200, answer
        stream = request(self._url, path=f"/gradio_api/queue/data?session_hash={session}")[1]
        messages = [json.loads(line[5:]) for line in stream.splitlines() if line.startswith("data:")]
        (done,) = [message for message in messages if message["msg"] == "process_completed"]
        return done["success"], json.dumps(done["output"])
