"""Functions that are called in a fork of this process: a fresh Python takes a second to import what they need."""

import os
import sys
import traceback


def call_and_exit(function, *arguments):
    """Call a function and end this process, a fork: with the code that it returns or exits with, or 1 if it raises."""
    code = 1
    try:
        code = function(*arguments) or 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def code_of_fork(function, *arguments):
    """Call a function in a fork; return the code that it ends with."""
    pid = os.fork()
    if pid == 0:
        call_and_exit(function, *arguments)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
