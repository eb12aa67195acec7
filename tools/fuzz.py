"""Fuzz a parser of untrusted bytes with atheris (libFuzzer): manifest, places, a view, or a whole tar.

What must hold stands in tests/support/fuzz_targets.py. Inputs that lead anywhere new are kept in the corpus; one that
fails is written beside it and the run ends. Needs atheris (pip install atheris), which is not among the extras.
"""

from __future__ import annotations

import argparse
import random
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests" / "support"
MAX_BYTES = 64 * 1024


def mutator(targets: Any, atheris: Any, tar_begins: int) -> Any:
    """Return what changes a tar: as libFuzzer would, or as a tar by its blocks; most checksums are put right again."""

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        chance = random.Random(seed)
        lead, tar = data[:tar_begins].ljust(tar_begins, b"\0"), data[tar_begins:]
        if chance.random() < 0.5:
            changed = atheris.Mutate(bytes(lead + tar), max_size)
            lead, tar = changed[:tar_begins].ljust(tar_begins, b"\0"), changed[tar_begins:]
        else:
            for _ in range(chance.randint(1, 3)):
                tar = targets.mutated(tar, chance)
        if chance.random() < 0.9:
            tar = targets.mended(tar)
        return bytes((lead + tar)[:max_size])

    return mutate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=("manifest", "places", "scan", "view"))
    parser.add_argument("corpus", type=Path, help="folder of inputs; seeds are put there if it is empty")
    parser.add_argument("--seconds", type=int, default=900)
    parser.add_argument("--memory", type=int, default=2048, help="MB; more is a failure")
    args = parser.parse_args()
    atheris = import_module("atheris")
    sys.path.insert(0, str(TESTS))
    with atheris.instrument_imports(include=["wdsplit"]):
        targets = import_module("fuzz_targets")
    target, seeds, tar_begins = targets.TARGETS[args.target]
    args.corpus.mkdir(parents=True, exist_ok=True)
    if not any(args.corpus.iterdir()):
        for number, seed in enumerate(seeds()):
            (args.corpus / f"seed-{number:02d}").write_bytes(seed)
    accepted = [0, 0]

    def run(data: bytes) -> None:
        accepted[bool(target(data))] += 1
        if sum(accepted) % 10_000 == 0:
            print(f"{args.target}: {accepted[0]} refused, {accepted[1]} accepted", flush=True)

    options = [
        f"-max_total_time={args.seconds}",
        f"-max_len={MAX_BYTES}",
        f"-rss_limit_mb={args.memory}",
        "-timeout=20",
        "-print_final_stats=1",
        f"-artifact_prefix={args.corpus.parent}/",
    ]
    custom = {} if tar_begins is None else {"custom_mutator": mutator(targets, atheris, tar_begins)}
    atheris.Setup([sys.argv[0], str(args.corpus), *options], run, **custom)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
