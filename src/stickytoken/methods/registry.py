"""The detection methods and their options. A new method needs a module or folder here, and an entry below."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from stickytoken.errors import InputError
from stickytoken.insertion import Insertion
from stickytoken.machine import Precision
from stickytoken.methods import SEED, MethodEntry, Option, Scores, insertion_option
from stickytoken.validation import shown

if TYPE_CHECKING:
    from stickytoken.methods.base import AnyMethod, MethodSettings

_PROFILE = MethodEntry(
    name="profile",
    summary="every token, with an interval",
    options=(
        SEED,
        insertion_option(Insertion.IDS),
        Option(
            "smallest_lift",
            float,
            "Smallest lift of a sticky token beyond an ordinary token's, in standard deviations of the "
            "model's similarities.",
            "0.5",
            probe=True,
        ),
        Option(
            "smallest_erased",
            float,
            "Smallest share of a text that a sticky token erases of what an ordinary token leaves.",
            "0.4",
            probe=True,
        ),
        Option(
            "unusual",
            float,
            "Median absolute deviations above the median from which a token vector is unusual.",
            "6",
            probe=True,
        ),
        Option("confidence", float, "Coverage of the intervals.", "0.9", probe=True),
        Option("budget", float, "Most texts per token, on average.", "3.4"),
        Option(
            "screen_precision",
            Precision,
            "Precision of the pass over all tokens: faster, less exact. CPU: bfloat16. GPU: tf32, bfloat16, "
            "float16.",
            "the model's own",
        ),
    ),
    takes_pairs=False,
    load=lambda: import_module("stickytoken.methods.profile").ProfileMethod(),
)
_STD = MethodEntry(
    name="std",
    summary="Chen et al. 2025",
    options=(
        SEED,
        insertion_option(Insertion.TEXT),
        Option(
            "copies",
            int,
            "Largest number of copies in a text (the paper's insert_num).",
            "8",
            least=1,
            probe=True,
        ),
        Option(
            "sentence_count",
            int,
            "Number of sentences sampled from the corpus.",
            "1000",
            least=2,
            probe=True,
        ),
        Option(
            "pair_count",
            int,
            "Number of pairs sampled from the sentences, evenly over similarity.",
            "1000",
            least=1,
            probe=True,
        ),
        Option(
            "scoring_pairs",
            int,
            "Number of pairs that score a token (the paper's sent_pair_num).",
            "5",
            least=1,
        ),
        Option(
            "validation_pairs",
            int,
            "Number of pairs that validate a token (the paper's verification_sent_pair_num).",
            "250",
            least=1,
            probe=True,
        ),
        Option("candidate_share", float, "Share of the tokens that is validated.", "0.02"),
        Option(
            "scores",
            Scores,
            "needed: score tokens until they are known to be no candidates. all: score every token exactly.",
            "needed",
        ),
        Option(
            "outlier_range",
            float,
            "Call a candidate sticky above Q3 + this x IQR of the validation rates.",
            "0.7",
            least=0,
        ),
    ),
    takes_pairs=True,
    load=lambda: import_module("stickytoken.methods.std").StdMethod(),
)
# The first one is the default.
_BUILT_IN = (_PROFILE, _STD)
_entries: dict[str, MethodEntry] = {}


def register(entry: MethodEntry) -> None:
    """Add a method.

    Raises:
        InputError: The name is taken, or an option differs from that of another method with the same name.
    """
    if entry.name in _entries:
        raise InputError(f"a method {entry.name!r} is already registered: choose another name")
    for option in entry.options:
        for other in _entries.values():
            for known in other.options:
                if known.name == option.name and (known.kind, known.help) != (option.kind, option.help):
                    raise InputError(
                        f"{option.flag} of the method {entry.name} differs from {known.flag} of the method "
                        f"{other.name}: give it the same kind and help, or another name"
                    )
    _entries[entry.name] = entry


def unregister(name: str) -> None:
    """Remove the method with this name."""
    del _entries[name]
    method_named.cache_clear()


def entries() -> tuple[MethodEntry, ...]:
    """Return the entries of all methods, the default first."""
    return tuple(_entries.values())


def entry_of(name: object, pairs_given: bool) -> MethodEntry:
    """Return the entry of a method; None stands for the first method that accepts the input."""
    if name is None:
        return next(entry for entry in entries() if entry.takes_pairs or not pairs_given)
    if not isinstance(name, str) or name not in _entries:
        raise InputError(f"method {shown(name)} is unknown: use {' or '.join(_entries)}")
    return _entries[name]


@cache
def method_named(name: str) -> AnyMethod:
    """Return the method with this name, loaded once."""
    entry = entry_of(name, pairs_given=False)
    method: AnyMethod = entry.load()
    method.entry = entry
    return method


def choose_method(name: str | None, settings: MethodSettings | None, pairs_given: bool) -> AnyMethod:
    """Return the named method; without a name, the one that takes the settings, or the default.

    Raises:
        InputError: The method is unknown, or does not take the settings or the pairs.
    """
    chosen = method_named(entry_of(name, pairs_given and settings is None).name)
    if settings is not None and not isinstance(settings, chosen.settings):
        matching_name = next(
            (name for name in _entries if isinstance(settings, method_named(name).settings)), None
        )
        if matching_name is None or name is not None:
            raise InputError(
                f"the settings are of type {type(settings).__name__}, which the method {chosen.entry.name!r} "
                f"does not take: pass a {chosen.settings.__name__}"
            )
        chosen = method_named(matching_name)
    if pairs_given and not chosen.entry.takes_pairs:
        others = " or ".join(entry.name for entry in entries() if entry.takes_pairs)
        raise InputError(
            f"the method {chosen.entry.name} takes no pairs: pass sentences, or use the method {others}"
        )
    return chosen


for _entry in _BUILT_IN:
    register(_entry)
