"""One run's ratios from its records. Pure: nothing here reads a file.

A step takes as long as its slowest rank; its tokens are those of all ranks. Warm-up steps are kept
and marked, and only steady steps make a throughput. A run that ran fewer steps than planned is
``incomplete``, never a shorter mean; one whose tokens do not add up is ``invalid``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.devices import device_name, rank_gpu_uuids
from analysis.energy import Energy, window_energy
from analysis.load import Run
from analysis.mfu import Mfu, run_mfu
from analysis.power_trace import PowerTrace
from analysis.steps import StepRow, step_rows
from harness.metrics import (
    gpu_hours_per_epoch,
    joules_per_token,
    throughput_identity_error,
    tokens_per_second,
)
from harness.record.schema import EventKind, Status
from harness.stats import find_steady_state

IDENTITY_TOLERANCE = 0.005
INCOMPLETE = "incomplete"
INVALID = Status.INVALID.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What one run says. Rates are null where the run has no clean steady steps.

    ``status`` is the record's, or ``incomplete`` or ``invalid`` as found here; ``is_clean`` says
    whether the run may stand in a mean; ``notes`` says why not, and whatever else to know.
    """

    run: Run
    status: str
    is_clean: bool
    notes: tuple[str, ...]
    device: str
    num_steps: int
    num_warmup_steps: int
    is_settled: bool
    step_time_s: float | None
    tokens_per_second: float | None
    data_wait_share: float | None
    epoch_tokens: int | None
    gpu_hours_per_epoch: float | None
    mfu: Mfu
    joules_per_token: float | None
    energy_method: str
    peak_memory_bytes: int | None
    alloc_retries: int

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.run.manifest.trial.world_size


def measure(run: Run) -> Measures:
    """Everything that the tables show of one run."""
    rows = step_rows(run)
    steady = [r for r in rows if not r.is_warmup]
    tokens = sum(r.tokens for r in steady)
    duration_s = sum(r.duration_s for r in steady)
    rate = tokens_per_second(tokens, duration_s) if tokens > 0 and duration_s > 0 else None
    step_time_s = duration_s / len(steady) if steady else None
    wait_s = sum(r.data_wait_s for r in steady)
    retries = _alloc_retries(run)
    utilization = run_mfu(run, rate)
    energy = _energy(run, rows)
    status, notes = _verdict(run, rows, _identity_note(run, steady, rate, step_time_s), utilization)
    if retries:
        notes = (*notes, f"{retries} allocator retries: not a clean throughput sample")
    if energy.reason and run.power:
        notes = (*notes, energy.reason)
    notes = (*notes, *_sampler_notes(run), *(f"drift: {d}" for d in run.summary.drift))
    epoch_tokens = _epoch_tokens(run)
    return Measures(
        run=run,
        status=status,
        is_clean=status == Status.FINISHED and rate is not None and not retries,
        notes=notes,
        device=device_name(run),
        num_steps=len(rows),
        num_warmup_steps=len(rows) - len(steady),
        is_settled=bool(rows) and find_steady_state([r.duration_s for r in rows]).settled,
        step_time_s=step_time_s,
        tokens_per_second=rate,
        data_wait_share=wait_s / duration_s if duration_s > 0 else None,
        epoch_tokens=epoch_tokens,
        gpu_hours_per_epoch=_gpu_hours(run, epoch_tokens, rate),
        mfu=utilization,
        joules_per_token=_joules_per_token(energy, tokens),
        energy_method=energy.method,
        peak_memory_bytes=run.summary.peak_memory_bytes,
        alloc_retries=retries,
    )


