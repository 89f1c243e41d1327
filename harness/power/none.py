"""A machine without a meter: no rows, and the reason."""

from __future__ import annotations

from harness.config import PowerSource
from harness.power.reading import Reading


class NoneSource:
    """Gives no GPU rows, ever; nothing is invented for GPUs that are not there."""

    source = PowerSource.NONE

    def __init__(self, reason: str) -> None:
        """Store why there is nothing to read."""
        self._reason = reason

    def read(self) -> Reading:
        """Give nothing, with the reason."""
        return Reading(samples=(), faults=(), reason=self._reason)

    def close(self) -> None:
        """Nothing is held."""
