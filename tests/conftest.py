"""How the tests run: hypothesis draws the same examples every time, except in the system tier, and takes its time."""

import gc
import os
import secrets
import signal
import sys

import fsspec
import pytest
from hypothesis import HealthCheck, settings

from faults import FaultProxy
from forked_workers import fork_workers
from paths import SUPPORT
from s3server import S3Server
from tables import end_started
from wdsplit.tables.formats import text

os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SUPPORT / "at_exit"), os.environ.get("PYTHONPATH")]))

# Else each process that the tests start compiles the package, and pytest all tests, once more: half of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# In the background of a shell Ctrl-C is ignored, by whatever is started too; tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

for profile, max_examples in (("quick", 20), ("thorough", 100)):  # chosen by --hypothesis-profile
    settings.register_profile(
        profile,
        derandomize=profile == "quick",
        deadline=None,
        max_examples=max_examples,
        print_blob=False,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("quick")

fork_workers()


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads the option, and xdist sends it to its processes
def pytest_configure(config):
    """Draw one seed for all property tests of the system tier, unless one is given."""
    if config.option.hypothesis_profile == "thorough" and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = secrets.randbits(32)


def pytest_terminal_summary(terminalreporter, config):
    if config.option.hypothesis_seed is not None:
        terminalreporter.write_line(
            f"to draw the same examples again: --hypothesis-seed={config.option.hypothesis_seed}"
        )


def pytest_collection_modifyitems(items):
    """Leave processes that do not fork to the system tier: each of them imports torch, which takes seconds."""
    for item in items:
        params = getattr(item, "callspec", None)
        words = repr(list(params.params.values())) if params else ""
        if "'spawn'" in words or "'forkserver'" in words:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give groups of tests to one process each, where xdist is told to."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from groups import GroupScheduling  # there may be no xdist

    return GroupScheduling(config, log)


def pytest_collection_finish():
    """Let the garbage collector pass over what pytest has collected: else each call of it takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def nothing_is_collected_twice():
    """Let collections, and copies of memory in forks, pass over what the tests of a module have left in it for good."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_process_goes_on():
    """End what a test has started and left."""
    yield
    end_started()


@pytest.fixture(scope="session")
def numbers(tmp_path_factory):
    """Return a dataset of 101 samples whose 7 shards do not go into its 4 lanes, with pads in the tars."""
    from made_datasets import numbers_dataset  # not above: it takes seconds to import torch, which few files need

    return numbers_dataset(tmp_path_factory.mktemp("numbers"), 101, shards=7, lanes=4, window=4)


@pytest.fixture(scope="session")
def whole_lanes(tmp_path_factory):
    """Return a dataset of 96 samples with 2 whole shards in each of 12 lanes."""
    from made_datasets import numbers_dataset

    return numbers_dataset(tmp_path_factory.mktemp("whole_lanes"), 96, shards=24, lanes=12, window=3)


@pytest.fixture
def memory():
    """Return fsspec's file system in memory, which all tests of a process share: empty before and after."""
    made = fsspec.filesystem("memory")

    def clear():
        made.store.clear()
        made.pseudo_dirs[:] = [""]

    clear()
    yield made
    clear()


@pytest.fixture(params=[text.BLOCK_BYTES, 7], ids=["whole", "tiny"])
def block_bytes(request, monkeypatch):
    """Cut files of text into blocks of so many bytes."""
    monkeypatch.setattr(text, "BLOCK_BYTES", request.param)


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    """Return an HTTP server over a folder."""
    folder = tmp_path_factory.mktemp("web") / "served"
    folder.mkdir()
    with S3Server(folder, protocol="http") as server:
        yield server


@pytest.fixture(scope="session")
def s3_process(tmp_path_factory):
    """Return the S3 server of the session; a test may leave it stopped."""
    folder = tmp_path_factory.mktemp("s3") / "buckets"
    folder.mkdir()
    with S3Server(folder) as server:
        yield server


@pytest.fixture(scope="module")
def s3_process_rests(s3_process):
    """Stop the S3 server after each file of tests: after some uploads in parts it is never idle again."""
    yield
    s3_process.stop()


@pytest.fixture
def s3_server(s3_process, s3_process_rests, monkeypatch):
    """Return an S3 server that runs, and that the environment names instead of the user's own."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_process.environ.items():
        monkeypatch.setenv(name, value)
    s3_process.start()
    return s3_process


@pytest.fixture
def bucket(s3_server):
    """Return an empty bucket."""
    made = s3_server.make_bucket()
    yield made
    s3_server.remove_bucket(made)


@pytest.fixture(params=["disk", "s3"])
def place(request, tmp_path):
    """Return the URL of a dataset, and the folder where its files are."""
    if request.param == "s3":
        bucket = request.getfixturevalue("bucket")
        return f"{bucket.url}/train", bucket.folder / "train"
    return str(tmp_path / "train"), tmp_path / "train"


@pytest.fixture
def fault_proxy(s3_server, monkeypatch):
    """Return a proxy before the S3 server, which the environment names from here on; its plan is to do nothing."""
    with FaultProxy(s3_server.port, ignored=s3_server.removed) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy
