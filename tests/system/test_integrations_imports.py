"""Training libraries are not loaded by wdsplit, and one that is missing is named with its extra."""

import subprocess
import sys

from loaded import modules_loaded_by

LIBRARIES = {
    "accelerate": ["accelerate"],
    "lightning": ["lightning", "pytorch_lightning"],
    "transformers": ["transformers"],
    "jax": ["jax"],
    "tensorflow": ["tensorflow"],
}


def test_importing_wdsplit_and_its_loader_loads_no_training_library():
    loaded = modules_loaded_by("import wdsplit.integrations, wdsplit.loading.loader")
    assert "wdsplit" in loaded
    assert not loaded & {name for names in LIBRARIES.values() for name in names}


def test_a_library_that_is_missing_is_named_with_the_extra_that_brings_it(numbers):
    """TensorFlow is imported when a loader is made; it needs no torch, nor does JAX."""
    script = f"""
import importlib, sys
import wdsplit
loader = wdsplit.Loader(wdsplit.Dataset({numbers!r}), 8)
for name, names in {LIBRARIES}.items():
    sys.modules.update(dict.fromkeys(names))
    if name == "jax":
        sys.modules["torch"] = None
    try:
        module = importlib.import_module(f"wdsplit.integrations.{{name}}")
        module.TensorFlowLoader(loader)
    except wdsplit.MissingDependencyError as error:
        print(error.cause, error.remedy)
    for each in names:
        del sys.modules[each]
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for name, line in zip(LIBRARIES, lines, strict=True):
        assert f"{name} is not installed" in line
        assert f"pip install 'wdsplit[{name}]'" in line
