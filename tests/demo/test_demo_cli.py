"""stickytoken demo: what it refuses, how it starts, how it ends."""

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

import planted
import tiny
from stickytoken.demo.server import require_free
from stickytoken.errors import InputError


@pytest.fixture
def taken():
    """A port that somebody else listens on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def refused(*arguments):
    """The one line that a command ends with."""
    result = planted.command("demo", *arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, lines
    return lines[0]


def test_a_port_in_use_is_one_line(taken):
    said = refused("--port", taken)
    assert said.startswith(f"error: port {taken} cannot be used (address already in use)")
    assert "--port 0" in said


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_number_that_is_no_port_is_one_line(port):
    assert f"port {port} is not a port number" in refused(f"--port={port}")


def test_any_free_port_can_be_asked_for():
    assert 0 < require_free(0) <= 65_535
    with pytest.raises(InputError):
        require_free(70_000)


def test_runs_that_cannot_be_opened_are_one_line(tmp_path, finished_run):
    assert "no run folder" in refused("--port", 0, "--run", tmp_path / "absent")
    assert "it has no run.json" in refused("--port", 0, "--run", tmp_path)
    shutil.copytree(finished_run.path, tmp_path / "newer")
    record = json.loads((finished_run.path / "run.json").read_text("utf-8")) | {"schema_version": 99}
    (tmp_path / "newer" / "run.json").write_text(json.dumps(record), encoding="utf-8")
    assert "99" in refused("--port", 0, "--run", tmp_path / "newer")


def test_a_model_that_is_not_there_is_one_line(tmp_path, hub_cache):
    assert "error:" in refused("--port", 0, "--model", tmp_path / "absent", "--folder", tmp_path)
    for name in ("nope", "no/such-model"):
        assert f"error: no model {name!r}" in refused("--port", 0, "--model", name, "--folder", tmp_path)


@pytest.mark.slow
def test_it_serves_until_it_is_interrupted(tmp_path):
    """In a process of its own: one JSON document, a page on 127.0.0.1 alone, Ctrl-C, nothing left behind."""
    backbone = tiny.bert_backbone(tmp_path / "backbone", max_length=128)
    tiny.sentence_transformer(backbone).save(str(tmp_path / "model"))
    command = [sys.executable, "-m", "stickytoken", "demo", "--port", "0", "--format", "json"]
    process = subprocess.Popen(
        [*command, "--model", str(tmp_path / "model"), "--folder", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "GRADIO_SHARE": "True", "GRADIO_SERVER_NAME": "0.0.0.0"},
    )
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
    assert process.returncode == 130
    assert rest == ""
    assert "Traceback" not in complaints
    assert complaints.splitlines()[-2:] == ["press Ctrl-C to stop", "interrupted: the web app has stopped"]
    assert require_free(port) == port
