"""Convert a table on a Dask cluster: an engine of your own is one method, `map`.

    pip install 'distributed>=2024.8'
    python examples/convert_on_dask.py tcp://scheduler:8786 s3://bucket/raw/ s3://bucket/train

Workers reach input and output under the same paths, and have the same version of wdsplit. Each Dask worker should have
one thread (`dask worker --nthreads 1`).
"""

import sys
from itertools import islice

from distributed import Client, KilledWorker, as_completed

import wdsplit
from wdsplit.errors import ConvertError


class DaskEngine:
    """Runs the tasks of `wdsplit.convert` and other functions with `engine=` on a Dask cluster."""

    is_local = False
    jobs_of_a_node = 1  # how many tasks share the memory of `memory=`

    def __init__(self, client):
        self.client = client

    @property
    def jobs(self):
        """Number of tasks that run at a time."""
        return max(1, sum(self.client.nthreads().values()))

    def map(self, function, tasks, *, memory_bytes=0, num_bytes=None, threads=False, describe=str):
        """Yield the results in the order of completion; tasks are repeatable, so Dask may retry one that it lost."""
        todo = iter(tasks)

        def submit(number):
            return [self.client.submit(function, task, pure=False, retries=0) for task in islice(todo, number)]

        running = as_completed(submit(2 * self.jobs))
        try:
            for future in running:
                try:
                    result = future.result()
                except KilledWorker as error:
                    raise ConvertError(f"a worker was lost: {error}", remedy="continue with --resume") from error
                running.update(submit(1))
                yield result
        finally:
            self.client.cancel(running.futures)


def main(scheduler, table, output):
    with Client(scheduler) as client:
        wdsplit.convert(table, output, print, engine=DaskEngine(client))


if __name__ == "__main__":
    main(*sys.argv[1:])
