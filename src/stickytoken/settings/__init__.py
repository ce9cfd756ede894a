"""Settings: frozen dataclasses whose field types say which values are allowed. Each setting is declared once.

The type of a field is bool, int, float, str, an enumeration, another class or Any, or one of these types
combined with None, or a tuple of values of one of these types. The limits of a number are part of its type,
such as ``Annotated[int, Ge(1)]``. The docstring of the class describes every field under ``Attributes:``.

`check_settings` checks and converts the values, the command line makes its options from the same fields, and
pydantic checks the same limits in records. ``--help`` needs the settings, so nothing heavy is imported here.
The classes are not pydantic models, because importing pydantic would make ``--help`` take 50% longer.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields, replace
from enum import Enum, StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt

from stickytoken.errors import InputError
from stickytoken.insertion import Insertion
from stickytoken.validation import real_number, shown, whole_number

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

NaturalNumber: TypeAlias = Annotated[int, Ge(0)]
PositiveCount: TypeAlias = Annotated[int, Ge(1)]
PositiveNumber: TypeAlias = Annotated[float, Gt(0)]
NonNegativeNumber: TypeAlias = Annotated[float, Ge(0)]
Proportion: TypeAlias = Annotated[float, Gt(0), Lt(1)]


@dataclass(frozen=True, slots=True)
class OptionName:
    """Annotation of a field whose option on the command line has a different name.

    Attributes:
        name: Name of the option, with underscores instead of hyphens.
    """

    name: str


class Settable(Enum):
    """Annotation that says where a field of a settings class can be set, if not in every command."""

    PYTHON_ONLY = "not on the command line"
    DETECT_ONLY = "in `stickytoken detect`, but not in `stickytoken probe`"


PYTHON_ONLY = Settable.PYTHON_ONLY
DETECT_ONLY = Settable.DETECT_ONLY


def check_settings(settings: DataclassInstance) -> None:
    """Check every field of frozen settings against its type, and convert its value in place.

    Numbers become plain ints and floats, and names become members of their enumeration, so that 8, 8.0 and
    NumPy's 8 are the same setting and give a run the same identity. Call this function in ``__post_init__``.

    Raises:
        InputError: A value has the wrong type or is out of range.
    """
    for name, field_type in field_types(type(settings)).items():
        value = field_type.checked(name, getattr(settings, name))
        object.__setattr__(settings, name, value)  # the only way to set a field of frozen settings


_Settings = TypeVar("_Settings")


def part_of(settings: DataclassInstance, settings_class: type[_Settings]) -> _Settings:
    """Extract the settings of one class from an object that also has the fields of other classes."""
    names = field_types(settings_class)  # type: ignore[arg-type]
    return settings_class(**{name: getattr(settings, name) for name in names})


class InsertingSettings(Protocol):
    """Settings of a measurement that inserts copies: a frozen dataclass with the field ``insertion``."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def insertion(self) -> Insertion | None: ...  # what the user chose; None if it depends on the model

    @property
    def inserted_as(self) -> Insertion:
        """How copies are inserted, as ids if nothing has been chosen yet."""
        return self.insertion or Insertion.IDS


_Inserting = TypeVar("_Inserting", bound=InsertingSettings)


def choose_insertion(settings: _Inserting, texts_only: bool) -> _Inserting:
    """Return settings with an insertion: the user's, or else the one that suits the model.

    Args:
        settings: Settings of any measurement.
        texts_only: Whether the model reads only texts, so that no copy can be inserted as an id. An ``ids``
            that the user chose stays, and is refused by `probes.require_insertion`.
    """
    if settings.insertion is not None:
        return settings
    return replace(settings, insertion=Insertion.WORDS if texts_only else Insertion.IDS)


@cache
def descriptions(*documented: Any) -> Mapping[str, str]:
    """Return the docstring entries under ``Args:`` and ``Attributes:``, keyed by name.

    Args:
        documented: Functions or classes. If several functions or classes describe the same name, the first
            description is used.
    """
    entries: dict[str, str] = {}
    for item in reversed(documented):  # in reverse, so that earlier descriptions replace later ones
        docstring = inspect.getdoc(item) or ""
        # A section ends before the next line that is not indented.
        sections = re.findall(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)*)", docstring, flags=re.MULTILINE)
        # An entry begins with its name. Its further lines are indented more.
        matches = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", "".join(sections), flags=re.MULTILINE)
        for name, text in matches:
            entries[name] = " ".join(text.split())
    return entries


