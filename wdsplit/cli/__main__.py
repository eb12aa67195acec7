"""The program: `wdsplit`, or `python -m wdsplit.cli`."""

import os
import sys

__all__ = ["ENVIRONMENT", "main"]

ENVIRONMENT = {
    # Arrow's allocator returns memory that was freed some time ago, and the system clears it again for the next batch:
    # by default a tenth of the processor time of a conversion.
    "MIMALLOC_PURGE_DELAY": "-1",
    # New huge pages can cost a virtual machine three times as much as small ones: a quarter of the processor time of a
    # conversion that shuffles in memory.
    "MIMALLOC_ALLOW_THP": "0",
    # numpy starts a thread for each processor, for linear algebra, of which there is none.
    "OPENBLAS_NUM_THREADS": "1",
}
"""What libraries read when they are loaded, unless the user says otherwise; worker processes inherit it."""

_INTERRUPTED, _TERMINATED = 130, 143


def main() -> None:
    """Run the command line. Ctrl-C never prints a traceback, not even during imports."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from wdsplit.cli.main import main as run  # here, because it takes a while
        from wdsplit.cli.signals import end_soon
        from wdsplit.without_pandas import do_without_pandas
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(_INTERRUPTED)
    try:
        run(before=do_without_pandas)
    except SystemExit as ended:
        if ended.code in (_INTERRUPTED, _TERMINATED):
            end_soon(ended.code)
        raise


if __name__ == "__main__":
    main()
