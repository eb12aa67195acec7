#!/bin/bash
# Train on several nodes of a SLURM cluster without torchrun: srun starts one task for each GPU. Ranks are SLURM_PROCID.
#
#     sbatch --nodes 4 examples/slurm/tasks.sh /shared/train /shared/val /shared/run.pt [more arguments]
#
# torch only has to be told where all meet: wdsplit finds rank and world size in SLURM's variables, and the example hands
# them to init_process_group. A job that was preempted or lost a node goes on from its last checkpoint.
#SBATCH --job-name=wdsplit-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append

set -euo pipefail

train=${1:?the training dataset} val=${2:?the held-out dataset} checkpoint=${3:?a file that all nodes see}
shift 3
program=${PROGRAM:-examples/imagenet_resnet50.py}

# The first node is where all meet. Jobs that share it must not share a port.
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_ADDR=${nodes%%$'\n'*}
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

exec srun --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
    python "$program" "$train" "$val" --checkpoint "$checkpoint" --resume "$@"
