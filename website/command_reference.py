"""The page of all commands, generated from the program itself."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import typer
from typer.core import TyperArgument
from typer.main import get_command

from stickytoken.cli.app import app

_INTRODUCTION = """# Commands

What `stickytoken COMMAND --help` says, command by command. [Usage](../usage.md) describes the JSON that each
command prints, exit statuses and environment variables.
"""


def command_page() -> str:
    """Return a Markdown page of every command with its arguments and options."""
    root: Any = get_command(app)
    sections = [_section(name, command) for name, command in root.commands.items()]
    return "\n".join([_INTRODUCTION, *sections])


def _section(name: str, command: Any) -> str:
    """Return the help of a command as Markdown: text, usage, example, options and settings."""
    context = typer.Context(command, info_name=f"stickytoken {name}")
    usage = command.get_usage(context).removeprefix("Usage: ")
    text, _, example = command.help.partition("\n\nExample: ")
    blocks = [f"## stickytoken {name}\n", f"{_text(text)}\n", f"```\n{usage}\n```\n"]
    if example:
        blocks.append(f"Example:\n\n```\n{example.strip()}\n```\n")
    blocks += _tables(command.get_params(context))
    blocks += _settings(command.settings)
    return "\n".join(blocks)


def _tables(params: list[Any]) -> Iterator[str]:
    """Yield a table for every panel of arguments or options, as `--help` groups them."""
    panels: dict[str, list[Any]] = {}
    for param in params:
        if not param.hidden:
            group = "Arguments" if isinstance(param, TyperArgument) else param.rich_help_panel or "Options"
            panels.setdefault(group, []).append(param)
    for panel, members in panels.items():
        rows = "\n".join(f"| {_name(param)} | {_value(param)} | {_help(param)} |" for param in members)
        yield f"| {panel} | value | meaning |\n| --- | --- | --- |\n{rows}\n"


def _settings(settings: dict[str, Any]) -> Iterator[str]:
    """Yield a table of the settings of a command, if it has any."""
    if settings:
        rows = "\n".join(
            f"| `{name}` | {_value(setting)} | {_help(setting)} |" for name, setting in settings.items()
        )
        yield f"| Settings, `--set name=value` | value | meaning |\n| --- | --- | --- |\n{rows}\n"


def _name(param: Any) -> str:
    """Return how an argument or an option is written."""
    if isinstance(param, TyperArgument):
        return f"`{param.name.upper()}`"
    return ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))


def _value(param: Any) -> str:
    """Return what may follow an option: the choices, or the kind of value."""
    if getattr(param, "is_flag", False):
        return "`true`, `false`" if param.hidden else ""
    kind = param.type_descriptor.annotation
    arguments = get_args(kind)  # of `X | None` and `list[X]`
    if arguments:
        kind = arguments[0]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{choice.value}`" for choice in kind)
    names: dict[Any, str] = {str: "text", int: "number", float: "number", Path: "path"}
    return names.get(kind, "text")


def _help(param: Any) -> str:
    """Return the help of an option, with its default unless the help states that itself."""
    text = _text(param.help or "")
    default = param.default
    if isinstance(default, Enum):
        default = default.value
    is_value = isinstance(default, str | int | float | Path) and not isinstance(default, bool)
    has_default = is_value and default != "" and param.show_default is not False
    if has_default and "Default:" not in text:
        text += f" Default: `{default}`."
    return text


def _text(help_text: str) -> str:
    """Return a help text as Markdown, with special characters escaped."""
    plain = re.sub(r"\\\[", "[", help_text)
    return re.sub(r"([*_|`\[\]])", r"\\\1", html.escape(plain, quote=False)).replace("\n", " ")
