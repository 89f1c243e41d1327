"""A result as one JSON object with the stable keys of the design; unknown is null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.samples import Account
from harness.triage.evaluate import Evaluation, Scores
from harness.triage.result import GpuResult, JobResult, TriageResult
from harness.triage.states import Episode, State

_DIGITS = 6


def to_json(result: TriageResult) -> dict[str, Any]:
    """The object that ``--json`` prints; shares are fractions, times seconds."""
    return {
        "account": _account(result.accounts),
        "table": result.table,
        "confidence": result.confidence.value,
        "confidence_reasons": list(result.reasons),
        "window_s": result.window_s,
        "gpus": [_gpu(gpu) for gpu in result.gpus],
        "absent": dict(result.absent),
        "jobs": [_job(job) for job in result.jobs],
        "evaluation": _evaluation(result.evaluation),
        "energy": [
            {"path": e.path, "joules": e.joules, "observed_s": e.observed_s, "mean_w": e.mean_w}
            for e in result.energy
        ],
        "refused": result.refused,
    }


def _account(accounts: Sequence[Account]) -> dict[str, Any]:
    """Of all files together, with each file's own below ``files``."""
    dropped: dict[str, int] = {}
    for account in accounts:
        for why, count in account.rows_dropped.items():
            dropped[why] = dropped.get(why, 0) + count
    periods = [a.period_s for a in accounts if a.period_s is not None]
    formats = list(dict.fromkeys(a.format for a in accounts))
    return {
        "rows_read": sum(a.rows_read for a in accounts),
        "rows_dropped": dropped,
        "gaps": [g for a in accounts for g in _gaps(a)],
        "period_s": max(periods, default=None),
        "format": ", ".join(formats) or None,
        "files": [
            {
                "path": a.path,
                "format": a.format,
                "why": a.why,
                "columns": dict(a.columns),
                "rows_read": a.rows_read,
                "rows_dropped": dict(a.rows_dropped),
                "gaps": _gaps(a),
                "period_s": a.period_s,
                "num_ticks": a.num_ticks,
                "is_relative": a.is_relative,
                "is_aggregated": a.is_aggregated,
                "power_kind": a.power_kind.value,
                "power_scope": a.power_scope.value,
                "notes": list(a.notes),
            }
            for a in accounts
        ],
    }


def _gaps(account: Account) -> list[dict[str, float]]:
    return [{"start_s": g.start_s, "end_s": g.end_s} for g in account.gaps]


def _gpu(gpu: GpuResult) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "id": gpu.label,
        "uuid": gpu.gpu.uuid,
        "name": gpu.gpu.name,
        "limit_w": gpu.limit.watts,
        "limit_source": gpu.limit.source,
        "basis": gpu.basis.value,
        "observed_s": round(gpu.observed_s, _DIGITS),
        "shares": _shares(gpu.shares),
        "baseline_shares": _shares(gpu.baseline_shares),
        "episodes": _episodes(gpu.episodes),
    }
    if gpu.snapshot_state is not None:
        plain["snapshot"] = {
            "power_w": gpu.snapshot_w,
            "utilization_pct": gpu.snapshot_pct,
            "state": gpu.snapshot_state.value,
        }
    return plain


def _job(job: JobResult) -> dict[str, Any]:
    return {
        "gpus": list(job.gpus),
        "verdict": job.verdict.value,
        "reason": job.reason,
        "odd_gpus": list(job.odd_gpus),
        "lost_gpu_hours": round(job.lost_gpu_hours, _DIGITS),
        "lost_money": None if job.lost_money is None else round(job.lost_money, 2),
        "shares": _shares(job.shares),
        "episodes": _episodes(job.episodes),
    }


def _shares(shares: Mapping[State, float]) -> dict[str, float]:
    return {state.value: round(share, _DIGITS) for state, share in shares.items()}


def _episodes(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    return [
        {
            "state": e.state.value,
            "start_s": round(e.start_s, _DIGITS),
            "end_s": round(e.end_s, _DIGITS),
        }
        for e in episodes
    ]


def _evaluation(evaluation: Evaluation | None) -> dict[str, Any] | None:
    if evaluation is None:
        return None
    return {
        "num_windows": evaluation.num_windows,
        "watts": _scores(evaluation.watts),
        "utilization": _scores(evaluation.utilization),
        "ignored": list(evaluation.ignored),
    }


def _scores(scores: Scores) -> dict[str, Any]:
    return {
        "accuracy": scores.accuracy,
        "macro_f1": scores.macro_f1,
        "per_state": [
            {
                "state": s.state.value,
                "support": s.support,
                "precision": s.precision,
                "recall": s.recall,
                "f1": s.f1,
            }
            for s in scores.per_state
        ],
        "confusion": {
            truth.value: {p.value: n for p, n in row.items()}
            for truth, row in scores.confusion.items()
        },
    }
