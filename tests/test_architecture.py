import ast
import graphlib
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import wdsplit

ROOT = Path(wdsplit.__file__).parent

LAYERS = {
    "pure": {
        "arrowtype",
        "block",
        "compare",
        "decode",
        "distribution",
        "encode",
        "errors",
        "fields",
        "grouping",
        "index",
        "keys",
        "manifest",
        "mixture",
        "options",
        "order",
        "permute",
        "plan",
        "planfile",
        "published",
        "rules",
        "sample",
        "select",
        "shardtable",
        "sidecars",
        "sizes",
        "split",
        "state",
        "syntax",
        "table",
        "tar",
        "tarheaders",
        "tarsamples",
        "tarscan",
        "urls",
        "values",
        "where",
        "window",
    },
    "edge": {
        "cache",
        "cachefolder",
        "ahead",
        "counting",
        "cuts",
        "emit",
        "engine",
        "filesystems",
        "finding",
        "formats",
        "fsconnection",
        "gather",
        "inputs",
        "locks",
        "merge",
        "mounts",
        "notes",
        "openshard",
        "rayconnection",
        "rayengine",
        "rayerrors",
        "rayworker",
        "retry",
        "s3",
        "s3client",
        "s3file",
        "s3upload",
        "scatter",
        "shared",
        "shards",
        "spill",
        "spilled",
        "storage",
        "stores",
        "world",
    },
    "composition": {
        "adopt",
        "audit",
        "collate",
        "converter",
        "counters",
        "dataset",
        "debug",
        "decoders",
        "images",
        "iteration",
        "loader",
        "lookup",
        "mixing",
        "parts",
        "partshare",
        "partwise",
        "passes",
        "payloads",
        "planning",
        "processes",
        "randomness",
        "reader",
        "run",
        "running",
        "segments",
        "shardlist",
        "source",
        "stages",
        "task",
        "threads",
        "unique",
        "verify",
    },
    "adapters": {"", "__main__", "cli", "integrations"},
}
"""The layers, lowest first, by the first name below `wdsplit`; imports go up this list only (ARCHITECTURE.md)."""

OUTSIDE_WORLD = {
    "asyncio",
    "datetime",
    "fsspec",
    "glob",
    "http",
    "logging",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "s3fs",
    "secrets",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "torch",
    "urllib",
    "uuid",
    "webdataset",
}
"""What a function of its arguments alone has no use for: files, network, clock, environment, chance, torch."""


def module_name(path):
    """Return `cli.main` for wdsplit/cli/main.py and the empty name for wdsplit/__init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}

every_module = pytest.mark.parametrize("name", MODULES)
every_pure_module = pytest.mark.parametrize("name", [name for name in MODULES if name in LAYERS["pure"]])


def layer_of(name):
    top = name.split(".")[0]
    for number, names in enumerate(LAYERS.values()):
        if top in names:
            return number
    raise AssertionError(
        f"wdsplit/{top} is in no layer: add it to LAYERS in {Path(__file__).name}, as low as it can stand"
    )


def dotted_imports(name):
    """Return the dotted names that a module imports, anywhere in it; relative ones made absolute."""
    package = (
        ["wdsplit", *name.split(".")] if MODULES[name].name == "__init__.py" else ["wdsplit", *name.split(".")[:-1]]
    )
    found = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = [part for part in package if part][: -(node.level - 1) or None] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{origin}.{alias.name}" for alias in node.names}
    return found


def own_imports(name):
    """Return the modules of wdsplit that a module imports, by their names below `wdsplit`."""
    inner = {
        dotted.removeprefix("wdsplit").lstrip(".")
        for dotted in dotted_imports(name)
        if f"{dotted}.".startswith("wdsplit.")
    }
    return {dotted if dotted in MODULES else dotted.rpartition(".")[0] for dotted in inner} - {name}


def modules_loaded_by(statement):
    script = f"import sys\n{statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@every_module
def test_each_module_has_a_layer(name):
    assert layer_of(name) in range(len(LAYERS))


@every_module
def test_a_module_imports_from_its_own_layer_and_below(name):
    above = {other for other in own_imports(name) if layer_of(other) > layer_of(name)}
    assert not above, f"{name} imports {above} from a layer above its own"


def test_no_modules_import_each_other_in_a_circle():
    graph = {name: own_imports(name) for name in MODULES if name}
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert order.index("errors") < order.index("order") < order.index("split")


@every_pure_module
def test_a_pure_module_reaches_for_nothing_outside_its_arguments(name):
    outside = {dotted for dotted in dotted_imports(name) if dotted.split(".")[0] in OUTSIDE_WORLD}
    outside = {dotted for dotted in outside if not dotted.startswith("urllib.parse")}
    assert not outside, f"{name} is pure, but imports {outside}"


@every_pure_module
def test_a_pure_module_neither_opens_files_nor_prints(name):
    called = {
        node.func.id for node in ast.walk(TREES[name]) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"open", "print", "input", "exec", "eval"}


@every_pure_module
def test_a_pure_module_says_so(name):
    assert name == "errors" or "Pure (no I/O)" in ast.get_docstring(TREES[name])


@every_module
def test_a_module_has_a_docstring_that_opens_with_one_sentence(name):
    docstring = ast.get_docstring(TREES[name])
    assert docstring
    assert docstring.splitlines()[0].endswith(".")


def in_order(name):
    """Rank as ruff's RUF022 does: CONSTANTS, then Classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


@pytest.mark.parametrize("name", [name for name in MODULES if not name.split(".")[-1].startswith("_")])
def test_a_public_module_has_a_sorted_all_of_names_that_exist(name):
    module = importlib.import_module(f"wdsplit.{name}".rstrip("."))
    assert list(module.__all__) == sorted(set(module.__all__), key=in_order)
    assert [each for each in module.__all__ if not hasattr(module, each)] == []


def test_importing_wdsplit_loads_nothing_that_is_large_or_optional():
    loaded = modules_loaded_by("import wdsplit")
    assert "wdsplit" in loaded
    assert not loaded & {"torch", "s3fs", "fsspec", "webdataset", "ray"}


def test_converting_needs_no_torch():
    loaded = modules_loaded_by("import wdsplit.conversion.convert")
    assert "pyarrow" in loaded
    assert not loaded & {"torch", "webdataset", "ray", "s3fs"}
