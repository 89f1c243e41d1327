"""Episodes, stalls and verdicts: every made course is called what it is."""

import dataclasses

import numpy as np
import pytest

from harness.samples import Gap, PowerScope
from harness.triage.assign import find_shares
from harness.triage.engine import triage_stream
from harness.triage.episodes import find_episodes, split_at
from harness.triage.result import exit_code
from harness.triage.states import (
    MIN_WINDOWS,
    STATE_CODE,
    Episode,
    State,
    Verdict,
)

WAITING = (State.COMMUNICATION, State.CHECKPOINT, State.CHECKPOINT_OR_DEADLOCK)
CALLED = {
    "healthy training": (Verdict.HEALTHY, [], 0),
    "all ranks wait at 15 %": (Verdict.DEADLOCK, [], 1),
    "all ranks wait at 22 %": (Verdict.DEADLOCK, [], 1),
    "a recording of a hang alone": (Verdict.DEADLOCK, [], 1),
    "the report's hang": (Verdict.DEADLOCK, [3], 1),
    "a hang, killed": (Verdict.DEADLOCK, [5], 1),
    "a wedged pair": (Verdict.WEDGED, [2, 5], 1),
    "a hang that leaves wedges": (Verdict.WEDGED, [0, 1, 2, 3, 4, 5, 6, 7], 1),
    "all throttled": (Verdict.SLOW, [], 0),
    "one throttled": (Verdict.SLOW, [6], 0),
    "a dead rank": (Verdict.CRASHED_RANK, [4], 1),
    "a GPU off the bus": (Verdict.CRASHED_RANK, [4], 1),
    "a starving loader": (Verdict.STARVING, [], 0),
    "saves of 15 s": (Verdict.HEALTHY, [0], 0),
    "a save of 30 min": (Verdict.STALLED_SAVE, [0], 1),
    "a straggler": (Verdict.SLOW, [2], 0),
    "idle with a context": (Verdict.IDLE, [], 0),
    "bare idle": (Verdict.IDLE, [], 0),
    "a slow start": (Verdict.HEALTHY, [0], 0),
}


def triage(*streams, **options):
    settings = {"table": None, "limit_w": None, "gpu_hour_price": None, **options}
    return triage_stream(streams, **settings)


@pytest.fixture
def course(made_traces):
    """The result of a course by its name."""

    def _course(name, **options):
        limit_w = 1100.0 if name == "the report's hang" else 700.0
        stream = made_traces.make_stream(
            made_traces.COURSES[name], **{"limit_w": limit_w, **options}
        )
        return triage(stream)

    return _course


def waited(gpu):
    return sum(gpu.shares.get(state, 0.0) for state in WAITING)


