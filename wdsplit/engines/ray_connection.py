"""Joins a Ray cluster, and leaves it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from typing import Any

from wdsplit.errors import ConvertError, MissingDependencyError
from wdsplit.urls import shown_url

__all__ = ["connect", "disconnect", "first_line"]

logger = logging.getLogger(__name__)

_ANSWER_S = 10.0
"""Seconds that a cluster may take to answer."""
_SETTINGS = b"\x04"
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS + b"\0\0\0\0\0"
"""The start of an HTTP/2 connection: the preface, and an empty SETTINGS frame."""


def connect(address: str, runtime_env: dict[str, Any] | None) -> tuple[Any, bool]:
    """Join a cluster, unless this process has joined one already.

    Args:
        address: As for `RayEngine`.
        runtime_env: As for `RayEngine`.

    Returns:
        The connected module `ray`, and whether this call connected it.

    Raises:
        MissingDependencyError: Ray is not installed.
        ConvertError: The cluster cannot be reached.
    """
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingDependencyError.for_extra("ray") from error
    if ray.is_initialized():
        return ray, False
    options: dict[str, Any] = {"runtime_env": runtime_env} if runtime_env else {}
    if address == "local":
        options["include_dashboard"] = False
    try:
        _check_answers(address)
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(
                address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False, **options
            )
        finally:  # `ray.init` replaces the program's handler by an exit with code 15
            if handler not in (signal.SIG_DFL, None) and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)
    except Exception as error:
        raise ConvertError(
            "the Ray cluster cannot be reached",
            place=shown_url(address),
            expected="a running cluster of the same versions of Ray and Python",
            found=first_line(error),
            remedy="start one with `ray start --head`, give --address ray://HOST:10001, or --address local to start "
            "one on this machine",
        ) from error
    # Ray has no option to keep off standard output what it prints about lost workers and nodes. If it cannot recover,
    # the driver warns about the task.
    worker: Any = ray._private.worker
    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda data, **options: logger.info("%s", "\n".join(data["lines"]))
    return ray, True


def disconnect(ray: Any) -> None:
    """Leave the cluster: Ray ends the tasks of this process, and a cluster that it has started.

    Ignores Ctrl-C and SIGTERM meanwhile: Ray would abort the process before it has ended them.
    """
    if threading.current_thread() is not threading.main_thread():
        ray.shutdown()
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.shutdown()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _check_answers(address: str) -> None:
    """Check that a cluster answers, if the address has a port: Ray would try for minutes, or forever without an answer.

    Ray speaks gRPC, which is HTTP/2: such a server answers the greeting with a SETTINGS frame (RFC 9113, 3.4).

    Raises:
        OSError: Nothing answers, or the server is not Ray.
    """
    named = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    host, separator, port = named.removeprefix("ray://").partition("/")[0].rpartition(":")
    if not (separator and port.isdigit()):
        return
    with socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S) as connection:
        if os.environ.get("RAY_USE_TLS", "0") != "0":
            return
        connection.sendall(_GREETING)
        try:
            answer = connection.recv(9)
        except TimeoutError:
            raise TimeoutError(f"a server accepts connections, but has not answered for {_ANSWER_S:.0f} s") from None
    if answer[3:4] != _SETTINGS:
        raise ConnectionError(f"the server is not Ray: it answered {answer!r}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
