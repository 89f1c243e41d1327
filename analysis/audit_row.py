"""One figure of the reference against the same figure made from its others. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.reference import ReferenceLabel

# Relative slack for binary fractions: 3312.5 must count as rounding to 3313.
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One figure of the reference against the same figure made from its other figures.

    ``low`` and ``high`` bound the recomputed value where the inputs do not fix it; ``recomputed``
    is then their middle.
    """

    check: str
    unit: str
    stated: float
    recomputed: float
    low: float | None
    high: float | None
    difference_pct: float
    agrees: bool
    note: str
    label: ReferenceLabel


def compare(
    check: str,
    unit: str,
    *,
    stated: float,
    recomputed: float | tuple[float, float],
    resolution: float,
    note: str,
    label: ReferenceLabel = ReferenceLabel.SECONDARY,
) -> AuditRow:
    """Compare; ``resolution`` is one unit of the last stated digit, a pair of values are bounds."""
    low, high = recomputed if isinstance(recomputed, tuple) else (recomputed, recomputed)
    middle = (low + high) / 2.0
    slack = resolution / 2.0 + _EPSILON * abs(stated)
    return AuditRow(
        check=check,
        unit=unit,
        stated=stated,
        recomputed=middle,
        low=low if low < high else None,
        high=high if low < high else None,
        difference_pct=100.0 * (stated / middle - 1.0),
        agrees=low - slack <= stated <= high + slack,
        note=note,
        label=label,
    )
