"""How a command is declared: groups of options, rare options as settings, and files with settings."""

from __future__ import annotations

import copy
import functools
import inspect
import re
import tomllib
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, TypeAlias, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from stickytoken.cli._options import OUTPUT, PANELS, VerbosityOptions, output_option
from stickytoken.cli.console import print_table, verbosity
from stickytoken.errors import InputError
from stickytoken.validation import visible

_Command: TypeAlias = Callable[..., None]


def command(*settings: str) -> Callable[[_Command], _Command]:
    """Turn each parameter whose type is a dataclass into one option per field.

    --quiet, --verbose, --set and --config are added. The help of a parameter is its entry under ``Args:`` of
    the function or ``Attributes:`` of the dataclass.

    Args:
        settings: names of options that are rare in this command: like those declared by `setting`, they are
            reached by ``--set name=value`` only.
    """
    return functools.partial(_declared, rare=frozenset(settings))


def _declared(own: _Command, rare: frozenset[str]) -> _Command:
    hints = get_type_hints(own, include_extras=True)
    # A group is the dataclass of a parameter, or the subclass of it that an annotation names.
    groups: dict[str, Any] = {
        name: kind
        for name, hint in hints.items()
        for kind in (hint, *getattr(hint, "__metadata__", ()))
        if isinstance(kind, type) and is_dataclass(kind)
    }

    @functools.wraps(own)
    def gathered(*, set_: object = None, config: object = None, **values: Any) -> None:
        del set_, config  # they have taken effect where the command line was read
        options = VerbosityOptions(values.pop("quiet"), values.pop("verbose"))
        for name, kind in groups.items():
            values[name] = kind(**{each.name: values.pop(each.name) for each in fields(kind) if each.init})
        with verbosity(options.level):
            own(**values)

    parameters = list(_parameters(own, hints, groups, rare))
    if unknown := rare - {each.name for each in parameters}:
        raise TypeError(f"{own.__name__} has no options {sorted(unknown)}")
    if any(getattr(each.annotation.__metadata__[0], "hidden", False) for each in parameters):
        parameters.append(_keyword("set_", None, _SET))
    parameters.append(_keyword("config", None, _CONFIG))
    vars(gathered)["__signature__"] = inspect.Signature(parameters)
    gathered.__doc__ = str(inspect.getdoc(own)).partition("\n\nArgs:\n")[0]
    return gathered


def _keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _parameters(
    function: _Command, hints: dict[str, Any], groups: dict[str, Any], rare: frozenset[str]
) -> Iterator[inspect.Parameter]:
    own = inspect.signature(function).parameters
    for name in (*own, "verbosity"):
        group = VerbosityOptions if name == "verbosity" else groups.get(name)
        if group is None:
            members, kinds, texts = [(name, own[name].default)], hints, _entries(function)
        else:
            members = [(field.name, field.default) for field in fields(group) if field.init]
            kinds = get_type_hints(group, include_extras=True)
            texts = {key: text for kind in reversed(group.__mro__) for key, text in _entries(kind).items()}
        for member, default in members:
            option = copy.copy(kinds[member].__metadata__[0])
            option.help = option.help or texts.get(member)
            option.hidden = option.hidden or member in rare
            yield _keyword(member, default, Annotated[kinds[member].__origin__, option])


def _entries(documented: Any) -> dict[str, str]:
    """Read the texts of the ``Args:`` or ``Attributes:`` of a docstring by name."""
    section = re.split(r"^(?:Args|Attributes):\n", inspect.getdoc(documented) or "", flags=re.MULTILINE)[1:]
    found = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", "".join(section), flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