@cache
def field_types(settings_class: type[DataclassInstance]) -> Mapping[str, FieldType]:
    """Return the type of every field that can be set, keyed by field name."""
    hints = get_type_hints(settings_class, include_extras=True)
    return {field.name: field_type(hints[field.name]) for field in fields(settings_class) if field.init}


def command_line_types(settings_class: type[DataclassInstance]) -> Mapping[str, FieldType]:
    """Return the type of every field that the command line can set, keyed by field name."""
    types = field_types(settings_class)
    return {name: field_type for name, field_type in types.items() if PYTHON_ONLY not in field_type.metadata}


def field_type(hint: Any) -> FieldType:
    """Return the `FieldType` that a type hint describes."""
    optional = False
    repeated = False
    metadata: list[Any] = []
    # Each pass removes the outermost part of the hint, until only a class is left.
    while True:
        if get_origin(hint) is Annotated:
            metadata += hint.__metadata__
            hint = hint.__origin__
        elif get_origin(hint) in (Union, UnionType):  # a union of one type and None
            optional = True
            (hint,) = [alternative for alternative in get_args(hint) if alternative is not NoneType]
        elif get_origin(hint) is tuple:
            repeated = True
            hint = get_args(hint)[0]
        else:
            return FieldType(hint, optional, repeated, tuple(metadata))


@dataclass(frozen=True, slots=True)
class FieldType:
    """Describes the values that a settings field may have.

    Attributes:
        kind: bool, int, float, str, an enumeration, another class, or Any.
        optional: Whether the value may be None.
        repeated: Whether the value is a non-empty tuple of values of this kind.
        metadata: All annotations in the type hint, such as the limits Ge, Gt, Le and Lt of a number.
    """

    kind: Any
    optional: bool
    repeated: bool
    metadata: tuple[Any, ...]

    @property
    def minimum(self) -> Any:
        """The smallest allowed number; None if the field has no ``Ge`` limit."""
        return next((limit.ge for limit in self.metadata if isinstance(limit, Ge)), None)

    @property
    def maximum(self) -> Any:
        """The largest allowed number; None if the field has no ``Le`` limit."""
        return next((limit.le for limit in self.metadata if isinstance(limit, Le)), None)

    def checked(self, name: str, value: Any) -> Any:
        """Return the value of a field, converted to the type of the field.

        Args:
            name: Name of the field; used in errors.
            value: What the user passed.

        Raises:
            InputError: The value has the wrong type or is out of range.
        """
        if value is None and self.optional:
            return None
        if not self.repeated:
            return self._convert_one(name, value)
        items = value if isinstance(value, (tuple, list)) else (value,)  # a single value needs no tuple
        if not items:
            raise InputError(f"{name} is empty: pass at least one value")
        return tuple(self._convert_one(name, item) for item in items)

    def _convert_one(self, name: str, value: Any) -> Any:
        if self.kind is int:
            return self._require_within_limits(name, whole_number(name, value))
        if self.kind is float:
            return self._require_within_limits(name, real_number(name, value))
        if issubclass(self.kind, StrEnum):
            if value not in tuple(self.kind):  # the value of a member equals the member
                raise InputError(f"{name} is {shown(value)}: it must be {' or '.join(self.kind)}")
            return self.kind(value)
        if self.kind is not Any and not isinstance(value, self.kind):
            expected = _EXPECTED.get(self.kind, f"an object of type {self.kind.__name__}")
            raise InputError(f"{name} is {shown(value)}: it must be {expected}")
        return value

    def _require_within_limits(self, name: str, number: Any) -> Any:
        """Return the number; raise InputError if it is not finite or violates the limits of the field."""
        phrases = []
        is_allowed = math.isfinite(number)
        for limit in self.metadata:
            if isinstance(limit, Ge):
                is_allowed &= number >= limit.ge
                phrases.append(f"at least {limit.ge}")
            elif isinstance(limit, Gt):
                is_allowed &= number > limit.gt
                phrases.append(f"above {limit.gt}")
            elif isinstance(limit, Le):
                is_allowed &= number <= limit.le
                phrases.append(f"at most {limit.le}")
            elif isinstance(limit, Lt):
                is_allowed &= number < limit.lt
                phrases.append(f"below {limit.lt}")
        if not is_allowed:
            range_phrase = " and ".join(phrases)
            if self.kind is float:
                range_phrase = f"a finite number {range_phrase}".rstrip()
            raise InputError(f"{name} is {number}: it must be {range_phrase}")
        return number


# How errors describe a valid value, keyed by the type of the field.
_EXPECTED = {bool: "True or False", str: "a string"}
