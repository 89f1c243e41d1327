"""Strict plain data -> frozen dataclass; errors name the dotted key, the value, what is accepted.

Accepts what JSON and YAML produce: mappings, lists, strings, numbers, booleans and null. Nothing is
coerced, with one exception: an integer is accepted where a float is asked for.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from harness.errors import ConfigError

T = TypeVar("T")

_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a finite number",
    str: "text",
    bool: "true or false",
}


def parse(cls: type[T], value: object, where: str = "") -> T:
    """Build the dataclass ``cls`` from a mapping.

    Args:
        cls: A dataclass of scalars, StrEnums, dataclasses, tuples, mappings or unions.
        value: A mapping with one entry per field; fields with a default may be left out.
        where: Dotted path of ``value``, used as a prefix in errors.

    Raises:
        ConfigError: a key is unknown or missing, or a value is of another type.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where or cls.__name__}={value!r}: expected a mapping of settings")
    mapping = typing.cast("Mapping[str, object]", value)
    hints = _hints(cls)
    fields = {f.name: f for f in dataclasses.fields(typing.cast(Any, cls))}
    for key in mapping:
        if key not in fields:
            raise ConfigError(f"{_join(where, key)}: unknown key{_hint(str(key), list(fields))}")
    kwargs: dict[str, Any] = {}
    for name, field in fields.items():
        if name in mapping:
            kwargs[name] = _value(hints[name], mapping[name], _join(where, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{_join(where, name)}: missing; expected {_describe(hints[name])}")
    return cls(**kwargs)


def to_plain(value: object) -> Any:
    """The inverse of :func:`parse`: dataclasses, enums and tuples to what JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        items = typing.cast("Mapping[object, object]", value).items()
        return {str(k): to_plain(v) for k, v in items}
    if isinstance(value, tuple | list):
        return [to_plain(v) for v in typing.cast("Sequence[object]", value)]
    return value


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _value(hint: Any, value: object, where: str) -> Any:
    origin = typing.get_origin(hint)
    if hint is Any or hint is object:
        return value
    if origin in (typing.Union, types.UnionType):
        return _union(hint, value, where)
    if dataclasses.is_dataclass(hint):
        return parse(typing.cast("type[Any]", hint), value, where)
    if origin is tuple:
        return _tuple(hint, value, where)
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        if not isinstance(value, Mapping):
            raise _mismatch(hint, value, where)
        inner = typing.get_args(hint)[1]
        items = typing.cast("Mapping[str, object]", value).items()
        return {str(k): _value(inner, v, _join(where, str(k))) for k, v in items}
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        if isinstance(value, str) and value in list(hint):
            return hint(value)
        raise _mismatch(hint, value, where)
    return _scalar(hint, value, where)


def _scalar(hint: Any, value: object, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is type(None) and value is None:
        return None
    if isinstance(value, bool) and hint is not bool:
        raise _mismatch(hint, value, where)
    if isinstance(value, float) and not math.isfinite(value):
        raise _mismatch(hint, value, where)
    if isinstance(hint, type) and isinstance(value, hint):
        return value
    raise _mismatch(hint, value, where)


def _union(hint: Any, value: object, where: str) -> Any:
    members = typing.get_args(hint)
    if value is None and type(None) in members:
        return None
    rest = [m for m in members if m is not type(None)]
    if len(rest) == 1:
        try:
            return _value(rest[0], value, where)
        except ConfigError:
            if isinstance(value, Mapping):
                raise
            raise _mismatch(hint, value, where) from None
    for member in rest:
        try:
            return _value(member, value, where)
        except ConfigError:
            continue
    raise _mismatch(hint, value, where)


def _tuple(hint: Any, value: object, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _mismatch(hint, value, where)
    inner = typing.get_args(hint)[0]
    items = typing.cast("Sequence[object]", value)
    return tuple(_value(inner, item, f"{where}[{i}]") for i, item in enumerate(items))


def _describe(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(m) for m in typing.get_args(hint))
    if origin is tuple:
        return f"a list of {_describe(typing.get_args(hint)[0])}"
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return "one of " + ", ".join(hint)
    if hint is type(None):
        return "null"
    return _NAMES.get(hint, "a mapping of settings")


def _mismatch(hint: Any, value: object, where: str) -> ConfigError:
    return ConfigError(f"{where}={value!r}: expected {_describe(hint)}")


def _hint(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return "; known keys: " + ", ".join(sorted(known))


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else str(key)
