from __future__ import annotations

from collections.abc import Sequence

import pytest

from analysis.energy import window_energy
from analysis.power_trace import PowerTrace


def trace(
    power_w: Sequence[float | None],
    energy_j: Sequence[float | None] | None = None,
    gpu: str = "GPU-0",
    scope: str = "gpu",
) -> PowerTrace:
    """One sample a second from t = 0 on."""
    return PowerTrace(
        gpu=gpu,
        scope=scope,
        t_s=tuple(float(i) for i in range(len(power_w))),
        power_w=tuple(power_w),
        energy_j=tuple(energy_j) if energy_j else (None,) * len(power_w),
    )


def test_constant_power_gives_power_times_time() -> None:
    energy = window_energy([trace([500.0] * 11)], 0.0, 10.0, 1)
    assert energy.joules == pytest.approx(5000.0)
    assert energy.method == "trapezoid"


def test_the_counter_is_preferred_and_a_disagreement_is_said() -> None:
    counter = [600.0 * i for i in range(11)]
    energy = window_energy([trace([500.0] * 11, counter)], 0.0, 10.0, 1)
    assert energy.joules == pytest.approx(6000.0)
    assert energy.method == "counter"
    assert "against the counter" in energy.reason


def test_what_the_samples_leave_open_at_the_edges_is_held_at_the_mean() -> None:
    energy = window_energy([trace([500.0] * 11)], -0.5, 10.5, 1)
    assert energy.joules == pytest.approx(5500.0)


def test_samples_outside_the_window_do_not_count() -> None:
    energy = window_energy([trace([0.0, 0.0, *[500.0] * 11, 0.0])], 2.0, 12.0, 1)
    assert energy.joules == pytest.approx(5000.0)


def test_gpus_are_summed() -> None:
    traces = [trace([500.0] * 11, gpu=f"GPU-{i}") for i in range(4)]
    assert window_energy(traces, 0.0, 10.0, 4).joules == pytest.approx(20_000.0)


@pytest.mark.parametrize(
    ("traces", "num_gpus", "reason"),
    [
        ([], 1, "no power reading"),
        ([trace([None] * 11)], 1, "no power reading"),
        ([trace([500.0] * 11)], 2, "1 GPUs for 2 ranks"),
        ([trace([500.0] * 11, scope="node")], 1, "scope node"),
        ([trace([500.0] * 4)], 1, "cover 3.0 of 10.0"),
        ([trace([500.0])], 1, "at least 2"),
    ],
)
def test_unknown_energy_is_null_with_a_reason(
    traces: list[PowerTrace], num_gpus: int, reason: str
) -> None:
    energy = window_energy(traces, 0.0, 10.0, num_gpus)
    assert energy.joules is None
    assert reason in energy.reason
