"""Python runs this when it starts, because the tests have it on their path.

A gloo thread that frees its last tensor while the interpreter ends aborts the process, whether the process group was
destroyed or not (https://github.com/pytorch/pytorch/pull/179291, https://github.com/pytorch/pytorch/issues/190489).
Where processors are scarce that happens once in some fifty runs. So ranks that used gloo give its threads a moment.
"""

import atexit
import time
from contextlib import suppress
from pathlib import Path

PAUSE_S = 0.3


def let_gloo_end():
    with suppress(OSError):
        names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
        if "pt_gloo_runloop" in names:
            time.sleep(PAUSE_S)


atexit.register(let_gloo_end)
