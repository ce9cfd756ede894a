"""stickytoken demo: what it refuses, how it starts, waits for its model and ends."""

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import planted
from naming import naming
from stickytoken.demo.context import Startup, find_runs
from stickytoken.demo.server import require_free
from stickytoken.errors import ModelError
from web_app import SHOWN, WIDE, context_of, error, named, open_tab, opened_early, rows, serving_startup

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect


@pytest.fixture
def startup(hostile):
    _, run, runs = hostile
    return Startup("the model", find_runs([run], runs))


@pytest.fixture
def early(browser, startup):
    with serving_startup(startup) as url, opened_early(browser, url, **WIDE) as visit:
        page, heard = visit
        yield page
        assert heard == []


def test_the_page_is_there_before_the_model_and_the_example_follows(early, startup, hostile):
    expect(early.locator("#try-answer")).to_contain_text("the model is being loaded")
    expect(early.get_by_role("button", name="Show what happens")).to_be_disabled()
    expect(early.get_by_label("Sentence A")).to_be_disabled()
    open_tab(early, "Explore")
    expect(early.locator("#explore-card .card .token").first).to_be_visible()
    assert set(SHOWN[:4]) <= set(rows(early))
    open_tab(early, "Try")
    model, run, runs = hostile
    startup.finish(lambda: context_of(model, [run], runs))
    expect(named(early)).to_have_text(SHOWN[0])
    expect(early.get_by_label("Sentence A")).not_to_have_value("")
    early.locator("#try-token").get_by_role("textbox").fill("baba")
    early.get_by_role("button", name="Show what happens").click()
    expect(named(early)).to_have_text("baba")


def test_who_waits_for_a_model_that_cannot_be_loaded_is_told(early, startup):
    expect(early.locator("#try-answer")).to_contain_text("is being loaded")

    def load():
        raise ModelError("it has no <weights>")

    with pytest.raises(ModelError):
        startup.finish(load)
    expect(error(early)).to_contain_text("it has no <weights>")
    expect(early.locator("#try-answer")).not_to_contain_text("being loaded")


def test_nobody_waits_for_a_model_whose_loading_was_stopped(startup):
    def load():
        raise KeyboardInterrupt

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(startup.context)
        with pytest.raises(KeyboardInterrupt):
            startup.finish(load)
        with pytest.raises(ModelError, match=naming(startup.model_name)):
            waiting.result()


@pytest.mark.slow
def test_a_model_that_turns_out_to_be_broken_ends_the_command_with_one_line(bert_folder, tmp_path):
    model = Path(shutil.copytree(bert_folder, tmp_path / "model"))
    (model / "model.safetensors").write_bytes(b"no weights")
    result = planted.command("demo", "--port", 0, "--model", model, "--folder", tmp_path)
    assert result.exit_code == 1
    assert "serving on" in result.stdout
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in result.stderr


def test_a_port_that_cannot_be_used_is_one_line():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        planted.assert_refused("demo", "--port", port, saying=naming(port, "--port 0"))
    for port in (-1, 65_536):
        planted.assert_refused("demo", f"--port={port}", saying=naming(port))


def test_a_folder_of_nobody_is_one_line():
    planted.assert_refused("demo", "--port", 0, "--folder", "~nobody-here", saying=naming("~nobody-here"))


def test_a_model_that_is_not_there_is_one_line(tmp_path, hub_cache):
    for name in (tmp_path / "absent", "nope", "no/such-model"):
        arguments = ("demo", "--port", 0, "--model", name, "--folder", tmp_path)
        planted.assert_refused(*arguments, saying=naming(name))


@pytest.mark.slow
def test_it_serves_until_it_is_interrupted(demo_bert, tmp_path):
    """In a process of its own: one JSON document, a page on 127.0.0.1 alone, Ctrl-C, nothing left behind."""
    options = ["--port", "0", "--format", "json", "--model", str(demo_bert), "--folder", str(tmp_path)]
    command = [sys.executable, "-m", "stickytoken", "demo", *options]
    wishes = {"HF_HUB_OFFLINE": "1", "GRADIO_SHARE": "True", "GRADIO_SERVER_NAME": "0.0.0.0"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=os.environ | wishes, **pipes)
    try:
        printed = ""
        while not printed.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            printed += line
        document = json.loads(printed)
        assert document["public_url"] is None
        port = int(document["url"].rstrip("/").rpartition(":")[2])
        with urllib.request.urlopen(document["url"]) as page:
            assert b"gradio" in page.read()
        with socket.socket() as outside:
            outside.settimeout(5)
            # Another address of this machine: nobody listens there.
            assert outside.connect_ex(("127.0.0.2", port)) == errno.ECONNREFUSED
        process.send_signal(signal.SIGINT)
        rest, complaints = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, rest) == (130, "")
    assert complaints.splitlines()[-2:] == ["press Ctrl-C to stop", "interrupted: the web app has stopped"]
    assert "Traceback" not in complaints
    assert require_free(port) == port
