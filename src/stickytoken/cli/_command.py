"""Turn functions into commands of the command line.

How the parameters of a function become options, in the order of this module:

1. `command` makes a function that Typer reads. It builds the dataclasses and calls the original function.
2. `_parameters_of` lists its parameters: one per original parameter or, for a dataclass, one per field.
3. `_parameter` makes each of a type hint with limits, a `typer.Option` (`_options.py`) and a help text.
4. `PanelledCommand` sorts the options into panels, and sets hidden ones aside: rarely needed *settings*.
5. Settings take their values from --set, and options of `check` that are not passed from pyproject.toml.
"""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption
from typer.models import ParameterInfo

from stickytoken.cli._options import FIELD_OPTIONS, OUTPUT, PANELS, output_option, setting
from stickytoken.cli.console import Verbosity, print_table, setting_verbosity
from stickytoken.errors import InputError
from stickytoken.settings import FieldType, OptionName, command_line_types, descriptions, field_type
from stickytoken.validation import file_path, suggestion, visible

_Command: TypeAlias = Callable[..., None]


def command(*, settings: Sequence[str] = ()) -> Callable[[_Command], _Command]:
    """Turn a function into a command. A parameter whose type is a dataclass becomes one option per field.

    The help text of an option is its entry under ``Args:`` in the function's docstring, or under
    ``Attributes:`` in the dataclass's docstring. Options that all commands share, such as ``--quiet``, are
    added. A parameter named ``context`` is not an option: Typer passes the context of the command to it.

    Args:
        settings: Names of options that are settings in this command, although others show them in --help.

    Returns:
        A decorator for the function. The decorator returns the function that Typer calls, whose parameters
        are the options, and whose docstring is the text of --help.
    """

    def decorate(function: _Command) -> _Command:
        """Return the function that Typer calls."""
        hints = get_type_hints(function, include_extras=True)
        groups = _find_option_groups(hints)  # dataclasses, keyed by the name of the function's parameter
        parameters = _parameters_of(function, hints, groups, settings)
        unknown = set(settings) - {parameter.name for parameter in parameters}
        if unknown:
            raise TypeError(f"{function.__name__} has no options {sorted(unknown)}")

        @functools.wraps(function)
        def run(*, quiet: bool, verbose: bool, set_: object = None, **values: Any) -> None:
            """Build the dataclasses from the values of their options, and call the original function."""
            del set_  # its callback has already stored the settings
            for name, group in groups.items():
                option_names = _name_options(group)
                group_values = {field: values.pop(option) for field, option in option_names.items()}
                values[name] = group(**group_values)
            if quiet and verbose:
                raise typer.BadParameter("pass either --quiet or --verbose, not both", param_hint="--quiet")
            level = Verbosity.NORMAL
            if quiet:
                level = Verbosity.QUIET
            elif verbose:
                level = Verbosity.VERBOSE
            with setting_verbosity(level):
                function(**values)

        # Typer reads the options of a command from the signature of its function, and offers no other way to
        # declare them. `inspect.signature` returns a function's `__signature__` attribute if it has one.
        signature = inspect.Signature(parameters)
        setattr(run, "__signature__", signature)  # noqa: B010 - mypy knows no such attribute of functions
        run.__doc__ = str(inspect.getdoc(function)).partition("\n\nArgs:\n")[0]
        return run

    return decorate


def _find_option_groups(hints: Mapping[str, Any]) -> dict[str, Any]:
    """Return the groups of options that a function takes, keyed by the name of the parameter.

    A group is a dataclass whose fields are options. A parameter names it as ``x: Group`` or, if the group is
    made at run time, so that type checkers don't know it, as ``x: Annotated[Base, make_group()]``.
    """
    groups: dict[str, Any] = {}
    for name, hint in hints.items():
        for kind in (hint, *getattr(hint, "__metadata__", ())):
            if isinstance(kind, type) and is_dataclass(kind):
                groups[name] = kind
    return groups


def _name_options(group: Any) -> dict[str, str]:
    option_by_field: dict[str, str] = {}
    for field, value_type in command_line_types(group).items():
        own_names = [item.name for item in value_type.metadata if isinstance(item, OptionName)]
        option_by_field[field] = own_names[0] if own_names else field
    return option_by_field


