from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.derive import IDENTITY_TOLERANCE, measure
from analysis.devices import device_name
from analysis.load import Run, load_results
from analysis.steps import step_rows
from harness.record.schema import Event, EventKind, Status, StepRecord

GOLDEN = Path(__file__).parent / "data" / "golden" / "results"


def golden_run(machine: str, run_id: str) -> Run:
    return next(
        r
        for r in load_results(GOLDEN).runs
        if r.machine == machine and r.manifest.trial.run_id == run_id
    )


@pytest.fixture
def run() -> Run:
    return golden_run("golden-laptop", "scaling-g2-5ca1ab1e-r0")


@pytest.fixture
def gpu_run() -> Run:
    return golden_run("golden-node", "scaling-g2-5ca1ab1e-r0")


def steady(run: Run, **changes: Any) -> Run:
    """The same run with every step equal: 1 s, or 2 s on rank 1; 1024 tokens a rank."""

    def record(rank: int, step: int) -> StepRecord:
        plain = run.steps[0][0]
        values: dict[str, Any] = {
            "step": step,
            "t_end_unix_s": 1e9 + 2.0 * step,
            "duration_s": 1.0 + rank,
            "data_wait_s": 0.5 if rank == 0 else 0.1,
            "tokens": 1024,
        }
        return replace(plain, **(values | changes))

    steps = {rank: tuple(record(rank, s) for s in range(1, 15)) for rank in range(2)}
    return replace(run, steps=steps)


def with_config(run: Run, section: str, **changes: Any) -> Run:
    config = dict(run.manifest.config)
    config[section] = dict(config[section]) | changes
    return replace(run, manifest=replace(run.manifest, config=config))


def test_a_step_takes_as_long_as_its_slowest_rank_and_sums_tokens(run: Run) -> None:
    """Averaging ranks gave a 4-rank job a tenth of its true throughput in another harness."""
    result = measure(steady(run))
    assert result.step_time_s == pytest.approx(2.0)
    assert result.tokens_per_second == pytest.approx(2 * 1024 / 2.0)
    assert result.data_wait_share == pytest.approx(0.25)
    assert result.is_clean


def test_warm_up_steps_are_kept_and_marked(run: Run) -> None:
    rows = step_rows(run)
    assert len(rows) == 14
    assert [r.is_warmup for r in rows[:2]] == [True, True]
    assert not rows[-1].is_warmup
    steady_s = [r.duration_s for r in rows if not r.is_warmup]
    assert measure(run).step_time_s == pytest.approx(sum(steady_s) / len(steady_s))


def test_the_throughput_identity_holds_on_every_clean_run() -> None:
    for run in load_results(GOLDEN).runs:
        result = measure(run)
        if not result.is_clean:
            continue
        train = run.manifest.config["train"]
        declared = train["global_batch_size"] * train["sequence_length"]
        assert result.tokens_per_second is not None
        assert result.step_time_s is not None
        product = result.tokens_per_second * result.step_time_s
        assert product == pytest.approx(declared, rel=IDENTITY_TOLERANCE)


def test_tokens_that_do_not_add_up_make_the_run_invalid(run: Run) -> None:
    result = measure(steady(run, tokens=1000))
    assert result.status == "invalid"
    assert not result.is_clean
    assert "off" in result.notes[0]


def test_padding_is_no_error_of_the_identity(run: Run) -> None:
    result = measure(steady(run, tokens=1000, padded_tokens=24))
    assert result.status == "finished"
    assert result.tokens_per_second == pytest.approx(1000.0)


def test_a_run_without_a_declared_batch_cannot_be_checked_and_is_invalid(run: Run) -> None:
    result = measure(with_config(run, "train", global_batch_size=0))
    assert result.status == "invalid"


def test_a_finished_run_with_fewer_steps_than_planned_is_incomplete(run: Run) -> None:
    cut = replace(run, steps={rank: records[:9] for rank, records in run.steps.items()})
    result = measure(cut)
    assert result.status == "incomplete"
    assert not result.is_clean
    assert "9 of 14" in result.notes[0]


def test_a_finished_run_that_lost_a_rank_is_incomplete(run: Run) -> None:
    result = measure(replace(run, steps={0: run.steps[0]}))
    assert result.status == "incomplete"
    assert result.num_steps == 0
    assert result.tokens_per_second is None


