"""The page that --help prints for a command."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperOption

from stickytoken.cli.options.panels import (
    COMPUTATION,
    ENDPOINT,
    LANGUAGE_MODELS,
    METHOD,
    MODEL,
    OUTPUT,
    TEXTS,
)

_PANELS = (MODEL, TEXTS, METHOD, COMPUTATION, ENDPOINT, LANGUAGE_MODELS, OUTPUT)


class PanelledCommand(TyperCommand):
    """A command with its options in panels, in the order shared by all commands."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for param in self.params:
            if isinstance(param, TyperOption) and param.metavar is None:
                param.metavar = _value(param)

    def get_help_option(self, ctx: Any) -> TyperOption | None:
        """Return --help, in the last panel."""
        option: TyperOption | None = super().get_help_option(ctx)
        if option is not None:
            option.rich_help_panel = OUTPUT
            option.metavar = ""
        return option

    def get_params(self, ctx: Any) -> list[Any]:
        """Return arguments, then options by panel."""
        return sorted(super().get_params(ctx), key=_rank)


def _rank(param: Any) -> int:
    panel = getattr(param, "rich_help_panel", None)
    return 1 + _PANELS.index(panel) if isinstance(param, TyperOption) and panel in _PANELS else 0


def _value(option: TyperOption) -> str | None:
    """Return how a value is shown: nothing for a flag, plain names for ranges and lists."""
    if option.is_flag:
        return ""
    kind = option.type_descriptor
    if kind.is_ranged:
        return f"<{kind.ranged_type_name}>"
    return "<str>" if kind.is_list and not kind.is_path else None