def _parameters_of(
    function: _Command, hints: Mapping[str, Any], groups: Mapping[str, Any], settings: Sequence[str]
) -> list[inspect.Parameter]:
    """Return the parameters that Typer turns into the arguments and options of a command."""
    own_descriptions = descriptions(function)
    parameters = []

    def add(name: str, value_type: FieldType, default: Any, description: str | None) -> None:
        parameters.append(_parameter(name, value_type, default, description, is_setting=name in settings))

    for name, parameter in inspect.signature(function).parameters.items():
        if name == "context":
            continue
        if name not in groups:
            add(name, field_type(hints[name]), parameter.default, own_descriptions.get(name))
        else:
            group = groups[name]
            value_types = command_line_types(group)
            defaults = {field.name: field.default for field in fields(group)}
            group_descriptions = descriptions(*group.__mro__)
            for field, option in _name_options(group).items():
                add(option, value_types[field], defaults[field], group_descriptions.get(field))
    add("quiet", field_type(_QUIET), False, None)
    add("verbose", field_type(_VERBOSE), False, None)
    # The metadata of each annotation is the `typer.Argument` or `typer.Option` that `_parameter` put there.
    has_settings = any(parameter.annotation.__metadata__[0].hidden for parameter in parameters)
    if has_settings:
        add("set_", field_type(_SET), None, None)
    if "context" in hints:  # Typer passes it by the annotation
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter("context", kind, annotation=typer.Context))
    return parameters