def test_a_resumed_run_owes_only_the_steps_after_its_save(run: Run) -> None:
    steps = {rank: records[4:] for rank, records in run.steps.items()}
    resumed = Event(t_unix_s=0.0, kind=EventKind.RESUMED, rank=0, detail={"step": 4})
    result = measure(replace(run, steps=steps, events=(*run.events, resumed)))
    assert result.status == "finished"


def test_a_failed_run_keeps_its_status_and_reason() -> None:
    result = measure(golden_run("golden-laptop", "scaling-g2-5ca1ab1e-r2"))
    assert result.status == Status.OOM
    assert result.notes == ("rank 1: rank oom (message out of memory)",)
    assert result.run.summary.last_step == 5


def test_a_run_with_unreadable_records_is_invalid(run: Run) -> None:
    result = measure(replace(run, problem="steps/rank00000.jsonl:2: not JSON"))
    assert result.status == "invalid"
    assert "rank00000" in result.notes[0]


def test_allocator_retries_mark_the_run() -> None:
    result = measure(golden_run("golden-node", "scaling-g2-5ca1ab1e-r2"))
    assert result.status == "finished"
    assert not result.is_clean
    assert result.alloc_retries == 4


def test_accepted_drift_is_noted(run: Run) -> None:
    result = measure(replace(run, summary=replace(run.summary, drift=("commit",))))
    assert "drift: commit" in result.notes


def test_a_cpu_has_no_mfu(run: Run) -> None:
    result = measure(run)
    assert result.mfu.value is None
    assert "CPU" in result.mfu.reason


def test_mfu_stands_beside_convention_flops_and_peak(gpu_run: Run) -> None:
    result = measure(gpu_run)
    assert result.tokens_per_second is not None
    assert result.mfu.flops_per_token is not None
    assert result.mfu.peak_flops_per_s == pytest.approx(989e12, rel=0.01)
    expected = result.tokens_per_second * result.mfu.flops_per_token / (2 * 989e12)
    assert result.mfu.value == pytest.approx(expected, rel=0.01)
    assert "palm" in result.mfu.convention
    assert result.mfu.peak_source


def test_an_unknown_gpu_has_no_mfu(gpu_run: Run) -> None:
    host = gpu_run.manifest.hosts[0]
    gpus = tuple(replace(g, name="NVIDIA X9000") for g in host.gpus)
    manifest = replace(gpu_run.manifest, hosts=(replace(host, gpus=gpus),))
    result = measure(replace(gpu_run, manifest=manifest))
    assert result.mfu.value is None
    assert "X9000" in result.mfu.reason
    assert result.is_clean


def test_two_kinds_of_gpu_have_no_mfu(gpu_run: Run) -> None:
    host = gpu_run.manifest.hosts[0]
    gpus = (replace(host.gpus[0], name="NVIDIA B200"), *host.gpus[1:])
    manifest = replace(gpu_run.manifest, hosts=(replace(host, gpus=gpus),))
    assert "2 kinds" in measure(replace(gpu_run, manifest=manifest)).mfu.reason


def test_mfu_above_one_makes_the_run_invalid(gpu_run: Run) -> None:
    steps = {
        rank: tuple(replace(r, duration_s=r.duration_s / 100) for r in records)
        for rank, records in gpu_run.steps.items()
    }
    result = measure(replace(gpu_run, steps=steps))
    assert result.status == "invalid"
    assert "exceeds 1" in result.notes[0]


def test_a_configuration_without_a_model_has_no_mfu(gpu_run: Run) -> None:
    config = {k: v for k, v in gpu_run.manifest.config.items() if k != "model"}
    result = measure(replace(gpu_run, manifest=replace(gpu_run.manifest, config=config)))
    assert result.mfu.value is None
    assert "model" in result.mfu.reason


def test_gpu_hours_of_an_epoch_count_the_training_blocks_only(run: Run) -> None:
    result = measure(steady(run))
    assert result.epoch_tokens == 4000 * 256
    assert result.gpu_hours_per_epoch == pytest.approx(2 * 4000 * 256 / 1024.0 / 3600)


def test_a_run_without_data_has_no_epoch(run: Run) -> None:
    result = measure(replace(run, manifest=replace(run.manifest, data=None)))
    assert result.epoch_tokens is None
    assert result.gpu_hours_per_epoch is None


def test_energy_per_token_sums_over_gpus(gpu_run: Run) -> None:
    result = measure(gpu_run)
    assert result.tokens_per_second is not None
    assert result.energy_method == "counter"
    assert result.joules_per_token == pytest.approx(2 * 645.0 / result.tokens_per_second, rel=0.01)


