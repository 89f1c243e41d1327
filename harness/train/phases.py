"""What a rank does in each phase of a calibration, whatever it runs on.

A load is what differs between devices: :mod:`harness.train.gpu_load` burns, :class:`SleptLoad`
sleeps where a GPU would burn, and its ranks still wait for one another.
"""

from __future__ import annotations

import contextlib
import os
import time
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from harness.config import CalibrationPhase
from harness.errors import RecordError
from harness.train.phase_plan import Role

_CHUNK_BYTES = 1 << 26
_SAVE_FILE = "calibration-save.bin"


class LoadKind(StrEnum):
    """How real a window is: done as named, stood in for, or slept through."""

    REAL = "real"
    EMULATED = "emulated"
    SLEPT = "slept"


class Load(Protocol):
    """What a device is made to do; ``until_s`` is a time of the monotonic clock, seconds."""

    def compute(self, until_s: float) -> None:
        """Keep the arithmetic units busy."""
        ...

    def move_memory(self, until_s: float) -> None:
        """Keep the device memory busy."""
        ...

    def starve(self, until_s: float) -> None:
        """Compute in short bursts, and wait in between."""
        ...

    def spin(self, until_s: float) -> None:
        """Wait on the device for a flag that the host sets at ``until_s``."""
        ...

    def join(self) -> None:
        """Enter a collective and wait on the device until every rank has entered it."""
        ...

    def kind(self, phase: CalibrationPhase) -> LoadKind:
        """How real ``phase`` is on this device and with this number of ranks."""
        ...


def perform(
    load: Load,
    phase: CalibrationPhase,
    role: Role,
    until_s: float,
    *,
    saver: Saver,
    world_size: int,
) -> None:
    """Do what ``role`` does in ``phase`` until ``until_s``; collective where ranks have peers."""
    if phase is CalibrationPhase.COMPUTE_BURN:
        load.compute(until_s)
    elif phase is CalibrationPhase.MEMORY_BURN:
        load.move_memory(until_s)
    elif phase is CalibrationPhase.STARVED_LOADER:
        load.starve(until_s)
    elif phase in {CalibrationPhase.BARE_IDLE, CalibrationPhase.CONTEXT_IDLE}:
        sleep_until(until_s)
    elif role is Role.WAITS and world_size == 1:
        load.spin(until_s)
    else:
        if role is Role.WRITES:
            saver.write(until_s)
        elif role is Role.LATE:
            sleep_until(until_s)
        if world_size > 1:
            load.join()


def sleep_until(until_s: float) -> None:
    """Block until the monotonic clock shows ``until_s``."""
    time.sleep(max(0.0, until_s - time.monotonic()))


class Saver:
    """Writes as a save does: a file of ``num_bytes``, synced, over and over until the time is up.

    The bytes are random: a file system that compresses or drops zeros would have nothing to do.
    """

    def __init__(self, folder: Path, num_bytes: int, *, once: bool) -> None:
        """Write below ``folder``; with ``once`` write one file a window, then sleep."""
        self._path = folder / _SAVE_FILE
        self._num_bytes = num_bytes
        self._once = once
        self._chunk = b""

    def write(self, until_s: float) -> None:
        """Write until ``until_s``; the file is gone afterwards.

        Raises:
            RecordError: the folder cannot be written or is full.
        """
        if not self._chunk:
            self._chunk = os.urandom(min(_CHUNK_BYTES, self._num_bytes))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("wb", buffering=0) as file:
                while time.monotonic() < until_s:
                    self._write_file(file.fileno(), until_s)
                    if self._once:
                        break
        except OSError as error:
            raise RecordError(
                f"{self._path}: cannot write {self._num_bytes} bytes ({error.strerror}); free"
                " space, choose train.checkpoint_dir=DIR, or lower calibration.save_bytes"
            ) from error
        finally:
            with contextlib.suppress(OSError):  # told above, or never there
                self._path.unlink()
        sleep_until(until_s)

    def _write_file(self, fd: int, until_s: float) -> None:
        os.lseek(fd, 0, os.SEEK_SET)
        left = self._num_bytes
        while left > 0 and time.monotonic() < until_s:
            left -= os.write(fd, memoryview(self._chunk)[:left])
        os.fsync(fd)


class SleptLoad:
    """A CPU rank's stand-in: sleeps through the burns, waits for its peers for real."""

    def compute(self, until_s: float) -> None:
        """Sleep."""
        sleep_until(until_s)

    def move_memory(self, until_s: float) -> None:
        """Sleep."""
        sleep_until(until_s)

    def starve(self, until_s: float) -> None:
        """Sleep."""
        sleep_until(until_s)

    def spin(self, until_s: float) -> None:
        """Sleep."""
        sleep_until(until_s)

    def join(self) -> None:
        """Enter a collective of one number and wait for the others."""
        dist.all_reduce(torch.zeros(1))

    def kind(self, phase: CalibrationPhase) -> LoadKind:  # noqa: ARG002 - the shape of a load
        """Slept, whatever the phase: nothing that a GPU would do is done."""
        return LoadKind.SLEPT
