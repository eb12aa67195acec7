"""Install the wheel and the sdist as users do, and use them: with each supported Python that is on PATH.

Each Python gets clean environments in a temporary folder: the wheel with the newest dependencies, and with the lowest
that pyproject.toml names. The first Python installs the sdist too. Each environment converts a table, and loads an
epoch without torch. Needs uv and a registry of packages.

Example: python -m tools.check_release --tag v0.2.0 --keep dist
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = 1_000
SHOWN = ("numpy", "pyarrow", "click")
"""Libraries whose versions are printed."""
DEADLINE_S = 900
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


class ReleaseError(Exception):
    """What is wrong with the release, for people."""


class Archives(NamedTuple):
    """The two files of a release."""

    wheel: Path
    sdist: Path


class Case(NamedTuple):
    """One way to install a release."""

    python: str
    """A version, such as "3.12"."""
    source: str
    """What is installed: "wheel" or "sdist"."""
    versions: str
    """Those of the dependencies: "newest" or "lowest"."""


def run(*command: str | Path, folder: Path) -> str:
    """Run a program in a folder and return what it prints. An error has the end of what it printed."""
    words = list(map(str, command))
    try:
        done = subprocess.run(
            words, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ReleaseError(f"{' '.join(words)}: no end within {DEADLINE_S} s") from None
    if done.returncode:
        raise ReleaseError(f"{' '.join(words)}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def uv(*arguments: str | Path, folder: Path) -> str:
    """Run uv, and let it use the Pythons of this machine alone."""
    return run(sys.executable, "-m", "uv", *arguments, "--no-python-downloads", folder=folder)


# The archives


def source_files() -> list[str]:
    """Return the paths of all files that git tracks, or that would be added."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", folder=ROOT)
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def build(folder: Path) -> Archives:
    """Build both archives from a copy of the files of the repository, without what earlier builds left there."""
    for name in source_files():
        copy = folder / "source" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy)
    uv("build", folder / "source", "--out-dir", folder / "dist", folder=folder)
    return archives_in(folder / "dist")


