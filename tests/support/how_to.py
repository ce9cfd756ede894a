"""The how-to pages as something to execute: their blocks of commands and of Python, in order."""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass

from build import ROOT

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:stickytoken|pip|python|python3\.12|export|cat|printf|\S+/bin/\S+) "
)
# What a page says of a file or shows of a program is no command.
NOT_COMMANDS = {"toml", "yaml", "text"}


@dataclass(frozen=True)
class Step:
    """One thing that a reader does.

    Attributes:
        kind: ``shell``, a command line, or ``python``, a block.
        text: what is typed.
    """

    kind: str
    text: str


def how_to_pages() -> list[str]:
    """The pages that the menu of the site lists under "How to", in its order."""
    menu = (ROOT / "website" / "mkdocs.yml").read_text("utf-8")
    (section,) = re.findall(r"^  - How to:\n((?:      - .*\n)+)", menu, re.MULTILINE)
    return re.findall(r": (\S+\.md)$", section, re.MULTILINE)


def text_of(page: str) -> str:
    """The Markdown of a page."""
    return (ROOT / "docs" / page).read_text("utf-8")


def steps_of(text: str) -> list[Step]:
    """Every command line and every block of Python of a page, in order.

    Raises:
        ValueError: a block is neither commands nor marked as something else.
    """
    steps: list[Step] = []
    for kind, block in _BLOCK.findall(text):
        if kind == "python":
            steps.append(Step("python", block))
        elif kind == "console":
            steps += [Step("shell", line[2:]) for line in block.splitlines() if line.startswith("$ ")]
        elif kind not in NOT_COMMANDS:
            steps += [Step("shell", line.partition("   #")[0].rstrip()) for line in command_lines(block)]
    return steps


def command_lines(block: str) -> list[str]:
    """The command lines of a block; a text that follows `<<END` belongs to its line.

    Raises:
        ValueError: a line is no command.
    """
    found: list[str] = []
    ending = None
    for line in block.splitlines():
        if ending is not None:
            found[-1] += f"\n{line}"
            ending = None if line == ending else ending
            continue
        if not _COMMAND.match(line):
            raise ValueError(f"{line!r} is no command: give its block a language")
        found.append(line)
        here = re.search(r"<<(\w+)", line)
        ending = here and here[1]
    return found


def run_python(block: str, names: dict[str, object], left_out: Callable[[str], bool]) -> list[str]:
    """Execute a block, statement by statement.

    Args:
        block: the code.
        names: names of earlier blocks; those of this one are added.
        left_out: whether a statement is not executed.

    Returns:
        What is wrong with the comments that show the value of an expression.
    """
    wrong = []
    lines = block.splitlines()
    for statement in ast.parse(block).body:
        if left_out(ast.get_source_segment(block, statement)):
            continue
        comment = lines[statement.end_lineno - 1].partition("  # ")[2]
        if isinstance(statement, ast.Expr) and _is_literal(comment):
            value = eval(compile(ast.Expression(statement.value), "page", "eval"), names)
            if value != ast.literal_eval(comment):
                wrong.append(f"{ast.unparse(statement)} is {value!r}, not {comment}")
        else:
            exec(compile(ast.Module([statement], []), "page", "exec"), names)
    return wrong


def _is_literal(comment: str) -> bool:
    try:
        ast.literal_eval(comment)
    except (ValueError, SyntaxError):
        return False
    return True
