import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import engine_checks
import wdsplit
from faults import Delay, FaultProxy
from raycluster import RayCluster
from s3server import free_port
from tables import files_of, wait_until, without_progress, write_files, write_table
from torchruns import processes_with
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.shuffle.steps import SPILL_FOLDER
from wdsplit.errors import InputError

pytestmark = pytest.mark.xdist_group("ray")

WDSPLIT = str(Path(sys.executable).with_name("wdsplit"))
TIMEOUT_S = 300


@pytest.fixture(scope="session")
def store_proxy(s3_process):
    """Return a proxy before the S3 server, by which clusters reach it."""
    with FaultProxy(s3_process.port) as proxy:
        yield proxy


@pytest.fixture
def slow_store(store_proxy):
    """Let clusters take so long to write a shard that a conversion is not over before it is interrupted."""

    def plan(request):
        return Delay(0.5) if request.method == "PUT" and request.path.partition("?")[0].endswith(".tar") else None

    store_proxy.plan = plan
    yield store_proxy
    store_proxy.plan = at_once


def at_once(request):
    """Do nothing to requests."""


@pytest.fixture(scope="session")
def environ(s3_process, store_proxy):
    return {**s3_process.environ, "AWS_ENDPOINT_URL": store_proxy.endpoint}


@pytest.fixture(scope="session")
def cluster(environ):
    """Return a cluster of a head without processors and two nodes; it serves `ray://` too."""
    made = RayCluster(3, environ=environ, head_cpus=0, client_port=free_port())
    yield made
    made.close()


def on(cluster, *command, **options):
    """Run a command that finds a cluster; return how it ended."""
    ended = subprocess.run(
        [*map(str, command)], env=cluster.environ, capture_output=True, text=True, timeout=TIMEOUT_S, **options
    )
    assert "ray::" not in ended.stderr
    ended.stderr = without_progress(ended.stderr)
    return ended


def wdsplit_on(cluster, *arguments):
    return on(cluster, WDSPLIT, *arguments)


# What holds for every engine


@pytest.fixture(scope="session")
def ray_checks(cluster, table, tmp_path_factory):
    """Return what each check has found on the cluster: nothing, or where it failed."""
    folder = tmp_path_factory.mktemp("checks")
    shutil.copy(table, folder)
    ended = on(cluster, sys.executable, engine_checks.__file__, "auto", folder)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("name", sorted(engine_checks.CHECKS | engine_checks.RAY_CHECKS))
def test_what_holds_for_every_engine_holds_on_a_ray_cluster(ray_checks, name):
    assert ray_checks[name] == ""


# The command, and what stands in its way


def test_a_table_goes_from_bucket_to_bucket(cluster, bucket, table, tmp_path):
    shutil.copy(table, bucket.folder / "in.parquet")
    options = ["--no-shuffle", "--shards", 8, "--world-size", 4]
    ended = wdsplit_on(cluster, "convert", f"{bucket.url}/in.parquet", f"{bucket.url}/train", *options, "--engine=ray")
    assert (ended.returncode, ended.stderr) == (0, "")
    wdsplit.convert(f"{bucket.url}/in.parquet", tmp_path, ConvertOptions(shards=8, world_size=4, shuffle=False))
    assert files_of(bucket.folder / "train") == files_of(tmp_path)
    ended = wdsplit_on(cluster, "verify", f"{bucket.url}/train", "--engine=ray", "--address", cluster.address)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ": ok: " in ended.stdout
    views = [
        ("some", {"where": "column('__key__') < '00000777'"}),
        ("packed", {"pack": "num_bytes", "capacity": 100_000}),
        ("grouped", {"group": "num_bytes", "budget": 100_000}),
    ]
    for name, chosen in views:
        options = [text for option, value in chosen.items() for text in (f"--{option}", value)]
        remote = f"{bucket.url}/train", name, *options
        ended = wdsplit_on(cluster, "view", *remote, "--engine=ray", "--address", cluster.address)
        warned = "where" not in chosen
        assert ended.returncode == 0 and ("the rows were not shuffled" in ended.stderr) == warned == bool(ended.stderr)
        made = wdsplit.make_view(tmp_path, name, **chosen)
        assert made.stored.num_selected == (777 if "where" in chosen else made.stored.num_samples) > 1
        assert made.stored.num_units < made.stored.num_samples
    assert files_of(bucket.folder / "train") == files_of(tmp_path)


def test_paths_may_be_relative(cluster, table, tmp_path):
    shutil.copy(table, tmp_path)
    ended = on(cluster, WDSPLIT, "convert", "in.parquet", "out", "--engine=ray", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "out" / "wdsplit.json").exists()


