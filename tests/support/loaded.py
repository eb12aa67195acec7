"""Which modules an import loads."""

import subprocess
import sys


def modules_loaded_by(statement):
    return {name.split(".")[0] for name in all_modules_loaded_by(statement)}


def all_modules_loaded_by(statement):
    """Return the dotted names of all modules that a process has loaded after some statements."""
    return loaded_after(statement)[0]


def loaded_after(*statements):
    """Return the same after each of some statements, which one process executes one after the other."""
    script = "\n".join(["import sys", *(f"{statement}\nprint('\\nloaded', *sys.modules)" for statement in statements)])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [{*line.split()[1:]} for line in done.stdout.splitlines() if line.startswith("loaded ")]