def _verdict(
    run: Run, rows: Sequence[StepRow], identity: str, utilization: Mfu
) -> tuple[str, tuple[str, ...]]:
    """The status of the row, and what the record itself says about it."""
    summary = run.summary
    notes = [summary.detail] if summary.detail and summary.status is not Status.FINISHED else []
    if run.problem:
        return INVALID, (*notes, run.problem)
    if summary.status is not Status.FINISHED:
        return summary.status.value, tuple(notes)
    if run.is_calibration:  # windows, no steps
        return summary.status.value, tuple(notes)
    planned = summary.num_steps_planned - _resumed_at(run)
    if len(rows) < planned:
        return INCOMPLETE, (*notes, f"{len(rows)} of {planned} steps recorded by every rank")
    if identity or utilization.is_impossible:
        return INVALID, (*notes, identity or utilization.reason)
    return summary.status.value, tuple(notes)


def _identity_note(
    run: Run, steady: Sequence[StepRow], rate: float | None, step_time_s: float | None
) -> str:
    """Empty when tokens/s x step time gives the global batch that was declared."""
    train: Mapping[str, Any] = run.manifest.config.get("train", {})
    declared = int(train.get("global_batch_size", 0)) * int(train.get("sequence_length", 0))
    padded = sum(r.padded_tokens for r in steady)
    if rate is None or step_time_s is None or declared * len(steady) <= padded:
        return "" if rate is None else "no declared global batch to check the tokens against"
    expected = declared - padded / len(steady)
    error = throughput_identity_error(rate, step_time_s, round(expected))
    if error <= IDENTITY_TOLERANCE:
        return ""
    return (
        f"tokens/s x step time = {rate * step_time_s:.6g}, declared {expected:.6g} tokens a step:"
        f" {error:.1%} off"
    )


def _resumed_at(run: Run) -> int:
    resumed = [e.detail.get("step", 0) for e in run.events if e.kind is EventKind.RESUMED]
    return max((s for s in resumed if isinstance(s, int)), default=0)


def _alloc_retries(run: Run) -> int:
    """Allocator retries of all ranks; the counter is cumulative within a rank."""
    counts = [[r.alloc_retries or 0 for r in rank] for rank in run.steps.values()]
    return sum(max(rank, default=0) for rank in counts)


def _epoch_tokens(run: Run) -> int | None:
    data = run.manifest.data
    if data is None or data.num_blocks <= 0:
        return None
    held_out = int(run.manifest.config.get("data", {}).get("eval_num_blocks", 0))
    return round(data.num_tokens * (data.num_blocks - held_out) / data.num_blocks)


def _gpu_hours(run: Run, epoch_tokens: int | None, rate: float | None) -> float | None:
    if epoch_tokens is None or rate is None:
        return None
    return gpu_hours_per_epoch(run.manifest.trial.world_size, epoch_tokens, rate)


def _energy(run: Run, rows: Sequence[StepRow]) -> Energy:
    """Energy of the steady window; that of a replayed recording is labelled so, like its run."""
    warmup = [r for r in rows if r.is_warmup]
    steady = [r for r in rows if not r.is_warmup]
    if not steady:
        return Energy(joules=None, method="", reason="no steady steps")
    start_s = warmup[-1].t_end_unix_s if warmup else rows[0].t_end_unix_s - rows[0].duration_s
    traces = _own_traces(run)
    return window_energy(traces, start_s, steady[-1].t_end_unix_s, run.manifest.trial.world_size)


def _own_traces(run: Run) -> tuple[PowerTrace, ...]:
    """The traces of the GPUs that the ranks ran on; the sampler records every GPU of a node."""
    own = rank_gpu_uuids(run)
    return tuple(trace for trace in run.power if trace.gpu in own) if own else run.power


def _sampler_notes(run: Run) -> tuple[str, ...]:
    """Telemetry that stopped before the ranks did; the node's own stop of it is marked."""
    log = "logs/sampler000.log" if run.manifest.trial.num_nodes == 1 else "logs/sampler*.log"
    return tuple(
        f"telemetry ended early: exit code {e.detail.get('exitcode')}, see {log}"
        for e in run.events
        if e.kind is EventKind.CHILD_EXIT
        and e.detail.get("child") == "sampler"
        and not e.detail.get("stopped")
    )


def _joules_per_token(energy: Energy, tokens: int) -> float | None:
    if energy.joules is None or tokens <= 0:
        return None
    return joules_per_token(energy.joules, tokens)
