"""Answers of the Prometheus HTTP API: ``query`` (a vector) and ``query_range`` (a matrix).

One answer, or several of different metrics in one file: one after another, one a line, or in a
list. Series are joined on host, GPU and time; a time that only one metric has is a row of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, cast

from harness.formats.cells import CellError, Clock
from harness.formats.prometheus_series import Gatherer, Tick, no_power, rows_by_time
from harness.formats.recipe import refusal
from harness.formats.text import Head, TextSource
from harness.formats.ticks import Claim, GpuTable, Ledger, Options, ReaderStream
from harness.samples import SampleBatch

NAME = "prometheus api json"

BAD_SERIES = "series is not as the API writes it"
BAD_POINT = "point is no [time, value] pair"
NO_NAME = "series without __name__, so nobody knows of what"

_SIGNATURES = ('"resultType"', '"errorType"')


def claims(head: Head) -> Claim | None:
    """Whether it is an answer of the API, an error among them."""
    start = head.text.lstrip("\0 \t\r\n")[:4096]
    if not start.startswith(("{", "[")):
        return None
    for signature in _SIGNATURES:
        if signature in start:
            return Claim(score=90, why=f"Prometheus API JSON ({signature})")
    return None


def open_file(source: TextSource, options: Options, why: str) -> ReaderStream:
    """Open it as a stream.

    Raises:
        FormatError: the text is no JSON, or the answer is an error or of another kind.
    """
    table = GpuTable()
    ledger = Ledger(path=source.path, format_name=NAME, why=why)
    if options.period_s is not None:
        ledger.note("--period is ignored: the points carry times")
    series = [one for answer in _answers(source) for one in _series(source, answer)]
    for trouble, count in source.troubles.items():
        ledger.count(trouble, count)
    return ReaderStream(table, ledger, _chunks(series, table, ledger))


def _answers(source: TextSource) -> Iterator[dict[str, Any]]:
    """Every answer in the file."""
    text = source.read_all().lstrip("\ufeff")
    decoder = json.JSONDecoder()
    at, size = 0, len(text)
    while at < size:
        if text[at] in " \t\r\n,":
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            what = "is cut or damaged" if isinstance(error, ValueError) else "is nested too deep"
            raise refusal(source.path, f"the JSON {what} at or after character {at}") from error
        for answer in cast("list[Any]", value) if isinstance(value, list) else [value]:
            if not isinstance(answer, dict):
                raise refusal(source.path, "the JSON holds no answer of the Prometheus API")
            yield cast("dict[str, Any]", answer)


def _series(source: TextSource, answer: dict[str, Any]) -> list[Any]:
    if answer.get("status") != "success":
        kind, said = answer.get("errorType", "unknown"), answer.get("error", "nothing")
        raise refusal(source.path, f"Prometheus answered with an error, {kind}: {said}")
    data = cast("dict[str, Any]", answer["data"]) if _is_dict(answer.get("data")) else {}
    kind, result = data.get("resultType"), data.get("result")
    if kind not in ("vector", "matrix") or not isinstance(result, list):
        raise refusal(
            source.path, f"an answer of type {kind}; query the metric itself (vector or matrix)"
        )
    return cast("list[Any]", result)


def _chunks(series: list[Any], table: GpuTable, ledger: Ledger) -> Iterator[SampleBatch]:
    gatherer = Gatherer(table, ledger)
    clock = Clock()
    ticks: dict[float, Tick] = {}
    if not series:
        raise no_power(ledger.path, set())
    for one in series:
        labels, points = _parts(one)
        if labels is None:
            ledger.drop(BAD_SERIES)
            continue
        metric = labels.get("__name__")
        if metric is None:
            ledger.drop(NO_NAME, len(points))
            continue
        owner = gatherer.owner(metric, labels)
        if owner is None:
            continue
        for point in points:
            t_s, value = _point(point, clock)
            if value is None:
                ledger.drop(BAD_POINT)
            else:
                gatherer.put(ticks.setdefault(t_s, {}), owner, metric, value)
    ledger.is_relative = clock.is_relative
    yield from rows_by_time(ticks, gatherer, ledger)


def _parts(series: Any) -> tuple[dict[str, str] | None, list[Any]]:
    if not _is_dict(series) or not _is_dict(series.get("metric")):
        return None, []
    labels = cast("dict[str, Any]", series["metric"])
    points = series["values"] if "values" in series else [series.get("value")]
    if not isinstance(points, list) or not all(isinstance(v, str) for v in labels.values()):
        return None, []
    return cast("dict[str, str]", labels), cast("list[Any]", points)


def _point(point: Any, clock: Clock) -> tuple[float, str | None]:
    if not isinstance(point, list):
        return math.nan, None
    pair = cast("list[Any]", point)
    if len(pair) != 2 or isinstance(pair[0], bool) or not isinstance(pair[0], int | float):
        return math.nan, None
    try:
        t_s = clock.read(str(pair[0]))
    except CellError:
        return math.nan, None
    return t_s, pair[1] if isinstance(pair[1], str) else None


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)
