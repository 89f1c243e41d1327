"""Triage of recorded streams: ``triage_stream`` from samples to a result. Pure; reads no file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from harness.samples import Gap, GpuId, PowerScope, SampleStream
from harness.triage.analyse import Analysis, accounts_of, analyse, job_evidence
from harness.triage.assign import find_job_states, find_shares, paused_s
from harness.triage.bands import Table, mismatches
from harness.triage.baseline import find_baseline_states
from harness.triage.collect import Collected, collect
from harness.triage.cuts import basis_of, find_limits
from harness.triage.episodes import find_episodes, split_at
from harness.triage.evaluate import evaluate
from harness.triage.result import GpuResult, JobResult, Traces, TriageResult, refusal
from harness.triage.states import MIN_WINDOWS, STATE_ORDER, Episode, State
from harness.triage.trust import Grounds, weigh
from harness.triage.verdict import judge, lost_gpu_hours

MIG_REASON = (
    "MIG: an instance has neither power nor utilization of its own, so nothing can be said about"
    " it by watts; record whole GPUs, with MIG off"
)


def triage_stream(
    streams: Sequence[SampleStream],
    *,
    table: Table | None,
    limit_w: float | None,
    gpu_hour_price: float | None,
    accept_mismatch: bool = False,
) -> TriageResult:
    """Say what the GPUs of these streams, taken together, did.

    Args:
        streams: One per file or host.
        table: Calibrated bands, or None to judge by the share of the enforced limit.
        limit_w: Enforced limit in watts, before what the files or device names say.
        gpu_hour_price: Money per GPU-hour; None leaves the loss in GPU-hours.
        accept_mismatch: Use a table made at another limit, or for another kind of power, anyway.
    """
    collected = collect(streams)
    reason = _refuse(collected)
    if reason is None and table is not None and not accept_mismatch:
        reason = _refuse_table(collected, table, limit_w)
    if reason is not None:
        return dataclasses.replace(refusal(reason, collected.accounts), energy=collected.energy)
    analysis = analyse(collected, table=table, limit_w=limit_w)
    is_snapshot = all(a.num_ticks <= 1 for a in collected.accounts)
    trust = weigh(_grounds(collected, analysis, table))
    states = analysis.states
    return TriageResult(
        accounts=collected.accounts,
        table=table.name if table else None,
        confidence=trust.confidence,
        reasons=trust.reasons,
        window_s=None if is_snapshot else collected.window_s,
        gpus=_gpu_results(collected, analysis, table, is_snapshot=is_snapshot),
        absent=_absent(collected),
        jobs=() if is_snapshot else _job_results(collected, analysis, gpu_hour_price),
        evaluation=evaluate(
            collected.windows.label, states, find_baseline_states(analysis.utilization_pct)
        ),
        refused=None,
        energy=collected.energy,
        traces=Traces(
            windows=collected.windows,
            states=states,
            labels=tuple(gpu.label for gpu in collected.gpus),
        ),
        is_snapshot=is_snapshot,
    )


def _refuse(collected: Collected) -> str | None:
    if any(account.power_scope is PowerScope.NODE for account in collected.accounts):
        return (
            "node meter only: the watts of a whole node are not those of one GPU, and a GPU that"
            " waits hides behind fans and peers"
        )
    if any(_is_mig(gpu) for gpu in collected.gpus):
        return MIG_REASON
    if not len(collected.windows.gpu) or not np.isfinite(collected.windows.power_w).any():
        return "no reading of power in it: nothing can be said by watts"
    return None


def _is_mig(gpu: GpuId) -> bool:
    return " MIG " in f" {gpu.name} " or (gpu.uuid or "").startswith("MIG-")


def _refuse_table(collected: Collected, table: Table, limit_w: float | None) -> str | None:
    limits = find_limits(collected.windows, collected.gpus, limit_w)
    wrong = mismatches(
        table,
        limits_w=[limit.watts for limit in limits if limit.watts is not None],
        power_kinds=[a.power_kind for a in collected.accounts],
        power_scopes=[a.power_scope for a in collected.accounts],
    )
    if not wrong:
        return None
    return (
        f"the table {table.name} does not fit: {'; '.join(wrong)}; calibrate this GPU, leave"
        " --table out, or insist with --accept-mismatch"
    )


def _grounds(collected: Collected, analysis: Analysis, table: Table | None) -> Grounds:
    seconds = collected.windows.duration_s
    shares = find_shares(analysis.states, seconds)
    return Grounds(
        accounts=collected.accounts,
        gpus=collected.gpus,
        limits=analysis.limits,
        table=table,
        shares=shares,
        has_utilization=bool(np.isfinite(collected.windows.utilization_pct).any()),
        observed_s=float(seconds.sum()) / max(len(collected.gpus), 1),
        job_sizes=tuple(len(job.gpus) for job in analysis.jobs),
        has_deadlock=any(s.state is State.DEADLOCK for j in analysis.jobs for s in j.stalls),
    )


def _absent(collected: Collected) -> dict[str, str]:
    """GPU -> why it has no power of its own: as its reader says, or no reading at all."""
    named = {k: v for a in collected.accounts for k, v in a.absent.items()}
    read = set(np.unique(collected.windows.gpu[np.isfinite(collected.windows.power_w)]).tolist())
    silent = [gpu.label for number, gpu in enumerate(collected.gpus) if number not in read]
    return {**dict.fromkeys(silent, "no reading of power"), **named}


def _gpu_results(
    collected: Collected, analysis: Analysis, table: Table | None, *, is_snapshot: bool
) -> tuple[GpuResult, ...]:
    windows, results = collected.windows, list[GpuResult]()
    baseline = find_baseline_states(analysis.utilization_pct)
    for number, gpu in enumerate(collected.gpus):
        rows = windows.gpu == number
        if not rows.any() or not np.isfinite(windows.power_w[rows]).any():
            continue
        states, seconds = analysis.states[rows], windows.duration_s[rows]
        pause_s = paused_s(windows.take(rows))
        watts, pct = collected.last_readings[number]
        account = collected.accounts[collected.stream_of_gpu[number]]
        found = find_episodes(
            windows.start_s[rows],
            windows.end_s[rows],
            states,
            analysis.pauses[rows],
            windows.count[rows].astype(np.float64),
        )
        results.append(
            GpuResult(
                gpu=gpu,
                label=gpu.label,
                limit=analysis.limits[number],
                basis=basis_of(table, analysis.limits[number]),
                observed_s=float(seconds.sum()),
                shares={} if is_snapshot else find_shares(states, seconds, paused_s=pause_s),
                episodes=() if is_snapshot else _cut(found, account.gaps, collected.window_s),
                baseline_shares={}
                if is_snapshot
                else find_shares(baseline[rows], seconds, paused_s=pause_s),
                snapshot_w=watts if is_snapshot else None,
                snapshot_pct=pct if is_snapshot and np.isfinite(pct) else None,
                snapshot_state=STATE_ORDER[int(states[-1])] if is_snapshot else None,
            )
        )
    return tuple(results)


def _cut(found: Sequence[Episode], gaps: Sequence[Gap], window_s: float) -> tuple[Episode, ...]:
    # The first and the last of three windows may be cut by the grid.
    return split_at(found, gaps, (MIN_WINDOWS - 0.5) * window_s)


def _job_results(
    collected: Collected, analysis: Analysis, price: float | None
) -> tuple[JobResult, ...]:
    windows, gpus = collected.windows, collected.gpus
    results: list[JobResult] = []
    for job in analysis.jobs:
        rows, line = job.rows, job.timeline
        states, accounts = analysis.states[rows], accounts_of(collected, job)
        evidence = job_evidence(collected, analysis, job)
        judged, lost = judge(evidence), lost_gpu_hours(evidence)
        found = find_episodes(
            line.start_s,
            line.end_s,
            find_job_states(windows.take(rows), states, line, job.stalls),
            line.has_pause_before,
            line.samples,
        )
        gaps = tuple(sorted((g for a in accounts for g in a.gaps), key=lambda g: g.start_s))
        results.append(
            JobResult(
                gpus=tuple(gpus[g].label for g in job.gpus),
                verdict=judged.verdict,
                reason=judged.reason,
                odd_gpus=tuple(gpus[g].label for g in judged.odd),
                lost_gpu_hours=lost,
                lost_money=None if price is None else lost * price,
                shares=find_shares(
                    states, windows.duration_s[rows], paused_s=paused_s(windows.take(rows))
                ),
                episodes=_cut(found, gaps, collected.window_s),
                stalls=job.stalls,
                deciding=judged.stall,
            )
        )
    return tuple(results)
