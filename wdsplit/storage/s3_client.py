"""Requests to a store that speaks S3: options, clients, and what its errors mean.

Requests go through botocore, which knows credentials, profiles, endpoints and signatures as every AWS tool does. Its
own retries are off: a read that stopped in the middle goes on from there, and all attempts share one deadline.
"""

from __future__ import annotations

import functools
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from wdsplit.errors import DatasetNotFoundError, InputError, MissingDependencyError, StorageError, WdsplitError
from wdsplit.storage.locks import ProcessLock
from wdsplit.storage.retry import Failure, FailureKind, Retries, RetryOptions, attempt, transient_kind
from wdsplit.urls import shown_url

__all__ = ["NothingCameError", "S3Client", "S3Options", "error_code"]

Answer = TypeVar("Answer")

_POOL_SIZE = 4096
"""Connections that are kept at most: more than any threads ask by at once. Each is made when it is needed."""
_MAX_CLIENTS = 16
_SHORT_DEADLINE_S = 10.0
_GONE = frozenset({"404", "NoSuchKey", "NoSuchBucket", "NotFound"})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_MAYBE_EXPIRED = _EXPIRED | {"400", "403"}
"""An answer without a body says no more than its status."""
_UNNAMED = frozenset({"400", "403", "409"})
_TRANSIENT = frozenset(
    {"409", "ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "SlowDown", "Throttling"}
    | {"BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch"}  # the request was damaged on its way
)
"""Errors that pass though their HTTP status says otherwise; all of 429 and 500 to 599 pass, but for those below."""
_LASTING = frozenset({"NotImplemented", "QuotaExceeded", "RequestTimeTooSkewed"})
_LASTING_STATUS = 501
_REDIRECT_STATUS = 301
_REMEDIES = {
    "QuotaExceeded": "free space in the bucket, or raise its quota",
    "RequestTimeTooSkewed": "set the clock of this machine: the store's differs by more than 15 minutes",
}


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
        path_style: Whether the bucket is in the path; None lets botocore choose.
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
            InputError: There is no such option, or its value is invalid.
        """
        more = options.get("client_kwargs", {}) if isinstance(options, Mapping) else {}
        for name, each in (("storage_options", options), ("client_kwargs", more)):
            if not isinstance(each, Mapping):
                raise InputError(f"invalid {name}", expected="a dict", found=type(each).__name__)
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
                while len(self._made) > _MAX_CLIENTS:
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
        return self.attempt(lambda _: self.send(operation, **parameters), url)

    def head(self, key: str, url: str) -> Any:
        """Ask for an object's size, ETag and the like; raises as `ask` does."""
        return self.attempt(lambda _: self._head(key), url)

    def _head(self, key: str) -> Any:
        try:
            return self.send("head_object", Key=key)
        except Exception as error:
            if error_code(error) not in _UNNAMED:
                raise
            # The answer to HEAD has no body to name the error: ask by a GET, which fails with the name.
            self.send("get_object", Key=key, Range="bytes=0-0")["Body"].close()
            raise

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
        deadline_s = min(_SHORT_DEADLINE_S, self._options.retries.deadline_s)
        retries = replace(self._options.retries, deadline_s=deadline_s)
        return S3Client(self._bucket, replace(self._options, retries=retries))

    def attempt(
        self,
        action: Callable[[Retries], Answer],
        url: str,
        details: str = "",
        sleep: Callable[[float], object] = time.sleep,
    ) -> Answer:
        """Do something that may fail for a while; arguments as for `Retries`, raises as `ask` does."""

        def renew(moment: float) -> None:
            """Look for renewed credentials, unless another thread has since a moment."""
            _clients.of(self._options, made_after=moment)

        return attempt(action, _classify, Retries(self._options.retries, url, details, sleep), renew)


def error_code(error: Exception) -> str:
    """Return what the store calls an error; nothing if it is not of the store."""
    answer = getattr(error, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))


def _status(error: Exception) -> tuple[int, dict[str, str]]:
    """Return HTTP status and headers of an answer that is an error; 0 if there was no answer."""
    answer = (getattr(error, "response", None) or {}).get("ResponseMetadata", {})
    return int(answer.get("HTTPStatusCode", 0)), answer.get("HTTPHeaders", {})


def _classify(error: Exception, place: str, url: str) -> Failure | None:
    """Tell whether another attempt may succeed; our own errors pass as they are."""
    if isinstance(error, WdsplitError):
        return None
    code = error_code(error)
    name = code or type(error).__name__
    if code in _MAYBE_EXPIRED:
        return Failure(FailureKind.EXPIRED, name, _refused(error, place, url), error)
    if _is_bad_header(error):  # its text holds the credentials
        return Failure(FailureKind.FINAL, name, _refused(error, place, url))
    if not _is_transient(error):
        return Failure(FailureKind.FINAL, name, _refused(error, place, url), error)
    after = _status(error)[1].get("retry-after", "")
    return Failure(transient_kind(error), name, cause=error, retry_after_s=float(after) if after.isdigit() else 0.0)


def _is_transient(error: Exception) -> bool:
    import botocore.exceptions as kinds

    if isinstance(error, kinds.ClientError):
        code, status = error_code(error), _status(error)[0]
        if code in _LASTING or status == _LASTING_STATUS:
            return False
        return code in _TRANSIENT or status == 429 or status >= 500
    transient = (kinds.ConnectionError, kinds.HTTPClientError, kinds.IncompleteReadError, OSError, NothingCameError)
    return isinstance(error, transient)


def _is_bad_header(error: Exception) -> bool:
    """Tell whether a header could not be sent: such an error says what is in it, a session token for example."""
    return "Invalid header" in str(error)


def _refused(error: Exception, place: str, url: str) -> WdsplitError:
    """Return our error for one that will not pass. What it says of credentials is left out."""
    code = error_code(error)
    found = code or type(error).__name__
    if code == "NoSuchBucket":
        return DatasetNotFoundError(
            "there is no such bucket", place, found=found, remedy="check the URL, or make the bucket", url=url
        )
    if code in _GONE:
        return DatasetNotFoundError(
            "there is no such object",
            place,
            found=found,
            remedy="check the URL; a dataset may have been copied in part",
            url=url,
        )
    if isinstance(error, RecursionError) or _status(error)[0] == _REDIRECT_STATUS:
        # botocore follows a redirect that does not name the region by asking for the region, which is redirected too
        return StorageError(
            "the bucket is in another region",
            place,
            found="a redirect that does not name the region",
            remedy="name the bucket's region: AWS_REGION, or storage_options={'region': ...}",
            url=url,
        )
    return StorageError("the store refuses", place, found=found, remedy=_remedy(error), url=url)


def _remedy(error: Exception) -> str:
    code = error_code(error)
    if code in _REMEDIES:
        return _REMEDIES[code]
    if _is_bad_header(error):
        return "check the credentials: the key, or the token, has a line break or another invalid character"
    if code in _EXPIRED:
        return "renew the credentials, then resume"
    if _status(error)[0] in (401, 403):
        return "check the credentials and what they allow; storage_options={'anon': True} reads public buckets"
    return "check the URL, the endpoint and the credentials (environment, profile or storage_options)"
