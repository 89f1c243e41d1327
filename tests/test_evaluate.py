"""Scores: closed forms on small cases, and the hang that utilization misses."""

import numpy as np
import pytest

from harness.triage.engine import triage_stream
from harness.triage.evaluate import evaluate, score
from harness.triage.states import STATE_CODE, State


def codes(*states):
    return np.array([STATE_CODE[s] for s in states], dtype=np.int8)


def labels(*words):
    return np.array(words, dtype=object)


def by_state(scores):
    return {s.state: s for s in scores.per_state}


def test_precision_recall_and_f1_are_counts():
    truth = [State.COMPUTE] * 4 + [State.COMMUNICATION] * 2
    predicted = [State.COMPUTE] * 3 + [State.COMMUNICATION] * 3
    scores = score(truth, predicted)
    compute, wait = by_state(scores)[State.COMPUTE], by_state(scores)[State.COMMUNICATION]
    assert (compute.precision, compute.recall, compute.support) == (1.0, 0.75, 4)
    assert (wait.precision, wait.recall) == (pytest.approx(2 / 3), 1.0)
    assert compute.f1 == pytest.approx(6 / 7)
    assert scores.accuracy == pytest.approx(5 / 6)
    assert scores.macro_f1 == pytest.approx((6 / 7 + 4 / 5) / 2)
    assert scores.confusion[State.COMPUTE] == {State.COMPUTE: 3, State.COMMUNICATION: 1}


def test_a_state_never_predicted_has_no_precision():
    compute = by_state(score([State.COMPUTE], [State.IDLE]))[State.COMPUTE]
    assert (compute.precision, compute.recall, compute.f1) == (None, 0.0, 0.0)


def test_nothing_to_score_gives_nothing():
    assert score([], []).accuracy is None
    assert score([], []).macro_f1 is None


def test_a_coarser_label_and_a_coarser_prediction_count_as_right():
    scores = score([State.IDLE, State.IDLE_BARE], [State.IDLE_CONTEXT, State.IDLE])
    assert scores.accuracy == 1.0


def test_labels_that_name_no_state_are_left_out_and_named():
    found = evaluate(
        labels("Training", "steady", None, "NCCL-wait"),
        codes(State.COMPUTE, State.COMPUTE, State.COMPUTE, State.COMMUNICATION),
        codes(State.COMPUTE, State.COMPUTE, State.COMPUTE, State.COMPUTE),
    )
    assert found.num_windows == 2
    assert found.ignored == ("steady",)
    assert (found.watts.accuracy, found.utilization.accuracy) == (1.0, 0.5)


def test_without_a_label_that_names_a_state_there_is_no_evaluation():
    assert evaluate(labels("warmup"), codes(State.COMPUTE), codes(State.COMPUTE)) is None
    assert evaluate(labels(None), codes(State.COMPUTE), codes(State.COMPUTE)) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("all ranks wait at 15 %", ["compute", "deadlock"]),
        ("all ranks wait at 22 %", ["compute", "deadlock"]),
        ("the report's hang", ["compute", "hang"]),
    ],
)
def test_utilization_fails_the_hangs_and_watts_do_not(made_traces, name, words):
    limit_w = 1100.0 if "report" in name else 700.0
    stream = made_traces.make_stream(made_traces.COURSES[name], labels=words, limit_w=limit_w)
    result = triage_stream([stream], table=None, limit_w=None, gpu_hour_price=None)
    watts = by_state(result.evaluation.watts)[State.DEADLOCK]
    utilization = by_state(result.evaluation.utilization)[State.DEADLOCK]
    assert watts.recall == 1.0
    assert watts.precision == 1.0
    assert utilization.recall == 0.0
    assert result.evaluation.watts.accuracy > result.evaluation.utilization.accuracy


def test_labels_are_never_an_input(made_traces):
    phases = made_traces.COURSES["all ranks wait at 15 %"]
    lying = made_traces.make_stream(phases, labels=["idle", "compute"])
    plain = made_traces.make_stream(phases)
    results = [
        triage_stream([s], table=None, limit_w=None, gpu_hour_price=None) for s in (lying, plain)
    ]
    assert results[0].gpus == results[1].gpus
    assert results[0].jobs == results[1].jobs
