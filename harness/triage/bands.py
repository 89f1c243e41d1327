"""The power table, as data: which watts belong to which state on one GPU at one enforced limit.

A table is YAML: shipped below ``tables/`` or a user's own file. Its schema is strict, and an error
names the key, what was found and what is accepted. Neighbours whose watts overlap stand in
``overlaps``; nothing may then tell them apart by watts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import cast

import yaml

from harness.errors import ConfigError
from harness.parse import parse, to_plain
from harness.samples import PowerKind, PowerScope
from harness.triage.states import State

_SUFFIXES = (".yaml", ".yml")


class TableLabel(StrEnum):
    """How the figures of a table came about."""

    REAL = "real"
    EMULATED = "emulated"
    REPLAY = "replay"
    INFERRED = "inferred"
    ABSTRACT = "abstract"
    SECONDARY = "secondary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Watts of one state: quantiles over windows, or a single figure where only that is known.

    ``variant`` tells two ways into one state apart (``memory_bound``). A band without ``median_w``
    is incomplete and takes no part in any decision.
    """

    state: State
    label: TableLabel
    source: str
    variant: str | None = None
    low_w: float | None = None
    median_w: float | None = None
    high_w: float | None = None
    utilization_pct: float | None = None
    windows: int | None = None
    samples: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Watts between two neighbouring states, by a stated rule, with an interval of confidence."""

    below: State
    above: State
    watts: float
    low_w: float | None
    high_w: float | None
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Two states that watts do not separate, with the share of windows that the best cut misses."""

    below: State
    above: State
    error_rate: float | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a table comes from; ``emulated_collective`` marks a spin on a flag instead of NCCL."""

    source: str
    method: str
    date: str
    num_gpus: int | None = None
    emulated_collective: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One GPU model at one enforced limit.

    Attributes:
        name: Short name, as ``--table`` takes it.
        device: What the device is called in print.
        device_names: Names that drivers print for it.
        limit_w: Enforced limit during calibration.
        power_kind: Which reading was calibrated.
        power_scope: What the watts belong to.
        driver: Driver version, or null.
        window_s: Length of the windows behind the bands; null where there were none.
        label: ``real``, or what else the table as a whole is.
        provenance: Source, method, date.
        bands: One per state and variant.
        thresholds: Between neighbours that watts separate.
        overlaps: Neighbours that they do not.
    """

    name: str
    device: str
    device_names: tuple[str, ...]
    limit_w: float
    power_kind: PowerKind
    power_scope: PowerScope
    driver: str | None
    window_s: float | None
    label: TableLabel
    provenance: Provenance
    bands: tuple[Band, ...]
    thresholds: tuple[Threshold, ...]
    overlaps: tuple[Overlap, ...]

    def median_w(self, state: State) -> float | None:
        """The lowest median of a state's bands; None where no figure is known."""
        known = [b.median_w for b in self.bands if b.state is state and b.median_w is not None]
        return min(known) if known else None

    def cut_w(self, below: State, above: State) -> float | None:
        """The threshold between two states; None where there is none."""
        for threshold in self.thresholds:
            if (threshold.below, threshold.above) == (below, above):
                return threshold.watts
        return None

    def is_separable(self, below: State, above: State) -> bool:
        """Whether watts tell the two apart, as far as the table knows."""
        return all({o.below, o.above} != {below, above} for o in self.overlaps)


def list_tables() -> tuple[str, ...]:
    """Names of the shipped tables."""
    files = resources.files("harness.triage").joinpath("tables").iterdir()
    return tuple(sorted(Path(f.name).stem for f in files if f.name.endswith(_SUFFIXES)))


def load_table(name_or_path: str) -> Table:
    """Read a shipped table by its name, or a user's own by its path.

    Raises:
        ConfigError: there is none of that name, or the file does not follow the schema.
    """
    if name_or_path in list_tables():
        packaged = resources.files("harness.triage").joinpath("tables", f"{name_or_path}.yaml")
        return parse_table(packaged.read_text(encoding="utf-8"), where=name_or_path)
    path = Path(name_or_path)
    if not path.is_file():
        raise ConfigError(
            f"--table {name_or_path}: neither a file nor a shipped table; shipped are"
            f" {', '.join(list_tables())}"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--table {path}: cannot be read as UTF-8 text: {error}") from error
    return parse_table(text, where=str(path))


def parse_table(text: str, *, where: str) -> Table:
    """The table in a YAML text; ``where`` stands in front of every error.

    Raises:
        ConfigError: not YAML, an unknown or missing key, a value that cannot be.
    """
    try:
        plain: object = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not YAML: {error}") from error
    if not isinstance(plain, Mapping):
        raise ConfigError(f"{where}: found {type(plain).__name__}; expected a mapping of keys")
    try:
        table = parse(Table, cast("Mapping[str, object]", plain))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    _check(table, where)
    return table


def table_to_yaml(table: Table) -> str:
    """The table as YAML that :func:`parse_table` reads back."""
    dump = cast("Callable[..., str]", getattr(yaml, "safe_dump"))  # noqa: B009 - untyped
    return dump(to_plain(table), sort_keys=False, allow_unicode=False, width=100)


def _check(table: Table, where: str) -> None:
    if table.limit_w <= 0:
        raise ConfigError(f"{where}: limit_w={table.limit_w}: expected watts above 0")
    if not table.bands:
        raise ConfigError(f"{where}: bands=[]: expected at least one band")
    for index, band in enumerate(table.bands):
        figures = [w for w in (band.low_w, band.median_w, band.high_w) if w is not None]
        if any(w < 0 for w in figures) or figures != sorted(figures):
            raise ConfigError(
                f"{where}: bands[{index}] ({band.state}): found low_w, median_w, high_w ="
                f" {band.low_w}, {band.median_w}, {band.high_w}; expected watts in rising order"
            )
    for index, cut in enumerate(table.thresholds):
        if cut.watts <= 0 or cut.below == cut.above:
            raise ConfigError(
                f"{where}: thresholds[{index}]: found {cut.below} | {cut.watts} W | {cut.above};"
                " expected watts above 0 between two different states"
            )
        if not table.is_separable(cut.below, cut.above):
            raise ConfigError(
                f"{where}: thresholds[{index}]: {cut.below} and {cut.above} also stand in"
                " overlaps; states that watts do not separate have no threshold"
            )


def mismatches(
    table: Table,
    *,
    limits_w: Sequence[float],
    power_kinds: Sequence[PowerKind],
    power_scopes: Sequence[PowerScope],
) -> tuple[str, ...]:
    """Why the table does not fit telemetry with these limits, power kinds and scopes."""
    found: list[str] = [
        f"it was calibrated at {table.limit_w:g} W and the GPUs are limited to {limit:g} W"
        for limit in sorted(set(limits_w))
        if abs(limit / table.limit_w - 1.0) > 0.02
    ]
    known = {kind for kind in power_kinds if kind is not PowerKind.UNKNOWN}
    if len(known) > 1:
        found.append(f"the files mix kinds of power ({', '.join(sorted(known))})")
    found += [
        f"it holds {table.power_kind} power and the file {kind} power"
        for kind in sorted(known)
        if table.power_kind not in (kind, PowerKind.UNKNOWN)
    ]
    found += [
        f"it holds power of scope {table.power_scope} and the file of scope {scope}"
        for scope in sorted(set(power_scopes))
        if scope not in (PowerScope.UNKNOWN, table.power_scope)
    ]
    return tuple(found)
