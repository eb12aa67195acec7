"""Signals while a command runs: SIGTERM ends it as Ctrl-C does.

Batch systems, Kubernetes and systemd end programs with SIGTERM. Only commands handle it: the library leaves signals
to the program that imports it.
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
"""Seconds until a lost KeyboardInterrupt is raised again."""


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[list[int]]:
    """Treat SIGTERM like Ctrl-C: it interrupts the block, or is deferred where Ctrl-C is.

    Python loses a KeyboardInterrupt that is raised in a callback, such as an at-fork hook; this raises it again.
    Does nothing if SIGTERM is ignored, or outside of the main thread.

    Yields:
        The SIGTERMs received so far.
    """
    received: list[int] = []
    process = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a fork of this process, which must not clean up
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
