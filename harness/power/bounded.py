"""A bound on calls that may block in a driver: a thread waits for them, the caller does not.

The thread of a call that never returns is left behind; it blocks every signal, holds nothing, and
does not keep the process from ending.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from harness.config import PowerSource
from harness.power.reading import Reading, silenced
from harness.samples import GpuSample

T = TypeVar("T")

_METERS = {PowerSource.NVML: "NVML", PowerSource.AMD_SMI: "AMD SMI"}


class Blocking(Protocol):
    """A power source whose calls may not return."""

    source: PowerSource

    def read(self) -> Reading:
        """Give the rows of one tick."""
        ...

    def close(self) -> None:
        """Let go of the meter."""
        ...


class _Caller(Generic[T]):
    """One thread that makes one call at a time."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[Callable[[], T] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[T | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="bounded", daemon=True)
        self._thread.start()

    def ask(self, function: Callable[[], T]) -> None:
        self._requests.put(function)

    def answer(self, timeout_s: float) -> T:
        """Give the answer, or raise what the call raised, or raise ``queue.Empty``."""
        answer = self._answers.get(timeout=timeout_s) if timeout_s > 0 else self._answers.get(False)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def end(self, timeout_s: float) -> None:
        self._requests.put(None)
        self._thread.join(timeout_s)

    def _serve(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while (function := self._requests.get()) is not None:
            try:
                self._answers.put(function())
            except BaseException as error:  # noqa: BLE001 (raised again where it was asked for)
                self._answers.put(error)


def call_within(timeout_s: float, function: Callable[[], T]) -> T | None:
    """Give what ``function`` gives, or null when it has not returned after ``timeout_s``.

    Raises:
        Exception: whatever ``function`` raises.
    """
    caller: _Caller[T] = _Caller()
    caller.ask(function)
    try:
        return caller.answer(timeout_s)
    except queue.Empty:
        return None
    finally:
        caller.end(0)


class BoundedSource:
    """A source whose ``read`` returns in time: rows of nulls while the real one is stuck."""

    def __init__(
        self,
        inner: Blocking,
        *,
        timeout_s: float,
        first_timeout_s: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Start the thread that reads ``inner``; the first reading may take longer."""
        self.source = inner.source
        self._inner = inner
        self._timeout_s = timeout_s
        self._next_timeout_s = first_timeout_s
        self._wall = wall
        self._caller: _Caller[Reading] = _Caller()
        self._is_stuck = False
        self._known: tuple[GpuSample, ...] = ()

    def read(self) -> Reading:
        """Read, at most for the time limit; no second call is made while one is stuck."""
        timeout_s, self._next_timeout_s = self._next_timeout_s, self._timeout_s
        try:
            if self._is_stuck:
                self._caller.answer(0)  # of a tick long gone
                self._is_stuck = False
            self._caller.ask(self._inner.read)
            reading = self._caller.answer(timeout_s)
        except queue.Empty:
            self._is_stuck = True
            return self._silence(timeout_s)
        self._known = reading.samples or self._known
        return reading

    def close(self) -> None:
        """Close the real one, unless it is stuck: then nothing more can be asked of it."""
        if not self._is_stuck:
            self._caller.ask(_closing(self._inner))
            self._caller.end(self._timeout_s)

    def _silence(self, timeout_s: float) -> Reading:
        text = f"{_METERS.get(self.source, self.source)} did not answer within {timeout_s:g} s"
        t_unix_s, reason = self._wall(), f"fault: {text}"
        rows = tuple(silenced(s, t_unix_s=t_unix_s, reason=reason) for s in self._known)
        return Reading(samples=rows, faults=(text,), reason=None if rows else reason)


def _closing(inner: Blocking) -> Callable[[], Reading]:
    def close() -> Reading:
        inner.close()
        return Reading(samples=(), faults=(), reason=None)

    return close
