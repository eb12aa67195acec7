"""Which modules an import loads."""

import subprocess
import sys


def modules_loaded_by(statement):
    return {name.split(".")[0] for name in all_modules_loaded_by(statement)}


def all_modules_loaded_by(statement):
    """Return the dotted names of all modules that a process has loaded after some statements."""
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split("\n")[-2].split())
