"""The training examples, run by torchrun: on which data, with which arguments, and what they printed."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from paths import EXAMPLES, SUPPORT
from torchruns import torchrun
from wdsplit import ConvertOptions, convert

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
"""With the programs of this environment in front."""
SMALL = ("--size=8", "--epochs=2", "--batch-size=32")
STEPS = 23
"""Steps of an epoch: 1,442 digits on two ranks."""
NUM_TEST = 355
STOPPED_AFTER = 10


@dataclass(frozen=True)
class Printed:
    """What an example printed.

    Attributes:
        output: All of it.
        losses: The loss of each epoch.
        accuracies: The held-out accuracy after each epoch.
        counts: Over how many images, where it says so.
        parameters: The hash of the parameters at the end.
    """

    output: str
    losses: list[float]
    accuracies: list[float]
    counts: list[int]
    parameters: str


def parse_output(output):
    # Lines are found wherever they begin: that of another rank may have no end yet.
    counts = [
        int(count.replace(",", "")) for count in re.findall(r"held-out accuracy \S+ \([\d,]+ of ([\d,]+)\)", output)
    ]
    return Printed(
        output,
        [float(loss) for loss in re.findall(r"epoch \d+: loss ([\d.]+)", output)],
        [float(accuracy) for accuracy in re.findall(r"held-out accuracy ([\d.]+)", output)],
        counts,
        (re.findall(r"parameters ([0-9a-f]{32})", output) or [""])[-1],
    )


def run(script, *arguments, out, ranks=2):
    """Run an example; return what it printed."""
    scripts = script if isinstance(script, tuple) else (script,)
    first, *rest = (path if (path := SUPPORT / name).exists() else EXAMPLES / name for name in scripts)
    ended = torchrun(ranks, first, *rest, *arguments, out=out)
    assert ended.returncode == 0, ended.output
    return parse_output(ended.output)


def write_programs(folder, **programs):
    """Write scripts that stand in for programs into a folder; return the PATH that finds them first."""
    folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{PATH}"


def make_digits(folder):
    """Make the datasets of digits to train on and to test with; return their paths."""
    command = [sys.executable, str(EXAMPLES / "make_digits.py"), str(folder / "tables")]
    subprocess.run(command, check=True, capture_output=True)
    for name in ("train", "test"):
        options = ConvertOptions(world_size=2, workers=2, shuffle=name == "train")
        convert([str(folder / "tables" / f"{name}-*.parquet")], str(folder / name), options)
    return str(folder / "train"), str(folder / "test")
