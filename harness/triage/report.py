"""A result -> sections of lines and tables: what it did, who was odd, what next, what to trust."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.samples import Account
from harness.triage.advice import next_steps
from harness.triage.evaluate import Evaluation
from harness.triage.result import JobResult, TriageResult
from harness.triage.states import STATE_ORDER, Episode, State

_MAX_EPISODES = 16
_MAX_GPUS = 32
_LEAST_SHARE = 0.0005
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A small table; cells are text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of a report."""

    title: str
    lines: tuple[str, ...] = ()
    grid: Grid | None = None


def sections(result: TriageResult) -> tuple[Section, ...]:
    """The report of a result, in order of what its reader wants to know first."""
    if result.refused is not None:
        refused = Section(title="Refused", lines=(result.refused,))
        parts: list[Section | None] = [refused, _energy(result)]
    elif result.is_snapshot:
        parts = [_snapshot(result)]
    else:
        parts = [_verdicts(result), *_timelines(result), _shares(result)]
    if result.refused is None:
        parts += [_evaluation(result.evaluation), _trust(result)]
    parts.append(_read(result))
    return tuple(part for part in parts if part is not None)


def gpu_range(labels: Sequence[str]) -> str:
    """Labels in short: ``node0:0-7``."""
    hosts: dict[str, list[str]] = {}
    for label in labels:
        host, _, own = label.rpartition(":")
        hosts.setdefault(host, []).append(own)
    return ", ".join(
        f"{host}:{_ranges(owns)}" if host else f"GPU {_ranges(owns)}"
        for host, owns in hosts.items()
    )


