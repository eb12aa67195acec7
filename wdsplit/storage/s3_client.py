"""Makes botocore's clients of S3-compatible stores: one for each process, options and environment."""

from __future__ import annotations

import functools
import os
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from wdsplit.errors import InputError, MissingDependencyError, did_you_mean
from wdsplit.storage.locks import ProcessLock
from wdsplit.storage.s3_http import S3Http
from wdsplit.storage.s3_options import S3Options
from wdsplit.storage.store_errors import OPERATIONS
from wdsplit.urls import shown_url

__all__ = ["client_of", "parameters_of"]

_POOL_SIZE = 4096
"""Maximum number of connections: more than threads use at a time. Each is opened when it is needed."""
_MAX_CLIENTS = 16


def _new_client(options: S3Options) -> S3Http:
    """Make a client, which looks up the credentials now."""
    try:
        import botocore.session
    except ImportError as error:
        raise MissingDependencyError("s3:// needs botocore", remedy="pip install 'wdsplit[s3]'") from error
    session = botocore.session.Session(profile=options.profile)
    session.register_component("data_loader", _model_loader(session.get_config_variable("data_path")))
    client = session.create_client(
        "s3",
        region_name=options.region,
        endpoint_url=options.endpoint_url,
        aws_access_key_id=options.key,
        aws_secret_access_key=options.secret,
        aws_session_token=options.token,
        use_ssl=options.use_ssl is not False,
        verify=options.verify,
        config=_config(options),
    )
    endpoint = str(client.meta.endpoint_url)
    if shown_url(endpoint) != endpoint:
        raise InputError(
            "an endpoint URL contains more than a host and a port",
            place=shown_url(endpoint),
            expected="https://host:port",
            found="a user, a password or a query",
            remedy="pass credentials by the environment, a profile or storage_options",
        )
    takes = {name for operation in OPERATIONS for name in parameters_of(client, operation)}
    _refuse_unknown("s3_additional_kwargs", options.s3_additional_kwargs, "parameters of S3's requests", takes)
    verify = session.get_config_variable("ca_bundle") if options.verify is None else options.verify
    try:
        return S3Http(client, verify)
    except OSError as error:  # no such file, or no certificate in it
        raise InputError("cannot load certificates", place=f"verify={verify}", found=str(error)) from error


def parameters_of(client: Any, operation: str) -> Any:
    """Return the parameters that a request takes; `operation` is its name in S3."""
    return client.meta.service_model.operation_model(operation).input_shape.members


def _config(options: S3Options) -> Any:
    """Return botocore's configuration: the caller's, and ours for the rest."""
    import botocore
    from botocore.config import Config

    style = {None: "auto", True: "path", False: "virtual"}[options.path_style]
    own = {
        "retries": {"total_max_attempts": 1},
        "max_pool_connections": _POOL_SIZE,
        "connect_timeout": options.retries.timeout_s,
        "read_timeout": options.retries.timeout_s,
        "signature_version": botocore.UNSIGNED if options.anon else None,
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    chosen = dict(options.config_kwargs)
    chosen["s3"] = {"addressing_style": style, **(chosen.get("s3") or {})}
    _refuse_unknown("config_kwargs", chosen, "arguments of botocore.config.Config", Config.OPTION_DEFAULTS)
    try:
        return Config(**{**own, **chosen})
    except Exception as error:  # TypeError, and botocore's own
        raise InputError("invalid config_kwargs", found=str(error)) from error


def _refuse_unknown(option: str, chosen: Iterable[str], expected: str, known: Iterable[str]) -> None:
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        raise InputError(
            f"invalid {option}",
            expected=expected,
            found=", ".join(unknown),
            remedy=did_you_mean(unknown[:1], known) or "check the names, and the version of botocore",
        )


@functools.cache
def _model_loader(data_path: str | None) -> Any:
    """Return the loader of botocore's description of S3, which takes 0.25 s; cached, also for forked processes."""
    import botocore.loaders

    return botocore.loaders.create_loader(data_path)


_clients: OrderedDict[Any, tuple[float, S3Http]] = OrderedDict()
"""When each client was made: one for each process (connections cannot be shared), options and environment."""
_lock = ProcessLock()


def client_of(options: S3Options, made_after: float = 0.0) -> S3Http:
    """Return this process's client that was made after a moment of `time.monotonic`."""
    key = options, os.getpid(), _environment()
    with _lock:
        if key not in _clients or _clients[key][0] < made_after:
            _clients[key] = time.monotonic(), _new_client(options)
            while len(_clients) > _MAX_CLIENTS:
                _clients.popitem(last=False)
        return _clients[key][1]


def _environment() -> frozenset[tuple[str, str | None]]:
    """Return the AWS variables of the environment, which other threads may change meanwhile."""
    return frozenset((name, os.environ.get(name)) for name in list(os.environ) if name.startswith("AWS_"))
