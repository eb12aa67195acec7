"""Signals while a command runs: SIGTERM ends it as Ctrl-C does.

SIGTERM is how batch systems, Kubernetes and systemd end programs. Only commands do this: the library leaves signals
to whoever uses it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["sigterm_as_ctrl_c"]

_AGAIN_S = 0.05
"""How long after a KeyboardInterrupt was lost another one is raised."""


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[list[int]]:
    """Treat SIGTERM as Ctrl-C is treated at that moment: it interrupts the block, or is deferred where Ctrl-C is.

    Python loses a KeyboardInterrupt that is raised in a callback, such as those of a fork; it is raised again here.
    Nothing changes where SIGTERM is ignored, and outside of the main thread.

    Yields:
        The SIGTERMs that have come so far.
    """
    received: list[int] = []
    process = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # forked from this one, and not meant to clear up
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        received.append(number)
        on_ctrl_c = signal.getsignal(signal.SIGINT)
        if not callable(on_ctrl_c):  # ignored, as in the background of a shell
            raise KeyboardInterrupt
        on_ctrl_c(signal.SIGINT, frame)

    def again(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def after_lost_interrupt(lost: sys.UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, KeyboardInterrupt) and os.getpid() == process:
            signal.signal(signal.SIGALRM, again)
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        else:
            report_lost(lost)

    before = signal.getsignal(signal.SIGTERM)
    if before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield received
        return
    report_lost, sys.unraisablehook = sys.unraisablehook, after_lost_interrupt
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        sys.unraisablehook = report_lost
        if signal.getsignal(signal.SIGALRM) is again:  # nothing may be raised after the block
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
