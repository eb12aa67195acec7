"""The examples that convert on a Ray cluster: SLURM's script starts a real one here, of two nodes on this machine.

The manifest for KubeRay is read as YAML, and checked for what KubeRay and wdsplit need of it.
"""

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import click
import pytest
import yaml

from example_runs import write_programs
from paths import EXAMPLES
from raycluster import QUIET
from s3server import free_port
from stops import stopped_at
from tables import files_of, mixed_table, start_process, wait_until, write_files
from torchruns import end_processes, processes_with
from wdsplit import ConvertOptions, convert
from wdsplit.cli.main import cli
from wdsplit.sizes import parse_size

pytestmark = pytest.mark.xdist_group("ray")

SCRIPT = EXAMPLES / "slurm" / "convert_ray.sh"
TIMEOUT_S = 280

SCONTROL = """#!/bin/bash
[ "$1 $2" = "show hostnames" ] && echo localhost && echo another-node && exit
echo "$*" >> "$LOG"
"""

SRUN = """#!/bin/bash
# Every node is this machine, whose memory they share.
echo "srun $*" >> "$LOG"
while [[ $1 == --* ]]; do shift; done
exec "${@/--object-store-memory=*/--object-store-memory=80000000}"
"""

SLEEPY = """#!/bin/bash
touch "$LOG.asleep"
exec sleep 1000
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Return a function that starts the script as SLURM does on two nodes; no process of it may be left."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "RAY_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", str((free_port() - 20_000) // 2))  # from which the script computes two ports
    folder = tempfile.mkdtemp(prefix="ray-")  # the paths of its sockets must be short
    environ = {
        **os.environ,
        **QUIET,
        "PATH": write_programs(tmp_path / "programs", scontrol=SCONTROL, srun=SRUN),
        "LOG": str(tmp_path / "log"),
        "RAY_TMPDIR": folder,
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_JOB_NODELIST": "localhost,another-node",
        "SLURM_NNODES": "2",
    }
    started = []

    def start(*arguments):
        command = [str(SCRIPT), *map(str, arguments)]
        with open(tmp_path / "said", "w", encoding="utf-8") as said:
            started.append(start_process(command, env=environ, stdout=said, stderr=said))
        return started[0]

    yield start
    try:
        if started and started[0].poll() is None:
            started[0].terminate()
            started[0].wait(TIMEOUT_S)
        wait_until(lambda: not processes_with("RAY_TMPDIR", folder), "all processes of Ray have ended")
    finally:
        end_processes(processes_with("RAY_TMPDIR", folder))
        shutil.rmtree(folder, ignore_errors=True)


def test_slurm_goes_on_with_a_run_on_a_ray_cluster_of_its_nodes_and_verifies(job, tmp_path):
    """And nothing of Ray is left, which the fixture sees to."""
    write_files(tmp_path / "raw", mixed_table(60), [20], 10)
    chosen = ConvertOptions(shards=6, world_size=2)
    convert(tmp_path / "raw", tmp_path / "one", chosen)
    with stopped_at(done=2) as stop:
        convert(tmp_path / "raw", tmp_path / "out", chosen, stop)
    ended = job(tmp_path / "raw", tmp_path / "out", "--shards", 6, "--world-size", 2).wait(TIMEOUT_S)
    said = (tmp_path / "said").read_text()
    assert ended == 0, said
    assert "resumed: 2 shards existed already" in said
    assert f"{tmp_path}/out: ok" in said
    assert files_of(tmp_path / "out") == files_of(tmp_path / "one")
    head, others = (tmp_path / "log").read_text().splitlines()
    assert "--relative=0 --nodes=1 --ntasks=1" in head and " ray start --head" in head
    assert "--relative=1 --nodes=1 --ntasks=1" in others and " ray start --address=localhost:" in others
    assert all("--no-kill" in srun and "--num-cpus=1 " in srun for srun in (head, others))


def test_a_slurm_job_whose_time_is_up_goes_back_into_the_queue_and_ends_ray(job, tmp_path):
    write_programs(tmp_path / "programs", wdsplit=SLEEPY)
    running = job("raw", "out")
    wait_until((tmp_path / "log.asleep").exists, "Ray has started, and the conversion begins")
    running.send_signal(signal.SIGUSR1)
    assert running.wait(TIMEOUT_S) == 1
    assert (tmp_path / "log").read_text().splitlines()[-1] == f"requeue {os.environ['SLURM_JOB_ID']}"


def test_a_slurm_job_removes_the_folder_that_it_made_for_ray_on_all_nodes_and_no_other(tmp_path):
    """Ray is a program that makes the folder and ends: the script ends with it."""
    number, log = str(os.getpid()), tmp_path / "log"
    own, given = Path(f"/tmp/ray-{number}"), tmp_path / "given"
    path = write_programs(
        tmp_path / "programs", scontrol=SCONTROL, srun=SRUN, ray='#!/bin/bash\nmkdir -p "$RAY_TMPDIR/session"\nexit 1\n'
    )
    environ = {"PATH": path, "LOG": str(log), "SLURM_JOB_ID": number}
    environ |= {"SLURM_JOB_NODELIST": "localhost,another-node", "SLURM_NNODES": "2"}
    command = [str(SCRIPT), "raw", "out"]
    assert subprocess.run(command, env=environ, capture_output=True).returncode == 1
    assert not own.exists()
    assert log.read_text().splitlines()[-1].endswith(f"--nodes=2 --ntasks=2 rm -rf {own}")
    log.unlink()
    assert subprocess.run(command, env=environ | {"RAY_TMPDIR": str(given)}, capture_output=True).returncode == 1
    assert (given / "session").is_dir() and "rm -rf" not in log.read_text()


# Kubernetes


KUBERAY = {
    "spec": "entrypoint backoffLimit shutdownAfterJobFinishes ttlSecondsAfterFinished rayClusterSpec",
    "rayClusterSpec": "rayVersion enableInTreeAutoscaling autoscalerOptions headGroupSpec workerGroupSpecs",
    "headGroupSpec": "rayStartParams template",
    "workerGroupSpecs": "groupName replicas minReplicas maxReplicas rayStartParams template",
}
"""Fields of KubeRay's API ray.io/v1, which refuses others."""


