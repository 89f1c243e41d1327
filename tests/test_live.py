"""The streaming classifier: the same verdicts as on a record, in memory that does not grow."""

import dataclasses

import numpy as np
import pytest

from harness.triage.live import Classifier, StateChange, VerdictChange
from harness.triage.states import State, Verdict


def ticks(stream):
    """The stream tick by tick, as a live source gives it."""
    columns = stream.columns
    edges = np.flatnonzero(np.diff(columns["t_s"])) + 1
    whole = next(stream.batches())
    for rows in np.split(np.arange(len(columns["t_s"])), edges):
        yield dataclasses.replace(
            whole,
            **{
                f.name: getattr(whole, f.name)[rows]
                for f in dataclasses.fields(whole)
                if getattr(whole, f.name) is not None
            },
        )


@pytest.fixture
def watch(made_traces):
    def _watch(phases, **options):
        stream = made_traces.make_stream(phases, start_s=0.0)
        classifier = Classifier(None, None, gpus=stream.gpus, period_s=1.0, **options)
        changes = [change for tick in ticks(stream) for change in classifier.feed(tick)]
        return changes, classifier

    return _watch


def test_a_hang_is_told_at_120_s_and_not_before_with_the_odd_rank(made_traces, watch):
    m = made_traces
    phases = [(60, m.everybody(m.WORK, 4)), (200, m.everybody(m.WAIT, 4, gpu2=m.HOST))]
    verdicts = [c for c in watch(phases)[0] if isinstance(c, VerdictChange)]
    first = next(c for c in verdicts if c.verdict is Verdict.DEADLOCK)
    assert 180.0 <= first.t_s <= 184.0
    assert first.odd_gpus == ("node0:2",)


def test_a_save_changes_states_and_raises_no_verdict_of_a_hang(made_traces, watch):
    m = made_traces
    phases = [
        (60, m.everybody(m.WORK, 4)),
        (15, m.everybody(m.WAIT, 4, gpu0=m.HOST)),
        (60, m.everybody(m.WORK, 4)),
    ]
    changes, _ = watch(phases)
    states = [c.state for c in changes if isinstance(c, StateChange) and c.gpu == "node0:1"]
    assert states[0] is State.COMPUTE
    assert State.CHECKPOINT_OR_DEADLOCK in states
    assert states[-1] is State.COMPUTE
    assert Verdict.DEADLOCK not in {c.verdict for c in changes if isinstance(c, VerdictChange)}


def test_memory_is_bounded_by_the_history(made_traces, watch):
    m = made_traces
    changes, classifier = watch([(400, m.everybody(m.WORK, 2))], history_s=100.0)
    assert classifier.num_windows <= 2 * 101
    assert changes


def test_samples_that_close_no_window_change_nothing(made_traces):
    stream = made_traces.make_stream([(1, [made_traces.WORK])], period_s=0.1)
    classifier = Classifier(None, 700.0, gpus=stream.gpus, period_s=0.1)
    assert classifier.feed(next(ticks(stream))) == ()
