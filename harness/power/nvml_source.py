"""NVIDIA GPUs through NVML (package nvidia-ml-py, module ``pynvml``), read in process.

Needs no privileges, sets nothing. A field, a GPU or the whole driver may fail at any moment: the
rows say so and the session goes on, looking again at a bounded rate. Calls may block for seconds in
a sick driver; whoever needs a bound on that reads through :mod:`harness.power.bounded`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from harness.config import PowerSource
from harness.power.fields import (
    GPU_LOST_CODES,
    SESSION_CODES,
    FieldReader,
    GpuLostError,
    SessionLostError,
    caught_errors,
    error_text,
)
from harness.power.nvml import load_nvml, start_session
from harness.power.nvml_gpu import Gpu, attach, lost_sample, read_gpu
from harness.power.reading import Reading
from harness.samples import GpuSample

RETRY_S = 5.0
"""A lost driver or GPU is looked for again this often, not at every tick."""


class NvmlSource:
    """An NVML session that survives its driver; GPUs keep their uuid through it."""

    source = PowerSource.NVML

    def __init__(
        self,
        host: str,
        *,
        load: Callable[[], Any] = load_nvml,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store where the bindings, the wall clock and the monotonic clock come from."""
        self._host = host
        self._load = load
        self._wall = wall
        self._monotonic = monotonic
        self._nvml: Any = None
        self._gpus: list[Gpu] = []
        self._down_reason = "NVML is not open yet"
        self._next_open_s = -float("inf")

    def open(self) -> str | None:
        """Start the session and find the GPUs; give the reason why there are none, or null."""
        self._next_open_s = self._monotonic() + RETRY_S
        nvml, reason = start_session(self._load)
        if reason is None:
            reason = self._find(nvml)
        if reason is None:
            self._nvml = nvml
        else:
            self._down_reason = f"fault: {reason}" if self._gpus else reason
        return reason

    def read(self) -> Reading:
        """Read every known GPU once; what cannot be read is a row of nulls."""
        if self._nvml is None and self._monotonic() >= self._next_open_s:
            self.open()
        if self._nvml is None:
            return self._down(())
        rows: list[GpuSample] = []
        faults: list[str] = []
        for gpu in self._gpus:
            try:
                rows.append(self._row(gpu, faults))
            except SessionLostError as error:
                self._lose_session(error)
                return self._down(tuple(rows))
        return Reading(samples=tuple(rows), faults=tuple(faults), reason=None)

    def close(self) -> None:
        """End the session; a driver that is gone has ended it already."""
        nvml, self._nvml = self._nvml, None
        if nvml is None:
            return
        caught = caught_errors(nvml)
        for gpu in self._gpus:
            gpu.handle = None
            if gpu.gpm is not None:
                with contextlib.suppress(*caught):
                    gpu.gpm.close()
        with contextlib.suppress(*caught):
            nvml.nvmlShutdown()

    def _find(self, nvml: Any) -> str | None:
        caught = caught_errors(nvml)
        try:
            count = int(nvml.nvmlDeviceGetCount())
            found = [self._new_gpu(nvml, index) for index in range(count)]
        except (SessionLostError, *caught) as error:
            with contextlib.suppress(*caught):
                nvml.nvmlShutdown()
            return f"NVML failed: {error_text(error)}"
        uuids = {gpu.uuid for gpu in found}
        missing = [gpu for gpu in self._gpus if gpu.uuid is not None and gpu.uuid not in uuids]
        for gpu in missing:
            gpu.handle, gpu.lost_reason = None, "not listed by the driver any more"
            gpu.next_attach_s = self._monotonic() + RETRY_S
        self._gpus = found + missing
        if self._gpus:
            return None
        with contextlib.suppress(*caught):
            nvml.nvmlShutdown()
        return "the NVIDIA driver lists no GPU"

    def _new_gpu(self, nvml: Any, index: int) -> Gpu:
        gpu = Gpu(index=index)
        gpu.lost_reason = self._attach(nvml, gpu) or ""
        for before in self._gpus:
            is_same = before.index == index if gpu.uuid is None else before.uuid == gpu.uuid
            if is_same:
                gpu.uuid, gpu.power_way = before.uuid, before.power_way
                gpu.power_kind, gpu.power_scope = before.power_kind, before.power_scope
        return gpu

    def _attach(self, nvml: Any, gpu: Gpu) -> str | None:
        gpu.next_attach_s = self._monotonic() + RETRY_S
        try:
            attach(nvml, gpu)
        except GpuLostError as error:
            return str(error)
        except caught_errors(nvml) as error:
            code = getattr(error, "value", None)
            if code in SESSION_CODES:
                raise SessionLostError(error_text(error)) from error
            return (
                error_text(error)
                if code in GPU_LOST_CODES
                else f"cannot be opened: {error_text(error)}"
            )
        return None

    def _row(self, gpu: Gpu, faults: list[str]) -> GpuSample:
        if gpu.handle is None and self._monotonic() >= gpu.next_attach_s:
            gpu.lost_reason = self._attach(self._nvml, gpu) or ""
        t_unix_s = self._wall()
        if gpu.handle is not None:
            reader = FieldReader(self._nvml)
            try:
                row = read_gpu(self._nvml, gpu, reader, host=self._host, t_unix_s=t_unix_s)
            except GpuLostError as error:
                gpu.handle, gpu.lost_reason = None, str(error)
                gpu.next_attach_s = self._monotonic() + RETRY_S
            else:
                faults += [f"GPU {gpu.index}: {fault}" for fault in reader.faults]
                return row
        faults.append(f"GPU {gpu.index}: {gpu.lost_reason}")
        reason = f"fault: {gpu.lost_reason}"
        return lost_sample(gpu, host=self._host, t_unix_s=t_unix_s, reason=reason)

    def _lose_session(self, error: SessionLostError) -> None:
        self.close()
        self._down_reason = f"fault: NVML failed: {error}"
        self._next_open_s = self._monotonic() + RETRY_S

    def _down(self, rows: tuple[GpuSample, ...]) -> Reading:
        t_unix_s, reason = self._wall(), self._down_reason
        silent = tuple(
            lost_sample(gpu, host=self._host, t_unix_s=t_unix_s, reason=reason)
            for gpu in self._gpus[len(rows) :]
        )
        samples = rows + silent
        fault = reason.removeprefix("fault: ")
        return Reading(samples=samples, faults=(fault,), reason=None if samples else reason)
