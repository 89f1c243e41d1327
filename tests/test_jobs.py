"""Jobs: who belongs together, and who is never averaged with whom."""

import pytest

from harness.samples import PowerKind
from harness.triage.engine import triage_stream
from harness.triage.states import Verdict


@pytest.fixture
def judge():
    def _judge(*streams, limit_w=None):
        result = triage_stream(streams, table=None, limit_w=limit_w, gpu_hour_price=None)
        return [(job.verdict, len(job.gpus), job.odd_gpus) for job in result.jobs]

    return _judge


def test_a_688_w_group_and_a_128_w_group_are_two_jobs(made_traces, judge):
    m = made_traces
    busy, held = m.Act(share=0.98, pct=100, noise=0.01), m.Act(share=0.183, pct=0)
    phases = [(300, [busy] * 4 + [held] * 4)]
    assert judge(m.make_stream(phases)) == [(Verdict.HEALTHY, 4, ()), (Verdict.IDLE, 4, ())]


def test_a_computing_group_and_a_waiting_group_are_two_jobs(made_traces, judge):
    m = made_traces
    busy = m.Act(share=0.98, pct=100, noise=0.01)
    phases = [(300, [busy] * 4 + [m.WAIT] * 4)]
    assert judge(m.make_stream(phases)) == [(Verdict.HEALTHY, 4, ()), (Verdict.DEADLOCK, 4, ())]


def test_one_of_two_jobs_that_looked_alike_hangs_and_the_other_goes_on(made_traces, judge):
    m = made_traces
    phases = [(300, m.everybody(m.WORK, 8)), (300, [m.WORK] * 4 + [m.WAIT] * 4)]
    assert judge(m.make_stream(phases)) == [(Verdict.HEALTHY, 4, ()), (Verdict.DEADLOCK, 4, ())]


def test_a_job_of_one_gpu_hangs_beside_a_job_of_seven(made_traces, judge):
    m = made_traces
    phases = [(300, m.everybody(m.WORK, 8)), (300, m.everybody(m.WORK, 8, gpu5=m.WAIT))]
    assert judge(m.make_stream(phases)) == [(Verdict.HEALTHY, 7, ()), (Verdict.DEADLOCK, 1, ())]


def test_gpus_of_two_hosts_are_one_job_and_the_odd_rank_is_named_with_its_host(made_traces, judge):
    m = made_traces
    work = (300, m.everybody(m.WORK, 8))
    first = m.make_stream([work, (300, m.everybody(m.WAIT, 8))], host="a")
    second = m.make_stream([work, (300, m.everybody(m.WAIT, 8, gpu1=m.HOST))], host="b", seed=2)
    assert judge(first, second) == [(Verdict.DEADLOCK, 16, ("b:1",))]


def test_a_hosts_file_that_ends_early_is_no_dead_rank(made_traces, judge):
    """Eight GPUs without samples were called dead, though only their recording had ended."""
    m = made_traces
    work = (300, m.everybody(m.WORK, 8))
    first = m.make_stream([work, (300, m.everybody(m.WAIT, 8))], host="a")
    second = m.make_stream([work], host="b", seed=2)
    assert judge(first, second) == [(Verdict.DEADLOCK, 16, ())]


def test_two_files_without_hosts_are_two_hosts_named_by_their_files(made_traces):
    m = made_traces
    phases = [(60, m.everybody(m.WORK, 2))]
    streams = [
        m.make_stream(phases, host="", path="/x/one.csv"),
        m.make_stream(phases, host="", path="/x/two.csv.gz", seed=2),
        m.make_stream(phases, host="", path="/y/two.csv", seed=3),
    ]
    result = triage_stream(streams, table=None, limit_w=None, gpu_hour_price=None)
    labels = [gpu.label for gpu in result.gpus]
    assert labels == ["one:0", "one:1", "two:0", "two:1", "two#2:0", "two#2:1"]


def test_files_without_times_of_their_own_never_share_a_job(made_traces, judge):
    m = made_traces
    phases = [(60, m.everybody(m.WORK, 2))]
    streams = [m.make_stream(phases, host=h, start_s=0.0, is_relative=True) for h in ("a", "b")]
    assert judge(*streams) == [(Verdict.HEALTHY, 2, ()), (Verdict.HEALTHY, 2, ())]


def test_a_few_that_hold_a_context_while_all_others_wait_are_odd_and_many_are_not(
    made_traces, judge
):
    m = made_traces
    one = [(300, m.everybody(m.WAIT, 8, gpu3=m.HOST))]
    half = [(300, [m.WAIT] * 4 + [m.HOST] * 4)]
    assert judge(m.make_stream(one)) == [(Verdict.DEADLOCK, 8, ("node0:3",))]
    assert judge(m.make_stream(half)) == [(Verdict.DEADLOCK, 4, ()), (Verdict.IDLE, 4, ())]


def test_a_throttled_gpu_draws_less_and_still_belongs_to_its_job(made_traces, judge):
    """Its watts differ by more than the work of one job may; it was taken for a job of its own."""
    m = made_traces
    phases = [(300, m.everybody(m.WORK, 8, gpu6=m.THROTTLED))]
    assert judge(m.make_stream(phases)) == [(Verdict.SLOW, 8, ("node0:6",))]


def test_a_rank_that_computes_while_all_others_wait_for_minutes_is_the_odd_one(made_traces, judge):
    m = made_traces
    phases = [(300, m.everybody(m.WORK, 16)), (300, m.everybody(m.WAIT, 16, gpu9=m.WORK))]
    assert judge(m.make_stream(phases)) == [(Verdict.DEADLOCK, 16, ("node0:9",))]


def test_the_same_gpu_in_two_files_is_one_gpu(made_traces):
    m = made_traces
    first = m.make_stream([(60, m.everybody(m.WORK, 2))], power_kind=PowerKind.INSTANT)
    second = m.make_stream([(60, m.everybody(m.WORK, 2))], start_s=1_700_000_060.0, seed=2)
    result = triage_stream([first, second], table=None, limit_w=None, gpu_hour_price=None)
    assert [gpu.label for gpu in result.gpus] == ["node0:0", "node0:1"]
    assert any("mix kinds of power" in reason for reason in result.reasons)
