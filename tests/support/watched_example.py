"""Run an example, and tell how often each rank has updated the parameters.

    watched_example.py EXAMPLE ARGUMENT...

DeepSpeed does not compile its operator for collectives on CPUs.
"""

import importlib
import itertools
import os
import runpy
import sys
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

if __name__ == "__main__":
    updates = itertools.count()
    register_optimizer_step_post_hook(lambda *_: next(updates) and None)
    sys.argv = sys.argv[1:]
    if "deepspeed" in sys.argv[0]:
        importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
    print(f"rank {os.environ['RANK']} has updated the parameters {next(updates)} times")
