"""From rows to a sample stream: batches, the account, and the order of time.

Shared by every reader: GPUs get positions (``GpuTable``), rows become columns (``Rows``), what is
lost is counted (``Ledger``), and ``ReaderStream`` puts them together. Nothing here interpolates or
bridges; a row whose time goes back is dropped and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.formats.cells import NAN
from harness.formats.pauses import Pauses
from harness.formats.recipe import refusal
from harness.samples import Account, GpuId, PowerKind, PowerScope, SampleBatch

BATCH_ROWS = 65536
OUT_OF_ORDER = "time goes back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the caller knows and the file does not say.

    Attributes:
        period_s: Time from tick to tick, for a file without times.
        columns: Our column -> the file's column, for a table whose names are its own.
    """

    period_s: float | None = None
    columns: dict[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """How sure a reader is that a file is its own, 0-100, and why in words."""

    score: int
    why: str


class GpuTable:
    """The GPUs of one stream in order of appearance; a position never changes."""

    def __init__(self) -> None:
        self.gpus: list[GpuId] = []
        self._positions: dict[GpuId, int] = {}

    def position(self, gpu: GpuId) -> int:
        """Where ``gpu`` stands, added at the end if it is new."""
        found = self._positions.get(gpu)
        if found is None:
            found = self._positions[gpu] = len(self.gpus)
            self.gpus.append(gpu)
        return found


class Rows:
    """Samples gathered one at a time until they fill a batch."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, int, float, float, float, float, float, float, int]] = []
        self._labels: list[str | None] = []

    @property
    def is_full(self) -> bool:
        """Whether it is time to ``take``."""
        return len(self._rows) >= BATCH_ROWS

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        t_s: float,
        gpu: int,
        power_w: float,
        *,
        limit_w: float = NAN,
        utilization_pct: float = NAN,
        memory_used_bytes: float = NAN,
        sm_clock_mhz: float = NAN,
        temperature_c: float = NAN,
        throttled: int = -1,
        label: str | None = None,
    ) -> None:
        """One sample; fields as in ``SampleBatch``."""
        self._rows.append(
            (
                t_s,
                gpu,
                power_w,
                limit_w,
                utilization_pct,
                memory_used_bytes,
                sm_clock_mhz,
                temperature_c,
                throttled,
            )
        )
        self._labels.append(label)

    def take(self) -> SampleBatch:
        """What was gathered, as a batch (perhaps of length 0); starts anew."""
        table = np.array(self._rows, dtype=np.float64).reshape(-1, 9)
        labels = np.array(self._labels, dtype=object) if any(self._labels) else None
        self._rows, self._labels = [], []
        return SampleBatch(
            t_s=table[:, 0].copy(),
            gpu=table[:, 1].astype(np.int32),
            power_w=table[:, 2].copy(),
            limit_w=table[:, 3].copy(),
            utilization_pct=table[:, 4].copy(),
            memory_used_bytes=table[:, 5].copy(),
            sm_clock_mhz=table[:, 6].copy(),
            temperature_c=table[:, 7].copy(),
            throttled=table[:, 8].astype(np.int8),
            label=labels,
        )


class Ledger:
    """The account of one file while it is read."""

    def __init__(self, *, path: Path, format_name: str, why: str) -> None:
        self.path = path
        self.format_name = format_name
        self.why = why
        self.columns: dict[str, str] = {}
        self.power_kind = PowerKind.UNKNOWN
        self.power_scope = PowerScope.GPU
        self.is_relative = False
        self.is_aggregated = False
        self.absent: dict[str, str] = {}
        self.rows_read = 0
        self._dropped: Counter[str] = Counter()
        self._notes: dict[str, None] = {}
        self._counted: Counter[str] = Counter()
        self._pauses = Pauses()

    def drop(self, reason: str, count: int = 1) -> None:
        """Count rows that are not delivered."""
        if count:
            self._dropped[reason] += count

    def note(self, sentence: str) -> None:
        """Say something once, however often it is noted."""
        self._notes[sentence] = None

    def count(self, what: str, count: int = 1) -> None:
        """A note that says how often, ``what: count``; for what is delivered nonetheless."""
        self._counted[what] += count

    def keep(self, batch: SampleBatch) -> SampleBatch:
        """The rows of ``batch`` whose time does not go back, entered into the account."""
        good = self._pauses.in_order(batch.t_s, batch.gpu)
        dropped = int(good.size - np.count_nonzero(good))
        if dropped:
            self.drop(OUT_OF_ORDER, dropped)
            batch = select(batch, good)
        self._pauses.enter(batch.t_s, batch.gpu)
        self.rows_read += batch.t_s.size
        return batch

    def account(self) -> Account:
        """What was read so far."""
        period_s = self._pauses.period_s
        counted = tuple(f"{what}: {count}" for what, count in self._counted.items() if count)
        return Account(
            path=str(self.path),
            format=self.format_name,
            why=self.why,
            columns=dict(self.columns),
            rows_read=self.rows_read,
            rows_dropped=dict(self._dropped),
            gaps=self._pauses.gaps(period_s),
            period_s=period_s,
            num_ticks=self._pauses.num_ticks,
            is_relative=self.is_relative,
            is_aggregated=self.is_aggregated,
            power_kind=self.power_kind,
            power_scope=self.power_scope,
            absent=dict(self.absent),
            notes=(*self._notes, *counted),
        )


class ReaderStream:
    """One file as a ``SampleStream``; read once."""

    def __init__(
        self,
        table: GpuTable,
        ledger: Ledger,
        chunks: Iterable[SampleBatch],
        *,
        may_lack_power: bool = False,
    ) -> None:
        """Join what a reader made.

        Args:
            table: The GPUs, filled while ``chunks`` is read.
            ledger: The account, likewise.
            chunks: Batches, lazily.
            may_lack_power: Deliver rows without a single watt rather than refuse the file.
        """
        self._table = table
        self._ledger = ledger
        self._kept = self._keep(iter(chunks))
        self._ready: list[SampleBatch] = []
        self._may_lack_power = may_lack_power

    @property
    def gpus(self) -> Sequence[GpuId]:
        """The GPUs seen so far."""
        return self._table.gpus

    def prime(self) -> ReaderStream:
        """Read the first batch, so that a file that gives nothing is refused at once.

        Raises:
            FormatError: no row could be used, or what the reader finds by then.
        """
        self._ready.extend(batch for batch in [next(self._kept, None)] if batch is not None)
        return self

    def batches(self) -> Iterator[SampleBatch]:
        """The samples in order.

        Raises:
            FormatError: the file gave no sample, or none with a power reading.
        """
        while self._ready:
            yield self._ready.pop(0)
        yield from self._kept

    def account(self) -> Account:
        """What was read; complete once ``batches`` is exhausted."""
        return self._ledger.account()

    def _keep(self, chunks: Iterator[SampleBatch]) -> Iterator[SampleBatch]:
        has_power = self._may_lack_power
        for chunk in chunks:
            batch = self._ledger.keep(chunk)
            if batch.t_s.size:
                has_power = has_power or not bool(np.isnan(batch.power_w).all())
                yield batch
        account = self._ledger.account()
        if not account.rows_read:
            raise refusal(self._ledger.path, f"no usable row{_because(account)}")
        if not has_power:
            raise refusal(self._ledger.path, "no row has a power reading")


def _because(account: Account) -> str:
    reasons = [f"{count} dropped: {reason}" for reason, count in account.rows_dropped.items()]
    return f" ({'; '.join(reasons)})" if reasons else ""


def select(batch: SampleBatch, rows: NDArray[Any]) -> SampleBatch:
    """The rows of ``batch`` that a mask or an index picks."""
    return replace(
        batch,
        t_s=batch.t_s[rows],
        gpu=batch.gpu[rows],
        power_w=batch.power_w[rows],
        limit_w=batch.limit_w[rows],
        utilization_pct=batch.utilization_pct[rows],
        memory_used_bytes=batch.memory_used_bytes[rows],
        sm_clock_mhz=batch.sm_clock_mhz[rows],
        temperature_c=batch.temperature_c[rows],
        throttled=batch.throttled[rows],
        label=None if batch.label is None else batch.label[rows],
    )
