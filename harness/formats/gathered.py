"""Readings by role on their way to a batch: row by row, or as whole columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.formats.cells import NAN
from harness.formats.layout import Role
from harness.samples import SampleBatch

_FIELDS: Mapping[Role, str] = {
    Role.POWER: "power_w",
    Role.LIMIT: "limit_w",
    Role.UTILIZATION: "utilization_pct",
    Role.MEMORY: "memory_used_bytes",
    Role.CLOCK: "sm_clock_mhz",
    Role.TEMPERATURE: "temperature_c",
}


def interleave(
    t_s: NDArray[np.float64],
    gpus: Sequence[NDArray[np.int32]],
    devices: Sequence[tuple[dict[Role, NDArray[np.float64]], NDArray[np.int8]]],
    label: NDArray[np.object_] | None,
) -> SampleBatch:
    """Columns of each GPU of a row as one batch: row by row, and within a row GPU by GPU."""
    width = len(devices)
    unknown = np.full(t_s.size, NAN)

    def column(role: Role) -> NDArray[np.float64]:
        parts = [values.get(role, unknown) for values, _ in devices]
        return parts[0] if width == 1 else np.stack(parts, axis=1).ravel()

    return SampleBatch(
        t_s=t_s if width == 1 else np.repeat(t_s, width),
        gpu=gpus[0] if width == 1 else np.stack(gpus, axis=1).ravel(),
        throttled=np.stack([flags for _, flags in devices], axis=1).ravel(),
        label=label if label is None or width == 1 else np.repeat(label, width),
        **{name: column(role) for role, name in _FIELDS.items()},
    )


class Gathered:
    """Rows of the careful path on their way to columns."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, ...]] = []
        self._labels: list[str | None] = []
        self._holes: list[bool] = []

    def add(
        self,
        t_s: float,
        gpu: int,
        values: Mapping[Role, float],
        throttled: int,
        label: str | None,
        *,
        hole: bool,
    ) -> None:
        """One sample; ``hole`` says that something unreadable stands before it."""
        self._rows.append((t_s, gpu, throttled, *(values.get(role, NAN) for role in _FIELDS)))
        self._labels.append(label)
        self._holes.append(hole)

    def batch(self) -> SampleBatch:
        """The rows as columns."""
        table = np.array(self._rows, dtype=np.float64).reshape(-1, 3 + len(_FIELDS))
        names = list(_FIELDS.values())
        return SampleBatch(
            t_s=table[:, 0].copy(),
            gpu=table[:, 1].astype(np.int32),
            throttled=table[:, 2].astype(np.int8),
            label=np.array(self._labels, dtype=object) if any(self._labels) else None,
            **{name: table[:, 3 + i].copy() for i, name in enumerate(names)},
        )

    def hole_column(self) -> NDArray[np.bool_]:
        """Whether something unreadable stands before each row."""
        return np.array(self._holes, dtype=np.bool_)