def archives_in(folder: Path) -> Archives:
    """Return the wheel and the sdist of a folder that has one of each."""
    wheels, sdists = sorted(folder.glob("wdsplit-*.whl")), sorted(folder.glob("wdsplit-*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        found = f"{len(wheels)} wheels and {len(sdists)} sdists"
        raise ReleaseError(f"{folder}: expected one wheel and one sdist of wdsplit, found {found}")
    return Archives(wheels[0].resolve(), sdists[0].resolve())


def package_files() -> set[str]:
    """Return the paths of all files of the package in this repository."""
    files = (path for path in (ROOT / "wdsplit").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in files}


def check_contents(archives: Archives, package: Iterable[str]) -> None:
    """Check that the wheel has the package, its licence and nothing else, and that the sdist has both, no tests."""
    with zipfile.ZipFile(archives.wheel) as wheel:
        in_wheel = set(wheel.namelist())
    with tarfile.open(archives.sdist) as sdist:
        in_sdist = {name.partition("/")[2] for name in sdist.getnames()}
    metadata = {name for name in in_wheel if name.split("/")[0].endswith(".dist-info")}
    problems = [f"the wheel lacks {name}" for name in sorted(set(package) - in_wheel)]
    problems += [f"the wheel has {name}" for name in sorted(in_wheel - metadata - set(package))]
    problems += [f"the sdist lacks {name}" for name in sorted({*package, "LICENSE", "pyproject.toml"} - in_sdist)]
    problems += [f"the sdist has {name}" for name in sorted(in_sdist) if name.startswith(("tests/", "tools/"))]
    if not any(Path(name).name == "LICENSE" for name in metadata):
        problems.append("the wheel lacks LICENSE")
    if problems:
        raise ReleaseError("\n".join(problems))


# Installing and using


def supported() -> list[str]:
    """Return the versions of Python that pyproject.toml names."""
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())


def find_python(version: str) -> str | None:
    """Return the path of an interpreter that runs, or None. A shim on PATH may stand for none."""
    try:
        return uv("python", "find", "--system", "--no-project", version, folder=ROOT).strip()
    except ReleaseError:
        return None


def install(case: Case, interpreter: str, archives: Archives, folder: Path) -> Path:
    """Make an environment, install wdsplit into it, and return its folder of programs."""
    environment = folder / "env"
    python = environment / "bin" / "python"
    uv("venv", "--seed", "--python", interpreter, environment, folder=folder)
    archive = archives.wheel if case.source == "wheel" else archives.sdist
    if case.versions == "newest":
        run(python, "-m", "pip", "install", archive, folder=folder)
    else:
        lowest = ("--resolution", "lowest-direct", "--only-binary", ":all:")
        needed = ("--requirements", ROOT / "pyproject.toml", "--extra", "s3")
        uv("pip", "install", "--python", python, *lowest, *needed, folder=folder)
        uv("pip", "install", "--python", python, "--no-deps", archive, folder=folder)
    return python.parent


def use(programs: Path, version: str, folder: Path) -> str:
    """Use what is installed, and return the versions of some libraries."""
    printed = run(programs / "wdsplit", "--version", folder=folder)
    if printed.split()[-1:] != [version]:
        raise ReleaseError(f"wdsplit --version: expected {version}, got {printed.strip()}")
    inside = (programs / "python", "-I", Path(__file__).resolve(), "--inside")
    run(*inside, "write", folder=folder)
    run(programs / "wdsplit", "convert", "table.parquet", "data", "--world-size", "2", folder=folder)
    run(programs / "wdsplit", "verify", "data", folder=folder)
    return run(*inside, "read", folder=folder).strip()


def write_table() -> None:
    """Write a small table into the current folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"__key__": [f"{row:04d}" for row in range(SAMPLES)], "cls": list(range(SAMPLES))}
    pq.write_table(pa.table(columns), "table.parquet", row_group_size=100)


def read_epoch() -> None:
    """Load an epoch by two ranks with arrays of numpy, check that each sample comes once, and print versions."""
    from importlib.metadata import version

    import wdsplit

    if ROOT in Path(wdsplit.__file__).parents:
        raise ReleaseError(f"wdsplit comes from the source tree: {wdsplit.__file__}")
    found: list[int] = []
    for rank in range(2):
        dataset = wdsplit.Dataset("data", rank=rank, world_size=2).decode()
        for batch in wdsplit.Loader(dataset, 32, num_workers=2, workers="thread", output="numpy"):
            found += batch["cls"][~batch["__pad__"]].tolist()
    if sorted(found) != list(range(SAMPLES)):
        raise ReleaseError(f"expected {SAMPLES} samples once, got {len(found)} of which {len(set(found))} differ")
    if "torch" in sys.modules:
        raise ReleaseError("loading with numpy has imported torch")
    print(", ".join(f"{name} {version(name)}" for name in SHOWN))


# The report


def check(case: Case, interpreter: str, archives: Archives) -> str:
    """Install and use a release in a folder of its own; return the versions of some libraries."""
    with tempfile.TemporaryDirectory(prefix="wdsplit-release-") as name:
        folder = Path(name).resolve()
        return use(install(case, interpreter, archives, folder), archives.wheel.name.split("-")[1], folder)


def print_row(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def check_release(archives: Archives) -> bool:
    """Check both archives with each Python, print a row for each, and return whether all were right."""
    check_contents(archives, package_files())
    failures: list[str] = []
    print_row(("Python", "installed from", "dependencies", "versions", "result"))
    print_row(["---"] * 5)
    sdist_left = True
    for python in supported():
        interpreter = find_python(python)
        if interpreter is None:
            print_row((python, "", "", "", "skipped: not found"))
            continue
        cases = [Case(python, "wheel", "newest"), Case(python, "wheel", "lowest")]
        cases += [Case(python, "sdist", "newest")] if sdist_left else []
        sdist_left = False
        for case in cases:
            try:
                print_row((*case, check(case, interpreter, archives), "ok"))
            except ReleaseError as failure:
                print_row((*case, "", "failed"))
                failures.append(f"{' '.join(case)}: {failure}")
    if sdist_left:
        failures.append(f"no Python found: looked for {', '.join(supported())} on PATH")
    print(*failures, sep="\n\n", file=sys.stderr)
    return not failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="put the archives into this folder if all is right")
    parser.add_argument("--tag", metavar="TAG", help="check that the version is that of a tag, such as v0.2.0")
    parser.add_argument("--inside", choices=("write", "read"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        if options.inside:
            write_table() if options.inside == "write" else read_epoch()
            return
        with tempfile.TemporaryDirectory(prefix="wdsplit-release-") as name:
            archives = build(Path(name).resolve())
            if options.tag not in (None, f"v{archives.wheel.name.split('-')[1]}"):
                raise ReleaseError(f"the tag is {options.tag}, and the archive {archives.wheel.name}")
            right = check_release(archives)
            if right and options.keep is not None:
                options.keep.mkdir(parents=True)
                for archive in archives:
                    shutil.copy2(archive, options.keep)
    except ReleaseError as failure:
        sys.exit(str(failure))
    sys.exit(not right)


if __name__ == "__main__":
    main()
