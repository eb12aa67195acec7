#!/bin/bash
# Train on several nodes of a SLURM cluster: srun starts one torchrun on each node, torchrun one process for each GPU.
#
#     sbatch --nodes 4 examples/slurm/torchrun.sh /shared/train /shared/val /shared/run.pt [more arguments]
#
# A job that was preempted, lost a node, or is about to reach its time limit is put back into the queue; in time, it saves
# a checkpoint first. It goes on from its last checkpoint, on as many nodes as it is given then.
#SBATCH --job-name=wdsplit-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300

set -euo pipefail

train=${1:?the training dataset} val=${2:?the held-out dataset} checkpoint=${3:?a file that all nodes see}
shift 3
processes=${PROCESSES_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}
program=${PROGRAM:-examples/imagenet_resnet50.py}

# The first node is where all meet. Jobs that share it must not share a port.
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_ADDR=${nodes%%$'\n'*}
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

# SLURM sends the signal before the time is up, or the job is preempted. The training sees the file, saves, and stops;
# then, or if it has not stopped in time, the job goes back into the queue.
rm -f "$checkpoint.stop"
is_over=
trap 'is_over=1; touch "$checkpoint.stop"' USR1

srun --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" torchrun \
    --nnodes="$SLURM_NNODES" \
    --nproc-per-node="$processes" \
    --rdzv-id="$SLURM_JOB_ID" \
    --rdzv-backend=c10d \
    --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \
    "$program" "$train" "$val" --checkpoint "$checkpoint" --resume "$@" &
training=$!
status=0
wait $training || status=$?
if [[ -n $is_over ]]; then
    for ((left = ${SAVE_SECONDS:-240}; left > 0; left--)); do
        kill -0 $training 2>/dev/null || break
        sleep 1
    done
    rm -f "$checkpoint.stop"
    echo "the time is up: back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
    exit
fi
exit $status
