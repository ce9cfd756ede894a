"""Shell commands as a user types them, with a `stickytoken` that has imported its libraries already.

A server process has imported the libraries and computed nothing. Every call of the program is a fork of it,
with the streams, the folder and the environment of the caller. As a program: ``python warm_shell.py SOCKET``.
"""

import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from preloaded import preloaded

_CALLER = """#!{python} -IS
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    call = {{"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}
    socket.send_fds(server, [json.dumps(call).encode() + b"\\n"], [0, 1, 2])
    told = server.makefile()
    worker = int(told.readline())
    signal.signal(signal.SIGINT, lambda *_: os.kill(worker, signal.SIGINT))
    sys.exit(int(told.readline() or 1))
"""


@contextmanager
def warm_program(folder: Path):
    """Yield an environment in whose PATH `stickytoken` is a program that starts at once."""
    address, program = folder / "server", folder / "bin" / "stickytoken"
    program.parent.mkdir()
    program.write_text(_CALLER.format(python=sys.executable, address=str(address)), encoding="utf-8")
    program.chmod(0o755)
    paths = {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "BROWSER": shutil.which("true")}
    environment = os.environ | paths | {"COLUMNS": "120", "NO_COLOR": "1"}
    command = [sys.executable, "-W", "ignore", __file__, str(address)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout.readline() == "ready\n"
            yield environment
        finally:
            server.terminate()


def run_line(line: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess:
    """Run a line in bash."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def interrupt_when(said: str, line: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a line that ends with Ctrl-C only; press it when stdout has said something, and return stdout."""
    with subprocess.Popen(
        ["bash", "-c", line],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as started:
        heard = ""
        for heard_line in started.stdout:
            heard += heard_line
            if said in heard:
                break
        os.killpg(started.pid, signal.SIGINT)
        rest, complaint = started.communicate()
    assert said in heard, complaint
    assert "Traceback" not in complaint, complaint
    return heard + rest


def serve(address: str) -> None:
    """Answer calls until the process is ended."""
    for name in preloaded():
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            caller, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _answer(caller)
            caller.close()


def _answer(caller: socket.socket) -> None:
    """Run a call in a process of its own; tell the caller its id first, and its status last."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, streams, _, _ = socket.recv_fds(caller, 1 << 16, 3)
    while not message.endswith(b"\n"):
        message += caller.recv(1 << 16)
    worker = os.fork()
    if worker == 0:
        caller.close()
        _work(json.loads(message), streams)
    for stream in streams:
        os.close(stream)
    caller.sendall(f"{worker}\n".encode())
    _, status = os.waitpid(worker, 0)
    caller.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _work(call: dict, streams: list[int]) -> None:
    os.chdir(call["folder"])
    os.environ.clear()
    os.environ.update(call["environment"])
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)
    sys.argv = ["stickytoken", *call["arguments"]]
    status = 1
    try:
        importlib.import_module("stickytoken.cli.main").main()
    except SystemExit as end:
        status = end.code or 0
    except BaseException:  # noqa: BLE001 - shown as the interpreter shows it
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1])