@pytest.mark.parametrize("period_s", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("name", CALLED)
def test_every_course_is_called_what_it_is(course, name, period_s):
    verdict, odd, code = CALLED[name]
    result = course(name, period_s=period_s)
    assert result.jobs[0].verdict is verdict
    assert result.jobs[0].odd_gpus == tuple(f"node0:{index}" for index in odd)
    assert exit_code(result, strict=False) == code


def test_every_course_is_tested(made_traces):
    assert set(CALLED) == set(made_traces.COURSES)


@pytest.mark.parametrize("name", ["all ranks wait at 15 %", "the report's hang"])
def test_a_hang_is_found_without_memory_and_with_a_limit_given_by_hand(made_traces, name):
    stream = made_traces.make_stream(
        made_traces.COURSES[name], has_memory=False, has_limit=False, limit_w=1100.0
    )
    result = triage(stream, limit_w=1100.0)
    assert result.jobs[0].verdict is Verdict.DEADLOCK


def test_a_rank_that_is_cool_but_not_cold_is_odd_and_not_dead(made_traces):
    """Without memory a rank at 11 % of the limit looked bare, and the hang like a crash."""
    m = made_traces
    odd = m.Act(share=120 / 1100, pct=0)
    phases = [
        (200, m.everybody(m.WORK, 8)),
        (300, m.everybody(m.Act(share=190 / 1100, pct=100), 8, gpu3=odd)),
    ]
    result = triage(m.make_stream(phases, limit_w=1100.0, has_memory=False))
    assert result.jobs[0].verdict is Verdict.DEADLOCK
    assert result.jobs[0].odd_gpus == ("node0:3",)


def test_a_hang_without_any_limit_is_told_by_shape_with_low_confidence(course):
    result = course("a hang, killed", has_limit=False)
    assert result.jobs[0].verdict is Verdict.DEADLOCK
    assert result.confidence == "low"


def test_time_is_part_of_the_class(made_traces):
    m = made_traces
    work = (100, m.everybody(m.WORK, 8))
    seen = {}
    for seconds in (1, 15, 100, 150):
        waits = (seconds, m.everybody(m.WAIT, 8, gpu0=m.HOST))
        stream = m.make_stream([work, waits, work], period_s=0.5)
        gpu = triage(stream).gpus[1]
        seen[seconds] = max(WAITING, key=lambda state: gpu.shares.get(state, 0.0))
    assert seen == {
        1: State.COMMUNICATION,
        15: State.CHECKPOINT,
        100: State.CHECKPOINT,
        150: State.CHECKPOINT,
    }
    ends = [triage(m.make_stream([work, (s, m.everybody(m.WAIT, 8))])).gpus[1] for s in (60, 150)]
    assert ends[0].shares[State.CHECKPOINT_OR_DEADLOCK] > 0
    assert State.DEADLOCK not in ends[0].shares
    assert ends[1].shares[State.DEADLOCK] > 0


def test_pauses_of_the_sampler_are_never_bridged_and_a_hang_with_pauses_needs_twice_the_time(
    made_traces,
):
    m = made_traces
    work, wait = (100, m.everybody(m.WORK, 8)), m.everybody(m.WAIT, 8)
    pauses = [(s, s + 4.0) for s in range(20, 900, 30)]
    short = triage(m.make_stream([work, (200, wait)], pauses=pauses))
    long = triage(m.make_stream([work, (400, wait)], pauses=pauses))
    assert short.jobs[0].verdict is not Verdict.DEADLOCK
    assert long.jobs[0].verdict is Verdict.DEADLOCK
    for result in (short, long):
        assert result.accounts[0].gaps
        assert result.gpus[0].shares[State.UNKNOWN] > 0.05
        for holder in (*result.gpus, *result.jobs):
            for episode in holder.episodes:
                assert all(
                    episode.end_s <= gap.start_s + 1.0 or episode.start_s >= gap.end_s
                    for gap in result.accounts[0].gaps
                )


def test_an_episode_lasts_three_windows(course):
    for period_s in (1.0, 30.0):
        result = course("a straggler", period_s=period_s)
        shortest = [e.duration_s for gpu in result.gpus for e in gpu.episodes]
        assert min(shortest, default=np.inf) >= (MIN_WINDOWS - 0.5) * period_s


def test_at_a_period_of_30_s_no_episode_is_shorter_than_90_s(made_traces):
    m = made_traces
    stream = m.make_stream([(600, m.everybody(m.STARVED, 1)), (600, [m.WORK])], period_s=30.0)
    episodes = triage(stream).gpus[0].episodes
    assert episodes
    assert min(e.duration_s for e in episodes) >= 90.0


def test_a_single_tick_is_a_snapshot_without_episodes_and_without_a_verdict(made_traces):
    m = made_traces
    result = triage(m.make_stream([(1, m.everybody(m.WORK, 8, gpu1=m.BARE))]))
    assert result.is_snapshot
    assert result.jobs == ()
    assert [gpu.episodes for gpu in result.gpus] == [()] * 8
    assert result.gpus[0].snapshot_w == pytest.approx(546, rel=0.1)
    assert result.gpus[1].snapshot_state is State.IDLE_BARE
    assert exit_code(result, strict=False) == 2


def test_averages_over_steps_give_shares_with_low_confidence_and_no_hang(made_traces):
    m = made_traces
    stream = m.make_stream([(9000, m.everybody(m.WAIT, 2))], period_s=900.0, is_aggregated=True)
    result = triage(stream)
    assert result.confidence == "low"
    assert result.jobs[0].verdict is not Verdict.DEADLOCK
    assert result.gpus[0].shares


def test_two_windows_are_too_few_for_a_verdict(made_traces):
    m = made_traces
    result = triage(m.make_stream([(2, m.everybody(m.WORK, 2))]))
    assert result.jobs[0].verdict is Verdict.UNKNOWN
    assert exit_code(result, strict=False) == 2


def test_a_node_meter_is_refused_and_its_energy_is_told(made_traces):
    m = made_traces
    flat = m.Act(share=1.0, pct=0, noise=0.0)
    stream = m.make_stream(
        [(101, [flat])], limit_w=3600.0, has_utilization=False, power_scope=PowerScope.NODE
    )
    result = triage(stream)
    assert "node meter" in result.refused
    assert result.energy[0].joules == pytest.approx(360_000.0)
    assert exit_code(result, strict=False) == 2


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "MIG"])
def test_mig_is_refused_with_the_reason(made_traces, name):
    m = made_traces
    result = triage(m.make_stream([(60, [m.WORK])], name=name))
    assert "MIG" in result.refused


