"""Strict parsing: round trips over every record and setting, and errors that name the key."""

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import config, samples
from harness.errors import ConfigError
from harness.parse import parse, to_plain
from harness.record import schema

CLASSES = [samples.Gpm, samples.GpuSample, samples.HostSample]  # what telemetry files hold
CLASSES += [
    value
    for module in (config, schema)
    for value in vars(module).values()
    if dataclasses.is_dataclass(value) and value.__module__ == module.__name__
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)
SCALARS = {
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=5),
    bool: st.booleans(),
    type(None): st.none(),
    Any: JSON,
}


def values(hint):
    """Values of a type hint, as the dataclasses of this project use them."""
    if hint in SCALARS:
        return SCALARS[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(member) for member in args])
    if origin is tuple:
        return st.lists(values(args[0]), max_size=2).map(tuple)
    if origin is Mapping:
        return st.dictionaries(st.text(max_size=3), values(args[1]), max_size=2)
    if issubclass(hint, enum.Enum):
        return st.sampled_from(list(hint))
    return instances(hint)


def instances(cls):
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{f.name: values(hints[f.name]) for f in dataclasses.fields(cls)})


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_what_is_written_as_json_is_read_back_equal(cls):
    @settings(max_examples=20, suppress_health_check=list(HealthCheck))
    @given(instances(cls))
    def check(value):
        assert parse(cls, json.loads(json.dumps(to_plain(value)))) == value

    check()


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    count: int = 1
    ratio: float = 1.0
    name: str = ""
    flag: bool = False
    colour: Colour = Colour.RED
    inner: Inner = Inner(size=1)
    sizes: tuple[int, ...] = ()
    table: Mapping[str, float] = dataclasses.field(default_factory=dict)
    perhaps: int | None = None
    either: int | str = 1
    maybe_inner: Inner | None = None
    free: Any = None


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"count": "abc"}, "count='abc': expected a whole number"),
        ({"count": 1.0}, "count=1.0: expected a whole number"),
        ({"count": True}, "count=True: expected a whole number"),
        ({"count": None}, "count=None: expected a whole number"),
        ({"ratio": "1.0"}, "ratio='1.0': expected a finite number"),
        ({"ratio": float("nan")}, "ratio=nan: expected a finite number"),
        ({"ratio": float("-inf")}, "ratio=-inf: expected a finite number"),
        ({"ratio": False}, "ratio=False: expected a finite number"),
        ({"name": 3}, "name=3: expected text"),
        ({"flag": "yes"}, "flag='yes': expected true or false"),
        ({"flag": 1}, "flag=1: expected true or false"),
        ({"colour": "green"}, "colour='green': expected one of red, blue"),
        ({"colour": 1}, "colour=1: expected one of red, blue"),
        ({"inner": 3}, "inner=3: expected a mapping of settings"),
        ({"inner": {}}, "inner.size: missing; expected a whole number"),
        ({"inner": {"size": "x"}}, "inner.size='x': expected a whole number"),
        ({"inner": {"size": 1, "sized": 2}}, "inner.sized: unknown key; did you mean size?"),
        ({"sizes": 4}, "sizes=4: expected a list of a whole number"),
        ({"sizes": [1, "x"]}, "sizes[1]='x': expected a whole number"),
        ({"table": []}, "table=[]: expected a mapping of settings"),
        ({"table": {"a": "b"}}, "table.a='b': expected a finite number"),
        ({"perhaps": "x"}, "perhaps='x': expected a whole number or null"),
        ({"either": 1.5}, "either=1.5: expected a whole number or text"),
        ({"maybe_inner": {"size": "x"}}, "maybe_inner.size='x': expected a whole number"),
        ({"zzz": 1}, "zzz: unknown key; known keys: colour, count, either, flag"),
        ({1: 2}, "1: unknown key; known keys: colour"),
        ([], "Outer=[]: expected a mapping of settings"),
    ],
)
def test_a_bad_value_is_named_with_its_key_and_what_is_accepted(plain, message):
    with pytest.raises(ConfigError) as caught:
        parse(Outer, plain)
    assert str(caught.value).startswith(message)


def test_keys_with_a_default_may_be_left_out_and_a_whole_number_is_a_number():
    assert parse(Outer, {"ratio": 2, "either": "x", "maybe_inner": {"size": 3}}) == Outer(
        ratio=2.0, either="x", maybe_inner=Inner(size=3)
    )


def test_where_is_the_prefix_of_every_key_in_an_error():
    with pytest.raises(ConfigError, match=r"^train\.inner\.size='x'"):
        parse(Outer, {"inner": {"size": "x"}}, "train")


def test_a_number_that_is_not_finite_is_refused():
    """trial_timeout_s=inf passed the front door and ended in a traceback at the manifest."""
    with pytest.raises(ConfigError, match="ratio=inf: expected a finite number"):
        parse(Outer, {"ratio": float("inf")})
