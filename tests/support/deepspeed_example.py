"""Run an example of DeepSpeed without compiling its operator for collectives on CPUs.

deepspeed_example.py EXAMPLE ARGUMENT...
"""

import importlib
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
