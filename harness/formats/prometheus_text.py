"""Prometheus text exposition of a GPU exporter: one scrape, or several one after another.

Also what ``/federate`` and an OpenMetrics dump give, where a line carries its own time. Without
times a scrape is a tick: a metric that comes round again for a GPU begins the next one, and more
than one needs the period.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.formats.cells import CellError, Clock
from harness.formats.delimited import TORN
from harness.formats.prometheus_series import Gatherer, Owner, Tick, rows_by_time
from harness.formats.recipe import refusal
from harness.formats.text import Head, TextSource
from harness.formats.ticks import Claim, GpuTable, Ledger, Options, ReaderStream, Rows
from harness.samples import SampleBatch

NAME = "prometheus text"

NO_SERIES = "line is no series"
NO_TIME = "series without the time that others have"

_SERIES = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*"
    r'(?:\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})?'
    r"\s+(\S+)(?:\s+(-?[0-9.]+))?(?:\s+#.*)?\s*"
)
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_GPU_METRIC = re.compile(r"^\s*(?:DCGM_FI_[A-Z0-9_]+|nvidia_smi_[a-z0-9_]+)\{", re.MULTILINE)
_EXPOSITION = re.compile(r"^# (?:HELP|TYPE) \S+ ", re.MULTILINE)
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def claims(head: Head) -> Claim | None:
    """Whether it is the text of a GPU exporter, or of any exporter at all."""
    if head.text.lstrip("\0 \t\r\n").startswith(("{", "[")):
        return None
    if match := _GPU_METRIC.search(head.text):
        return Claim(score=95, why=f"Prometheus text with {match[0].strip().rstrip('{')}")
    if _EXPOSITION.search(head.text):
        return Claim(score=92, why="Prometheus text (# HELP and # TYPE lines)")
    return None


def open_file(source: TextSource, options: Options, why: str) -> ReaderStream:
    """Open it as a stream."""
    table = GpuTable()
    ledger = Ledger(path=source.path, format_name=NAME, why=why)
    return ReaderStream(table, ledger, _Reader(source, options, table, ledger).chunks())


class _Reader:
    """One pass over the file."""

    def __init__(
        self, source: TextSource, options: Options, table: GpuTable, ledger: Ledger
    ) -> None:
        self._source = source
        self._period_s = options.period_s
        self._ledger = ledger
        self._gatherer = Gatherer(table, ledger)
        self._clock = Clock()
        self._labels: dict[str, dict[str, str] | None] = {}
        self._rows = Rows()
        self._tick: Tick = {}
        self._num_ticks = 0
        self._seen: set[tuple[str, Owner]] = set()
        self._seen_series: set[tuple[str, str]] = set()
        self._last_metric: str | None = None

    def chunks(self) -> Iterator[SampleBatch]:
        """The batches.

        Raises:
            FormatError: no power, or several scrapes without times and without a period.
        """
        timed: dict[float, Tick] = {}
        has_times: bool | None = None
        for line in self._source.lines():
            text = line.text.strip()
            if text.startswith("#"):
                self._last_metric = None
                continue
            match = None if line.torn else _SERIES.fullmatch(text)
            if match is None:
                self._ledger.drop(TORN if line.torn else NO_SERIES)
                continue
            metric, labels_text, value, time = match[1], match[2] or "", match[3], match[4]
            labels = self._parse_labels(labels_text)
            owner = self._gatherer.owner(metric, labels) if labels is not None else None
            if owner is None:
                self._last_metric = metric
                continue
            if has_times is None:
                has_times = time is not None
            if has_times:
                self._enter_timed(timed, owner, metric, value, time)
                continue
            if self._begins_scrape(metric, owner, labels_text):
                self._flush()
                if self._rows.is_full:
                    yield self._rows.take()
            self._gatherer.put(self._tick, owner, metric, value)
        self._note_troubles()
        if has_times:
            yield from rows_by_time(timed, self._gatherer, self._ledger)
            return
        self._flush()
        self._gatherer.require_power(self._source.path)
        yield self._rows.take()

    def _enter_timed(
        self, timed: dict[float, Tick], owner: Owner, metric: str, value: str, time: str | None
    ) -> None:
        try:
            t_s = self._clock.read(time or "")
        except CellError:
            self._ledger.drop(NO_TIME)
            return
        self._ledger.is_relative = self._clock.is_relative
        self._gatherer.put(timed.setdefault(t_s, {}), owner, metric, value)

    def _begins_scrape(self, metric: str, owner: Owner, labels_text: str) -> bool:
        """Whether this line belongs to a later scrape than the last.

        All lines of a metric stand together in one scrape. A GPU that comes twice there, under
        other labels, is shared by several pods; anything else that repeats is a new scrape.
        """
        key, series = (metric, owner), (metric, labels_text)
        is_together = self._last_metric == metric
        self._last_metric = metric
        begins = key in self._seen and not (is_together and series not in self._seen_series)
        if begins:
            self._seen, self._seen_series = set(), set()
        self._seen.add(key)
        self._seen_series.add(series)
        return begins

    def _flush(self) -> None:
        """End a scrape that carries no times."""
        if not self._tick:
            return
        if self._num_ticks and self._period_s is None:
            raise refusal(
                self._source.path,
                "several scrapes and no times; say with --period how many seconds lay between",
            )
        self._ledger.is_relative = True
        self._gatherer.emit(self._num_ticks * (self._period_s or 0.0), self._tick, self._rows)
        self._num_ticks += 1
        self._tick = {}

    def _parse_labels(self, text: str) -> dict[str, str] | None:
        if text not in self._labels:
            self._labels[text] = _labels(text)
        labels = self._labels[text]
        if labels is None:
            self._ledger.drop(NO_SERIES)
        return labels

    def _note_troubles(self) -> None:
        for trouble, count in self._source.troubles.items():
            self._ledger.count(trouble, count)
        if "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" in self._gatherer.unused:
            self._ledger.note("the energy counter in the file is not used")


def _labels(text: str) -> dict[str, str] | None:
    """``gpu="0",UUID="GPU-..."`` as a mapping; None where it is damaged."""
    labels: dict[str, str] = {}
    at = 0
    while text[at:].strip():
        match = _LABEL.match(text, at)
        if match is None or match[1] in labels:
            return None
        labels[match[1]] = re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), match[2])
        at = match.end()
    return labels