def duration_text(seconds: float) -> str:
    """Seconds for people: ``4.0 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _ranges(owns: Sequence[str]) -> str:
    if not all(own.isdigit() for own in owns):
        return ",".join(owns)
    numbers = sorted({int(own) for own in owns})
    parts: list[str] = []
    for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(parts)


def _verdicts(result: TriageResult) -> Section:
    lines: list[str] = []
    for number, job in enumerate(result.jobs, start=1):
        count = f"{len(job.gpus)} GPU{'s' if len(job.gpus) > 1 else ''}"
        lines.append(f"job {number} ({count}, {gpu_range(job.gpus)}): {job.verdict.upper()}")
        lines.append(f"  why: {job.reason}")
        if job.odd_gpus:
            lines.append(f"  odd: {gpu_range(job.odd_gpus)}")
        lost = f"  lost: {job.lost_gpu_hours:.2f} GPU-hours"
        if job.lost_money is not None:
            lost += f" = {job.lost_money:,.2f} at the given price"
        lines.append(lost)
        lines += [f"  next: {step}" for step in next_steps(job)]
    return Section(title="Verdict", lines=tuple(lines))


def _timelines(result: TriageResult) -> list[Section]:
    starts = [e.start_s for job in result.jobs for e in job.episodes]
    if not starts:
        return []
    origin_s = min(starts)
    found: list[Section] = []
    for number, job in enumerate(result.jobs, start=1):
        if job.episodes:
            found.append(_timeline(number, job, origin_s))
    return found


def _timeline(number: int, job: JobResult, origin_s: float) -> Section:
    longest = sorted(job.episodes, key=lambda e: -e.duration_s)[:_MAX_EPISODES]
    shown = sorted(longest, key=lambda e: e.start_s)
    rows = tuple(
        (f"+{duration_text(e.start_s - origin_s)}", duration_text(e.duration_s), e.state.value)
        for e in shown
    )
    left_out = len(job.episodes) - len(shown)
    title = f"Episodes of job {number}"
    lines = (f"the {len(shown)} longest; {left_out} shorter ones are in the JSON",) * bool(left_out)
    grid = Grid(columns=("from", "for", "state"), rows=rows)
    return Section(title=title, lines=(*_by_state(job.episodes), *lines), grid=grid)


def _by_state(episodes: Sequence[Episode]) -> tuple[str, ...]:
    seconds: dict[State, list[float]] = {}
    for episode in episodes:
        seconds.setdefault(episode.state, []).append(episode.duration_s)
    return tuple(
        f"{state}: {len(found)} episode{'s' if len(found) > 1 else ''},"
        f" {duration_text(sum(found))} in all, longest {duration_text(max(found))}"
        for state, found in sorted(seconds.items(), key=lambda pair: -sum(pair[1]))
    )


def _shares(result: TriageResult) -> Section:
    present = [
        s for s in STATE_ORDER if any(g.shares.get(s, 0.0) >= _LEAST_SHARE for g in result.gpus)
    ]
    odd = {label for job in result.jobs for label in job.odd_gpus}
    rows = [
        (
            f"{gpu.label}{' *' if gpu.label in odd else ''}",
            "-" if gpu.limit.watts is None else f"{gpu.limit.watts:.0f} W",
            *(_percent(gpu.shares, state) for state in present),
            _percent(gpu.baseline_shares, State.COMPUTE),
        )
        for gpu in result.gpus[:_MAX_GPUS]
    ]
    names = tuple(_SHORT.get(state, state.value) for state in present)
    lines = ["* odd.  Last column: what utilization alone would call computing."]
    if len(result.gpus) > _MAX_GPUS:
        lines.append(
            f"the first {_MAX_GPUS} of {len(result.gpus)} GPUs; the others are in the JSON"
        )
    if result.absent:
        lines.append(
            "no watts of its own: " + ", ".join(f"{k} ({v})" for k, v in result.absent.items())
        )
    grid = Grid(columns=("GPU", "limit", *names, "util. says"), rows=tuple(rows))
    return Section(title="Share of time, %", lines=tuple(lines), grid=grid)


def _snapshot(result: TriageResult) -> Section:
    rows = [
        (
            gpu.label,
            "-" if gpu.snapshot_w is None else f"{gpu.snapshot_w:.0f} W",
            "-" if gpu.snapshot_pct is None else f"{gpu.snapshot_pct:.0f} %",
            "-" if gpu.limit.watts is None else f"{gpu.limit.watts:.0f} W",
            "-" if gpu.snapshot_state is None else gpu.snapshot_state.value,
        )
        for gpu in result.gpus
    ]
    rows += [(label, why, "-", "-", "-") for label, why in result.absent.items()]
    line = "a single reading per GPU: no episode and no verdict on a job; record for some minutes"
    columns = ("GPU", "power", "utilization", "limit", "looks like")
    return Section(title="Snapshot", lines=(line,), grid=Grid(columns=columns, rows=tuple(rows)))


def _energy(result: TriageResult) -> Section | None:
    if not result.energy:
        return None
    lines = tuple(
        f"{e.path}: {e.joules / 3.6e6:.2f} kWh in {duration_text(e.observed_s)}, {e.mean_w:.0f} W"
        " on average, for the node as a whole"
        for e in result.energy
        if e.mean_w is not None
    )
    return Section(title="Energy", lines=lines)


def _evaluation(evaluation: Evaluation | None) -> Section | None:
    if evaluation is None:
        return None
    by_pct = {score.state: score for score in evaluation.utilization.per_state}
    rows = [
        (
            score.state.value,
            str(score.support),
            *(_ratio(x) for x in (score.precision, score.recall, score.f1)),
            *(
                _ratio(getattr(by_pct.get(score.state), x, None))
                for x in ("precision", "recall", "f1")
            ),
        )
        for score in evaluation.watts.per_state
    ]
    columns = ("label", "windows", "watts: P", "R", "F1", "utilization: P", "R", "F1")
    line = (
        f"scored against the file's own labels on {evaluation.num_windows} windows: right on"
        f" {_ratio(evaluation.watts.accuracy)} by watts,"
        f" {_ratio(evaluation.utilization.accuracy)} by utilization alone"
    )
    return Section(title="Scored", lines=(line,), grid=Grid(columns=columns, rows=tuple(rows)))


def _trust(result: TriageResult) -> Section:
    lines = [f"confidence: {result.confidence}", *(f"- {reason}" for reason in result.reasons)]
    lines.append(f"table: {result.table or 'none'}")
    return Section(title="How far to trust it", lines=tuple(lines))


def _read(result: TriageResult) -> Section | None:
    if not result.accounts:
        return None
    return Section(
        title="What was read",
        lines=tuple(line for account in result.accounts for line in _account_lines(account)),
    )


def _account_lines(account: Account) -> list[str]:
    period = (
        "a single tick"
        if account.period_s is None
        else f"one sample every {account.period_s:.3g} s"
    )
    lines = [
        f"{account.path}: {account.format} ({account.why}); {account.rows_read:,} rows, {period}"
    ]
    lines += [f"- dropped {count}: {why}" for why, count in account.rows_dropped.items()]
    if account.gaps:
        longest = max(account.gaps, key=lambda g: g.end_s - g.start_s)
        noun = "pause" if len(account.gaps) == 1 else "pauses"
        total_s = sum(g.end_s - g.start_s for g in account.gaps)
        lines.append(
            f"- {len(account.gaps)} {noun} of the sampler, {total_s:.1f} s in all, the longest"
            f" {longest.end_s - longest.start_s:.2f} s{_at(account, longest.start_s)}"
        )
    return lines + [f"- {note}" for note in account.notes]


def _at(account: Account, t_s: float) -> str:
    if account.is_relative or t_s < _DAY_S:
        return f" at {t_s:.1f} s"
    stamp = datetime.datetime.fromtimestamp(t_s, tz=datetime.UTC)
    return f" at {stamp:%Y-%m-%d %H:%M:%S} UTC"


def _percent(shares: Mapping[State, float], state: State) -> str:
    share = shares.get(state, 0.0)
    return "." if share < _LEAST_SHARE else f"{100 * share:.1f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


_SHORT: Mapping[State, str] = {
    State.COMMUNICATION: "comm.",
    State.DATA_STARVATION: "starved",
    State.CHECKPOINT_OR_DEADLOCK: "ckpt or deadl.",
    State.CHECKPOINT: "ckpt",
    State.IDLE_BARE: "bare",
    State.IDLE_CONTEXT: "context",
}
