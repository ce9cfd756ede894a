"""What is known of a method before it is loaded: its name and its options. Nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stickytoken.insertion import Insertion

if TYPE_CHECKING:
    from stickytoken.methods.protocol import AnyMethod


@dataclass(frozen=True, slots=True)
class Option:
    """A setting of a method that users may change on the command line.

    Attributes:
        name: of the option, with underscores; ``scoring_pairs`` becomes ``--scoring-pairs``.
        kind: of its value: bool, int, float, str or an enumeration.
        help: what it does, as a sentence. Methods that share a name share kind and help.
        default: the default as text.
        field: of the settings; empty where it has the option's name.
        least: smallest value, if any.
        probe: whether `stickytoken probe` takes it, too.
    """

    name: str
    kind: type[Any]
    help: str
    default: str
    field: str = ""
    least: int | float | None = None
    probe: bool = False

    @property
    def setting(self) -> str:
        """The field of the settings."""
        return self.field or self.name

    @property
    def flag(self) -> str:
        """The option as a user types it."""
        flag = self.name.replace("_", "-")
        return f"--{flag}/--no-{flag}" if self.kind is bool else f"--{flag}"


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """A method in the registry.

    Attributes:
        name: as users type it.
        summary: the method in a few words.
        options: its options on the command line, in the order of the help.
        takes_pairs: whether it can be given sentence pairs in place of sentences.
        load: imports the method; called when it is first needed.
    """

    name: str
    summary: str
    options: tuple[Option, ...]
    takes_pairs: bool
    load: Callable[[], AnyMethod]


def insertion_option(default: Insertion) -> Option:
    """The option ``--insertion``, which every method has."""
    return Option(
        "insertion",
        Insertion,
        "text: join the copies to the string. ids: put exactly n copies among the token ids. words: as text, "
        "written so that the tokenizer sees the copies.",
        default.value,
        probe=True,
    )


SEED = Option(
    "seed",
    int,
    "Seed of all random sampling; 42 reproduces the published runs of std.",
    "42",
    least=0,
    probe=True,
)
"""The option ``--seed``, which every method has."""
