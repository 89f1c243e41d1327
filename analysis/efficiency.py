"""Strong-scaling efficiency with its interval: paired by block where the runs allow it. Pure.

Arms are interleaved in blocks, so what a block does to both of its runs cancels in their ratio.
The rule: cells are paired when every block holds at most one clean run of each, at least two blocks
hold one of both, and those hold every clean run of the smaller cell. Otherwise the runs are taken
as independent (Welch, on the logarithms). A pair is never made of runs of different blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from analysis.groups import Cell, require_comparable
from harness.metrics import scaling_efficiency
from harness.stats import Interval, paired_ratio_interval, ratio_interval

MIN_PAIRS = 2


class EfficiencyMethod(StrEnum):
    """How an efficiency came by its interval."""

    BASELINE = "baseline"
    PAIRED = "paired"
    WELCH = "welch"
    NO_INTERVAL = "no_interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """A fraction with its 95 % interval; ``n`` counts pairs, or the runs of the smaller cell."""

    estimate: float
    low: float | None
    high: float | None
    n: int
    method: EfficiencyMethod


def efficiency(cell: Cell, baseline: Cell, factors: Sequence[str]) -> Efficiency | None:
    """Strong-scaling efficiency of ``cell`` against ``baseline``.

    The baseline itself is 1 by definition and has no interval. Null without clean runs.

    Raises:
        ComparabilityError: the two cells differ in more than ``factors``; names the settings.
    """
    if not cell.rates or not baseline.rates:
        return None
    require_comparable("efficiency", cell.runs[0], baseline.runs[0], factors)
    if cell.world_size == baseline.world_size:
        return Efficiency(
            estimate=1.0, low=None, high=None, n=len(cell.rates), method=EfficiencyMethod.BASELINE
        )
    pairs = paired_rates(cell, baseline)
    if pairs:
        ratio = paired_ratio_interval([own for own, _ in pairs], [base for _, base in pairs])
        method = EfficiencyMethod.PAIRED
    else:
        ratio = ratio_interval(cell.rates, baseline.rates)
        method = EfficiencyMethod.NO_INTERVAL if ratio.low is None else EfficiencyMethod.WELCH
    return _scaled(
        ratio, scaling_efficiency(1.0, cell.world_size, 1.0, baseline.world_size), method
    )


def paired_rates(cell: Cell, baseline: Cell) -> tuple[tuple[float, float], ...]:
    """Tokens per second of both cells by block, or nothing where they may not be paired."""
    own, base = cell.rate_by_block, baseline.rate_by_block
    if own is None or base is None:
        return ()
    pairs = tuple((own[block], base[block]) for block in sorted(own) if block in base)
    is_enough = len(pairs) >= MIN_PAIRS and len(pairs) == min(len(own), len(base))
    return pairs if is_enough else ()


def _scaled(ratio: Interval, scale: float, method: EfficiencyMethod) -> Efficiency:
    return Efficiency(
        estimate=ratio.estimate * scale,
        low=None if ratio.low is None else ratio.low * scale,
        high=None if ratio.high is None else ratio.high * scale,
        n=ratio.n,
        method=method,
    )
