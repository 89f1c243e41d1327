import os
import signal
import threading

import pytest

from harness.data.background import call_interruptibly


def test_the_result_and_the_error_come_back():
    assert call_interruptibly(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        call_interruptibly(lambda: 1 // 0)


def test_a_call_longer_than_one_wait_is_waited_for(monkeypatch):
    monkeypatch.setattr("harness.data.background._WAKE_S", 0.001)
    assert not call_interruptibly(lambda: threading.Event().wait(0.02))


def test_a_signal_ends_the_wait_and_not_the_call():
    """Ctrl-C did nothing until the native call was over."""
    leave, left = threading.Event(), threading.Event()

    def deaf() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        leave.wait(30)
        left.set()

    with pytest.raises(KeyboardInterrupt):
        call_interruptibly(deaf)
    assert not left.is_set()
    leave.set()
    assert left.wait(30)
