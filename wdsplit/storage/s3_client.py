"""What speaks with a store of the S3 kind: options, credentials, requests, and what its errors mean.

Requests go through botocore, which knows credentials, profiles, endpoints and signatures as every AWS tool does. Its
own retries are off: a read that stopped in the middle goes on from there, and all attempts share one deadline.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from wdsplit.errors import (
    DatasetNotFoundError,
    InputError,
    MissingDependencyError,
    StorageError,
    UnansweredError,
    WdsplitError,
)
from wdsplit.storage.locks import ProcessLock
from wdsplit.storage.retry import UNKNOWN_HOST_S, Retries, RetryOptions, is_unknown_host
from wdsplit.urls import shown_url

__all__ = ["NothingCameError", "S3Client", "S3Options", "error_code"]

Answer = TypeVar("Answer")

_POOL_SIZE = 4096
"""Connections that are kept at most: more than any threads ask by at once. Each is made when it is needed."""
_CLIENTS_KEPT = 16
_MAX_EXPIRED = 3
_HURRIED_S = 10.0
_GONE = frozenset({"404", "NoSuchKey", "NoSuchBucket", "NotFound"})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_MAYBE_EXPIRED = _EXPIRED | {"400", "403"}
"""An answer to HEAD says no more than its status."""
_PASSING = frozenset({"OperationAborted", "RequestTimeout", "RequestTimeTooSkewed", "SlowDown", "Throttling"})
"""Errors that are gone a moment later though their HTTP status says otherwise; all of 429 and 500 to 599 are such, but
501, which says that a store cannot do what is asked."""
_DAMAGED = frozenset({"BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch"})
"""What was sent has not come as it was signed."""


@dataclass(frozen=True)
class S3Options:
    """How to reach a store; what is None is found as the AWS tools find it: environment, profile, instance.

    Attributes:
        key: The access key's id.
        secret: The secret access key.
        token: The session token.
        anon: Do not sign: public buckets.
        profile: A profile of the configuration files.
        endpoint_url: The store, if it is not AWS.
        region: Its region.
        path_style: Whether the bucket stands in the path; None lets botocore choose.
        requester_pays: Whether to accept that requests are charged.
        retries: How long to try.

    Raises:
        InputError: One of them is of another type.
    """

    key: str | None = None
    secret: str | None = None
    token: str | None = None
    anon: bool = False
    profile: str | None = None
    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool | None = None
    requester_pays: bool = False
    retries: RetryOptions = field(default_factory=RetryOptions)

    def __post_init__(self) -> None:
        truths = {"anon": (bool,), "requester_pays": (bool,), "path_style": (bool, type(None))}
        kinds: dict[str, tuple[type, ...]] = dict.fromkeys(_names(S3Options), (str, type(None)))
        kinds |= truths | {"retries": (RetryOptions,)}
        wrong = [name for name in sorted(kinds) if not isinstance(getattr(self, name), kinds[name])]
        if wrong:
            raise InputError(
                "storage options are of a wrong type",
                expected=", ".join(f"{name}: {'True or False' if name in truths else 'a text'}" for name in wrong),
                found=", ".join(f"{name}: {type(getattr(self, name)).__name__}" for name in wrong),
            )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> S3Options:
        """Return the options that s3fs has by these names, and ours.

        Raises:
            InputError: There is no such option, or it cannot be.
        """
        more = options.get("client_kwargs", {}) if isinstance(options, Mapping) else {}
        for name, each in (("storage_options", options), ("client_kwargs", more)):
            if not isinstance(each, Mapping):
                raise InputError(f"{name} cannot be", expected="a dict", found=type(each).__name__)
        given = {**more, **{name: value for name, value in options.items() if name != "client_kwargs"}}
        if "region_name" in given:
            given["region"] = given.pop("region_name")
        times = {name: given.pop(name) for name in list(given) if name in _names(RetryOptions)}
        unknown = sorted(map(str, given.keys() - _names(cls) | given.keys() & {"retries"}))
        if unknown:
            raise InputError(
                "there is no such storage option",
                expected=", ".join(sorted(_names(cls) - {"retries"} | _names(RetryOptions) | {"client_kwargs"})),
                found=", ".join(unknown),
            )
        return cls(**given, retries=RetryOptions(**times))

    def __repr__(self) -> str:
        """Tell nothing that is secret."""
        shown = {name: getattr(self, name) for name in ("anon", "profile", "region")}
        shown["endpoint_url"] = shown_url(self.endpoint_url or "")
        return f"S3Options({', '.join(f'{name}={value!r}' for name, value in shown.items() if value)})"


def _names(options: Any) -> set[str]:
    return {each.name for each in fields(options)}


def _new_client(options: S3Options) -> Any:
    """Return what speaks with the store; it looks for credentials now."""
    try:
        import botocore
        import botocore.session
        from botocore.config import Config
    except ImportError as error:
        raise MissingDependencyError("s3:// needs botocore", remedy="pip install 'wdsplit[s3]'") from error
    config = Config(
        retries={"total_max_attempts": 1},
        max_pool_connections=_POOL_SIZE,
        connect_timeout=options.retries.timeout_s,
        read_timeout=options.retries.timeout_s,
        s3={"addressing_style": {None: "auto", True: "path", False: "virtual"}[options.path_style]},
        signature_version=botocore.UNSIGNED if options.anon else None,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    session = botocore.session.Session(profile=options.profile)
    session.register_component("data_loader", _model_loader(session.get_config_variable("data_path")))
    client = session.create_client(
        "s3",
        region_name=options.region,
        endpoint_url=options.endpoint_url,
        aws_access_key_id=options.key,
        aws_secret_access_key=options.secret,
        aws_session_token=options.token,
        config=config,
    )
    endpoint = str(client.meta.endpoint_url)
    if shown_url(endpoint) != endpoint:
        raise InputError(
            "the URL of an endpoint holds more than it may",
            place=shown_url(endpoint),
            expected="https://host:port",
            found="a user, a password or a query",
            remedy="give credentials by the environment, a profile or storage_options",
        )
    return client


@functools.cache
def _model_loader(data_path: str | None) -> Any:
    """Return what loads botocore's description of S3, a quarter of a second's work: once, also for forked processes."""
    import botocore.loaders

    return botocore.loaders.create_loader(data_path)


class NothingCameError(Exception):
    """A connection was closed before a single byte."""


class _Clients:
    """What speaks with stores: one for each process, because connections cannot be shared, options and environment."""

    def __init__(self) -> None:
        self._made: OrderedDict[Any, tuple[float, Any]] = OrderedDict()
        self._lock = ProcessLock()

    def of(self, options: S3Options, made_after: float = 0.0) -> Any:
        """Return a client that was made after a moment, as `time.monotonic` has it."""
        key = options, os.getpid(), _environment()
        with self._lock:
            moment, client = self._made.get(key, (-1.0, None))
            if client is None or moment < made_after:
                client = _new_client(options)
                self._made[key] = time.monotonic(), client
                while len(self._made) > _CLIENTS_KEPT:
                    self._made.popitem(last=False)
            return client


def _environment() -> frozenset[tuple[str, str | None]]:
    """Return what the environment says of stores; other threads may change it meanwhile."""
    return frozenset((name, os.environ.get(name)) for name in list(os.environ) if name.startswith("AWS_"))


_clients = _Clients()


class S3Client:
    """Sends requests about a bucket.

    Args:
        bucket: Its name.
        options: How to reach the store.
    """

    def __init__(self, bucket: str, options: S3Options) -> None:
        self._bucket = bucket
        self._options = options

    def ask(self, operation: str, url: str, **parameters: Any) -> Any:
        """Send a request, again and again until it is answered, refused, or the deadline has passed.

        Args:
            operation: A method of botocore's client.
            url: What it is about.
            parameters: Its parameters; the bucket is added.

        Raises:
            DatasetNotFoundError: There is no such object or bucket.
            StorageError: The store refuses, or does not answer in time.
        """
        return self.attempt(url, lambda _: self.send(operation, **parameters))

    def send(self, operation: str, **parameters: Any) -> Any:
        """Send a request once."""
        payer = {"RequestPayer": "requester"} if self._options.requester_pays else {}
        return getattr(_clients.of(self._options), operation)(Bucket=self._bucket, **payer, **parameters)

    @property
    def endpoint(self) -> str:
        """The URL of the store."""
        return str(_clients.of(self._options).meta.endpoint_url)

    def with_short_deadline(self) -> S3Client:
        """Return one that gives up soon: for clearing up after an error."""
        deadline_s = min(_HURRIED_S, self._options.retries.deadline_s)
        retries = replace(self._options.retries, deadline_s=deadline_s)
        return S3Client(self._bucket, replace(self._options, retries=retries))

    def attempt(
        self, url: str, action: Callable[[Retries], Answer], sleep: Callable[[float], object] = time.sleep
    ) -> Answer:
        """Do something that may fail for a while, and wait in between by `sleep`; raises as `ask` does."""
        retries = Retries(self._options.retries, sleep, url)
        num_expired = 0
        while True:
            begun = time.monotonic()
            try:
                return action(retries)
            except WdsplitError:
                raise
            except Exception as error:
                wait_s = _seconds_to_wait(error)
                if error_code(error) in _MAYBE_EXPIRED and num_expired < _MAX_EXPIRED:
                    num_expired += 1
                    wait_s = 0.0
                    _clients.of(self._options, made_after=begun)  # credentials may have been renewed
                if wait_s is None:
                    raise _refused(error, url) from (None if _is_bad_header(error) else error)
                max_s = UNKNOWN_HOST_S if is_unknown_host(error) else math.inf
                if not retries.wait(wait_s, _last(error), max_s):
                    deadline_s = min(max_s, self._options.retries.deadline_s)
                    raise _gave_up(error, url, retries.num_attempts, deadline_s) from error


def error_code(error: Exception) -> str:
    """Return what the store calls an error; nothing if it is not of the store."""
    answer = getattr(error, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))


def _status(error: Exception) -> tuple[int, dict[str, str]]:
    """Return HTTP status and headers of an answer that is an error; 0 if there was no answer."""
    answer = (getattr(error, "response", None) or {}).get("ResponseMetadata", {})
    return int(answer.get("HTTPStatusCode", 0)), answer.get("HTTPHeaders", {})


def _seconds_to_wait(error: Exception) -> float | None:
    """Return how long to wait at least before trying again; None if that is of no use."""
    import botocore.exceptions as kinds

    if isinstance(error, kinds.ClientError):
        status, headers = _status(error)
        if status == 501 or (status != 429 and status < 500 and error_code(error) not in _PASSING | _DAMAGED):
            return None
        after = headers.get("retry-after", "")
        return float(after) if after.isdigit() else 0.0
    if _is_bad_header(error):
        return None
    passing = (kinds.ConnectionError, kinds.HTTPClientError, kinds.IncompleteReadError, OSError)
    return 0.0 if isinstance(error, (*passing, NothingCameError)) else None


def _is_bad_header(error: Exception) -> bool:
    """Tell whether a header could not be sent: such an error says what is in it, a session token for example."""
    return "Invalid header" in str(error)


def _refused(error: Exception, url: str) -> WdsplitError:
    """Return our error for one that will not pass. What it says of credentials is left out."""
    code = error_code(error)
    if code == "NoSuchBucket":
        return DatasetNotFoundError(
            "there is no such bucket", place=url, found=code, remedy="check the URL, or make the bucket", url=url
        )
    if code in _GONE:
        return DatasetNotFoundError(
            "there is no such object",
            place=url,
            found=code,
            remedy="check the URL; a dataset may have been copied in part",
            url=url,
        )
    if _is_bad_header(error):
        remedy = "check the credentials: the key, or the token, has a line break or another character that cannot be"
    elif code in _EXPIRED:
        remedy = "renew the credentials, then resume"
    elif _status(error)[0] in (401, 403):
        remedy = "check the credentials and what they allow; storage_options={'anon': True} reads public buckets"
    else:
        remedy = "check the URL, the endpoint and the credentials (environment, profile or storage_options)"
    return StorageError("the store refuses", place=url, found=code or type(error).__name__, remedy=remedy, url=url)


def _gave_up(error: Exception, url: str, num_attempts: int, deadline_s: float) -> UnansweredError:
    is_unknown = is_unknown_host(error)
    return UnansweredError(
        "the store's host has no name" if is_unknown else "the store does not answer as it should",
        place=url,
        expected=f"an answer within {deadline_s:g} s",
        found=f"{num_attempts} attempts, the last of which ended with {_last(error)}",
        remedy="check the endpoint (AWS_ENDPOINT_URL, storage_options={'endpoint_url': ...}), region and name server"
        if is_unknown
        else "check the network and the store's limits; more patience: storage_options={'deadline_s': ...}",
        url=url,
    )


def _last(error: Exception) -> str:
    """Return what an attempt ended with."""
    return error_code(error) or type(error).__name__
