"""AMD GPUs through AMD SMI (package ``amdsmi`` of ROCm), read in process.

Needs no privileges, sets nothing. A field, a GPU or the whole driver may fail at any moment: the
rows say so and the session goes on, looking again at a bounded rate. Calls may block in a sick
driver; whoever needs a bound on that reads through :mod:`harness.power.bounded`.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from harness.config import PowerSource
from harness.power.amd_smi_fields import AmdReader, caught_errors, error_text, raise_if_lost
from harness.power.amd_smi_gpu import AmdGpu, attach, lost_sample, read_gpu
from harness.power.fields import GpuLostError, SessionLostError
from harness.power.reading import Reading
from harness.samples import GpuSample

RETRY_S = 5.0
"""A lost driver or GPU is looked for again this often, not at every tick."""


def load_amd_smi() -> Any:
    """Import the bindings.

    Raises:
        ImportError: they are not installed.
        OSError: they are, and the library below them is not.
    """
    return importlib.import_module("amdsmi")


def start_session(load: Callable[[], Any]) -> tuple[Any, str | None]:
    """Load the bindings and start AMD SMI; give them, and the reason why not or null."""
    try:
        lib = load()
    except ImportError:
        return None, "no AMD SMI bindings: install the package amdsmi that comes with ROCm"
    except (OSError, LookupError, AttributeError, RuntimeError) as error:
        return None, f"the AMD SMI library cannot be loaded: {error_text(error)}"
    try:
        lib.amdsmi_init(lib.AmdSmiInitFlags.INIT_AMD_GPUS)
    except caught_errors(lib) as error:
        return lib, f"no AMD driver: {error_text(error)}"
    return lib, None


class AmdSmiSource:
    """A session of AMD SMI that survives its driver; GPUs keep their uuid through it."""

    source = PowerSource.AMD_SMI

    def __init__(
        self,
        host: str,
        *,
        load: Callable[[], Any] = load_amd_smi,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store where the bindings, the wall clock and the monotonic clock come from."""
        self._host = host
        self._load = load
        self._wall = wall
        self._monotonic = monotonic
        self._lib: Any = None
        self._gpus: list[AmdGpu] = []
        self._down_reason = "AMD SMI is not open yet"
        self._next_open_s = -float("inf")

    def open(self) -> str | None:
        """Start the session and find the GPUs; give the reason why there are none, or null."""
        self._next_open_s = self._monotonic() + RETRY_S
        lib, reason = start_session(self._load)
        if reason is None:
            reason = self._find(lib)
            if reason is None:
                self._lib = lib
            else:
                with contextlib.suppress(*caught_errors(lib)):
                    lib.amdsmi_shut_down()
        if reason is not None:
            self._down_reason = f"fault: {reason}" if self._gpus else reason
        return reason

    def read(self) -> Reading:
        """Read every known GPU once; what cannot be read is a row of nulls."""
        if self._lib is None and self._monotonic() >= self._next_open_s:
            self.open()
        if self._lib is None:
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
        lib, self._lib = self._lib, None
        if lib is None:
            return
        for gpu in self._gpus:
            gpu.handle = None
        with contextlib.suppress(*caught_errors(lib)):
            lib.amdsmi_shut_down()

    def _find(self, lib: Any) -> str | None:
        try:
            handles = list(lib.amdsmi_get_processor_handles())
            found = [self._new_gpu(lib, index, handle) for index, handle in enumerate(handles)]
        except (SessionLostError, *caught_errors(lib)) as error:
            return f"AMD SMI failed: {error_text(error)}"
        uuids = {gpu.uuid for gpu in found}
        missing = [gpu for gpu in self._gpus if gpu.uuid is not None and gpu.uuid not in uuids]
        for gpu in missing:
            self._lose(gpu, "not listed by the driver any more")
        self._gpus = found + missing
        return None if self._gpus else "the AMD driver lists no GPU"

    def _new_gpu(self, lib: Any, index: int, handle: Any) -> AmdGpu:
        gpu = AmdGpu(index=index)
        try:
            attach(lib, gpu, handle)
        except GpuLostError as error:
            self._lose(gpu, str(error))
        for before in self._gpus:
            is_same = before.index == index if gpu.uuid is None else before.uuid == gpu.uuid
            if is_same:
                gpu.uuid, gpu.name = before.uuid, gpu.name or before.name
                gpu.power_key, gpu.power_kind = before.power_key, before.power_kind
        return gpu

    def _row(self, gpu: AmdGpu, faults: list[str]) -> GpuSample:
        if gpu.handle is None and self._monotonic() >= gpu.next_attach_s:
            self._attach(gpu)
        t_unix_s = self._wall()
        if gpu.handle is not None:
            reader = AmdReader(self._lib)
            try:
                row = read_gpu(self._lib, gpu, reader, host=self._host, t_unix_s=t_unix_s)
            except GpuLostError as error:
                self._lose(gpu, str(error))
            else:
                faults += [f"GPU {gpu.index}: {fault}" for fault in reader.faults]
                return row
        faults.append(f"GPU {gpu.index}: {gpu.lost_reason}")
        reason = f"fault: {gpu.lost_reason}"
        return lost_sample(gpu, host=self._host, t_unix_s=t_unix_s, reason=reason)

    def _attach(self, gpu: AmdGpu) -> None:
        """Look for a lost GPU among those that the driver lists now."""
        try:
            handles: Sequence[Any] = self._lib.amdsmi_get_processor_handles()
            for index, handle in enumerate(handles):
                candidate = AmdGpu(index=index)
                attach(self._lib, candidate, handle)
                known = gpu.uuid is not None and candidate.uuid is not None
                if candidate.uuid == gpu.uuid if known else index == gpu.index:
                    attach(self._lib, gpu, handle)
                    return
            self._lose(gpu, "not listed by the driver any more")
        except GpuLostError as error:
            self._lose(gpu, str(error))
        except caught_errors(self._lib) as error:
            raise_if_lost(error)
            self._lose(gpu, f"cannot be opened: {error_text(error)}")

    def _lose(self, gpu: AmdGpu, reason: str) -> None:
        gpu.handle, gpu.lost_reason = None, reason
        gpu.next_attach_s = self._monotonic() + RETRY_S

    def _lose_session(self, error: SessionLostError) -> None:
        self.close()
        self._down_reason = f"fault: AMD SMI failed: {error}"
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
