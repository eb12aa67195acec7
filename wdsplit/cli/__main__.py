"""The program: `wdsplit`, or `python -m wdsplit.cli`."""

import sys

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command line. Ctrl-C never prints a traceback, not even during imports."""
    try:
        from wdsplit.cli.main import main as run  # here, because it takes a while
        from wdsplit.without_pandas import do_without_pandas
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(_INTERRUPTED)
    run(before=do_without_pandas)


if __name__ == "__main__":
    main()
