"""A real Ray cluster of several nodes on this machine, each of one processor, in a process of its own.

Run as a program with the number of nodes, the processors of the first (the head) and a port or 0, it prints the
cluster's address, then carries out what it reads, a line each: `add`, `remove N` (as if node N had lost power), and
ends with its standard input. At the port, if there is one, the head serves `ray://`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_local_fs_capacity_threshold": "1",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}
"""No reports, and all room is used: by itself Ray uses no disk that is 95 % full, and ends tasks when memory is."""
STORE_BYTES = 80_000_000


class RayCluster:
    """A cluster that ends with `close`."""

    def __init__(self, num_nodes=3, *, environ=None, head_cpus=1, client_port=0):
        self._folder = tempfile.mkdtemp(prefix="ray-")  # the paths of its sockets must be short
        tests = str(Path(__file__).parent)
        path = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")]))
        self.environ = {**os.environ, **QUIET, **(environ or {}), "RAY_TMPDIR": self._folder, "PYTHONPATH": path}
        self._errors = Path(self._folder, "stderr")
        with self._errors.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(num_nodes), str(head_cpus), str(client_port)],
                env=self.environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.address = self._answer()
        self.client_address = f"ray://127.0.0.1:{client_port}"
        self.environ["RAY_ADDRESS"] = self.address

    def add(self):
        self._ask("add")

    def remove(self, number):
        """Kill all processes of a node."""
        self._ask(f"remove {number}")

    def close(self):
        self._process.stdin.close()
        self._process.wait(300)
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, what):
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        assert self._answer() == what

    def _answer(self):
        answer = self._process.stdout.readline().strip()
        assert answer, self._errors.read_text(encoding="utf-8")[-4000:]
        return answer.removeprefix("answer ")


def main(num_nodes, head_cpus, client_port):
    from ray.cluster_utils import Cluster

    def answer(text):
        os.write(answers, f"answer {text}\n".encode())

    answers = os.dup(1)
    os.dup2(2, 1)  # what Ray prints is no answer
    node = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    head = {**node, "num_cpus": head_cpus} | ({"ray_client_server_port": client_port} if client_port else {})
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.head_node, *(cluster.add_node(**node) for _ in range(num_nodes - 1))]
    answer(cluster.address)
    for line in sys.stdin:
        what, _, number = line.strip().partition(" ")
        if what == "add":
            nodes.append(cluster.add_node(**node))
        else:
            cluster.remove_node(nodes[int(number)], allow_graceful=False)
        answer(line.strip())
    cluster.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