def test_no_power_at_all_is_refused(made_traces):
    stream = made_traces.make_stream([(60, [made_traces.WORK])])
    stream.columns["power_w"] = np.full(60, np.nan)
    assert "no reading of power" in triage(stream).refused


def test_lost_gpu_hours_and_money_are_those_of_the_stall(course, made_traces):
    stream = made_traces.make_stream(made_traces.COURSES["a save of 30 min"])
    job = triage(stream, gpu_hour_price=2.5).jobs[0]
    assert job.lost_gpu_hours == pytest.approx(8 * 0.5, rel=0.01)
    assert job.lost_money == pytest.approx(10.0, rel=0.01)
    assert course("healthy training").jobs[0].lost_gpu_hours == 0.0


def test_shares_sum_to_one_and_the_baseline_sees_a_hang_as_computing(course):
    result = course("all ranks wait at 15 %")
    for gpu in result.gpus:
        assert sum(gpu.shares.values()) == pytest.approx(1.0)
        assert gpu.baseline_shares == {State.COMPUTE: pytest.approx(1.0)}


def test_starved_gpus_that_idle_between_bursts_are_not_idle(course):
    shares = course("a starving loader", period_s=0.25).gpus[0].shares
    assert shares.get(State.IDLE_CONTEXT, 0.0) < 0.02


def test_light_work_that_is_not_flat_is_no_deadlock(made_traces):
    m = made_traces
    restless = m.Act(share=0.2, pct=100, noise=0.15)
    result = triage(m.make_stream([(100, m.everybody(m.WORK, 4)), (400, [restless] * 4)]))
    assert result.jobs[0].verdict is not Verdict.DEADLOCK


def test_a_long_outage_of_the_sampler_inside_a_hang_leaves_two_stalls_both_open(made_traces):
    m = made_traces
    phases = [(100, m.everybody(m.WORK, 4)), (700, m.everybody(m.WAIT, 4))]
    result = triage(m.make_stream(phases, pauses=[(300, 400)]))
    assert [s.outcome for s in result.jobs[0].stalls] == ["open", "open"]
    assert result.jobs[0].verdict is Verdict.DEADLOCK


def make_states(*runs):
    states = np.array([STATE_CODE[s] for s, n in runs for _ in range(n)], dtype=np.int8)
    start_s = np.arange(len(states), dtype=np.float64)
    pauses = np.zeros(len(states), dtype=bool)
    pauses[0] = True
    return start_s, start_s + 1.0, states, pauses, np.full(len(states), 5.0)


