#!/bin/bash
# Convert a large table on many nodes of a SLURM cluster: an array of shares, and a job that commits them. Run it where
# sbatch is, not by sbatch:
#
#     examples/slurm/convert_array.sh /shared/train.plan 16 /shared/raw --into /shared/train --world-size 8 --workers 4
#
# The arguments are the file of the plan, the number of shares, and those of `wdsplit plan`. Where the plan is there already,
# nothing is planned: what shares that failed have not written is written, and committed. Then the arguments of the plan may be
# left out; others are refused.
#SBATCH --job-name=wdsplit-convert
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=32G
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append

set -euo pipefail

plan=${1:?a file for the plan that all nodes see} shares=${2:?the number of shares}
shift 2

if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    # Not SLURM_ARRAY_TASK_COUNT: it is smaller where only some tasks of an array are submitted again.
    exec wdsplit convert --plan "$plan" --share "$SLURM_ARRAY_TASK_ID/$shares" --jobs "${SLURM_CPUS_PER_TASK:-1}" "$@"
fi

arguments=$(printf '%q ' "$@")
if [[ ! -e $plan ]]; then
    wdsplit plan -o "$plan" "$@"
    echo "$arguments" >"$plan.arguments"
elif (($# == 0)) || [[ -e $plan.arguments && $(<"$plan.arguments") == "$arguments" ]]; then
    echo "goes on with $plan"
else
    {
        echo "error: $plan was made with other arguments"
        echo "  expected: $(cat "$plan.arguments" 2>/dev/null || echo 'no arguments: it was not made by this script')"
        echo "  found: $arguments"
        echo "  remedy: give those, or none, to go on; or another file for another plan"
    } >&2
    exit 2
fi

# A pass begins when all tasks of the one before have ended well. For a table that keeps its order the first two do nothing;
# `merge` is for large ones, from some gigabytes on.
array=(sbatch --parsable --kill-on-invalid-dep=yes --array="0-$((shares - 1))")
scattered=$("${array[@]}" "$0" "$plan" "$shares" --pass scatter)
merged=$("${array[@]}" --dependency="afterok:$scattered" "$0" "$plan" "$shares" --pass merge)
written=$("${array[@]}" --dependency="afterok:$merged" "$0" "$plan" "$shares" --pass write)
sbatch --kill-on-invalid-dep=yes --dependency="afterok:$written" --job-name=wdsplit-commit \
    --wrap="wdsplit commit $(printf %q "$plan")"
