"""Reading one field of one GPU through NVML: a field that fails is null and says why.

Three kinds of failure, never confused: the session is gone (:class:`SessionLostError`), the GPU is
gone (:class:`GpuLostError`), or this field is not to be had. Of the last, what the driver simply
does not offer is an absence; what it shows as ``ERR!`` is a fault.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, TypeVar

from harness.samples import PowerScope

T = TypeVar("T")

# Return codes of nvml.h, written out so that a classification never depends on the bindings.
_NOT_SUPPORTED = 3
_INSUFFICIENT_POWER = 8
_TIMEOUT = 10
_IRQ_ISSUE = 11
_FUNCTION_NOT_FOUND = 13
_CORRUPTED_INFOROM = 14
_GPU_IS_LOST = 15
_RESET_REQUIRED = 16
_GPU_NOT_FOUND = 28
_UNKNOWN = 999
SESSION_CODES = frozenset({1, 9, 12, 18})
"""Uninitialized, driver not loaded, library not found, library and driver versions differ."""

GPU_LOST_CODES = {
    _GPU_IS_LOST: "GPU is lost",
    _RESET_REQUIRED: "GPU requires reset",
    _GPU_NOT_FOUND: "GPU not found",
}
_FAULTS = frozenset({_INSUFFICIENT_POWER, _TIMEOUT, _IRQ_ISSUE, _CORRUPTED_INFOROM, _UNKNOWN})

NOT_AVAILABLE = frozenset({2**32 - 1, 2**64 - 1})
"""What NVML stores in an unsigned field, with a return code of success, when it has no value."""

_SCOPES = {0: PowerScope.GPU, 1: PowerScope.MODULE, 2: PowerScope.MEMORY}
_UNION_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class SessionLostError(Exception):
    """NVML as a whole does not answer any more; the text says why."""


class GpuLostError(Exception):
    """One GPU does not answer any more; the text says why."""


def caught_errors(nvml: Any) -> tuple[type[Exception], ...]:
    """Give what a call into the bindings may raise: NVML's errors and those of odd bindings."""
    odd = (AttributeError, ArithmeticError, LookupError, OSError, TypeError, ValueError)
    return (nvml.NVMLError, ctypes.ArgumentError, *odd)


def error_text(error: Exception) -> str:
    """Describe an error of the bindings in a few words that repeat when it does."""
    code = getattr(error, "value", None)
    if code in GPU_LOST_CODES:
        return GPU_LOST_CODES[code]
    if code == _UNKNOWN:
        return "Unknown Error (ERR!)"
    if isinstance(error, AttributeError):
        return "not offered by these bindings"
    return str(error) or type(error).__name__


def is_not_offered(error: Exception) -> bool:
    """Tell whether the driver or the bindings are too old, or too new, for a function."""
    return isinstance(error, AttributeError) or getattr(error, "value", None) == _FUNCTION_NOT_FOUND


class FieldReader:
    """Reads the fields of one GPU at one tick and collects why some of them are null."""

    def __init__(self, nvml: Any) -> None:
        """Store the bindings."""
        self._nvml = nvml
        self._caught = caught_errors(nvml)
        self._reasons: list[str] = []
        self.faults: list[str] = []

    @property
    def reason(self) -> str | None:
        """Every reason of a null in the order of reading; null when there is none."""
        return "; ".join(self._reasons) or None

    def note(self, field: str, text: str) -> None:
        """Say why ``field`` is null, where that is no fault."""
        self._reasons.append(f"{field}: {text}")

    def absorb(self, other: FieldReader) -> None:
        """Take over the reasons and faults that ``other`` collected."""
        self._reasons += other._reasons
        self.faults += other.faults

    def call(self, field: str, function: Callable[[], T]) -> T | None:
        """Give what ``function`` gives, or null with a reason when it fails.

        Raises:
            SessionLostError: NVML as a whole is gone.
            GpuLostError: this GPU is gone.
        """
        try:
            return function()
        except self._caught as error:
            self._explain(field, error)
            return None

    def number(
        self,
        field: str,
        function: Callable[[], Any],
        *,
        is_zero_missing: bool = False,
        highest: float = math.inf,
    ) -> int | None:
        """Read a whole number that may be a disguised absence.

        Args:
            field: Name used in the reason.
            function: Reads it, in the unit of the vendor.
            is_zero_missing: 0 cannot be true of this field, so it stands for a missing reading.
            highest: Above it the reading is garbage.
        """
        value = self.call(field, lambda: int(function()))
        if value is None:
            return None
        if value in NOT_AVAILABLE:
            self.note(field, "not available")
        elif value == 0 and is_zero_missing:
            self.note(field, "reads 0, taken as missing")
        elif value < 0 or value > highest:
            self.note(field, f"reads {value}, which cannot be")
        else:
            return value
        return None

    def first_offered(self, *functions: Callable[[], T]) -> Callable[[], T]:
        """Give a function that takes the first of ``functions`` that this driver offers."""

        def read() -> T:
            for function in functions[:-1]:
                try:
                    return function()
                except self._caught as error:
                    if not is_not_offered(error):
                        raise
            return functions[-1]()

        return read

    def _explain(self, field: str, error: Exception) -> None:
        code = getattr(error, "value", None)
        if code in SESSION_CODES:
            raise SessionLostError(error_text(error)) from error
        if code in GPU_LOST_CODES:
            raise GpuLostError(error_text(error)) from error
        if code in _FAULTS:
            self._reasons.append(f"fault: {field}: {error_text(error)}")
            self.faults.append(f"{field}: {error_text(error)}")
        elif code == _NOT_SUPPORTED:
            self.note(field, "not supported")
        else:
            self.note(field, error_text(error))


def read_field_value(nvml: Any, handle: Any, field_id: int) -> tuple[float, PowerScope]:
    """Read one NVML field value in its own unit, and the scope it was given for.

    Raises:
        NVMLError: the call or this field failed.
    """
    value = nvml.nvmlDeviceGetFieldValues(handle, [field_id])[0]
    if value.nvmlReturn != 0:
        raise nvml.NVMLError(value.nvmlReturn)
    member = _UNION_MEMBERS[int(value.valueType)]
    return getattr(value.value, member), _SCOPES.get(value.scopeId, PowerScope.UNKNOWN)
