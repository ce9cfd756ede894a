"""The page of all commands, generated from the program itself."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperArgument
from typer.main import get_command

from stickytoken.cli.app import app

_INTRODUCTION = """# Commands

What `stickytoken COMMAND --help` says, command by command. [Usage](../usage.md) describes the JSON that each
command prints, exit statuses and environment variables.
"""


def command_page() -> str:
    """Write every command with its arguments and options as Markdown."""
    root: Any = get_command(app)
    return "\n".join([_INTRODUCTION, *(_section(name, command) for name, command in root.commands.items())])


def _section(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=f"stickytoken {name}")
    usage = command.get_usage(context).removeprefix("Usage: ")
    said, _, example = command.help.partition("\n\nExample: ")
    parts = [f"## stickytoken {name}\n", f"{_text(said)}\n", f"```\n{usage}\n```\n"]
    if example:
        parts.append(f"Example:\n\n```\n{example.strip()}\n```\n")
    return "\n".join([*parts, *_tables(command.get_params(context)), *_settings(command.settings)])


def _tables(params: list[Any]) -> Iterator[str]:
    panels: dict[str, list[Any]] = {}
    for param in params:
        if not param.hidden:
            group = "Arguments" if isinstance(param, TyperArgument) else param.rich_help_panel or "Options"
            panels.setdefault(group, []).append(param)
    for panel, members in panels.items():
        rows = "\n".join(f"| {_name(each)} | {_value(each)} | {_help(each)} |" for each in members)
        yield f"| {panel} | value | meaning |\n| --- | --- | --- |\n{rows}\n"


def _settings(settings: dict[str, Any]) -> Iterator[str]:
    if settings:
        rows = "\n".join(f"| `{name}` | {_value(each)} | {_help(each)} |" for name, each in settings.items())
        yield f"| Settings, `--set name=value` | value | meaning |\n| --- | --- | --- |\n{rows}\n"


def _name(param: Any) -> str:
    if isinstance(param, TyperArgument):
        return f"`{param.name.upper()}`"
    return ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))


def _value(param: Any) -> str:
    """Return what may follow an option: the choices, or the kind of value."""
    if getattr(param, "is_flag", False):
        return "`true`, `false`" if param.hidden else ""
    kind = param.type_descriptor.annotation
    kind = next(iter(getattr(kind, "__args__", ())), kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{each.value}`" for each in kind)
    names: dict[Any, str] = {str: "text", int: "number", float: "number", Path: "path"}
    return names.get(kind, "text")


def _help(param: Any) -> str:
    said = _text(param.help or "")
    default = param.default
    if isinstance(default, Enum):
        default = default.value
    shown = isinstance(default, str | int | float | Path) and not isinstance(default, bool) and default != ""
    if shown and param.show_default is not False and "Default:" not in said:
        said += f" Default: `{default}`."
    return said


def _text(said: str) -> str:
    """Return a help text as Markdown: without the marks of the terminal, and with nothing read as markup."""
    plain = re.sub(r"\\\[", "[", said)
    return re.sub(r"([*_|`\[\]])", r"\\\1", html.escape(plain, quote=False)).replace("\n", " ")
