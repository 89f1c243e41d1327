"""How to record a usable file, and the refusal that says so."""

from __future__ import annotations

from pathlib import Path

from harness.errors import FormatError

RECIPE = (
    "nvidia-smi --query-gpu=timestamp,index,uuid,name,power.draw.average,enforced.power.limit,"
    "utilization.gpu,memory.used,clocks.sm,temperature.gpu,clocks_event_reasons.active"
    " --format=csv -lms 1000 > gpus.csv"
)
"""One line that records all that triage can use; older drivers lack ``power.draw.average``."""


def refusal(path: Path, why: str) -> FormatError:
    """The error for a file that cannot be triaged: ``why``, then how to record a usable one."""
    return FormatError(f"{path}: {why}; record a usable file with: {RECIPE}")
