"""The program: `wdsplit`, or `python -m wdsplit.cli`."""

import sys

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback from the first moment on."""
    try:
        from wdsplit.cli.main import main as run  # here, because it takes half a second
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(_INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
