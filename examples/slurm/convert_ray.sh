#!/bin/bash
# Convert a large table on the nodes of a SLURM job: Ray runs on them for as long as the job does.
#
#     sbatch --nodes 8 examples/slurm/convert_ray.sh /shared/raw /shared/train --world-size 8 --workers 4
#
# The arguments are the input, the output, and options of `wdsplit convert`, without --overwrite: a job that was preempted, or
# is about to reach its time limit, is put back into the queue, and goes on with what it has written. A node that is lost
# does not end the job; its tasks are run again on the others.
#SBATCH --job-name=wdsplit-convert
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=12:00:00
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120

set -euo pipefail

input=${1:?the table: a file, a folder, a glob, s3://bucket/raw} output=${2:?a folder that all nodes see, or s3://bucket/train}
shift 2

# The first node is where all meet. Jobs that share it must not share a port.
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes%%$'\n'*}
port=$((20000 + SLURM_JOB_ID % 5000 * 2))
address=$head:$port
own_folder=
[[ -n ${RAY_TMPDIR:-} ]] || own_folder=/tmp/ray-$SLURM_JOB_ID
export RAY_TMPDIR=${RAY_TMPDIR:-$own_folder}

stop() {
    # shellcheck disable=SC2046 # one number a job
    kill $(jobs -p) 2>/dev/null || true
    wait
    if [[ -n $own_folder ]]; then
        srun --no-kill --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" rm -rf "$own_folder" || true
        own_folder=
    fi
}
trap stop EXIT
trap 'exit 143' TERM
trap 'echo "the time is up: back into the queue"; stop; scontrol requeue "$SLURM_JOB_ID"; exit 1' USR1

# Ray's object store holds nothing but the plan: rows go from input to output where a task runs.
start_ray() { # the first node, how many, what they are
    srun --no-kill --kill-on-bad-exit=0 --relative="$1" --nodes="$2" --ntasks="$2" --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
        ray start "${@:3}" --block --num-cpus="${SLURM_CPUS_PER_TASK:-1}" --object-store-memory=1000000000 \
        --disable-usage-stats &
}

start_ray 0 1 --head --port="$port" --ray-client-server-port=$((port + 1)) --include-dashboard=false
ray=$!
until (: <"/dev/tcp/$head/$port") 2>/dev/null; do
    kill -0 $ray
    sleep 0.5
done
if ((SLURM_NNODES > 1)); then
    start_ray 1 $((SLURM_NNODES - 1)) --address="$address"
fi
timeout 600 python - "$address" "$SLURM_NNODES" <<'END' &
import sys
import time

import ray

ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(0.5)
END
wait $!

# Where a run is begun, the first is refused at once, and the second goes on with it.
convert=(wdsplit convert "$input" "$output" "$@" --engine=ray --address="$address")
"${convert[@]}" &
wait $! || {
    "${convert[@]}" --resume &
    wait $!
}
wdsplit verify "$output" --engine=ray --address="$address" &
wait $!
