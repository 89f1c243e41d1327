"""``nvidia-smi dmon``: blank-separated columns below ``# gpu pwr ...``, headers every so often.

With ``-o T`` or ``-o DT`` it prints times; without them the caller gives the period, and a tick
ends when a GPU comes again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.formats.cells import NAN, CellError, Clock, Quantity, is_fault, read, read_index
from harness.formats.delimited import BAD_CELL, BEFORE_HEADER, FAULTS, NOT_A_ROW, TORN
from harness.formats.recipe import refusal
from harness.formats.text import Head, Line, TextSource
from harness.formats.ticks import Claim, GpuTable, Ledger, Options, ReaderStream, Rows
from harness.samples import GpuId, SampleBatch

NAME = "nvidia-smi dmon"

_QUANTITIES: Mapping[str, Quantity] = {
    "pwr": Quantity.POWER,
    "sm": Quantity.PERCENT,
    "fb": Quantity.MEMORY,
    "pclk": Quantity.CLOCK_MHZ,
    "gtemp": Quantity.TEMPERATURE_C,
}
_OURS = {
    "gpu": "gpu",
    "pwr": "power",
    "sm": "utilization",
    "fb": "memory",
    "pclk": "clock",
    "gtemp": "temperature",
}


def claims(head: Head) -> Claim | None:
    """Sure of a line that starts with ``#`` and names dmon's columns."""
    for line in head.lines:
        names = header_names(line)
        if names is not None:
            return Claim(score=90, why=f"header of nvidia-smi dmon (# {' '.join(names[:4])} ...)")
    return None


def header_names(line: str) -> list[str] | None:
    """The columns that a header line of dmon names, or None for any other line."""
    if not line.startswith("#"):
        return None
    names = _tokens(line[1:].lower())
    return names if "gpu" in names and len(names) > 2 else None


def open_file(source: TextSource, options: Options, why: str) -> ReaderStream:
    """The stream of such a file.

    Raises:
        FormatError: no power column, or neither times nor a period.
    """
    headers = [names for line in source.head.lines if (names := header_names(line)) is not None]
    if not headers:
        raise refusal(source.path, "no header of nvidia-smi dmon")
    names = headers[0]
    if "pwr" not in names:
        raise refusal(source.path, f"no power column (dmon -s p adds it; {' '.join(names)})")
    if "time" not in names and options.period_s is None:
        raise refusal(
            source.path,
            "no timestamps (dmon -o DT prints them); say how far its ticks lie apart with"
            " --period SECONDS",
        )
    table = GpuTable()
    ledger = Ledger(path=source.path, format_name=NAME, why=why)
    ledger.columns.update({_OURS[name]: name for name in names if name in _OURS})
    ledger.is_relative = "time" not in names or "date" not in names
    if "sm" not in names:
        ledger.note("the file has no utilization")
    return ReaderStream(table, ledger, _Dmon(source, options, table, ledger).chunks())


def _tokens(line: str) -> list[str]:
    return line.replace(",", " ").split()


class _Dmon:
    """One file while it is read."""

    def __init__(
        self, source: TextSource, options: Options, table: GpuTable, ledger: Ledger
    ) -> None:
        self._source = source
        self._period_s = options.period_s or NAN
        self._table = table
        self._ledger = ledger
        self._clock = Clock()
        self._names: list[str] = []
        self._num_headers = 0
        self._tick = 0
        self._in_tick: set[int] = set()

    def chunks(self) -> Iterator[SampleBatch]:
        rows = Rows()
        for line in self._source.lines():
            if line.text.startswith("#"):
                self._header(line)
                continue
            reason = self._row(line, rows)
            if reason is not None:
                self._ledger.drop(reason)
            if rows.is_full:
                yield rows.take()
        yield rows.take()
        if self._num_headers > 1:
            self._ledger.note(f"headers repeated: {self._num_headers - 1}")
        for trouble, count in self._source.troubles.items():
            self._ledger.count(trouble, count)

    def _header(self, line: Line) -> None:
        names = header_names(line.text)
        if names is not None and not line.torn:
            self._num_headers += 1
            self._names = names

    def _row(self, line: Line, rows: Rows) -> str | None:
        """Take one line; why not, if it cannot be taken."""
        cells = _tokens(line.text)
        if not self._names:
            return BEFORE_HEADER
        if line.torn:
            return TORN
        if len(cells) != len(self._names) or "pwr" not in self._names:
            return NOT_A_ROW
        try:
            self._sample(dict(zip(self._names, cells, strict=True)), rows)
        except CellError:
            return BAD_CELL
        return None

    def _sample(self, cells: Mapping[str, str], rows: Rows) -> None:
        index = read_index(cells["gpu"])
        values = {
            name: read(cells[name], quantity)
            for name, quantity in _QUANTITIES.items()
            if name in cells
        }
        hot = read(cells.get("tviol", "-"), Quantity.PERCENT)
        t_s = self._time(cells, index)
        if any(is_fault(cells[name]) for name in values):
            self._ledger.count(FAULTS)
        gpu = GpuId(host="", index=index, uuid=None, name=None)
        rows.add(
            t_s,
            self._table.position(gpu),
            values["pwr"],
            utilization_pct=values.get("sm", NAN),
            memory_used_bytes=values.get("fb", NAN),
            sm_clock_mhz=values.get("pclk", NAN),
            temperature_c=values.get("gtemp", NAN),
            throttled=-1 if hot != hot else int(hot > 0.0),  # noqa: PLR0124 - NaN
        )

    def _time(self, cells: Mapping[str, str], index: int) -> float:
        if "time" in cells:
            parts: Sequence[str] = (
                (cells["date"], cells["time"]) if "date" in cells else (cells["time"],)
            )
            return self._clock.read(" ".join(parts))
        if index in self._in_tick:
            self._tick += 1
            self._in_tick.clear()
        self._in_tick.add(index)
        return self._tick * self._period_s
