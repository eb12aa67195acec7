import ast
import graphlib
import importlib
from pathlib import Path

import pytest

import wdsplit
from loaded import modules_loaded_by
from wdsplit.errors import MissingDependencyError

pytestmark = pytest.mark.lint

ROOT = Path(wdsplit.__file__).parent

LAYERS = [
    ["arrays", "compute", "errors", "urls", "texts", "without_pandas"],
    ["integers", "notebook", "sizes"],
    ["order", "tar", "engines"],
    ["storage"],
    ["jobs", "shards"],
    ["fields", "loading.reading"],
    ["conditions", "indexing", "loading.stages", "loading.transport"],
    ["views"],
    ["tables"],
    [
        *(
            "loading.bad_samples",
            "loading.fluid",
            "loading.second_split",
            "loading.shard_streams",
            "loading.stage_kinds",
        ),
        *("loading.statistics", "loading.tars", "loading.world"),
    ],
    ["loading.announcing", "loading.numbered", "loading.options", "loading.substitutes"],
    ["loading.views"],
    ["loading.epoch_shard_list", "loading.opening"],
    ["loading.dataset", "loading.samples"],
    ["loading.mix", "loading.worker"],
    ["loading.batches", "loading.process_workers"],
    ["loading.progress"],
    ["loading.loader"],
    ["loading"],
    ["conversion.plan", "debug", "integrations"],
    ["conversion.job"],
    ["conversion.shuffle"],
    ["conversion"],
    ["checks", "annotating"],
    ["erasing"],
    ["reporting"],
    [""],
    ["cli"],
]
"""Packages and modules at the root, lowest layer first: a module imports only what is in its own package or below."""

PURE_PACKAGES = ["order", "tar", "fields", "conditions", "conversion.plan"]

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
PACKAGES = [name for name, path in MODULES.items() if path.name == "__init__.py"]

every_module = pytest.mark.parametrize("name", MODULES)


def is_pure(name):
    """Tell whether a module may do no I/O: as its docstring says, or that of the package it is in."""
    around = [name[:end] for end, letter in enumerate(f"{name}.") if letter == "."]
    return any("Pure (no I/O)" in ast.get_docstring(TREES[each]) for each in around if each in TREES)


every_pure_module = pytest.mark.parametrize("name", [name for name in MODULES if is_pure(name)])


def package_of(name):
    """Return the entry of LAYERS with the longest name that a module lies in."""
    entries = [entry for layer in LAYERS for entry in layer if f"{name}.".startswith(f"{entry}." if entry else "")]
    entry = max(entries, key=len)
    assert entry or not name, f"wdsplit.{name} is in no layer: see LAYERS in {Path(__file__).name}"
    return entry


def layer_of(name):
    return next(number for number, layer in enumerate(LAYERS) if package_of(name) in layer)


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
    """Return the modules of wdsplit that a module imports, also in functions and for type checkers, by their names."""
    inner = {
        dotted.removeprefix("wdsplit").lstrip(".")
        for dotted in dotted_imports(name)
        if f"{dotted}.".startswith("wdsplit.")
    }
    return {dotted if dotted in MODULES else dotted.rpartition(".")[0] for dotted in inner} - {name}


@every_module
def test_a_module_imports_from_its_own_package_and_from_layers_below(name):
    here = package_of(name)
    wrong = {each for each in own_imports(name) if package_of(each) != here and layer_of(each) >= layer_of(name)}
    assert not wrong, f"{name} imports {sorted(wrong)}, which is not below it"


@pytest.mark.parametrize(("half", "others"), [("loading", ["tables", "conversion"]), ("conversion", ["loading"])])
def test_loading_and_conversion_meet_only_in_what_lies_below_both(half, others):
    inside = [name for name in MODULES if f"{name}.".startswith(f"{half}.")]
    assert inside
    assert {each for name in inside for each in own_imports(name) if each.split(".")[0] in others} == set()


def test_no_modules_import_each_other_in_a_circle():
    graph = {name: own_imports(name) for name in MODULES if name}
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert order.index("errors") < order.index("order.epoch") < order.index("order.split")


def own_private_names(name):
    """Return the private names that a module defines, of functions and of attributes of `self`."""
    names = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            names.add(node.attr)
    return {each for each in names if each.startswith("_") and not each.startswith("__")}


def test_private_names_of_loading_stay_in_it():
    inside = [name for name in MODULES if f"{name}.".startswith("loading.")]
    private = set().union(*map(own_private_names, inside))
    assert "_finished" in private
    for name in sorted(set(MODULES) - set(inside)):
        used = {node.attr for node in ast.walk(TREES[name]) if isinstance(node, ast.Attribute)}
        assert not used & private - own_private_names(name), name


def test_types_of_arrays_are_defined_once():
    defined = [
        (name, ast.unparse(node))
        for name, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("npt.NDArray")
    ]
    assert len({definition for _, definition in defined}) == len(defined), defined


def test_the_root_holds_packages_and_few_modules():
    assert {path.name for path in ROOT.glob("*.py")} == {
        "__init__.py",
        "arrays.py",
        "compute.py",
        "without_pandas.py",
        "errors.py",
        "integers.py",
        "notebook.py",
        "sizes.py",
        "texts.py",
        "urls.py",
    }


@pytest.mark.parametrize("name", [name for name in PACKAGES if name not in ("", "debug")])
def test_a_package_begins_with_a_docstring_and_nothing_else(name):
    (docstring,) = TREES[name].body
    assert len(ast.get_docstring(TREES[name]).splitlines()) >= 3
    assert isinstance(docstring, ast.Expr)


@pytest.mark.parametrize("name", PURE_PACKAGES)
def test_packages_that_decide_are_pure(name):
    assert is_pure(name)


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


@every_module
def test_a_module_has_a_docstring_that_opens_with_one_sentence(name):
    docstring = ast.get_docstring(TREES[name])
    assert docstring
    assert docstring.splitlines()[0].endswith(".")


def in_order(name):
    """Rank as ruff's RUF022 does: CONSTANTS, then Classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


@pytest.mark.parametrize("name", [name for name in MODULES if name in ("", "debug") or name not in PACKAGES])
def test_a_module_has_a_sorted_all_of_names_that_exist(name):
    try:
        module = importlib.import_module(f"wdsplit.{name}".rstrip("."))
    except MissingDependencyError as error:  # installed by `make test-system` alone
        pytest.skip(str(error))
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
