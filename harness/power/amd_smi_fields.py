"""Reading one field of one AMD GPU through AMD SMI: a field that fails is null and says why.

As :mod:`harness.power.fields` for NVML, with AMD's codes: the session is gone, the GPU is gone, or
this field is not to be had; what a driver does not offer is an absence, what broke is a fault.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, TypeVar

from harness.power.fields import NOT_AVAILABLE, GpuLostError, SessionLostError

T = TypeVar("T")

# amdsmi_status_t of amdsmi.h, written out so that a classification never depends on the bindings.
_NOT_SUPPORTED = frozenset({2, 3})
"""Not supported, not yet implemented."""
_SESSION_CODES = frozenset({4, 5, 18, 32, 34})
"""Library or symbol not loaded, init error, not initialized, driver not loaded."""
_GPU_LOST_CODES = frozenset({31})
"""Processor not found."""
_FAULTS = frozenset({6, 7, 8, 12, 13, 16, 30, 43, 2**32 - 1})
"""DRM error, API failed, timeout, I/O, bad address, internal, busy, unexpected data, unknown."""

# Fields of 16 bits come with all bits set as well: gpu_metrics of the driver.
_NOT_AVAILABLE = NOT_AVAILABLE | {2**16 - 1}


def caught_errors(lib: Any) -> tuple[type[Exception], ...]:
    """Give what a call into the bindings may raise: AMD's errors and those of odd bindings."""
    odd = (AttributeError, ArithmeticError, LookupError, OSError, TypeError, ValueError)
    return (getattr(lib, "AmdSmiException", RuntimeError), ctypes.ArgumentError, *odd)


def error_code(error: Exception) -> int | None:
    """Give the status code of an error of the library, or null."""
    code = getattr(error, "err_code", None)
    return code if isinstance(code, int) else None


def error_text(error: Exception) -> str:
    """Describe an error of the bindings in a few words that repeat when it does."""
    if isinstance(error, AttributeError):
        return "not offered by these bindings"
    info = getattr(error, "err_info", None)
    text = info if isinstance(info, str) else str(error)
    return " ".join(text.split()) or type(error).__name__


def raise_if_lost(error: Exception) -> None:
    """Raise what an error means when it is more than one field's.

    Raises:
        SessionLostError: AMD SMI as a whole is gone.
        GpuLostError: this GPU is gone.
    """
    code = error_code(error)
    if code in _SESSION_CODES:
        raise SessionLostError(error_text(error)) from error
    if code in _GPU_LOST_CODES:
        raise GpuLostError("GPU not found") from error


class AmdReader:
    """Reads the fields of one GPU at one tick and collects why some of them are null."""

    def __init__(self, lib: Any) -> None:
        """Store the bindings."""
        self._caught = caught_errors(lib)
        self._reasons: list[str] = []
        self.faults: list[str] = []

    @property
    def reason(self) -> str | None:
        """Every reason of a null in the order of reading; null when there is none."""
        return "; ".join(self._reasons) or None

    def note(self, field: str, text: str) -> None:
        """Say why ``field`` is null, where that is no fault."""
        self._reasons.append(f"{field}: {text}")

    def absorb(self, other: AmdReader) -> None:
        """Take over the reasons and faults that ``other`` collected."""
        self._reasons += other._reasons
        self.faults += other.faults

    def call(self, field: str, function: Callable[[], T]) -> T | None:
        """Give what ``function`` gives, or null with a reason when it fails.

        Raises:
            SessionLostError: AMD SMI as a whole is gone.
            GpuLostError: this GPU is gone.
        """
        try:
            return function()
        except self._caught as error:
            raise_if_lost(error)
            self._explain(field, error)
            return None

    def number(
        self,
        field: str,
        function: Callable[[], Any],
        *,
        is_zero_missing: bool = False,
        highest: float = math.inf,
    ) -> float | None:
        """Read a number that may be ``N/A`` or another disguised absence.

        Args:
            field: Name used in the reason.
            function: Reads it, in the unit of the vendor.
            is_zero_missing: 0 cannot be true of this field, so it stands for a missing reading.
            highest: Above it the reading is garbage.
        """
        num_reasons = len(self._reasons)
        raw = self.call(field, function)
        value = as_number(raw)
        if value is None:
            if len(self._reasons) == num_reasons:
                self.note(field, f"reads {'nothing' if raw is None else raw}")
        elif value == 0 and is_zero_missing:
            self.note(field, "reads 0, taken as missing")
        elif value < 0 or value > highest:
            self.note(field, f"reads {raw}, which cannot be")
        else:
            return value
        return None

    def _explain(self, field: str, error: Exception) -> None:
        code = error_code(error)
        if code in _FAULTS:
            self._reasons.append(f"fault: {field}: {error_text(error)}")
            self.faults.append(f"{field}: {error_text(error)}")
        else:
            self.note(field, "not supported" if code in _NOT_SUPPORTED else error_text(error))


def as_number(raw: Any) -> float | None:
    """A value of the bindings as a number; ``N/A`` and all bits set are null."""
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw):
        return None
    return None if raw in _NOT_AVAILABLE else float(raw)
