"""A kernel that spins on a flag: what a collective does while a peer is late, without the peer.

NCCL's kernels poll a word in the GPU's own memory from one thread per warp group while the rest of
the block waits at a barrier; this does the same from a few blocks. It is PTX, which the driver
compiles, so neither a compiler nor NVRTC has to be installed.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from harness.errors import LaunchError
from harness.train.phases import sleep_until

# As many blocks as NCCL takes for a large collective within a node (its channels, 16 to 32), and
# the threads that it gives each.
_NUM_BLOCKS = 24
_NUM_THREADS = 512
_REMEDY = (
    "calibrate on two GPUs or more (gpus=2), or leave collective_wait out of calibration.phases"
)
_PTX = b"""
.version 6.3
.target sm_70
.address_size 64
.visible .entry spin_on_flag(.param .u64 flag)
{
    .reg .pred %p<3>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [flag];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %tid.x;
    setp.ne.s32 %p1, %r1, 0;
    @%p1 bra JOIN;
WAIT:
    ld.volatile.global.u32 %r2, [%rd2];
    setp.eq.s32 %p2, %r2, 0;
    @%p2 bra WAIT;
JOIN:
    bar.sync 0;
    ret;
}
\0"""


class SpinKernel:
    """The kernel on one device, with its flag."""

    def __init__(self, device: torch.device) -> None:
        """Load the kernel into the current context of ``device``.

        Raises:
            LaunchError: the driver does not take it.
        """
        self._flag = torch.zeros(1, dtype=torch.int32, device=device)  # makes the context current
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise LaunchError(f"no NVIDIA driver library ({error}); {_REMEDY}") from error
        self._function = ctypes.c_void_p()
        module = ctypes.c_void_p()
        self._check(self._driver.cuModuleLoadData(ctypes.byref(module), _PTX))
        self._check(
            self._driver.cuModuleGetFunction(ctypes.byref(self._function), module, b"spin_on_flag")
        )
        self._one = torch.ones(1, dtype=torch.int32, pin_memory=True)
        # Not the current stream: what is queued behind the spin never runs.
        self._setter = torch.cuda.Stream(device)

    def hold(self, until_s: float) -> None:
        """Spin until the monotonic clock shows ``until_s``, seconds.

        Raises:
            LaunchError: the driver does not start the kernel.
        """
        self._flag.zero_()
        torch.cuda.synchronize()
        pointer = ctypes.c_uint64(self._flag.data_ptr())
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = self._driver.cuLaunchKernel(
            self._function, _NUM_BLOCKS, 1, 1, _NUM_THREADS, 1, 1, 0, stream, arguments, None
        )
        self._check(code)
        try:
            sleep_until(until_s)
        finally:
            with torch.cuda.stream(self._setter):
                self._flag.copy_(
                    self._one, non_blocking=True
                )  # by the copy engine, no block needed
            torch.cuda.synchronize()

    def _check(self, code: int) -> None:
        if code == 0:
            return
        text: Any = ctypes.c_char_p()
        self._driver.cuGetErrorString(code, ctypes.byref(text))
        said = text.value.decode() if text.value else "unknown error"
        raise LaunchError(
            f"the driver refuses the kernel that stands in for a collective ({code}: {said});"
            f" {_REMEDY}"
        )