def spans(episodes):
    return [(e.state, e.start_s, e.end_s) for e in episodes]


def test_a_short_wait_is_part_of_the_computing_around_it():
    runs = [(State.COMPUTE, 10), (State.COMMUNICATION, 1), (State.COMPUTE, 10)]
    assert spans(find_episodes(*make_states(*runs))) == [(State.COMPUTE, 0.0, 21.0)]


def test_short_work_is_never_part_of_the_waiting_around_it():
    """Two saves with a second of compute between them were one hang."""
    runs = [(State.CHECKPOINT, 10), (State.COMPUTE, 1), (State.CHECKPOINT, 10)]
    found = spans(find_episodes(*make_states(*runs)))
    assert found == [(State.CHECKPOINT, 0.0, 10.0), (State.CHECKPOINT, 11.0, 21.0)]


def test_where_nothing_lasts_the_stretch_is_what_it_mostly_is():
    starved = [(State.COMPUTE, 1), (State.DATA_STARVATION, 2)] * 5
    mixed = [(State.COMPUTE, 2), (State.COMMUNICATION, 1)] * 5
    assert spans(find_episodes(*make_states(*starved))) == [(State.DATA_STARVATION, 0.0, 15.0)]
    assert spans(find_episodes(*make_states(*mixed))) == [(State.COMPUTE, 0.0, 15.0)]


def test_a_pause_cuts_an_episode():
    start_s, end_s, states, pauses, samples = make_states((State.COMPUTE, 10))
    start_s[5:] += 3.0
    end_s[5:] += 3.0
    pauses[5] = True
    found = spans(find_episodes(start_s, end_s, states, pauses, samples))
    assert found == [(State.COMPUTE, 0.0, 5.0), (State.COMPUTE, 8.0, 13.0)]


def test_no_windows_have_no_episodes_and_no_shares():
    empty = np.empty(0)
    assert find_episodes(empty, empty, np.empty(0, np.int8), np.empty(0, bool), empty) == ()
    assert find_shares(np.empty(0, np.int8), empty) == {}


def test_episodes_are_cut_at_the_pauses_that_the_reader_reports():
    episode = Episode(state=State.COMPUTE, start_s=0.0, end_s=100.0)
    pauses = [Gap(start_s=10.0, end_s=12.0), Gap(start_s=99.0, end_s=101.0)]
    cut = split_at([episode], pauses, 2.5)
    assert spans(cut) == [(State.COMPUTE, 0.0, 10.0), (State.COMPUTE, 12.0, 99.0)]
    short = dataclasses.replace(episode, end_s=11.0)
    assert spans(split_at([short], pauses, 10.5)) == [(State.COMPUTE, 0.0, 10.0)]
    assert spans(split_at([dataclasses.replace(episode, end_s=13.0)], pauses, 10.5)) == []
    assert spans(split_at([short], [], 10.5)) == [(State.COMPUTE, 0.0, 11.0)]


def test_all_that_was_seen_between_two_pauses_is_an_episode_from_ten_samples_on():
    """A log with long pauses ended idle for a second at a time, and no episode said so."""
    start_s, end_s, states, pauses, samples = make_states((State.COMPUTE, 10), (State.IDLE_BARE, 2))
    start_s[10:] += 5.0
    end_s[10:] += 5.0
    pauses[10] = True
    found = spans(find_episodes(start_s, end_s, states, pauses, samples))
    assert found == [(State.COMPUTE, 0.0, 10.0), (State.IDLE_BARE, 15.0, 17.0)]
    found = spans(find_episodes(start_s, end_s, states, pauses, samples - 1.0))
    assert found == [(State.COMPUTE, 0.0, 10.0)]


def test_a_gpu_that_was_wedged_for_a_while_is_called_so(made_traces):
    m = made_traces
    phases = [(60, [m.BARE]), (100, [m.WEDGED]), (60, [m.BARE])]
    assert triage(m.make_stream(phases)).jobs[0].verdict is Verdict.WEDGED
