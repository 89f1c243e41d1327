"""Facts about accelerators with source and date, and the peak that an MFU may be divided by.

A device is found by its whole name, never by a part of it: "NVIDIA A10" is not "NVIDIA A10G", and
"NVIDIA GB300" is not "NVIDIA B300 SXM6 AC". A name that is not in ``hardware.csv`` has no facts and
therefore no MFU; nothing here guesses.
"""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from importlib import resources

GIGA, TERA = 1e9, 1e12
BITS_PER_BYTE = 8
# A label is decimal or binary gigabytes (7 % apart) and ECC or the driver keeps some: 15 % allows
# for both, and still tells a MIG slice or GH200's 96 GB from its 144 GB.
MEMORY_TOLERANCE = 0.15

# Names seen on machines that look like a part in the table and have no peak of their own.
_REFUSED = {
    "nvidia h100": "variants of 64, 94 and 96 GB and several peaks share this name",
    "nvidia a10g": "another part than the A10, and its maker publishes no dense bf16 peak",
    "nvidia a100-sxm-64gb": "a custom part; no published figure was found",
    "nvidia gb300 nvl": "a name of simulated drivers; real devices print NVIDIA GB300",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """One device as the framework counts it; None where no source was found.

    ``memory_bytes`` was read from a device, or with ``is_memory_label`` it is the label taken as
    decimal gigabytes, a lower bound. ``scaleup_bytes_per_s`` (NVLink, xGMI and the like; 0 is PCIe
    only) and ``nic_bytes_per_s`` are payload per direction and device. Power limits are the
    board's; at run time the enforced limit counts. ``source`` holds addresses separated by blanks.
    """

    vendor: str
    model: str
    names: tuple[str, ...]
    architecture: str
    dense_bf16_flops: float | None
    memory_bytes: int | None
    is_memory_label: bool
    memory_bandwidth_bytes_per_s: float | None
    default_power_limit_w: float | None
    max_power_limit_w: float | None
    scaleup_bytes_per_s: float | None
    nic_bytes_per_s: float | None
    source: str
    source_date: str
    confidence: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The dense peak of one device at one precision, and where the figure comes from."""

    flops_per_s: float
    source: str
    note: str


@functools.cache
def all_devices() -> tuple[DeviceFacts, ...]:
    """Every row of the table, in its order."""
    text = resources.files("harness").joinpath("hardware.csv").read_text(encoding="ascii")
    return tuple(_device(row) for row in csv.DictReader(text.splitlines()))


def find_device(name: str, memory_total_bytes: int | None = None) -> DeviceFacts | None:
    """Look a device up by the name that its driver or torch prints.

    Upper and lower case and runs of blanks do not matter (a virtual MI325X prints "Mi325X VF").

    Args:
        name: As "NVIDIA B300 SXM6 AC".
        memory_total_bytes: What the device reports, where known. A device with another amount of
            memory than the part of that name (a MIG slice, a partition) is not that part.

    Returns:
        The facts, or None for an unknown or ambiguous name.
    """
    facts = _by_name().get(_normalise(name))
    if facts is None or not _is_memory_plausible(facts, memory_total_bytes):
        return None
    return facts


def peak_flops(facts: DeviceFacts, precision: str) -> Peak | None:
    """The dense peak that MFU divides by, or None where there is no sourced figure.

    Only ``bf16`` has one. What an fp32 matrix product can reach depends on whether TF32 is allowed,
    and the table has a sourced figure for neither.

    Args:
        facts: From :func:`find_device`.
        precision: ``bf16`` or ``fp32``.
    """
    if precision != "bf16" or facts.dense_bf16_flops is None:
        return None
    return Peak(flops_per_s=facts.dense_bf16_flops, source=facts.source, note=facts.note)


def missing_peak_reason(
    name: str, precision: str, memory_total_bytes: int | None = None
) -> str | None:
    """Why a device has no peak at this precision, in one line; None when it has one."""
    facts = find_device(name, memory_total_bytes)
    if facts is None:
        known = _by_name().get(_normalise(name))
        if known is not None:
            return (
                f"{name} reports {memory_total_bytes} bytes of memory, not about"
                f" {known.memory_bytes}: a slice or another part"
            )
        return f"{name}: {_REFUSED.get(_normalise(name), 'not in the table of devices')}"
    if peak_flops(facts, precision) is not None:
        return None
    if precision != "bf16":
        return f"{name}: no sourced peak for {precision}"
    return f"{name}: {facts.note}"


@functools.cache
def _by_name() -> dict[str, DeviceFacts]:
    return {_normalise(name): facts for facts in all_devices() for name in facts.names}


def _normalise(name: str) -> str:
    return " ".join(name.split()).casefold()


def _is_memory_plausible(facts: DeviceFacts, memory_total_bytes: int | None) -> bool:
    if memory_total_bytes is None or facts.memory_bytes is None:
        return True
    return abs(memory_total_bytes / facts.memory_bytes - 1.0) <= MEMORY_TOLERANCE


def _device(row: dict[str, str]) -> DeviceFacts:
    return DeviceFacts(
        vendor=row["vendor"],
        model=row["model"],
        names=tuple(name for name in row["names"].split("|") if name),
        architecture=row["architecture"],
        dense_bf16_flops=_scaled(row["dense_bf16_tflops"], TERA),
        memory_bytes=int(row["memory_bytes"]) if row["memory_bytes"] else None,
        is_memory_label=row["memory_basis"] == "label",
        memory_bandwidth_bytes_per_s=_scaled(row["memory_bandwidth_gb_per_s"], GIGA),
        default_power_limit_w=_scaled(row["default_power_limit_w"], 1.0),
        max_power_limit_w=_scaled(row["max_power_limit_w"], 1.0),
        scaleup_bytes_per_s=_scaled(row["scaleup_gb_per_s_per_direction"], GIGA),
        nic_bytes_per_s=_scaled(row["nic_gbit_per_s"], GIGA / BITS_PER_BYTE),
        source=row["source"],
        source_date=row["source_date"],
        confidence=row["confidence"],
        note=row["note"],
    )


def _scaled(text: str, unit: float) -> float | None:
    return float(text) * unit if text else None
