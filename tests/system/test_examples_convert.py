"""The examples that convert on a cluster without Ray: the SLURM script with an `sbatch` that runs what is submitted.

The manifest for Kubernetes is read as YAML, and its command is run with the environment of each pod.
"""

import os
import subprocess

import pytest
import yaml

from example_runs import PATH, write_programs
from paths import EXAMPLES
from tables import DEADLINE_S, files_of, mixed_table, write_files
from wdsplit import ConvertOptions, commit_shares, convert, convert_share, plan_shares

SCRIPT = EXAMPLES / "slurm" / "convert_array.sh"
MANIFEST = EXAMPLES / "kubernetes" / "convert-indexed-job.yaml"

SBATCH = """#!/bin/bash
# Run a job at once, but only if those that it depends on have ended well; its number is that of the line in the log.
array=(none) after="" wrapped=""
while [[ ${1:-} == --* ]]; do
    case $1 in
        --array=*) array=(${ARRAY:-$(seq ${1#--array=0-} -1 0)}) ;;
        --dependency=afterok:*) after=${1#--dependency=afterok:} ;;
        --wrap=*) wrapped=${1#--wrap=} ;;
    esac
    shift
done
echo "${wrapped:-$*}" >> "$SBATCH_LOG"
job=$(wc -l < "$SBATCH_LOG")
echo "$job"
[ -z "$after" ] || [ -e "$SBATCH_LOG.$after" ] || exit 0
for task in "${array[@]}"; do
    if [ "$task" = none ]; then
        bash -c "$wrapped" >> "$SBATCH_LOG.out" 2>&1 || exit 0
    else
        SLURM_ARRAY_TASK_COUNT=${#array[@]} SLURM_ARRAY_TASK_ID=$task bash "$@" >> "$SBATCH_LOG.out" 2>&1 || exit 0
    fi
done
touch "$SBATCH_LOG.$job"
"""


@pytest.fixture
def raw(tmp_path):
    write_files(tmp_path / "raw", mixed_table(60), [20], 10)
    return tmp_path / "raw"


@pytest.fixture
def submit(tmp_path, monkeypatch):
    """Return a function that runs the script where there is an `sbatch`; returns what the jobs have said."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", write_programs(tmp_path / "programs", sbatch=SBATCH))
    monkeypatch.setenv("SBATCH_LOG", str(tmp_path / "log"))

    def submit(*arguments):
        command = [str(SCRIPT), *map(str, arguments)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, cwd=tmp_path)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout, (tmp_path / "log.out").read_text()

    return submit


def test_slurm_converts_in_an_array_of_shares_and_commits_when_all_have_ended(submit, raw, tmp_path):
    convert(raw, tmp_path / "one", chosen(shuffle=True))
    _, said = submit(tmp_path / "my plan", 2, raw, "--into", tmp_path / "out", "--shards", 4, "--shuffle")
    assert [line.partition(":")[0] for line in said.splitlines()[:6]] == ["share 1/2", "share 0/2"] * 3
    assert f"{tmp_path}/my plan: 4 shards, 60 samples" in said
    assert files_of(tmp_path / "out") == files_of(tmp_path / "one")


def test_shares_that_failed_keep_slurm_from_committing_and_are_made_up_for(submit, raw, tmp_path, monkeypatch):
    convert(raw, tmp_path / "one", chosen())
    arguments = (tmp_path / "plan", 3, raw, "--into", tmp_path / "out", "--shards", 4)
    monkeypatch.setenv("ARRAY", "0 2")
    _, said = submit(*arguments)
    assert "share 2/3" in said and "share 1/3" not in said
    assert "shards are missing" in said and "unfinished shares: 1/3" in said
    assert not (tmp_path / "out" / "wdsplit.json").exists()
    monkeypatch.delenv("ARRAY")
    told, _ = submit(*arguments)
    assert f"goes on with {tmp_path}/plan" in told
    assert files_of(tmp_path / "out") == files_of(tmp_path / "one")


def test_new_arguments_for_a_plan_that_is_there_are_refused_and_none_go_on_with_it(submit, raw, tmp_path):
    options = ("--into", tmp_path / "out", "--shards", 4)
    submit(tmp_path / "plan", 2, raw, *options)
    jobs = (tmp_path / "log").read_text()
    command = [SCRIPT, tmp_path / "plan", 2, raw, *options, "--shuffle"]
    refused = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"{tmp_path}/plan was made with other arguments" in refused.stderr
    assert f"expected: {raw} --into {tmp_path}/out --shards 4" in refused.stderr
    assert f"found: {raw} --into {tmp_path}/out --shards 4 --shuffle" in refused.stderr
    assert (tmp_path / "log").read_text() == jobs, "nothing was submitted"
    told, _ = submit(tmp_path / "plan", 2)
    assert told.startswith(f"goes on with {tmp_path}/plan\n")


def test_a_pass_of_slurm_that_failed_is_followed_by_no_other(submit, raw, tmp_path, monkeypatch):
    monkeypatch.setenv("ARRAY", "5")
    _, said = submit(tmp_path / "plan", 2, raw, "--into", tmp_path / "out", "--shards", 4)
    assert said.count("there is no share 5/2") == 1
    assert len((tmp_path / "log").read_text().splitlines()) == 4


def chosen(**plan):
    return ConvertOptions(shards=4, **plan)


def test_the_pods_of_the_indexed_job_write_all_shares(raw, tmp_path):
    convert(raw, tmp_path / "one", chosen())
    plan_shares(raw, tmp_path / "out", tmp_path / "plan", chosen())
    (job,) = yaml.safe_load_all(MANIFEST.read_text())
    assert (job["apiVersion"], job["kind"], job["spec"]["completionMode"]) == ("batch/v1", "Job", "Indexed")
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] in ("OnFailure", "Never")
    (container,) = pod["containers"]
    *shell, script = container["command"]
    assert shell == ["bash", "-euc"]
    script = script.replace("s3://datasets/train.plan", str(tmp_path / "plan"))
    completions = job["spec"]["completions"]
    assert f"/{completions}" in script and job["spec"]["parallelism"] <= completions
    assert job["metadata"]["name"].endswith("-scatter"), "the name and the pass are replaced together"
    for name in ("scatter", "write"):
        for index in (0, 7, completions - 1):
            environ = {"PATH": PATH, "JOB_COMPLETION_INDEX": str(index)}
            command = [*shell, script.replace("scatter", name)]
            ended = subprocess.run(command, env=environ, capture_output=True, text=True)
            assert ended.stdout.startswith(f"share {index}/{completions}: "), ended.stderr
        for index in {*range(1, completions - 1)} - {7}:
            convert_share(tmp_path / "plan", index, completions, name)
    commit_shares(tmp_path / "plan")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "one")
