"""Streams -> windows of all GPUs under one numbering; the samples are let go of at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.samples import Account, GpuId, PowerScope, SampleBatch, SampleStream
from harness.triage.result import NodeEnergy
from harness.triage.windows import (
    WindowBuilder,
    Windows,
    choose_window_s,
    concatenate,
    estimate_period_s,
)

_SETTLED = 20  # intervals of one GPU, from which on a median period is settled
_FALLBACK_PERIOD_S = 1.0
_MAX_METERS = 4  # of a node; more are GPUs, whose energy nobody asks here


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """All windows of some streams.

    Attributes:
        windows: In order of GPU and time.
        gpus: Identity by number.
        stream_of_gpu: Which stream a GPU is from.
        clock_of_gpu: 0 for unix time; streams without times of their own have one each.
        accounts: One per stream.
        window_s: Length of a window.
        last_readings: GPU -> watts and utilization of its last sample.
        energy: Of node meters.
    """

    windows: Windows
    gpus: tuple[GpuId, ...]
    stream_of_gpu: tuple[int, ...]
    clock_of_gpu: tuple[int, ...]
    accounts: tuple[Account, ...]
    window_s: float
    last_readings: tuple[tuple[float, float], ...]
    energy: tuple[NodeEnergy, ...]


def collect(streams: Sequence[SampleStream]) -> Collected:
    """Read every stream to its end.

    All streams share one window length, that of the slowest sampler, so that peers line up.
    """
    opened = [_Opened(stream) for stream in streams]
    known = [o.period_s for o in opened if o.period_s is not None]
    period_s = max(known, default=_FALLBACK_PERIOD_S)
    window_s = choose_window_s(period_s)
    numbering = _Numbering(is_alone=len(streams) == 1)
    parts: list[Windows] = []
    accounts: list[Account] = []
    energy: list[NodeEnergy] = []
    for number, one in enumerate(opened):
        meter = _Meter()
        builder = WindowBuilder(window_s=window_s, period_s=one.period_s or period_s)
        for batch in one.batches():
            if len(one.stream.gpus) <= _MAX_METERS:
                meter.add(batch)
            parts.append(builder.feed(numbering.renumber(batch, number, one.stream)))
        parts.append(builder.finish())
        account = one.stream.account()
        accounts.append(account)
        numbering.close(number, account)
        if account.power_scope is PowerScope.NODE:
            energy.append(meter.energy(account))
    windows = concatenate(parts)
    return Collected(
        windows=windows,
        gpus=tuple(numbering.gpus),
        stream_of_gpu=tuple(numbering.streams),
        clock_of_gpu=tuple(numbering.clocks),
        accounts=tuple(accounts),
        window_s=window_s,
        last_readings=tuple(_last_readings(windows, len(numbering.gpus))),
        energy=tuple(energy),
    )


class _Opened:
    """A stream whose first batches were looked at for the period."""

    def __init__(self, stream: SampleStream) -> None:
        self.stream = stream
        self._rest = iter(stream.batches())
        self._first: list[SampleBatch] = []
        self.period_s: float | None = None
        for batch in self._rest:
            self._first.append(batch)
            self.period_s, count = estimate_period_s(self._first)
            if count >= _SETTLED:
                break

    def batches(self) -> Iterator[SampleBatch]:
        """All batches, those already looked at included."""
        first, self._first = self._first, []
        yield from first
        yield from self._rest


class _Numbering:
    """One number per GPU over all streams: by host and uuid, or host and index."""

    def __init__(self, *, is_alone: bool) -> None:
        self.gpus: list[GpuId] = []
        self.streams: list[int] = []
        self.clocks: list[int] = []
        self._is_alone = is_alone
        self._number: dict[tuple[str, str], int] = {}
        self._maps: dict[int, list[int]] = {}

    def renumber(self, batch: SampleBatch, stream: int, source: SampleStream) -> SampleBatch:
        mapping = self._maps.setdefault(stream, [])
        for position in range(len(mapping), len(source.gpus)):
            mapping.append(self._number_of(source.gpus[position], stream, position))
        numbers = np.asarray(mapping, dtype=np.int32)
        return dataclasses.replace(batch, gpu=numbers[batch.gpu])

    def close(self, stream: int, account: Account) -> None:
        """Name the hosts of a stream that names none, where several files would collide."""
        for number in set(self._maps.get(stream, [])):
            gpu = self.gpus[number]
            if not gpu.host and not self._is_alone:
                stem = Path(account.path).name.split(".")[0] or f"file{stream}"
                host = stem if self._is_free(stem, stream) else f"{stem}#{stream}"
                self.gpus[number] = GpuId(host=host, index=gpu.index, uuid=gpu.uuid, name=gpu.name)
            if account.is_relative:
                self.clocks[number] = stream + 1

    def _is_free(self, host: str, stream: int) -> bool:
        pairs = zip(self.gpus, self.streams, strict=True)
        return all(gpu.host != host or owner == stream for gpu, owner in pairs)

    def _number_of(self, gpu: GpuId, stream: int, position: int) -> int:
        host = gpu.host or f"\0{stream}"  # two files without a host are two hosts
        own = gpu.uuid or (str(gpu.index) if gpu.index is not None else f"\0{position}")
        if (host, own) not in self._number:
            self._number[host, own] = len(self.gpus)
            self.gpus.append(gpu)
            self.streams.append(stream)
            self.clocks.append(0)
        return self._number[host, own]


class _Meter:
    """Joules of one stream by the trapezoidal rule, per meter, over steps of up to a minute."""

    _MAX_STEP_S = 60.0

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, float]] = {}
        self._joules = 0.0
        self._seconds = 0.0

    def add(self, batch: SampleBatch) -> None:
        for meter in np.unique(batch.gpu).tolist():
            mine = (batch.gpu == meter) & np.isfinite(batch.power_w)
            t_s, power_w = batch.t_s[mine], batch.power_w[mine]
            if not len(t_s):
                continue
            if meter in self._last:
                t_s = np.append(self._last[meter][0], t_s)
                power_w = np.append(self._last[meter][1], power_w)
            self._last[meter] = (float(t_s[-1]), float(power_w[-1]))
            step_s = np.diff(t_s)
            keep = (step_s > 0) & (step_s <= self._MAX_STEP_S)
            self._joules += float((step_s * (power_w[1:] + power_w[:-1]) / 2.0)[keep].sum())
            self._seconds += float(step_s[keep].sum())

    def energy(self, account: Account) -> NodeEnergy:
        seconds = self._seconds / max(len(self._last), 1)
        mean_w = self._joules / seconds if seconds > 0 else None
        return NodeEnergy(path=account.path, joules=self._joules, observed_s=seconds, mean_w=mean_w)


def _last_readings(windows: Windows, num_gpus: int) -> list[tuple[float, float]]:
    readings: list[tuple[float, float]] = []
    for number in range(num_gpus):
        rows = np.flatnonzero(windows.gpu == number)
        if len(rows):
            last = int(rows[-1])
            readings.append((float(windows.power_w[last]), float(windows.utilization_pct[last])))
        else:
            readings.append((float("nan"), float("nan")))
    return readings
