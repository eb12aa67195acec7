"""Signals while a command runs: SIGTERM ends it as Ctrl-C does, and both end it soon, whatever it waits for.

Batch systems, Kubernetes and systemd end programs with SIGTERM. Only commands handle it: the library leaves signals
to the program that imports it.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

__all__ = ["end_soon", "sigterm_as_ctrl_c"]

_END_S = 1.2
"""Seconds that a command has to end after a signal: a thread that waits for a store cannot be interrupted."""
_EXIT_S = 0.3
"""Seconds that Python has to exit afterwards: it waits for such threads too."""
_MESSAGES = {int(signal.SIGINT): b"\ninterrupted\n", int(signal.SIGTERM): b"\nended by SIGTERM\n"}
_AGAIN_S = 0.05
"""Seconds until a lost KeyboardInterrupt is raised again."""


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[list[int]]:
    """Treat SIGTERM like Ctrl-C: it interrupts the block, or is deferred where Ctrl-C is.

    Python loses a KeyboardInterrupt that is raised in a callback, such as an at-fork hook; this raises it again. If the
    block has not ended some time after a signal, the program ends without waiting for its threads.
    Ignored signals stay ignored. Does nothing outside of the main thread.

    Yields:
        The SIGTERMs received so far.
    """
    received: list[int] = []
    process = os.getpid()
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()  # its put may interrupt itself

    def ctrl_c(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            signals.put(number)
        before[number](number, frame)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a fork of this process, which must not clean up
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        received.append(number)
        signals.put(number)
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

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    threading.Thread(target=_end_late, args=(signals,), daemon=True).start()
    before: dict[int, Any] = {}
    report_lost, sys.unraisablehook = sys.unraisablehook, after_lost_interrupt
    for number, handler in ((signal.SIGTERM, interrupt), (signal.SIGINT, ctrl_c)):
        if callable(known := signal.getsignal(number)) or (number == signal.SIGTERM and known is not signal.SIG_IGN):
            before[number] = known
            signal.signal(number, handler)
    try:
        yield received
    finally:
        for changed, known in before.items():
            signal.signal(changed, known or signal.SIG_DFL)
        signals.put(0)
        sys.unraisablehook = report_lost
        if signal.getsignal(signal.SIGALRM) is again:  # nothing may be raised after the block
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _end_late(signals: queue.SimpleQueue[int]) -> None:
    """End the program if a command does not end soon after its first signal; 0 says that it has ended."""
    if not (number := signals.get()):
        return
    deadline = time.monotonic() + _END_S
    with suppress(queue.Empty):
        while signals.get(timeout=max(0.0, deadline - time.monotonic())):
            pass
        return
    os.write(2, _MESSAGES[number])
    os._exit(128 + number)


def end_soon(code: int) -> None:
    """Let this program exit within a short time, even if its threads do not end."""

    def end() -> None:
        time.sleep(_EXIT_S)
        os._exit(code)

    sys.stdout.flush()
    threading.Thread(target=end, daemon=True).start()
