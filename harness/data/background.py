"""Long native calls beside the main thread, so that Ctrl-C and SIGTERM are heard at once.

Python runs signal handlers only in the main thread and only between bytecodes: a library that
computes there for minutes makes the process deaf. It works for calls that release the interpreter
lock, as the training and the encoding of ``tokenizers`` do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

_T = TypeVar("_T")

_WAKE_S = 0.5
"""A signal that the kernel gives to another thread is noticed after this long at the latest."""


def call_interruptibly(function: Callable[[], _T]) -> _T:
    """Give what ``function`` gives, or raise what it raises, from a thread of its own.

    When the wait is interrupted the call is left to itself: nothing can stop it from outside, and
    it dies with the process, whose exit it does not hold up. So ``function`` must only compute;
    what has to be undone belongs to the caller.
    """
    future: Future[_T] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - a panic of Rust too; raised by the caller
            future.set_exception(error)

    threading.Thread(target=work, name="native", daemon=True).start()
    while wait([future], timeout=_WAKE_S).not_done:
        continue
    return future.result()
