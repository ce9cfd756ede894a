"""How a command is declared: groups of options, rare options as settings, and files with settings."""

from __future__ import annotations

import copy
import functools
import inspect
import re
import tomllib
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from stickytoken.cli._options import OUTPUT, PANELS, output_option
from stickytoken.cli.console import Verbosity, print_table, verbosity
from stickytoken.errors import InputError
from stickytoken.validation import visible

_Command: TypeAlias = Callable[..., None]


def command(*settings: str) -> Callable[[_Command], _Command]:
    """Turn each parameter whose type is a dataclass into one option per field, and add those of all commands.

    The help of a parameter is its entry under ``Args:`` of the function or ``Attributes:`` of the dataclass.
    ``settings`` are options that are rare in this command: only ``--set name=value`` reaches them.
    """

    def declared(own: _Command) -> _Command:
        hints = get_type_hints(own, include_extras=True)
        # A group is the dataclass of a parameter, or the subclass of it that an annotation names.
        groups: dict[str, Any] = {
            name: kind
            for name, hint in hints.items()
            for kind in (hint, *getattr(hint, "__metadata__", ()))
            if isinstance(kind, type) and is_dataclass(kind)
        }
        parameters: list[inspect.Parameter] = []

        def declare(name: str, default: Any, hint: Any, text: str | None = None) -> None:
            option = copy.copy(hint.__metadata__[0])
            option.help = option.help or text
            option.hidden = option.hidden or name in settings
            kind = Annotated[hint.__origin__, option]
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(name, keyword, default=default, annotation=kind))

        texts = _entries(own)
        for name, parameter in inspect.signature(own).parameters.items():
            if name not in groups:
                declare(name, parameter.default, hints[name], texts.get(name))
                continue
            kinds, helps = get_type_hints(groups[name], include_extras=True), _entries(*groups[name].__mro__)
            for each in (each for each in fields(groups[name]) if each.init):
                declare(each.name, each.default, kinds[each.name], helps.get(each.name))
        if unknown := set(settings) - {each.name for each in parameters}:
            raise TypeError(f"{own.__name__} has no options {sorted(unknown)}")
        rare = any(each.annotation.__metadata__[0].hidden for each in parameters)
        declare("quiet", False, _QUIET)
        declare("verbose", False, _VERBOSE)
        if rare:
            declare("set_", None, _SET)
        declare("config", None, _CONFIG)

        @functools.wraps(own)
        def gathered(
            *, quiet: bool, verbose: bool, set_: object = None, config: object = None, **values: Any
        ) -> None:
            del set_, config  # they have taken effect where the command line was read
            for name, kind in groups.items():
                values[name] = kind(
                    **{each.name: values.pop(each.name) for each in fields(kind) if each.init}
                )
            if quiet and verbose:
                raise typer.BadParameter("use one of --quiet and --verbose", param_hint="--quiet")
            with verbosity(Verbosity.QUIET if quiet else Verbosity.VERBOSE if verbose else Verbosity.NORMAL):
                own(**values)

        vars(gathered)["__signature__"] = inspect.Signature(parameters)
        gathered.__doc__ = str(inspect.getdoc(own)).partition("\n\nArgs:\n")[0]
        return gathered

    return declared


