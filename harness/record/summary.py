"""How a trial ended, read off its other records: pure bookkeeping, no judgement of speed.

Interruptions (a stop from outside) and failures (of the trial itself) compete by time: whichever
came first explains the rest. Among failures the most telling one gives its name to the status.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.record.read import read_events, read_manifest, read_steps
from harness.record.run_dir import RunDir
from harness.record.schema import (
    SCHEMA_VERSION,
    Event,
    EventKind,
    Manifest,
    Status,
    StepRecord,
    Summary,
)

_INTERRUPTIONS = (EventKind.STOP_REQUESTED, EventKind.PARENT_GONE)
_FAILURES = {  # in order of what they explain
    EventKind.NON_FINITE_LOSS: Status.INVALID,
    EventKind.HOST_OOM_KILL: Status.OOM,
    EventKind.RANK_OOM: Status.OOM,
    EventKind.HANG_CONFIRMED: Status.HANG,
    EventKind.TRIAL_TIMEOUT: Status.TIMEOUT,
    EventKind.RANK_ERROR: Status.CRASH,
    EventKind.RANK_EXIT: Status.CRASH,
}


def summarise(run_root: Path, *, tries: int, drift: Sequence[str]) -> Summary:
    """Build the summary of the run in ``run_root`` from manifest, events and step records.

    Args:
        run_root: The run's folder.
        tries: How many times this run was started, this one included.
        drift: What differs from the campaign it belongs to, by name.

    Raises:
        RecordError: a record cannot be read; names the file.
    """
    run_dir = RunDir(run_root)
    manifest = read_manifest(run_dir.manifest)
    events = read_events(run_root)
    steps = [read_steps(run_dir.steps(rank)) for rank in range(manifest.trial.world_size)]
    return summary_of(
        manifest,
        events.records,
        [rank.records for rank in steps],
        torn_lines=events.torn + sum(rank.torn for rank in steps),
        tries=tries,
        drift=drift,
    )


def summary_of(
    manifest: Manifest,
    events: Sequence[Event],
    steps: Sequence[Sequence[StepRecord]],
    *,
    torn_lines: int,
    tries: int,
    drift: Sequence[str],
) -> Summary:
    """Build the summary of a run from its records; pure.

    Args:
        manifest: What was about to run.
        events: Of every writer, in order of time.
        steps: One series per rank, empty for a rank that recorded none.
        torn_lines: How many torn last lines were left out.
        tries: How many times this run was started, this one included.
        drift: What differs from the campaign it belongs to, by name.
    """
    status, detail = judge(events, manifest.trial.world_size)
    told = [e.detail.get("compile_time_s") for e in events if e.kind is EventKind.COMPILE]
    compile_s = [float(seconds) for seconds in told if seconds is not None]
    peaks = [r.peak_memory_bytes for rank in steps for r in rank if r.peak_memory_bytes]
    return Summary(
        schema_version=SCHEMA_VERSION,
        run_id=manifest.trial.run_id,
        status=status,
        expected_status=manifest.trial.expected_status,
        detail=detail,
        t_start_unix_s=manifest.t_unix_s,
        t_end_unix_s=max([manifest.t_unix_s, *(e.t_unix_s for e in events)]),
        num_steps_planned=num_steps_planned(manifest),
        last_step=_last_step(steps) or _last_window(events),
        num_ranks_finished=len({e.rank for e in events if e.kind is EventKind.RANK_FINISHED}),
        teardown_aborts=sum(e.kind is EventKind.TEARDOWN_ABORT for e in events),
        compile_time_s=max(compile_s, default=None),
        peak_memory_bytes=max(peaks, default=None),
        torn_lines=torn_lines,
        tries=tries,
        drift=tuple(drift),
    )


def num_steps_planned(manifest: Manifest) -> int:
    """The number of optimizer steps that the trial was to take."""
    return int(manifest.config["train"]["num_steps"])


def judge(events: Sequence[Event], world_size: int) -> tuple[Status, str]:
    """Give the status that ``events`` tell of, and one sentence of why.

    Args:
        events: In order of time.
        world_size: How many ranks had to finish.
    """
    finished = {e.rank for e in events if e.kind is EventKind.RANK_FINISHED}
    if len(finished) >= world_size:
        return Status.FINISHED, "every rank finished"
    interruptions = [e for e in events if e.kind in _INTERRUPTIONS]
    failures = [e for e in events if e.kind in _FAILURES]
    if interruptions and (not failures or interruptions[0].t_unix_s <= failures[0].t_unix_s):
        return Status.INTERRUPTED, _describe(interruptions[0])
    refusals = [e for e in failures if e.detail.get("is_refusal")]
    if refusals:
        return Status.REFUSED, str(refusals[0].detail.get("message"))
    for kind, status in _FAILURES.items():
        named = [e for e in failures if e.kind is kind]
        if named:
            told = [*_killed(failures), named[0]] if kind is EventKind.RANK_ERROR else named[:1]
            return status, "; ".join(_describe(event) for event in told)
    if not any(e.kind is EventKind.NODE_FINISHED for e in events):
        return _node_vanished(events)
    return Status.CRASH, f"only {len(finished)} of {world_size} ranks finished"


def _killed(failures: Sequence[Event]) -> list[Event]:
    """The first rank that a signal ended before it could say a word; its peers' errors follow."""
    spoke = {e.rank for e in failures if e.kind is not EventKind.RANK_EXIT}
    killed = [
        e
        for e in failures
        if e.kind is EventKind.RANK_EXIT
        and e.rank not in spoke
        and e.detail.get("signal") not in {None, "SIGTERM"}  # torchrun's own stop of the others
    ]
    return killed[:1]


def _node_vanished(events: Sequence[Event]) -> tuple[Status, str]:
    for event in events:
        code = event.detail.get("exitcode")
        if event.kind is EventKind.CHILD_EXIT and event.detail.get("child") == "node000":
            if isinstance(code, int) and code < 0:
                return Status.INTERRUPTED, f"the node process was killed by signal {-code}"
            return Status.CRASH, f"the node process failed (exit code {code}): logs/node000.log"
    return Status.INTERRUPTED, "no process was left to say how it ended"


def _last_step(steps: Sequence[Sequence[StepRecord]]) -> int | None:
    reached = [records[-1].step for records in steps if records]
    return min(reached) if len(reached) == len(steps) and reached else None


def _last_window(events: Sequence[Event]) -> int | None:
    """The last window that every rank of a calibration completed."""
    reached: dict[int | None, int] = {}
    for event in events:
        if event.kind is EventKind.PHASE_END:
            reached[event.rank] = int(event.detail["window"])
    return min(reached.values(), default=None)


def _describe(event: Event) -> str:
    who = "" if event.rank is None else f"rank {event.rank}: "
    what = ", ".join(
        f"{key} {value}"
        for key, value in event.detail.items()
        if key not in {"traceback", "pid", "order", "t_exit_unix_s", "local_rank"}
        and value is not None
    )
    return f"{who}{event.kind.value.replace('_', ' ')}" + (f" ({what})" if what else "")
