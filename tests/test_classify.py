"""Levels: what one window shows by watts, utilization, memory and flatness."""

import dataclasses

import numpy as np
import pytest

from harness.samples import GpuId
from harness.triage.classify import find_bursts, find_levels, is_flat, usable_utilization
from harness.triage.cuts import Limit, find_limits, find_tops, make_cuts
from harness.triage.states import Level
from harness.triage.windows import Windows

GIB = 2**30
H100 = "NVIDIA H100 80GB HBM3"


def make_windows(power_w, pct, *, memory=20 * GIB, std_w=0.0, max_w=None, throttled=np.nan, gpu=0):
    power = np.atleast_1d(np.asarray(power_w, dtype=np.float64))
    number = len(power)

    def column(value, kind=np.float64):
        return np.broadcast_to(np.asarray(value, dtype=kind), (number,)).copy()

    steps = np.arange(number, dtype=np.float64)
    return Windows(
        start_s=steps,
        end_s=steps + 1.0,
        cell=steps.astype(np.int64),
        gpu=column(gpu, np.int32),
        count=column(10, np.int64),
        power_w=power,
        mean_w=power,
        std_w=column(std_w),
        max_w=power if max_w is None else column(max_w),
        utilization_pct=column(pct),
        memory_used_bytes=column(memory),
        throttled=column(throttled),
        limit_w=column(np.nan),
        label=np.full(number, None, dtype=object),
    )


def levels_of(windows, *, limit_w=700.0, names=None):
    number = int(windows.gpu.max()) + 1
    gpus = [GpuId(host="", index=i, uuid=None, name=names) for i in range(number)]
    limits = [Limit(watts=limit_w, source="--limit")] * number
    tops_w = find_tops(windows, [0] * number)
    cuts = make_cuts(windows, table=None, limits=limits, tops_w=tops_w)
    pct = usable_utilization(windows, gpus, cuts)
    return [Level(level) for level in find_levels(windows, cuts, pct).tolist()]


@pytest.mark.parametrize(
    ("power_w", "pct", "memory", "level"),
    [
        (70, 0, 0, Level.BARE),
        (104, 0, 0, Level.BARE),
        (70, 0, np.nan, Level.BARE),
        (120, 0, np.nan, Level.HOST),
        (120, 0, GIB, Level.HOST),
        (150, 100, 40 * GIB, Level.WAIT),
        (70, 100, 40 * GIB, Level.WAIT),
        (120, 100, 0, Level.WEDGED),
        (550, 97, 40 * GIB, Level.COMPUTE),
        (300, 100, 40 * GIB, Level.COMPUTE),
        (250, 100, 40 * GIB, Level.COMPUTE),
        (200, 45, 40 * GIB, Level.PARTIAL),
        (350, 45, 40 * GIB, Level.PARTIAL),
        (550, 50, 40 * GIB, Level.COMPUTE),
        (400, 2, 40 * GIB, Level.PARTIAL),
        (125, 15, 40 * GIB, Level.HOST),
        (np.nan, 100, 40 * GIB, Level.UNKNOWN),
    ],
)
def test_watts_and_utilization_of_a_700_w_board(power_w, pct, memory, level):
    assert levels_of(make_windows(power_w, pct, memory=memory)) == [level]


def test_bursts_at_part_time_are_work_that_starves():
    assert levels_of(make_windows(500, 60, std_w=200.0)) == [Level.PARTIAL]


def test_low_watts_with_a_hardware_slowdown_are_throttled_and_not_communication():
    assert levels_of(make_windows(230, 100, throttled=1.0)) == [Level.THROTTLED]
    assert levels_of(make_windows(180, 100, throttled=1.0)) == [Level.THROTTLED]
    assert levels_of(make_windows(70, 0, memory=0, throttled=1.0)) == [Level.BARE]


def test_a_flat_spin_above_the_usual_line_is_found_by_what_the_gpu_draws_at_work():
    """A TITAN X (250 W) waits at 92 W, 37 % of its limit; fixed shares called it computing."""
    windows = make_windows([165.0] * 10 + [92.0] * 10, 100, std_w=[4.0] * 10 + [0.1] * 10)
    found = levels_of(windows, limit_w=250.0)
    assert found[:9] == [Level.COMPUTE] * 9
    assert found[11:] == [Level.WAIT] * 9


