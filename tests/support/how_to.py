"""The how-to pages as something to execute: their commands, their Python, and the JSON that they describe."""

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import planted
from build import ROOT

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:stickytoken|pip|uv|python|python3\.12|export|cat|printf|\S+/bin/\S+) "
)
_ANYTHING = re.compile(r"\{\w[^{}]*\}|\{\.\.\.\}|(?<=\[)\.\.\.(?=\])|(?<=: )(?:[a-z]+|\.\.\.)")
_KEY_ALONE = re.compile(r'"[^"]*"(?=\s*[,}])')
# For programs in bash: `stickytoken` is that of this environment, and no browser opens.
_PATHS = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "BROWSER": "true"}
# One word after another, and perhaps a file for the output: no shell is needed for it.
_PLAIN = re.compile(r"stickytoken (?P<words>[^|<>;&$\n]*)(?:> (?P<file>\S+))?")


def how_to_pages() -> list[str]:
    """The pages that the menu of the site lists under "How to", in its order."""
    menu = (ROOT / "website" / "mkdocs.yml").read_text("utf-8")
    (section,) = re.findall(r"^  - How to:\n((?:      - .*\n)+)", menu, re.MULTILINE)
    return re.findall(r": (\S+\.md)$", section, re.MULTILINE)


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text("utf-8")


def steps_of(text: str) -> list[tuple[str, str]]:
    """What a reader does, in order: "shell" and a command line, or "python" and a block."""
    steps: list[tuple[str, str]] = []
    for kind, block in _BLOCK.findall(text):
        if kind == "python":
            steps.append(("python", block))
        elif kind == "console":
            steps += [("shell", line[2:]) for line in block.splitlines() if line.startswith("$ ")]
        elif kind not in ("toml", "yaml", "text"):  # what a page says of a file or shows of a program
            steps += [("shell", line.partition("   #")[0].rstrip()) for line in command_lines(block)]
    return steps


def command_lines(block: str) -> list[str]:
    """The command lines of a block; a text that follows `<<END` belongs to its line."""
    commands: list[str] = []
    ending = None
    for line in block.splitlines():
        if ending is not None:
            commands[-1] += f"\n{line}"
            ending = None if line == ending else ending
            continue
        if not _COMMAND.match(line):
            raise ValueError(f"{line!r} is no command: give its block a language")
        commands.append(line)
        here = re.search(r"<<(\w+)", line)
        ending = here and here[1]
    return commands


def run_python(block: str, names: dict[str, object], left_out: Callable[[str], bool]) -> list[str]:
    wrong = []
    lines = block.splitlines()
    for statement in ast.parse(block).body:
        if left_out(ast.get_source_segment(block, statement)):
            continue
        comment = lines[statement.end_lineno - 1].partition("  # ")[2]
        try:
            shown_value = ast.literal_eval(comment)
        except (ValueError, SyntaxError):
            exec(compile(ast.Module([statement], []), "page", "exec"), names)
            continue
        value = eval(compile(ast.Expression(statement.value), "page", "eval"), names)
        if value != shown_value:
            wrong.append(f"{ast.unparse(statement)} is {value!r}, not {comment}")
    return wrong


def _in_bash(line: str) -> subprocess.Popen[str]:
    environment = os.environ | _PATHS | {"COLUMNS": "120", "NO_COLOR": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(["bash", "-c", line], env=environment, text=True, **pipes)


def run_line(line: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in this folder; those of stickytoken in a fork that has imported the libraries."""
    for command in line.split(" && "):
        if plain := _PLAIN.fullmatch(command):
            words = shlex.split(plain["words"])
            done = planted.program(planted.COMMAND_LINE, *words, COLUMNS="120", NO_COLOR="1", BROWSER="true")
            if plain["file"]:
                Path(plain["file"]).write_text(done.stdout, encoding="utf-8")
        else:
            process = _in_bash(command)
            printed = process.communicate()
            done = subprocess.CompletedProcess(command, process.returncode, *printed)
        if done.returncode:
            break
    return done


def interrupt_when(message: str, line: str) -> None:
    """Run a line that ends with Ctrl-C only, and press it when stdout has said something."""
    with _in_bash(f"exec {line}") as started:
        heard = next((heard for heard in started.stdout if message in heard), "")
        started.send_signal(signal.SIGINT)
        complaint = started.communicate()[1]
    assert message in heard, complaint
    assert "Traceback" not in complaint


def shape_of(text: str) -> Any:
    """Read a description: an object with its keys, a list with the shape of its entries; None is anything."""
    text = _ANYTHING.sub("null", text).replace("...", '"..."')
    return json.loads(_KEY_ALONE.sub(r"\g<0>: null", text))


def unlike(shape: Any, value: Any, path: str = "") -> Iterator[str]:
    """Compare a document with its description; yield what only one of them has. Null has every shape."""
    if isinstance(shape, list):
        for entry in value[:1]:
            yield from unlike(shape[0], entry, f"{path}[]")
    elif shape is not None and value is not None:
        open_ended = "..." in shape
        keys = shape.keys() - {"..."}
        yield from (f"{path}.{key} is not there" for key in sorted(keys - value.keys()))
        if not open_ended:
            yield from (f"{path}.{key} is not documented" for key in sorted(value.keys() - keys))
        for key in sorted(keys & value.keys()):
            yield from unlike(shape[key], value[key], f"{path}.{key}")