@pytest.mark.parametrize("bad", [[777], [777, 1500]])
def test_bad_input_is_named_as_without_a_cluster_and_all_other_shards_are_written(cluster, tmp_path, bad):
    values = [None if row in bad else row for row in range(2000)]
    path = write_table(tmp_path / "in.parquet", {"label": pa.array(values)}, rows_per_group=50)
    arguments = ("convert", path, tmp_path / "out", "--no-shuffle", "--shards", 8)
    ended = wdsplit_on(cluster, *arguments, "--engine=ray")
    assert ended.returncode == 2
    for row in bad:
        assert f"in.parquet, row {row}" in ended.stderr
    assert len(list((tmp_path / "out").glob("*.tar"))) == 8 - len(bad)
    alone = subprocess.run(
        [WDSPLIT, *map(str, arguments), "--jobs=1", "--overwrite"],
        capture_output=True,
        text=True,
    )
    if len(bad) == 1:
        assert ended.stderr == alone.stderr
    else:
        assert "2 tasks failed" in ended.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9"])
def test_a_cluster_that_cannot_be_reached_is_an_error_with_a_remedy(table, tmp_path, address):
    environ = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environ |= {"RAY_TMPDIR": str(tmp_path)}
    arguments = ["convert", table, str(tmp_path / "out"), "--engine=ray", "--address", address]
    ended = subprocess.run([WDSPLIT, *arguments], env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: the Ray cluster cannot be reached\n")
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "out").exists()


def test_an_address_without_the_engine_is_refused(table, tmp_path):
    arguments = ["convert", table, str(tmp_path / "out"), "--address=auto"]
    ended = subprocess.run([WDSPLIT, *arguments], capture_output=True, text=True)
    assert ended.returncode == 2
    assert "--engine ray" in ended.stderr


ODD = """
import sys
import wdsplit
from wdsplit.engines import ray
ray.version = lambda name: "9.9.9"
try:
    wdsplit.convert(*sys.argv[1:], engine=wdsplit.RayEngine())
except wdsplit.ConvertError as error:
    print(error)
"""


def test_nodes_with_another_version_of_wdsplit_are_named(cluster, table, tmp_path):
    """The driver takes itself for another one."""
    ended = on(cluster, sys.executable, "-c", ODD, table, tmp_path / "out")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "a node of the cluster has another version of wdsplit" in ended.stdout
    assert f"found: wdsplit {wdsplit.__version__}" in ended.stdout
    assert "expected: wdsplit 9.9.9" in ended.stdout
    assert not list((tmp_path / "out").glob("*.tar"))


@pytest.mark.skipif(os.geteuid() != 0, reason="a node with a file system of its own takes root")
def test_an_output_that_a_node_does_not_share_is_an_error_that_names_the_node(cluster, table, tmp_path):
    """The node sees an empty folder in its place."""
    folder = tmp_path / "shared"
    folder.mkdir()
    ray = Path(sys.executable).with_name("ray")
    start = f"mount -t tmpfs none {folder} && exec {ray} start --address {cluster.address} --num-cpus 4 --block"
    with open(tmp_path / "node.txt", "w", encoding="utf-8") as said:
        node = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", start],
            env=cluster.environ,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        wait_until(lambda: "runtime started" in (tmp_path / "node.txt").read_text(), "the node is there")
        for attempt in range(10):  # Ray may give it no task before the others have done them all
            out = folder / f"out{attempt}"
            ended = wdsplit_on(cluster, "convert", table, out, "--no-shuffle", "--shards", 400, "--engine=ray")
            if ended.returncode:
                break
        assert ended.returncode == 1
        assert "this machine sees another folder at its path" in ended.stderr
        assert "(on node " in ended.stderr
        assert not (out / "wdsplit.json").exists()
    finally:
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()


@pytest.mark.parametrize("options", [{"jobs": 0}, {"retries": -1}, {"jobs": 1.5}])
def test_numbers_that_cannot_be_are_refused_before_anything_is_started(options):
    with pytest.raises(InputError, match=next(iter(options))):
        wdsplit.RayEngine("local", **options)


# What ends the driver


@pytest.fixture
def begin(cluster, bucket, table):
    """Return what starts a conversion of 100 shards into a bucket, in a session of its own as a terminal would."""
    begun = []

    def start(*more):
        command = [WDSPLIT, "convert", table, f"{bucket.url}/train", "--no-shuffle", "--shards", "100", *more]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        begun.append(subprocess.Popen([*command, "--engine=ray"], env=cluster.environ, start_new_session=True, **pipes))
        return begun[-1]

    yield start
    for driver in begun:
        driver.kill()
        driver.communicate()


@pytest.fixture(scope="session")
def undisturbed(table, tmp_path_factory):
    """Return the files of that dataset as one job writes them."""
    folder = tmp_path_factory.mktemp("undisturbed")
    wdsplit.convert(table, folder, ConvertOptions(shards=100, shuffle=False))
    return files_of(folder)


