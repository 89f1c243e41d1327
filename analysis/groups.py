"""Which runs may be compared, and what they say together. Pure.

Runs stand in one group when experiment, machine and every setting of their comparability keys agree
except those that the declared factors free. The run is the unit of replication. Anything across
groups is refused, and the settings that differ are named.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.derive import Measures
from harness.errors import HarnessError
from harness.stats import Interval, mean_interval

# A factor that is no dotted setting itself, and the settings that follow from it.
FREED_BY = {"gpus": frozenset({"world_size", "num_nodes", "gradient_accumulation_steps"})}


class ComparabilityError(HarnessError):
    """Two groups differ in more than the declared factors; ``keys`` names in what."""

    def __init__(self, what: str, keys: Sequence[str]) -> None:
        """Refuse ``what`` because of ``keys``."""
        super().__init__(f"{what} refused: the runs differ in {', '.join(keys)}")
        self.keys = tuple(keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All runs of one group at one world size."""

    world_size: int
    runs: tuple[Measures, ...]

    @property
    def clean(self) -> tuple[Measures, ...]:
        """The runs that may stand in a mean."""
        return tuple(m for m in self.runs if m.is_clean)

    @property
    def rates(self) -> tuple[float, ...]:
        """Tokens per second of every clean run."""
        return tuple(m.tokens_per_second for m in self.clean if m.tokens_per_second is not None)

    @property
    def rate_by_block(self) -> dict[int, float] | None:
        """Tokens per second by block; null where a block holds more than one clean run."""
        blocks = [m.run.manifest.trial.block for m in self.clean]
        is_one_each = len(set(blocks)) == len(blocks)
        return dict(zip(blocks, self.rates, strict=True)) if is_one_each else None

    @property
    def status(self) -> str:
        """``finished`` when every run is clean, else how many ended in what way."""
        if len(self.clean) == len(self.runs):
            return "finished"
        kinds = [m.status if m.is_clean or m.status != "finished" else "marked" for m in self.runs]
        counts = {kind: kinds.count(kind) for kind in sorted(set(kinds), key=kinds.index)}
        if len(counts) == 1 and len(kinds) == 1:
            return kinds[0]
        return ", ".join(f"{count} {kind}" for kind, count in counts.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Comparable runs. ``name`` lists the settings in which it differs from its neighbours."""

    experiment: str
    machine: str
    label: str
    name: str
    key: Mapping[str, Any]
    cells: tuple[Cell, ...]

    @property
    def first(self) -> Measures:
        """Any run of the group, for what all of them share."""
        return self.cells[0].runs[0]

    @property
    def baseline(self) -> Cell | None:
        """The smallest world size that has a clean run."""
        return next((cell for cell in self.cells if cell.rates), None)


def shared_key(measures: Measures, factors: Iterable[str]) -> dict[str, Any]:
    """The comparability key of a run without what the ``factors`` free."""
    freed: set[str] = set()
    for factor in factors:
        freed |= FREED_BY.get(factor, frozenset({factor}))
    key = measures.run.manifest.comparability
    return {name: key[name] for name in sorted(key) if name not in freed}


def differing_keys(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the settings in which two keys differ; a missing one differs."""
    names = sorted(set(a) | set(b))
    return tuple(n for n in names if _canonical(a, n) != _canonical(b, n))


def require_comparable(what: str, a: Measures, b: Measures, factors: Iterable[str]) -> None:
    """Refuse a comparison of two runs that differ in more than ``factors``.

    Raises:
        ComparabilityError: naming the settings that differ.
    """
    declared = tuple(factors)
    keys = list(differing_keys(shared_key(a, declared), shared_key(b, declared)))
    identity = {
        "experiment": (a.run.experiment, b.run.experiment),
        "machine": (a.run.machine, b.run.machine),
        "label": (a.run.manifest.label, b.run.manifest.label),
    }
    keys += [name for name, (left, right) in identity.items() if left != right]
    if keys:
        raise ComparabilityError(what, keys)


def group_runs(measures: Iterable[Measures], factors: Sequence[str]) -> tuple[Group, ...]:
    """Sort runs into groups that may be compared over ``factors``, cells by world size."""
    buckets: dict[tuple[str, str, str, str], list[Measures]] = {}
    for m in measures:
        key = json.dumps(shared_key(m, factors), sort_keys=True, default=str)
        where = (m.run.experiment, m.run.machine, m.run.manifest.label.value, key)
        buckets.setdefault(where, []).append(m)
    groups: list[Group] = []
    for where in sorted(buckets):
        members = buckets[where]
        neighbours = [buckets[w][0] for w in sorted(buckets) if w[:2] == where[:2] and w != where]
        group = Group(
            experiment=where[0],
            machine=where[1],
            label=where[2],
            name=_name(members[0], neighbours, factors),
            key=shared_key(members[0], factors),
            cells=_cells(members),
        )
        groups.append(group)
    return tuple(groups)


def throughput(cell: Cell) -> Interval | None:
    """Mean tokens/s of the clean runs with its 95 % interval; null without a clean run."""
    return mean_interval(cell.rates) if cell.rates else None


def _cells(members: Sequence[Measures]) -> tuple[Cell, ...]:
    sizes = sorted({m.world_size for m in members})
    return tuple(
        Cell(world_size=size, runs=tuple(m for m in members if m.world_size == size))
        for size in sizes
    )


def _name(member: Measures, neighbours: Sequence[Measures], factors: Sequence[str]) -> str:
    key = shared_key(member, factors)
    names: set[str] = set()
    for other in neighbours:
        names |= set(differing_keys(key, shared_key(other, factors)))
    return ", ".join(f"{name}={_short(key.get(name))}" for name in sorted(names))


def _short(value: Any) -> str:
    text = "unset" if value is None else str(value)
    is_hash = len(text) >= 32 and all(c in "0123456789abcdef" for c in text)
    return text[:12] if is_hash else text


def _canonical(key: Mapping[str, Any], name: str) -> str:
    if name not in key:
        return "(missing)"
    return json.dumps(key[name], sort_keys=True, default=str)