class PanelledCommand(TyperCommand):
    """A command with its options in panels, in the order shared by all commands.

    Attributes:
        settings: options that only ``--set`` and files with settings reach, by name.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.settings: dict[str, TyperOption] = {}
        for param in self.params:
            if isinstance(param, TyperOption) and param.metavar is None:
                param.metavar = _value(param)
            if isinstance(param, TyperOption) and param.hidden:
                self.settings[_key(param)] = param
        self.params = [each for each in self.params if each not in self.settings.values()]
        for name, option in self.settings.items():
            option.opts, option.secondary_opts = [f"--set {name}"], []  # as errors name it

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
        """Read the command line, then what it leaves open from --set, --config and pyproject.toml."""
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
            fail: Callable[[str], NoReturn] = ctx.fail
            fail(f"--{name} is a setting: pass --set {name}={value}")
        for option in self.settings.values():
            option.handle_parse_result(ctx, {}, [])
        return rest


def _value(option: TyperOption) -> str | None:
    """Return how a value is shown: nothing for a flag, plain names for ranges and lists."""
    if option.is_flag:
        return ""
    kind = option.type_descriptor
    if kind.is_ranged:
        return f"<{kind.ranged_type_name}>"
    return "<str>" if kind.is_list and not kind.is_path else None


def _key(param: Any) -> str:
    return str(max(param.opts, key=len)).lstrip("-")


# Settings on the command line.


def _read_settings(ctx: typer.Context, value: list[str] | None) -> None:
    own: Any = ctx.command
    given: Any = ctx.default_map
    for each in value or ():
        if each == "help":
            rows = [(key, value_of(option), option.help or "") for key, option in own.settings.items()]
            print_table(f"{ctx.command_path} --set name=value", ("name", "value", "meaning"), rows)
            raise typer.Exit
        name, sign, text = each.partition("=")
        name = name.strip().replace("_", "-")
        if name not in own.settings:
            if any(name == _key(param) for param in own.params if isinstance(param, TyperOption)):
                raise typer.BadParameter(f"{name} is an option: use --{name}")
            raise typer.BadParameter(f"there is no setting {visible(name)!r}: --set help lists them")
        if not sign:
            raise typer.BadParameter(f"{each!r} is not of the form name=value")
        option = own.settings[name]
        given.maps[0][option.name] = [text] if option.multiple else text


def value_of(option: TyperOption) -> str:
    kind = option.type_descriptor.annotation
    kind = next(iter(getattr(kind, "__args__", ())), kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(str(each.value) for each in kind)
    return {bool: "true, false", int: "number", float: "number", Path: "path"}.get(kind, "text")


def _complete_setting(ctx: typer.Context, incomplete: str) -> list[str]:
    own: Any = ctx.command
    return [f"{name}=" for name in own.settings if name.startswith(incomplete)]


_SET = Annotated[
    list[str] | None,
    output_option(
        "--set",
        metavar="NAME=VALUE",
        is_eager=True,
        callback=_read_settings,
        autocompletion=_complete_setting,
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
    """Find the nearest pyproject.toml with the table, at or above a folder and within its repository."""
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
    lines = text.splitlines()
    header = re.compile(r"\s*\[\s*tool\s*\.\s*stickytoken\s*\]")
    start = next((number for number, line in enumerate(lines) if header.match(line)), 0)
    for number in range(start + 1, len(lines)):
        if re.match(r"\s*model\s*=", lines[number]):
            return number + 1
        if lines[number].lstrip().startswith("["):
            break
    return start + 1


def _parsed(file: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = file.read_bytes().decode("utf-8")
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file} is not valid TOML ({error}): correct it") from error
    except RecursionError as error:
        raise InputError(f"{file} is not valid TOML (it is nested too deeply): correct it") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read ({error}): it must be TOML in UTF-8") from error


def _read_config(ctx: typer.Context, value: Path | None) -> None:
    given: Any = ctx.default_map
    command = str(ctx.info_name)
    if not ctx.resilient_parsing and (project := project_table(Path.cwd())) is not None:
        file, table, _ = project
        if command == _PROJECT_COMMAND:
            given.maps[2].update(_checked(ctx, _of_all(table), file, "[tool.stickytoken]"))
        own = _of_command(ctx, table, file)
        given.maps[2].update(_checked(ctx, own, file, f"[tool.stickytoken.{command}]"))
    if value is not None:
        file = value.expanduser()
        _, document = _parsed(file)
        given.maps[1].update(_checked(ctx, _of_all(document), file, "the file"))
        given.maps[1].update(_checked(ctx, _of_command(ctx, document, file), file, f"[{command}]"))


def _of_all(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if not isinstance(value, dict)}


def _of_command(ctx: Any, document: Mapping[str, Any], file: Path) -> dict[str, Any]:
    tables = {name: each for name, each in document.items() if isinstance(each, dict)}
    for name in (name for name in tables if name not in ctx.parent.command.commands):
        raise InputError(f"{file} has a table [{visible(name)}], and there is no such command")
    return tables.get(str(ctx.info_name), {})


def _checked(ctx: Any, entries: Mapping[str, Any], file: Path, where: str) -> dict[str, Any]:
    """Check the entries of a table against the options of a command; return values by parameter."""
    own = [each for each in ctx.command.params if isinstance(each, TyperOption)]
    options: dict[str, Any] = {_key(each): each for each in own if each.name not in ("set_", "config")}
    if ctx.info_name == _PROJECT_COMMAND:
        options["model"] = next(each for each in ctx.command.params if isinstance(each, TyperArgument))
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
            typed = typed if param.multiple else typed[0]
            param.process_value(ctx, typed)
        except typer.TyperException as error:
            said = error.format_message().removeprefix("Invalid value: ")
            raise InputError(f"{file}: {name} in {where} is {value!r}: {said}") from error
        found[str(param.name)] = typed
    return found


def _as_typed(param: Any, value: Any, folder: Path) -> Any:
    """Return a value of TOML as it would be typed; relative paths are those of the file."""
    expected = value_of(param)
    if expected == "true, false":
        if not isinstance(value, bool):
            raise typer.BadParameter("use true or false")
        return value
    if expected == "number":
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise typer.BadParameter("use a number")
        return str(value)
    if not isinstance(value, str) or not value:
        raise typer.BadParameter("use a text that is not empty")
    path = folder / Path(value).expanduser()
    return str(path) if folder != Path.cwd() and (expected == "path" or path.exists()) else value


_CONFIG = Annotated[
    Path | None,
    output_option(
        "--config",
        is_eager=True,
        callback=_read_config,
        help="TOML file with options and settings: for this command, or in tables named after commands.",
    ),
]