@pytest.fixture
def rayjob():
    (job,) = yaml.safe_load_all((EXAMPLES / "kubernetes" / "convert-rayjob.yaml").read_text())
    return job


def test_the_rayjob_ends_its_cluster(rayjob):
    assert (rayjob["apiVersion"], rayjob["kind"]) == ("ray.io/v1", "RayJob")
    spec = rayjob["spec"]
    cluster = spec["rayClusterSpec"]
    found = [spec, cluster, cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert [set(each) - set(names.split()) for each, names in zip(found, KUBERAY.values(), strict=True)] == [set()] * 4
    assert spec["shutdownAfterJobFinishes"] is True and spec["ttlSecondsAfterFinished"] > 0
    assert spec["backoffLimit"] > 0


def test_the_rayjob_runs_tasks_on_workers_that_come_and_go_and_have_credentials(rayjob):
    cluster = rayjob["spec"]["rayClusterSpec"]
    head, (workers,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert cluster["enableInTreeAutoscaling"] is True
    assert 0 <= workers["minReplicas"] <= workers["replicas"] < workers["maxReplicas"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    for group in (head, workers):
        parameters = group["rayStartParams"]
        assert all(isinstance(value, str) for value in parameters.values()), "KubeRay refuses numbers"
        (container,) = group["template"]["spec"]["containers"]
        assert container["envFrom"] == [{"secretRef": {"name": "s3-credentials"}}]
        resources = container["resources"]
        assert resources["limits"]["memory"] == resources["requests"]["memory"], "Ray takes the limit for what there is"
        assert int(parameters["object-store-memory"]) < 0.3 * parse_size(f"{resources['limits']['memory']}B")
        assert int(parameters["num-cpus"]) in (0, int(resources["requests"]["cpu"]))


@pytest.mark.parametrize("join", [shlex.join, subprocess.list2cmdline], ids=["shlex", "list2cmdline"])
def test_the_entrypoint_of_the_rayjob_goes_on_with_a_run_that_is_begun(rayjob, tmp_path, join):
    """What comes of it in the submitter's shell, in `ray job submit` of any version, and in the shell that runs it."""
    path = write_programs(
        tmp_path,
        wdsplit=f'#!/bin/bash\necho "$*" >> {tmp_path}/log\n[[ $* == *--resume ]]\n',
        submit=f'#!/bin/bash\nprintf "%s\\0" "$@" > {tmp_path}/submitted\n',
    )
    environ = {"PATH": path}
    subprocess.run(["bash", "-c", f"submit {rayjob['spec']['entrypoint']} ;"], env=environ, check=True)
    submitted = (tmp_path / "submitted").read_text().split("\0")[:-1]
    subprocess.run(join(submitted), shell=True, env=environ, check=True)
    first, second = (tmp_path / "log").read_text().splitlines()
    assert second == f"{first} --resume"
    for line in (first, second):
        program, *arguments = line.split()
        command = cli.commands[program]
        given = command.make_context(program, arguments, parent=click.Context(cli, **cli.context_settings)).params
        assert (given["engine"], given["address"], given["resume"]) == ("ray", "auto", line == second)
        assert (given["inputs"], given["output"]) == (("s3://datasets/raw",), "s3://datasets/train")
        assert not given["overwrite"]