def interrupted(driver, output, number, again_s=None):
    """Send a driver a signal in the midst of its work, and once more after so long; return what it has said."""
    wait_until(lambda: len(list(output.glob("*.tar"))) >= 10, "some shards are published")
    driver.send_signal(number)
    if again_s is not None:
        time.sleep(again_s)
        driver.send_signal(number)
    out, err = driver.communicate(timeout=TIMEOUT_S)
    assert out == ""
    assert "Traceback" not in err
    assert "StackTrace" not in err
    return without_progress(err)


HINT = r"(at least \d+ shards? published|published shards are kept); continue with the same command and --resume"


def test_a_driver_that_is_ended_says_how_to_resume(begin, slow_store, bucket, undisturbed):
    output, driver = bucket.folder / "train", begin()
    err = interrupted(driver, output, signal.SIGTERM)
    assert driver.returncode == 143
    assert re.fullmatch(rf"{HINT}\n\nended by SIGTERM\n", err)
    found = {path.name: path.read_bytes() for path in output.glob("*.tar*")}
    assert 30 <= len(found) < 300
    assert found.items() <= undisturbed.items()
    assert not (output / "wdsplit.json").exists()
    slow_store.plan = at_once
    resumed = begin("--resume")
    out, err = resumed.communicate(timeout=TIMEOUT_S)
    assert (resumed.returncode, without_progress(err)) == (0, "")
    assert "shards existed already" in out
    assert files_of(output) == undisturbed


def test_a_second_ctrl_c_disturbs_nothing(begin, slow_store, bucket):
    """The driver leaves the cluster meanwhile."""
    driver = begin()
    assert interrupted(driver, bucket.folder / "train", signal.SIGINT, 0.1).endswith("interrupted\n")
    assert driver.returncode in (130, -signal.SIGINT)


AFAR = """
import sys
import wdsplit
from ray.util.client import ray as client
for tries in range(5):  # Ray gives the server of a client 30 s to start, which a busy machine may not keep
    try:
        engine = wdsplit.RayEngine(sys.argv[1])
        break
    except wdsplit.ConvertError as error:
        refused = error
else:
    raise refused
print(client.is_connected())
options = wdsplit.ConvertOptions(shards=100, shuffle=False)
wdsplit.convert(*sys.argv[2:], options, engine=engine)
engine.close()
print(client.is_connected())
"""


def test_a_driver_that_is_no_part_of_the_cluster_writes_the_same(cluster, bucket, table, undisturbed):
    ended = on(cluster, sys.executable, "-c", AFAR, cluster.client_address, table, f"{bucket.url}/train")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\nFalse\n", "")
    assert files_of(bucket.folder / "train") == undisturbed


# What is lost on the way


@pytest.fixture
def slow_table(tmp_path):
    """Return files of 36 MB; what they are without a cluster is in `one`."""
    chance = np.random.default_rng(1)
    columns = {"bin": pa.array([chance.bytes(3072) for _ in range(12_000)]), "label": np.arange(12_000)}
    files = write_files(tmp_path / "raw", pa.table(columns), [2400], 120)
    wdsplit.convert(files, tmp_path / "one", ConvertOptions(shards=120))
    return files


def test_a_worker_a_node_and_the_driver_that_are_lost_change_nothing(bucket, slow_table, slow_store, tmp_path, environ):
    """One after the other, on four nodes that spill into the bucket; the bytes of 120 shards are those of one job."""
    cluster = RayCluster(4, environ=environ)
    try:
        output = bucket.folder / "train"
        command = ["convert", *slow_table, f"{bucket.url}/train", "--shards", "120", "--engine=ray"]

        def published():
            return len(list(output.glob("*.tar")))

        def begin(*more):
            with open(tmp_path / "stderr.txt", "w", encoding="utf-8") as output:
                return subprocess.Popen([WDSPLIT, *command, *more], env=cluster.environ, stdout=output, stderr=output)

        driver = begin()
        wait_until(lambda: any((output / SPILL_FOLDER).rglob("*")), "the first rows are spilled")
        wait_until(lambda: kill_a_worker(cluster), "a worker was killed at its task")
        wait_until(lambda: published() > 10, "the first shards are there")
        cluster.remove(1)
        wait_until(lambda: published() > 40, "more shards are there")
        assert driver.poll() is None
        driver.kill()
        driver.wait()
        assert not (output / "wdsplit.json").exists()
        slow_store.plan = at_once
        time.sleep(1)
        resumed = begin("--resume")
        assert resumed.wait(TIMEOUT_S) == 0, (tmp_path / "stderr.txt").read_text()
        assert files_of(output) == files_of(tmp_path / "one")
    finally:
        cluster.close()


def kill_a_worker(cluster):
    """Kill a process of a cluster that is at a task; tell whether there was one."""
    for process, command in processes_with("RAY_TMPDIR", cluster.environ["RAY_TMPDIR"]).items():
        if "ray::wdsplit" in command:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
                return True
    return False
