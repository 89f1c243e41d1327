"""What a rank says of itself while it lives: events and the heartbeat. Free of torch."""

from __future__ import annotations

import traceback
from typing import Any

from harness.errors import ConfigError, LaunchError
from harness.record.run_dir import EventWriter, HeartbeatWriter, RunDir
from harness.record.schema import EventKind, Phase

_TRACEBACK_CHARS = 4000
_OOM_MESSAGES = ("can't allocate memory", "CUDA out of memory")  # torch's CPU and CUDA allocators


class RankRecords:
    """Events and heartbeat of one rank."""

    def __init__(self, run_dir: RunDir, rank: int) -> None:
        """Open ``events/rank00000.jsonl`` and ``heartbeat/rank00000`` of ``rank``."""
        self.rank = rank
        self._events = EventWriter(run_dir, f"rank{rank:05d}")
        self._heartbeat = HeartbeatWriter(run_dir.heartbeat(rank))

    def event(self, kind: EventKind, /, **detail: Any) -> None:
        """Record that ``kind`` happened now."""
        self._events.write(kind, self.rank, **detail)

    def phase(self, step: int, phase: Phase) -> None:
        """Beat: ``step`` is under way in ``phase``."""
        self._heartbeat.beat(step, phase)

    def error(self, error: BaseException) -> None:
        """Record what ended this rank, as ``rank_oom`` when memory ran out, else ``rank_error``.

        A setting that only a rank can find wrong makes the trial refused, not crashed.
        """
        kind = EventKind.RANK_OOM if is_out_of_memory(error) else EventKind.RANK_ERROR
        tail = "".join(traceback.format_exception(error))[-_TRACEBACK_CHARS:]
        refusal = {"is_refusal": True} if isinstance(error, ConfigError | LaunchError) else {}
        name = type(error).__name__
        self.event(kind, type=name, message=str(error), traceback=tail, **refusal)

    def close(self) -> None:
        """Close both files; safe to call twice."""
        self._events.close()
        self._heartbeat.close()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the GPU or the host.

    By name and message: ``torch.OutOfMemoryError`` is a RuntimeError that this module does not
    import, and torch's CPU allocator raises a plain RuntimeError.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(m in str(error) for m in _OOM_MESSAGES)
