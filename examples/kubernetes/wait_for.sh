#!/bin/bash
# Wait until a Job or a RayJob has ended; exit with 1 if it has failed. `kubectl wait` waits for one condition only, so it
# would wait for a failed job until its time is up.
#
#     examples/kubernetes/wait_for.sh job/wdsplit-convert && wdsplit commit s3://datasets/train.plan
set -euo pipefail

job=${1:?a job, such as job/wdsplit-convert}

while true; do
    # A Job has conditions, a RayJob a status.
    ended=$(kubectl get "$job" \
        -o jsonpath='{.status.conditions[?(@.status=="True")].type} {.status.jobDeploymentStatus}')
    case " $ended " in
        *" Complete "*)
            echo "$job has ended"
            exit 0
            ;;
        *" Failed "*)
            echo "$job has failed; see: kubectl describe $job" >&2
            exit 1
            ;;
    esac
    sleep "${SECONDS_BETWEEN:-10}"
done