def test_without_utilization_watts_alone_call_only_the_extremes():
    windows = make_windows([550.0, 70.0, 150.0], np.nan, memory=np.nan)
    assert levels_of(windows) == [Level.COMPUTE, Level.BARE, Level.UNKNOWN]


def test_without_a_limit_uneven_power_is_work_and_flat_power_is_unknown():
    uneven = make_windows([250.0, 262.0, 240.0, 255.0] * 5, 100, std_w=5.0)
    flat = make_windows([150.0] * 20, 100)
    assert set(levels_of(uneven, limit_w=None)) == {Level.COMPUTE}
    assert set(levels_of(flat, limit_w=None)) == {Level.UNKNOWN}


def test_without_a_limit_more_watts_than_any_gpu_waits_at_are_compute():
    assert set(levels_of(make_windows([690.0] * 5, 100), limit_w=None)) == {Level.COMPUTE}


def test_without_a_limit_a_far_lower_level_at_full_utilization_is_a_wait():
    windows = make_windows([250.0] * 10 + [90.0] * 10, 100)
    assert levels_of(windows, limit_w=None) == [Level.COMPUTE] * 10 + [Level.WAIT] * 10


def test_without_a_limit_few_kernels_are_never_compute():
    """A laptop without a power cap at 22 W and 15 % was called computing at its own best."""
    assert set(levels_of(make_windows([22.0] * 6, 15), limit_w=None)) == {Level.PARTIAL}


def test_without_a_limit_one_idle_peer_makes_the_flat_others_a_spin():
    windows = make_windows(
        [190.0] * 8, [100, 100, 100, 100, 100, 100, 0, 0], gpu=[0, 0, 1, 1, 2, 2, 3, 3]
    )
    assert levels_of(windows, limit_w=None) == [Level.WAIT] * 6 + [Level.HOST] * 2


def test_a_utilization_meter_that_reads_0_throughout_is_not_believed():
    assert levels_of(make_windows([550.0] * 5, 0)) == [Level.COMPUTE] * 5


def test_amd_utilization_counts_only_at_its_extremes():
    windows = make_windows([400.0, 180.0], [50.0, 100.0])
    assert levels_of(windows, limit_w=750.0, names="AMD Instinct MI300X") == [
        Level.COMPUTE,
        Level.WAIT,
    ]


def test_bursts_are_samples_of_work_in_a_window_that_mostly_waits():
    windows = make_windows([150.0, 150.0, 550.0], 100, max_w=[150.0, 500.0, 560.0])
    cuts = make_cuts(
        windows,
        table=None,
        limits=[Limit(watts=700.0, source="--limit")],
        tops_w=find_tops(windows, [0]),
    )
    assert find_bursts(windows, cuts).tolist() == [False, True, False]


def test_flat_means_flat_inside_and_beside():
    windows = make_windows([150.0, 150.0, 200.0, 200.0], 100, std_w=[0.0, 0.0, 0.0, 20.0])
    assert is_flat(windows).tolist() == [True, False, False, False]


def test_the_given_limit_comes_before_the_files_and_the_files_before_the_devices():
    windows = make_windows([100.0], 0)
    named = [GpuId(host="", index=0, uuid=None, name=H100)]
    filed = dataclasses.replace(windows, limit_w=np.array([500.0]))
    assert find_limits(filed, named, 300.0)[0] == Limit(watts=300.0, source="--limit")
    assert find_limits(filed, named, None)[0] == Limit(watts=500.0, source="the file")
    assert find_limits(windows, named, None)[0] == Limit(watts=700.0, source="the device name")
    unnamed = [GpuId(host="", index=0, uuid=None, name=None)]
    assert find_limits(windows, unnamed, None)[0].watts is None


def test_tops_are_of_the_stream_and_unknown_without_power():
    windows = make_windows([100.0, 400.0, np.nan], 100, gpu=[0, 1, 2])
    tops_w = find_tops(windows, [0, 0, 1])
    assert tops_w[:2].tolist() == [400.0, 400.0]
    assert np.isnan(tops_w[2])
