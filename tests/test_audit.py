import pytest

from analysis.audit import audit_rows
from analysis.reference import ReferenceLabel

DISAGREEMENTS = {
    "GPU-hours per epoch, 4 GPUs",
    "strong-scaling efficiency, 8 GPUs",
    "last step before the hang",
}


def row(check):
    return next(r for r in audit_rows() if r.check == check)


def test_exactly_the_three_known_disagreements_are_shown():
    assert {r.check for r in audit_rows() if not r.agrees} == DISAGREEMENTS


def test_every_disagreement_comes_with_what_could_explain_it():
    assert "83.5 to 84.1" in row("GPU-hours per epoch, 4 GPUs").note
    assert "100 % says ideal" in row("strong-scaling efficiency, 8 GPUs").note
    assert "log line every 10 steps" in row("last step before the hang").note


def test_steps_times_tokens_per_step_is_the_epoch():
    assert row("tokens per step").recomputed == 262_144
    assert row("epoch tokens").recomputed == pytest.approx(1.0103e9, rel=1e-5)


@pytest.mark.parametrize(
    ("gpus", "hours", "gpu_hours", "efficiency"),
    [(4, 20.94, 83.77, 100.0), (8, 10.51, 84.09, 99.63), (16, 5.295, 84.72, 98.88)],
)
def test_a_scaling_point_follows_from_its_throughput(gpus, hours, gpu_hours, efficiency):
    assert row(f"epoch time, {gpus} GPUs").recomputed == pytest.approx(hours, abs=5e-3)
    assert row(f"GPU-hours per epoch, {gpus} GPUs").recomputed == pytest.approx(gpu_hours, abs=5e-3)
    found = row(f"strong-scaling efficiency, {gpus} GPUs").recomputed
    assert found == pytest.approx(efficiency, abs=5e-3)


def test_a_figure_half_way_between_two_agrees_with_either():
    half = row("throughput per GPU, 8 GPUs")
    assert (half.stated, half.recomputed, half.agrees) == (3338.0, 3337.5, True)


def test_the_parameter_count_is_made_from_the_configuration():
    parameters = row("parameters")
    assert parameters.recomputed == 32_762_123_264
    assert parameters.agrees
    assert parameters.label is ReferenceLabel.ABSTRACT


def test_a_figure_that_is_only_bounded_shows_its_bounds():
    dropped = row("tokens dropped by equalising to the minimum")
    assert dropped.low == pytest.approx(0.01074, abs=1e-5)
    assert dropped.high == pytest.approx(0.16088, abs=1e-5)
    assert dropped.agrees
    assert row("tokens per step").low is None


def test_the_difference_is_that_of_the_stated_figure_in_percent():
    assert row("strong-scaling efficiency, 8 GPUs").difference_pct == pytest.approx(
        0.3745, abs=1e-3
    )


def test_no_check_stands_twice():
    checks = [r.check for r in audit_rows()]
    assert len(checks) == len(set(checks))
