"""The telemetry of a run as one trace per GPU: what energy is made of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerTrace:
    """What the telemetry says of one GPU: parallel tuples, times in unix seconds."""

    gpu: str
    scope: str
    t_s: tuple[float, ...]
    power_w: tuple[float | None, ...]
    energy_j: tuple[float | None, ...]


def load_power(folder: Path) -> tuple[tuple[PowerTrace, ...], int]:
    """Read what energy needs of one run folder, and count the lines that are not whole.

    Only that: a long run has 1e5 samples, too many for a typed parse.
    """
    rows: dict[tuple[str, str], list[tuple[float, float | None, float | None]]] = {}
    torn = 0
    for path in sorted((folder / "telemetry").glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            if b'"power_w"' not in line and line.endswith(b"}"):
                continue
            try:
                sample = json.loads(line)
                gpu = sample["gpu_uuid"] or f"{sample['host']}:{sample['gpu']}"
                key = (str(gpu), str(sample["power_scope"]))
                row = (float(sample["t_unix_s"]), sample["power_w"], sample["energy_j"])
            except (ValueError, KeyError, TypeError):
                torn += 1
                continue
            rows.setdefault(key, []).append(row)
    traces = []
    for (gpu, scope), values in sorted(rows.items()):
        t_s, power_w, energy = zip(*sorted(values, key=lambda v: v[0]), strict=True)
        trace = PowerTrace(gpu=gpu, scope=scope, t_s=t_s, power_w=power_w, energy_j=energy)
        traces.append(trace)
    return tuple(traces), torn