def _parameter(
    name: str, value_type: FieldType, default: Any, description: str | None, *, is_setting: bool
) -> inspect.Parameter:
    """Return the keyword parameter that Typer turns into an argument or option.

    Its annotation is the type of the value with a `typer.Argument` or `typer.Option`, to which this function
    adds the help text and the limits of the value. The `typer.Option` comes from the metadata of the type, or
    else from `FIELD_OPTIONS`. If neither has one, the option is a setting.
    """
    own_options = [item for item in value_type.metadata if isinstance(item, ParameterInfo)]
    shared_option = own_options[0] if own_options else FIELD_OPTIONS.get(name, setting())
    option = copy(shared_option)  # a copy, because other commands have the same option
    option.help = option.help or description
    option.hidden = option.hidden or is_setting
    if value_type.minimum is not None:
        option.min = value_type.minimum
    if value_type.maximum is not None:
        option.max = value_type.maximum
    kind: Any = value_type.kind
    if value_type.repeated:
        kind = list[kind]
    if value_type.optional:
        kind = kind | None
    annotation = Annotated[kind, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


# What to use in place of options that users may expect but that do not exist, keyed by command and option.
# Typer itself suggests the closest name for a misspelled option.
_INSTEAD = {
    "clean": {
        "documents": "pass the file of documents as the second argument",
        "output": "use --out",
    },
    "scan": {
        "documents": "pass the documents as the second argument",
        "source": "use --set source-column=COLUMN",
    },
    "probe": {"tokens": "pass the tokens as arguments after the model"},
    "explain": {"tokens": "pass the tokens as arguments after the run or model"},
}


class PanelledCommand(TyperCommand):
    """A command whose --help groups the options into panels.

    Settings are options that --help does not show, and that can only be set with --set.

    Attributes:
        settings: The settings of the command, keyed by name.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        """Make the command, set the metavar of each option, and move hidden options to ``settings``.

        The arguments are those of `TyperCommand`.
        """
        super().__init__(*args, **options)
        self.settings: dict[str, TyperOption] = {}
        for param in [param for param in self.params if isinstance(param, TyperOption)]:
            if param.metavar is None:
                param.metavar = _choose_metavar(param)
            if param.hidden:
                name = _long_name(param)
                self.params.remove(param)
                self.settings[name] = param
                # The settings get their values in `parse_args`, from --set, so this option name appears only
                # in error messages.
                param.opts = [f"--set {name}"]
                param.secondary_opts = []

    def get_help_option(self, ctx: Any) -> TyperOption | None:
        """Return the --help option, moved to the panel of output options."""
        option: TyperOption | None = super().get_help_option(ctx)
        if option is not None:
            option.rich_help_panel = OUTPUT
            option.metavar = ""
        return option

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the arguments, followed by the options in the order of their panels."""

        def panel_number(param: Any) -> int:
            panel = getattr(param, "rich_help_panel", None)
            if isinstance(param, TyperOption) and panel in PANELS:
                return 1 + PANELS.index(panel)
            return 0  # an argument, which comes first

        return sorted(super().get_params(ctx), key=panel_number)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options and settings of a command.

        The parsed values are stored in ``ctx``. An option of `check` that is not passed gets its value from
        pyproject.toml or from its default. If ``args`` has an option that does not exist, and a replacement
        is known, the usage error names the replacement.

        Returns:
            The arguments that no parameter of the command has used.
        """
        # Neither shell completion nor --help fails because of a file.
        reads_project = not ctx.resilient_parsing and set(args).isdisjoint(ctx.help_option_names)
        # Typer takes the value of an option that is not passed from this map.
        ctx.default_map = _read_project_defaults(ctx) if reads_project else {}
        try:
            rest: list[str] = super().parse_args(ctx, args)
        except typer.TyperException as error:
            advice = self._suggest_instead_of(str(getattr(error, "option_name", "")))
            if advice is not None:
                ctx.fail(advice)  # raises a usage error
            raise
        # Typer has handled only the options in `params`, from which `__init__` removed the settings. The
        # settings get their values from --set.
        for option in self.settings.values():
            option.handle_parse_result(ctx, opts=ctx.meta.get(_SET_VALUES, {}), args=[])
        return rest

    def _suggest_instead_of(self, option_name: str) -> str | None:
        name = option_name.removeprefix("--")
        if name in self.settings:
            value = "true" if self.settings[name].is_flag else "VALUE"
            return f"--{name} is a setting: pass --set {name}={value}"
        positive = name.removeprefix("no-")
        if positive in self.settings:
            return f"--{positive} is a setting: pass --set {positive}=false"
        instead = _INSTEAD.get(str(self.name), {}).get(name)
        return None if instead is None else f"there is no option --{name}: {instead}"


def _choose_metavar(param: TyperOption) -> str | None:
    """Return the metavar of an option, or None for Typer's own; flags have none, ``""``."""
    kind = param.type_descriptor
    if param.is_flag:
        return ""
    if kind.is_ranged:  # Typer would call the number a range, although it shows the limits beside the metavar
        return f"<{kind.ranged_type_name}>"
    # Typer would say list[str], but each of the texts is passed with an option of its own.
    is_list_of_texts = kind.is_list and not kind.is_path
    return "<str>" if is_list_of_texts else None


def _long_name(param: Any) -> str:
    return str(max(param.opts, key=len)).lstrip("-")


# Settings on the command line.


_SET_VALUES = "stickytoken.set"  # where the context keeps the values of --set


def _apply_settings(ctx: typer.Context, value: list[str] | None) -> None:
    """Store the values of --set in the context. For ``--set help``, print all settings.

    This function is the callback of --set. ``value`` is the list of the texts that were passed with --set.
    """
    command: Any = ctx.command
    values: dict[str, Any] = {}
    for assignment in value or ():
        if assignment == "help":
            rows = []
            for name, option in command.settings.items():
                rows.append((name, _describe_values(option), option.help or ""))
            print_table(f"{ctx.command_path} --set name=value", ("name", "value", "meaning"), rows)
            raise typer.Exit
        name, sign, text = assignment.partition("=")
        name = name.strip().replace("_", "-")
        if name not in command.settings:
            options = [_long_name(param) for param in command.params if isinstance(param, TyperOption)]
            if name in options:
                raise typer.BadParameter(f"{name} is an option: use --{name}")
            hint = suggestion(name, command.settings)
            raise typer.BadParameter(f"there is no setting {visible(name)!r}{hint}: --set help lists them")
        if not sign:
            raise typer.BadParameter(f"{assignment!r} does not have the form name=value")
        option = command.settings[name]
        if option.multiple:
            values.setdefault(option.name, []).append(text)
        else:
            values[option.name] = text  # of several assignments to a setting, the last counts
    ctx.meta[_SET_VALUES] = values


# Names of value types in the table that ``--set help`` prints.
_KIND_NAMES = {bool: "true, false", int: "number", float: "number", Path: "path"}


def is_typed(context: typer.Context, name: str) -> bool:
    """Return whether an option was passed on the command line: its value may be that of pyproject.toml."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _type_of_value(option: Any) -> Any:
    kind = option.type_descriptor.annotation
    return next(iter(getattr(kind, "__args__", ())), kind)  # int, if the type is int | None or list[int]


def _describe_values(option: TyperOption) -> str:
    kind = _type_of_value(option)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(str(choice.value) for choice in kind)
    return _KIND_NAMES.get(kind, "text")


_QUIET = Annotated[bool, output_option("--quiet", "-q", help="Print results and errors only.")]
_VERBOSE = Annotated[
    bool,
    output_option(
        "--verbose",
        "-v",
        help="Also print where the model was found, its device and precision, and the logs of libraries.",
    ),
]


def _complete_setting(ctx: typer.Context) -> list[str]:
    command: Any = ctx.command
    return [f"{name}=" for name in command.settings]


_SET = Annotated[
    list[str] | None,
    output_option(
        "--set",
        metavar="NAME=VALUE",
        is_eager=True,
        callback=_apply_settings,
        autocompletion=_complete_setting,
        help="Change a rarely needed setting; --set help lists all settings. Repeatable.",
    ),
]


# The table [tool.stickytoken] in pyproject.toml.


_PROJECT_COMMAND = "check"
# Parameters of this command, keyed by the entry of the table that sets them.
_PROJECT_ENTRIES = {
    "model": "source",
    "fail-on": "fail_on",
    "max": "max_tokens",
    "baseline": "baseline",
    "revision": "revision",
    "documents": "documents",
    "column": "column",
    "folder": "folder",
}


def project_table(start: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the nearest pyproject.toml with a table [tool.stickytoken], and the table; None without one.

    Folders are searched from `start` up to the root of its repository.
    """
    for folder in (start.absolute(), *start.absolute().parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            tool = _read_toml(file).get("tool", {})
            table = tool.get("stickytoken") if isinstance(tool, dict) else None
            if isinstance(table, dict):
                return file, table
            if table is not None:
                raise InputError(f"{file}: tool.stickytoken must be a table, [tool.stickytoken]")
        if (folder / ".git").exists():  # the root of the repository
            return None
    return None


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"{file} is not valid TOML ({reason}): correct it") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read ({error}): it must be a TOML file in UTF-8") from error


def _read_project_defaults(ctx: Any) -> dict[str, Any]:
    """Return what the table [tool.stickytoken] sets for `check`, keyed by parameter, as Typer accepts it.

    For any other command, nothing is returned.

    Raises:
        InputError: the table has a table, an entry of another name or an invalid value.
    """
    project = project_table(Path.cwd())
    if project is None:
        return {}
    file, table = project
    for name, value in table.items():
        if isinstance(value, dict):
            raise InputError(
                f"{file} has the table [tool.stickytoken.{visible(name)}], which is not read any more: pass "
                "its options on the command line, and take the table out"
            )
    if ctx.info_name != _PROJECT_COMMAND:
        return {}
    params = {param.name: param for param in ctx.command.params}
    defaults: dict[str, Any] = {}
    for name, value in table.items():
        if name not in _PROJECT_ENTRIES:
            hint = suggestion(name, _PROJECT_ENTRIES)
            names = ", ".join(_PROJECT_ENTRIES)
            raise InputError(f"{file}: [tool.stickytoken] has no entry {visible(name)!r}{hint}: use {names}")
        parameter = _PROJECT_ENTRIES[name]
        try:
            default = _convert_entry(name, value, file.parent)
            params[parameter].process_value(ctx, default)  # raises an error for an invalid value
        except typer.TyperException as error:
            reason = error.format_message().removeprefix("Invalid value: ")
            raise InputError(f"{file}: {name} in [tool.stickytoken] is {value!r}: {reason}") from error
        defaults[parameter] = default
    return defaults


def _convert_entry(name: str, value: Any, folder: Path) -> Any:
    if name == "column" and isinstance(value, list):
        return [_require_text(item) for item in value]
    if name == "max":
        if type(value) is not int:  # not isinstance: True is an int
            raise typer.BadParameter("use a whole number")
        return value
    text = _require_text(value)
    if name not in ("model", "documents", "baseline", "folder"):
        return [text] if name == "column" else text
    # A path in the file is relative to the file. In the current folder, it stays as it was written.
    path = folder / file_path(name, text)
    is_path = name in ("baseline", "folder") or path.exists()  # the others may be names
    return str(path) if is_path and folder != Path.cwd() else text


def _require_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise typer.BadParameter("use text that is not empty")
    return value