def _entries(*documented: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in reversed(documented):
        section = re.split(r"^(?:Args|Attributes):\n", inspect.getdoc(each) or "", flags=re.MULTILINE)[1:]
        texts = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", "".join(section), flags=re.MULTILINE)
        found |= {name: " ".join(text.split()) for name, text in texts}
    return found


class PanelledCommand(TyperCommand):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Options that only --set and files with settings reach.
        self.settings: dict[str, TyperOption] = {}
        for param in [each for each in self.params if isinstance(each, TyperOption)]:
            kind = param.type_descriptor
            if param.metavar is None and param.is_flag:
                param.metavar = ""
            elif param.metavar is None and kind.is_ranged:
                param.metavar = f"<{kind.ranged_type_name}>"
            elif param.metavar is None and kind.is_list and not kind.is_path:
                param.metavar = "<str>"
            if param.hidden:
                self.params.remove(param)
                self.settings[name := _key(param)] = param
                param.opts, param.secondary_opts = [f"--set {name}"], []  # as errors name it

    def get_help_option(self, ctx: Any) -> TyperOption | None:
        option: TyperOption | None = super().get_help_option(ctx)
        if option is not None:
            option.rich_help_panel = OUTPUT
            option.metavar = ""
        return option

    def get_params(self, ctx: Any) -> list[Any]:
        def rank(param: Any) -> int:
            panel = getattr(param, "rich_help_panel", None)
            return 1 + PANELS.index(panel) if isinstance(param, TyperOption) and panel in PANELS else 0

        return sorted(super().get_params(ctx), key=rank)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given: ChainMap[str, Any] = ChainMap({}, {}, {})  # the first that has a value counts
        ctx.default_map = given
        try:
            rest: list[str] = super().parse_args(ctx, args)
        except typer.TyperException as error:
            name = str(getattr(error, "option_name", "")).removeprefix("--")
            no = name.startswith("no-") and name not in self.settings
            if (name := name.removeprefix("no-") if no else name) not in self.settings:
                raise
            value = "false" if no else "true" if self.settings[name].is_flag else "VALUE"
            rest = ctx.fail(f"--{name} is a setting: pass --set {name}={value}")
        for option in self.settings.values():
            option.handle_parse_result(ctx, {}, [])
        return rest


def _key(param: Any) -> str:
    return str(max(param.opts, key=len)).lstrip("-")


# Settings on the command line.


def _read_settings(ctx: typer.Context, value: list[str] | None) -> None:
    own: Any = ctx.command
    given: Any = ctx.default_map
    for each in value or ():
        if each == "help":
            rows = [(key, _value_of(option), option.help or "") for key, option in own.settings.items()]
            print_table(f"{ctx.command_path} --set name=value", ("name", "value", "meaning"), rows)
            raise typer.Exit
        name, sign, text = each.partition("=")
        name = name.strip().replace("_", "-")
        if name not in own.settings:
            if any(name == _key(each) for each in own.params if isinstance(each, TyperOption)):
                raise typer.BadParameter(f"{name} is an option: use --{name}")
            raise typer.BadParameter(f"there is no setting {visible(name)!r}: --set help lists them")
        if not sign:
            raise typer.BadParameter(f"{each!r} is not of the form name=value")
        option = own.settings[name]
        given.maps[0][option.name] = [text] if option.multiple else text


def _value_of(option: TyperOption) -> str:
    kind = option.type_descriptor.annotation
    kind = next(iter(getattr(kind, "__args__", ())), kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(str(each.value) for each in kind)
    return {bool: "true, false", int: "number", float: "number", Path: "path"}.get(kind, "text")


_QUIET = Annotated[bool, output_option("--quiet", "-q", help="Print results and errors only.")]
_MORE = "Also print where the model was found, how it computes, and the logs of libraries."
_VERBOSE = Annotated[bool, output_option("--verbose", "-v", help=_MORE)]
_SET = Annotated[
    list[str] | None,
    output_option(
        "--set",
        metavar="NAME=VALUE",
        is_eager=True,
        callback=_read_settings,
        autocompletion=lambda ctx: [f"{name}=" for name in ctx.command.settings],
        help="Change a setting that is rarely needed; --set help lists them. Repeatable.",
    ),
]


# Settings in files.


class ProjectTable(NamedTuple):
    file: Path
    table: dict[str, Any]
    model_line: int  # the line that names the model, or else the one that opens the table


# The command that the entries of the table itself are for; other commands have tables in it.
_PROJECT_COMMAND = "check"


def project_table(start: Path) -> ProjectTable | None:
    for folder in (start.absolute(), *start.absolute().parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            text, document = _parsed(file)
            tool = document.get("tool", {})
            table = tool.get("stickytoken") if isinstance(tool, dict) else None
            if isinstance(table, dict):
                return ProjectTable(file, table, _line_of_model(text))
            if table is not None:
                raise InputError(f"{file}: tool.stickytoken must be a table, [tool.stickytoken]")
        if (folder / ".git").exists():
            return None
    return None


def _line_of_model(text: str) -> int:
    header = re.search(r"^\s*\[\s*tool\s*\.\s*stickytoken\s*\]", text, re.MULTILINE)
    if header is None:
        return 1
    entry = re.compile(r"^\s*(?:\[|(model)\s*=)", re.MULTILINE).search(text, header.end())
    return text.count("\n", 0, (entry if entry and entry[1] else header).end()) + 1


def _parsed(file: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = file.read_bytes().decode("utf-8")
        return text, tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"{file} is not valid TOML ({reason}): correct it") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read ({error}): it must be TOML in UTF-8") from error


def _read_config(ctx: typer.Context, value: Path | None) -> None:
    given: Any = ctx.default_map
    if not ctx.resilient_parsing and (project := project_table(Path.cwd())) is not None:
        given.maps[2].update(_entries_of(ctx, project.table, project.file, "tool.stickytoken"))
    if value is not None:
        file = value.expanduser()
        given.maps[1].update(_entries_of(ctx, _parsed(file)[1], file))


def _entries_of(ctx: Any, table: dict[str, Any], file: Path, root: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    command = str(ctx.info_name)
    tables = {name: each for name, each in table.items() if isinstance(each, dict)}
    if not root or command == _PROJECT_COMMAND:
        entries = {name: each for name, each in table.items() if name not in tables}
        found |= _checked(ctx, entries, file, f"[{root}]" if root else "the file")
    for name in (name for name in tables if name not in ctx.parent.command.commands):
        raise InputError(f"{file} has a table [{visible(name)}], and there is no such command")
    where = f"[{root}.{command}]" if root else f"[{command}]"
    return found | _checked(ctx, tables.get(command, {}), file, where)


def _checked(ctx: Any, entries: Mapping[str, Any], file: Path, where: str) -> dict[str, Any]:
    own = [each for each in ctx.command.params if each.name not in ("set_", "config")]
    options: dict[str, Any] = {_key(each): each for each in own if isinstance(each, TyperOption)}
    if ctx.info_name == _PROJECT_COMMAND:
        options["model"] = next(each for each in own if isinstance(each, TyperArgument))
    params = options | ctx.command.settings
    found = {}
    for name, value in entries.items():
        if name not in params:
            listed = ", ".join([*options, *(["or what --set help lists"] if ctx.command.settings else [])])
            raise InputError(f"{file}: {where} has no entry {visible(name)!r}: use {listed}")
        param = params[name]
        try:
            values = value if param.multiple and isinstance(value, list) else [value]
            typed = [_as_typed(param, each, file.parent) for each in values]
            found[str(param.name)] = typed if param.multiple else typed[0]
            param.process_value(ctx, found[str(param.name)])
        except typer.TyperException as error:
            said = error.format_message().removeprefix("Invalid value: ")
            raise InputError(f"{file}: {name} in {where} is {value!r}: {said}") from error
    return found


def _as_typed(param: Any, value: Any, folder: Path) -> Any:
    expected = _value_of(param)
    kind: type = {"true, false": bool, "number": float}.get(expected, str)
    if value == "" or (float if type(value) is int else type(value)) is not kind:
        wanted = {bool: "true or false", float: "a number", str: "a text that is not empty"}
        raise typer.BadParameter(f"use {wanted[kind]}")
    if kind is not str:
        return value if kind is bool else str(value)
    path = folder / Path(value).expanduser()
    return str(path) if folder != Path.cwd() and (expected == "path" or path.exists()) else value


_FILE = "TOML file with options and settings: for this command, or in tables named after commands."
_CONFIG = Annotated[Path | None, output_option("--config", is_eager=True, callback=_read_config, help=_FILE)]
