"""The loads of a calibration on a CUDA device: tensor cores, memory, waits, all without a model.

Buffers hold random numbers: zeros toggle no transistors and draw far less. They shrink to what is
free. Nothing here sets a limit or a clock, and nothing needs root.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from harness.config import CalibrationConfig, CalibrationPhase
from harness.errors import LaunchError
from harness.train.phases import LoadKind, sleep_until
from harness.train.spin import SpinKernel
from harness.train.topology import Topology

_TILE = 256  # sides are multiples of it, so that every tensor-core tile is full
_BF16_BYTES, _FP32_BYTES = 2, 4
_LAUNCH_S = 0.05  # of work per launch: short against a window, long against launching it
_MAX_REPEATS = 1000
_NUM_TIMED = 5
# All channels of NCCL take part in a collective of this size; a small one would use one or two.
_PAYLOAD_ELEMENTS = 1 << 24


class GpuLoad:
    """Buffers and kernels of one rank's GPU; made by :func:`open_gpu_load`."""

    def __init__(
        self,
        calibration: CalibrationConfig,
        *,
        matmul: Callable[[], None],
        matmul_once: Callable[[], object],
        copy: Callable[[], None],
        payload: torch.Tensor,
        spin_kernel: SpinKernel | None,
    ) -> None:
        """Store what does the work; ``spin_kernel`` is null where there are peers to wait for.

        ``matmul`` and ``copy`` fill a launch, ``matmul_once`` ends soon after it was begun.
        """
        self._calibration = calibration
        self._matmul = matmul
        self._matmul_once = matmul_once
        self._copy = copy
        self._payload = payload
        self._spin_kernel = spin_kernel

    def compute(self, until_s: float) -> None:
        """Multiply random bf16 matrices on the tensor cores."""
        burn(self._matmul, until_s)

    def move_memory(self, until_s: float) -> None:
        """Stream one buffer into the other, one multiplication an element."""
        burn(self._copy, until_s)

    def starve(self, until_s: float) -> None:
        """Multiply matrices for a burst, then leave the GPU without work, over and over."""
        while time.monotonic() < until_s:
            burn(
                self._matmul_once,
                min(until_s, time.monotonic() + self._calibration.starved_burst_s),
            )
            sleep_until(min(until_s, time.monotonic() + self._calibration.starved_wait_s))

    def spin(self, until_s: float) -> None:
        """Hold a kernel that polls a flag."""
        assert self._spin_kernel is not None, "only a rank without peers spins on a flag"
        self._spin_kernel.hold(until_s)

    def join(self) -> None:
        """Enter an all-reduce; its kernel spins until the last rank has entered."""
        dist.all_reduce(self._payload, op=dist.ReduceOp.MAX)
        torch.cuda.synchronize()

    def kind(self, phase: CalibrationPhase) -> LoadKind:
        """Emulated where a flag stands in for the collective, else real."""
        is_stand_in = phase is CalibrationPhase.COLLECTIVE_WAIT and self._spin_kernel is not None
        return LoadKind.EMULATED if is_stand_in else LoadKind.REAL


def open_gpu_load(calibration: CalibrationConfig, topology: Topology) -> GpuLoad:
    """Allocate the buffers, time one launch of each kernel, and meet all peers once.

    Raises:
        LaunchError: too little memory is free for the smallest burn.
    """
    device = topology.device
    payload = torch.zeros(_PAYLOAD_ELEMENTS, device=device)
    free_bytes, _ = torch.cuda.mem_get_info(device)
    budget_bytes = int(calibration.memory_fraction * free_bytes)
    side = matmul_side(calibration.matmul_size, budget_bytes // 2)
    elements = min(calibration.copy_bytes, budget_bytes // 4) // _FP32_BYTES
    left, right = (torch.randn(side, side, dtype=torch.bfloat16, device=device) for _ in range(2))
    product = torch.empty_like(left)
    source = torch.randn(elements, device=device)
    target = torch.empty_like(source)

    def multiply() -> torch.Tensor:
        return torch.mm(left, right, out=product)

    load = GpuLoad(
        calibration,
        matmul=_repeated(multiply),
        matmul_once=multiply,
        copy=_repeated(lambda: torch.mul(source, 1.0001, out=target)),
        payload=payload,
        spin_kernel=SpinKernel(device) if topology.world_size == 1 else None,
    )
    load.join()
    return load


def matmul_side(wanted: int, budget_bytes: int) -> int:
    """The side of three square bf16 matrices: as wanted, or what ``budget_bytes`` hold.

    Raises:
        LaunchError: not even the smallest fits.
    """
    fits = math.isqrt(budget_bytes // (3 * _BF16_BYTES))
    side = min(wanted, fits) // _TILE * _TILE
    if side == 0:
        raise LaunchError(
            f"{budget_bytes} bytes for the matrices of the compute burn: too few for a side of"
            f" {_TILE}; free the GPU, or raise calibration.memory_fraction and"
            f" calibration.matmul_size (now {wanted})"
        )
    return side


def burn(launch: Callable[[], object], until_s: float) -> None:
    """Launch until the monotonic clock shows ``until_s``, one launch ahead of the device."""
    before: torch.cuda.Event | None = None
    while time.monotonic() < until_s:
        launch()
        event = torch.cuda.Event(blocking=True)  # the host sleeps in synchronize, it does not spin
        event.record()
        if before is not None:
            before.synchronize()
        before = event
    torch.cuda.synchronize()


def _repeated(launch_one: Callable[[], object]) -> Callable[[], None]:
    """A launch of so many kernels that it keeps this device busy for about ``_LAUNCH_S``."""

    def launch(count: int) -> None:
        for _ in range(count):
            launch_one()

    launch(_NUM_TIMED)  # the first ones load kernels and wake clocks
    torch.cuda.synchronize()
    start_s = time.perf_counter()
    launch(_NUM_TIMED)
    torch.cuda.synchronize()
    each_s = (time.perf_counter() - start_s) / _NUM_TIMED
    count = max(1, min(_MAX_REPEATS, round(_LAUNCH_S / each_s)))
    return lambda: launch(count)
