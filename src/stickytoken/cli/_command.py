"""A function with groups of options as a command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from stickytoken.cli.options.output import VerbosityOptions
from stickytoken.cli.output.library_messages import log_lines
from stickytoken.cli.output.verbosity import verbosity


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Turn each parameter whose type is a dataclass into one option per field.

    A group of `VerbosityOptions` takes effect while the function runs.
    """
    hints = get_type_hints(function, include_extras=True)
    groups = {name: group for name, hint in hints.items() if (group := _group(hint)) is not None}

    @functools.wraps(function)
    def gathered(**values: Any) -> None:
        with ExitStack() as stack:
            for name, kind in groups.items():
                group = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
                if isinstance(group, VerbosityOptions):
                    stack.enter_context(verbosity(group.level))
                    stack.enter_context(log_lines())
                values[name] = group
            function(**values)

    vars(gathered)["__signature__"] = inspect.Signature(list(_parameters(function, hints, groups)))
    return gathered


def _group(hint: Any) -> type[Any] | None:
    """Return the dataclass of a parameter, or the subclass of it that an annotation names."""
    for kind in reversed((hint, *getattr(hint, "__metadata__", ()))):
        if isinstance(kind, type) and is_dataclass(kind):
            return kind
    return None


def _parameters(
    function: Callable[..., None], hints: dict[str, Any], groups: dict[str, Any]
) -> Iterator[inspect.Parameter]:
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in groups:
            yield parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        kinds = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            yield inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=kinds[field.name],
            )