def test_the_energy_of_other_jobs_gpus_on_the_node_is_not_counted(gpu_run: Run) -> None:
    """The sampler records every GPU of a node, a job on half of them would get no energy at all."""
    ready = tuple(
        Event(t_unix_s=0.0, kind=EventKind.RANK_READY, rank=rank, detail={"gpu_uuid": trace.gpu})
        for rank, trace in enumerate(gpu_run.power)
    )
    neighbour = replace(gpu_run.power[0], gpu="GPU-of-somebody-else")
    shared = replace(gpu_run, power=(*gpu_run.power, neighbour))
    assert measure(shared).joules_per_token is None
    own = replace(shared, events=(*gpu_run.events, *ready))
    assert measure(own).joules_per_token == measure(gpu_run).joules_per_token


def with_gpus(run: Run, *changes: dict[str, Any]) -> Run:
    host = run.manifest.hosts[0]
    gpus = tuple(replace(gpu, **change) for gpu, change in zip(host.gpus, changes, strict=True))
    return replace(run, manifest=replace(run.manifest, hosts=(replace(host, gpus=gpus),)))


def ready_on(run: Run, *uuids: str | None) -> Run:
    """The same run, its ranks saying which GPU each of them has."""
    ready = tuple(
        Event(t_unix_s=0.0, kind=EventKind.RANK_READY, rank=rank, detail={"gpu_uuid": uuid})
        for rank, uuid in enumerate(uuids)
    )
    return replace(run, events=(*run.events, *ready))


def test_the_kind_of_gpu_is_that_of_the_gpus_the_ranks_used(gpu_run: Run) -> None:
    """A job on two H200 beside two other GPUs had no MFU."""
    mixed = with_gpus(gpu_run, {}, {}, {"name": "NVIDIA L4"}, {"name": "NVIDIA L4"})
    assert "2 kinds of GPU: NVIDIA H200, NVIDIA L4" in measure(mixed).mfu.reason
    assert measure(ready_on(mixed, "GPU-0", "GPU-1")).mfu.value == measure(gpu_run).mfu.value
    assert measure(ready_on(mixed, "GPU-0", "GPU-2")).mfu.value is None
    for unknown in ((None, "GPU-0"), ("GPU-0", "GPU-0"), ("GPU-0", "GPU-of-no-host")):
        assert measure(ready_on(mixed, *unknown)).mfu.value is None


def test_a_gpu_without_a_name_has_no_mfu(gpu_run: Run) -> None:
    assert "unnamed" in measure(with_gpus(gpu_run, {"name": None}, {}, {}, {})).mfu.reason


def test_mig_anywhere_means_no_mfu(gpu_run: Run) -> None:
    """A rank on a seventh of an H200 was divided by the peak of a whole one."""
    result = measure(with_gpus(gpu_run, {}, {}, {}, {"mig_enabled": True}))
    assert result.mfu.value is None
    assert "MIG" in result.mfu.reason
    assert result.is_clean


@pytest.mark.parametrize(
    ("detail", "notes"),
    [
        (
            {"child": "sampler", "exitcode": 2},
            ("telemetry ended early: exit code 2, see logs/sampler000.log",),
        ),
        ({"child": "sampler", "exitcode": 0, "stopped": True}, ()),
        ({"child": "torchrun", "exitcode": 0}, ()),
    ],
)
def test_a_sampler_that_ended_before_the_ranks_is_a_note(
    run: Run, detail: dict[str, Any], notes: tuple[str, ...]
) -> None:
    """A run whose sampler died had no energy and no word about why."""
    event = Event(t_unix_s=0.0, kind=EventKind.CHILD_EXIT, rank=None, detail=detail)
    result = measure(replace(run, events=(*run.events, event)))
    assert result.notes == notes
    assert result.is_clean


def test_a_run_without_steps_has_no_energy(gpu_run: Run) -> None:
    result = measure(replace(gpu_run, steps={}))
    assert result.joules_per_token is None
    assert result.tokens_per_second is None


def test_the_device_falls_back_to_what_the_host_says(run: Run, gpu_run: Run) -> None:
    def stripped(run: Run) -> Run:
        return replace(run, manifest=replace(run.manifest, comparability={}))

    assert device_name(stripped(gpu_run)) == "NVIDIA H200"
    assert device_name(stripped(run)) == "cpu: Golden CPU"
    nowhere = stripped(run)
    assert device_name(replace(nowhere, manifest=replace(nowhere.manifest, hosts=()))) == "unknown"
