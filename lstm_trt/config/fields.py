"""What is known of each field of a shape, of options and of a protocol, stated where the field is
declared.

Labels, tables, JSON, the pairing of a comparison, the argument parser and the printed command are
filters on it: a field is added in one place.
"""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints, is_typeddict

from lstm_trt.config.errors import UnknownConfiguration


def as_list(values: Any) -> list[Any]:
    """The values of an argument that takes several; a single one is a list of one."""
    single = isinstance(values, str | Mapping) or not isinstance(values, Iterable)
    return [values] if single else list(values)


#: Metadata of a dataclass field that was added after the first recordings.
ADDED = {"added": True}


#: The types of a dataclass's fields; finding them takes longer than all else that reading a
#: configuration does.
_hints = cache(get_type_hints)


class Tells(Enum):
    """How a field tells configurations apart, in comparisons and in tables."""

    SYSTEM = "always"
    MINOR = "if nothing else does"
    NEVER = "never"


@dataclass(frozen=True)
class About:
    """What is known of a field: its flag's help (without one it has no flag) and choices, its
    heading and values.

    `heading`: in labels and tables, by default the name in words. `plain`: labels show the value
    without it. `values`: texts of values in tables, by default those of `str`, and yes or no.
    `kept`: every group and table has it, not only those with another value than the default.
    `added`: after the first recordings.
    """

    name: str = ""
    default: Any = None
    help: str = ""
    choices: tuple[str, ...] | None = None
    heading: str = ""
    unit: str = ""
    plain: bool = False
    values: Mapping[Any, str] | None = None
    tells: Tells = Tells.SYSTEM
    kept: bool = False
    added: bool = False

    @property
    def flag(self) -> str | None:
        """Of the command line, `--device-clocks`, `--no-io-binding`; None if it has none."""
        prefix = "--no-" if self.default is True else "--"
        return prefix + self.name.replace("_", "-") if self.help else None


def described(default: Any = MISSING, *, compare: bool = True, **known: Any) -> Any:
    """A dataclass field with what `About` says of it."""
    about = About(**known)
    return field(default=default, compare=compare, metadata={"about": about, "added": about.added})


@cache
def about(kind: type) -> dict[str, About]:
    """What is known of the fields of a dataclass by name, in their order."""
    found: dict[str, About] = {}
    for item in fields(kind):
        if "about" in item.metadata:
            known: About = item.metadata["about"]
            found[item.name] = replace(
                known,
                name=item.name,
                default=None if item.default is MISSING else item.default,
                heading=known.heading or item.name.replace("_", " "),
            )
    return found


def identity_fields(part: Any) -> dict[str, Any]:
    """A dataclass as JSON values, from which ids are computed; tuples become lists.

    Left out are fields with `compare=False`, and fields declared with `field(default=...,
    metadata=ADDED)` that have their default, so that older recordings keep their ids.
    """
    found: dict[str, Any] = {}
    for name, left_out in _identity(type(part)).items():
        value = getattr(part, name)
        if left_out is MISSING or value != left_out:
            found[name] = json_value(value) if isinstance(value, tuple) else value
    return found


@cache
def _identity(kind: type) -> dict[str, Any]:
    """The names of the fields of `identity_fields`, and the default with which one is left out."""
    compared = [item for item in fields(kind) if item.compare]
    return {item.name: item.default if item.metadata.get("added") else MISSING for item in compared}


def known_fields(kind: Any, plain: Mapping[str, Any]) -> Any:
    """A dataclass of type `kind` with these JSON values, converted to the types of its fields.

    Raises `UnknownConfiguration` for an unknown field, `TypeError` for a missing one.
    """
    unknown = plain.keys() - {item.name for item in fields(kind)}
    if unknown:
        names = ", ".join(sorted(unknown))
        raise UnknownConfiguration(f"unknown field of {kind.__name__.lower()}: {names}")
    hints = _hints(kind)
    return kind(**{name: _typed(hints[name], value) for name, value in plain.items()})


def _typed(hint: Any, value: Any) -> Any:
    """A JSON value as a type that dataclasses here have: objects and lists as dataclasses and
    tuples."""
    if isinstance(value, dict) and is_dataclass(hint):
        return known_fields(hint, value)
    tuples = [each for each in (hint, *get_args(hint)) if get_origin(each) is tuple]
    if isinstance(value, list) and tuples:
        types = get_args(tuples[0])
        if types[-1] is ...:
            types = types[:1] * len(value)
        return tuple(map(_typed, types, value))
    return value


@cache
def _form(hint: Any) -> tuple[tuple[type, ...], Mapping[Any, Any], frozenset[str], Any]:
    """The types of the JSON values of a hint; the hints of named entries, those that must be there,
    that of any other.

    `hint`: a plain type, `list[...]`, `tuple[..., ...]`, `dict[str, ...]`, a dataclass or a
    `TypedDict` of these, each also in a union with None; no types for one that allows anything.
    """
    kind, *types = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if is_typeddict(kind) or is_dataclass(kind):
        return (dict, *types), _hints(kind), getattr(kind, "__required_keys__", frozenset()), None
    if kind is Any:
        return (), {}, frozenset(), None
    origin = get_origin(kind) or kind
    types += {float: (float, int), tuple: (list,)}.get(origin, (origin,))
    inside = get_args(kind)
    if not inside:
        return tuple(types), {}, frozenset(), None
    return tuple(types), {}, frozenset(), inside[1] if origin is dict else inside[0]


def check_types(hint: Any, value: Any) -> None:
    """Raise `TypeError` unless a JSON value has the type of a hint (`_form`); objects can have
    other entries, too.

    Numbers must be finite and below 2**63.
    """
    place = _misfit(hint, value)
    if place is not None:
        raise TypeError(f"{place.removeprefix('.') or 'all'} is missing or not what it should be")


def _misfit(hint: Any, value: Any) -> str | None:
    """Where a JSON value differs from a hint, such as ".blocks.2.rows"; "" if it does itself, None
    if it fits."""
    types, entries, required, other = _form(hint)
    if types and type(value) not in types:
        return ""
    if isinstance(value, int | float):
        return None if abs(value) < 2**63 else ""
    if isinstance(value, dict):
        missing = sorted(required - value.keys())
        if missing:
            return f".{missing[0]}"
        parts: Iterable[tuple[Any, Any]] = value.items()
    else:
        parts = enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        expected = entries.get(name, other)
        place = None if expected is None else _misfit(expected, part)
        if place is not None:
            return f".{name}{place}"
    return None


def json_value(value: Any) -> Any:
    """The JSON value of a field: the result of `as_dict` if there is one, tuples as lists, keys and
    paths as text."""
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if isinstance(value, tuple | list):
        return [json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


class JsonFields:
    """A dataclass whose JSON values are those of its fields, as far as `identity_fields` has
    them."""

    def as_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` is the inverse."""
        return {name: json_value(value) for name, value in identity_fields(self).items()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Inverse of `as_dict`; raises as `known_fields`."""
        return known_fields(cls, plain)
