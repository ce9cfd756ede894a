"""Options that every command has that loads a model, written down once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from stickytoken.cli import options as o
from stickytoken.cli.models import chosen_encoder

if TYPE_CHECKING:
    from stickytoken.encoders import Encoder


@dataclass(frozen=True, slots=True)
class LoadingOptions:
    """Where a model comes from and where it computes."""

    device: o.Device = None
    dtype: o.Dtype = None
    revision: o.Revision = None
    trust_remote_code: o.TrustRemoteCode = False
    token_budget: o.TokenBudget = None


@dataclass(frozen=True, slots=True)
class PromptingOptions:
    """What a model reads around a text."""

    prompt: o.Prompt = None
    prompt_name: o.PromptName = None
    token_prepending: o.TokenPrepending = False
    start: o.Start = None
    exit: o.Exit = None
    layer: o.Layer = None


def load(model: str, loading: LoadingOptions, prompting: PromptingOptions) -> Encoder:
    """Load the model that the options name.

    Raises:
        ModelError: it cannot be found or used.
        InputError: an option that it cannot meet.
    """
    return chosen_encoder(model, **asdict(loading), **asdict(prompting))


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Show a parameter of a dataclass's type on the command line as one option for each of its fields."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: group for name, hint in hints.items() if (group := _group(hint)) is not None}

    @functools.wraps(command)
    def gathered(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    vars(gathered)["__signature__"] = inspect.Signature(list(_parameters(command, hints, groups)))
    return gathered


def _group(hint: Any) -> type[Any] | None:
    """The dataclass of a parameter, or the subclass of it that an annotation names."""
    for kind in reversed((hint, *getattr(hint, "__metadata__", ()))):
        if isinstance(kind, type) and is_dataclass(kind):
            return kind
    return None


def _parameters(
    command: Callable[..., None], hints: dict[str, Any], groups: dict[str, Any]
) -> Iterator[inspect.Parameter]:
    for name, parameter in inspect.signature(command).parameters.items():
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
