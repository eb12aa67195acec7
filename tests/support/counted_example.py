"""Run an example, and tell how often each rank has updated the parameters.

counted_example.py EXAMPLE ARGUMENT...
"""

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
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
    print(f"rank {os.environ['RANK']} has updated the parameters {next(updates)} times")
