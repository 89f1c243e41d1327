"""JSON as telemetry has it: one object a line, and values that are cells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast


def parse_object(text: str) -> dict[str, Any] | None:
    """The object that ``text`` is, or None where it is none or damaged."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def cell(value: Any) -> str:
    """A JSON value as a cell to be read by ``cells``: null is missing, a truth value no number."""
    if value is None:
        return ""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        return str(value)
    return repr(value) if isinstance(value, bool) else "[...]"


def flatten(mapping: Mapping[str, Any], separator: str = ".", depth: int = 8) -> dict[str, Any]:
    """Nested objects as one, keys joined: ``{"gpu": {"0": 1}}`` -> ``{"gpu.0": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, dict) and depth:
            inner = flatten(cast("dict[str, Any]", value), separator, depth - 1)
            flat.update({f"{key}{separator}{name}": one for name, one in inner.items()})
        else:
            flat[key] = value
    return flat
