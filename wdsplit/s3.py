"""Objects of a store that speaks S3: ranges that are read through faults, objects that appear whole or not at all.

Requests go through botocore, which knows credentials, profiles, endpoints and signatures as every AWS tool does. Its
own retries are off: a read that stopped in the middle goes on from there, and all attempts share one deadline.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from wdsplit.errors import (
    CorruptDataError,
    DatasetNotFoundError,
    InputError,
    MissingDependencyError,
    StorageError,
    WdsplitError,
)
from wdsplit.retry import Retries, RetryOptions
from wdsplit.storage import PendingFile, read_whole

__all__ = ["S3Options", "S3Storage"]

Answer = TypeVar("Answer")

_POOL_SIZE = 32
_NAMES_TOLD = 5
_MOST_EXPIRED = 3
_READ_AT_ONCE = 1024**2
"""What a connection that stalls may make us read again."""
_GONE = frozenset({"404", "NoSuchKey", "NoSuchBucket", "NotFound"})
_CHANGED = frozenset({"412", "PreconditionFailed"})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_PASSING = frozenset({"OperationAborted", "RequestTimeout", "RequestTimeTooSkewed", "SlowDown", "Throttling"})
"""Errors that are gone a moment later though their HTTP status says otherwise; all of 429 and 500 to 599 are such."""


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

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> S3Options:
        """Return the options that s3fs has by these names, and ours.

        Raises:
            InputError: There is no such option.
        """
        given = {**options.get("client_kwargs", {}), **{k: v for k, v in options.items() if k != "client_kwargs"}}
        if "region_name" in given:
            given["region"] = given.pop("region_name")
        times = {name: given.pop(name) for name in list(given) if name in _names(RetryOptions)}
        unknown = sorted(given.keys() - _names(cls) | given.keys() & {"retries"})
        if unknown:
            raise InputError(
                "there is no such storage option",
                expected=", ".join(sorted(_names(cls) - {"retries"} | _names(RetryOptions) | {"client_kwargs"})),
                found=", ".join(unknown),
            )
        return cls(**given, retries=RetryOptions(**times))

    def __repr__(self) -> str:
        """Tell nothing that is secret."""
        shown = {name: getattr(self, name) for name in ("anon", "profile", "endpoint_url", "region")}
        return f"S3Options({', '.join(f'{name}={value!r}' for name, value in shown.items() if value)})"


def _names(options: Any) -> set[str]:
    return {each.name for each in fields(options)}


@functools.lru_cache(maxsize=16)
def _client(options: S3Options, process: int, environ: frozenset[tuple[str, str]]) -> Any:
    """Return what speaks with the store; each process has its own, because connections cannot be shared."""
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
    return session.create_client(
        "s3",
        region_name=options.region,
        endpoint_url=options.endpoint_url,
        aws_access_key_id=options.key,
        aws_secret_access_key=options.secret,
        aws_session_token=options.token,
        config=config,
    )


class S3Storage:
    """The objects under a prefix of a bucket.

    Args:
        url: `s3://bucket/prefix`.
        options: How to reach the store.
    """

    def __init__(self, url: str, options: S3Options | None = None) -> None:
        bucket, _, prefix = url.removeprefix("s3://").strip("/").partition("/")
        if not bucket:
            raise InputError("a URL names no bucket", place=url, expected="s3://bucket/folder")
        self._options = options or S3Options()
        self._bucket = bucket
        self._prefix = prefix

    @property
    def url(self) -> str:
        """The prefix, as a URL."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def read(self, path: str, most_bytes: int | None = None) -> bytes:
        """Return the bytes of an object, unless it has more than it may have."""
        file = self.open(path)
        return read_whole(file, file.url, most_bytes)

    def map(self, path: str) -> bytes:
        """Return the bytes of an object: they cannot be mapped."""
        return self.read(path)

    def open(self, path: str) -> S3File:
        """Open an object for reading: its size is asked for."""
        return S3File(self, self._key(path), f"{self.url}/{path}")

    def size(self, path: str) -> int | None:
        """Return the size of an object in bytes, or None if there is none."""
        try:
            return self.open(path).size
        except DatasetNotFoundError:
            return None

    def list(self, path: str = "") -> list[str]:
        """Return the names of objects and folders in a folder, sorted."""
        prefix = self._key(path)
        prefix = f"{prefix}/" if prefix else ""
        names: set[str] = set()
        more: dict[str, str] = {}
        while True:
            answer = self.ask("list_objects_v2", self.url, Prefix=prefix, Delimiter="/", **more)
            names.update(entry["Key"].removeprefix(prefix) for entry in answer.get("Contents", ()))
            names.update(entry["Prefix"].removeprefix(prefix).rstrip("/") for entry in answer.get("CommonPrefixes", ()))
            if not answer.get("IsTruncated"):
                return sorted(names - {""})
            more = {"ContinuationToken": answer["NextContinuationToken"]}

    def what_is_there(self) -> str:
        """Return the first names in the folder, or say that there are no objects."""
        return ", ".join(self.list()[:_NAMES_TOLD]) or "no objects"

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

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
        environ = frozenset(item for item in os.environ.items() if item[0].startswith("AWS_"))
        client = _client(self._options, os.getpid(), environ)
        return getattr(client, operation)(Bucket=self._bucket, **payer, **parameters)

    def attempt(self, url: str, action: Callable[[Retries], Answer]) -> Answer:
        """Do something that may fail for a while; raises as `ask` does."""
        retries = Retries(self._options.retries)
        num_expired = 0
        while True:
            try:
                return action(retries)
            except WdsplitError:
                raise
            except Exception as error:
                wait_s = _seconds_to_wait(error)
                if _code(error) in _EXPIRED and num_expired < _MOST_EXPIRED:
                    num_expired += 1
                    wait_s = 0.0
                    _client.cache_clear()  # another client looks for credentials again: they may have been renewed
                if wait_s is None:
                    raise _refused(error, url) from error
                if not retries.wait(wait_s):
                    raise _gave_up(error, url, retries.num_attempts, self._options.retries.deadline_s) from error

    @contextmanager
    def publish(self, path: str, durable: bool = False) -> Iterator[PendingFile]:
        """Refuse: this version only reads."""
        raise _read_only(f"{self.url}/{path}")
        yield

    def remove(self, path: str) -> None:
        """Refuse: this version only reads."""
        raise _read_only(f"{self.url}/{path}")

    def remove_temporary(self, path: str = "") -> None:
        """Refuse: this version only reads."""
        raise _read_only(f"{self.url}/{path}")

    def lock(self, path: str) -> AbstractContextManager[None]:
        """Refuse: this version only reads."""
        raise _read_only(f"{self.url}/{path}")


class S3File:
    """An object that is open for reading. All that is read of it is of one version.

    Args:
        storage: Where it is.
        key: Its key.
        url: What to call it.

    Attributes:
        url: What to call it.
        size: Its bytes.
    """

    is_remote = True

    def __init__(self, storage: S3Storage, key: str, url: str) -> None:
        self.url = url
        self._storage = storage
        self._key = key
        answer = storage.ask("head_object", url, Key=key)
        self._etag = answer["ETag"]
        self.size = int(answer["ContentLength"])

    def map(self) -> bytes:
        """Return all its bytes."""
        return self.read(0, self.size)

    def expect(self, offset: int, num_bytes: int) -> None:
        """Do nothing yet."""

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return bytes from an offset on."""
        data = bytearray(num_bytes)
        self.read_into(memoryview(data), offset)
        return bytes(data)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes from an offset on; a read that fails goes on where it stopped."""
        stop = offset + len(buffer)
        if stop > self.size:
            raise self._too_short(stop)
        filled = 0

        def fill(retries: Retries) -> None:
            nonlocal filled
            while filled < len(buffer):
                before = filled
                with closing(self._body(offset + filled, stop)) as body:
                    while filled < len(buffer) and (count := body.readinto(buffer[filled : filled + _READ_AT_ONCE])):
                        filled += count
                        retries.progressed()
                if filled == before:
                    raise _NothingCameError

        if len(buffer):
            self._storage.attempt(f"{self.url}, bytes {offset} to {stop - 1}", fill)

    def _body(self, offset: int, stop: int) -> Any:
        """Ask for the bytes from an offset on; return what they are read from."""
        try:
            answer = self._storage.send(
                "get_object", Key=self._key, Range=f"bytes={offset}-{stop - 1}", IfMatch=self._etag
            )
        except Exception as error:
            if _code(error) in _CHANGED:
                raise self._changed("another version") from error
            raise
        body, found = answer["Body"], answer.get("ContentRange", "")
        if answer.get("ETag", self._etag) != self._etag or not (found or f"bytes {offset}-").startswith(
            f"bytes {offset}-"
        ):
            body.close()
            raise self._changed(f"version {answer.get('ETag')}, {found}")
        skipped = 0 if found else offset  # some answer with all of the object
        while skipped:
            data = body.read(min(skipped, _READ_AT_ONCE))
            if not data:
                raise _NothingCameError
            skipped -= len(data)
        return body

    def _changed(self, found: str) -> CorruptDataError:
        return CorruptDataError(
            "an object was replaced while it was read",
            place=self.url,
            expected=f"version {self._etag}",
            found=found,
            remedy="write new data to another place, and start again",
            url=self.url,
        )

    def _too_short(self, stop: int) -> CorruptDataError:
        return CorruptDataError(
            "an object is shorter than what is wanted of it",
            place=self.url,
            expected=f"at least {stop} bytes",
            found=f"{self.size} bytes",
            remedy="the object was truncated: copy it again",
            url=self.url,
        )


class _NothingCameError(Exception):
    """A connection was closed before a single byte."""


def _code(error: Exception) -> str:
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
        if status != 429 and status < 500 and _code(error) not in _PASSING:
            return None
        after = headers.get("retry-after", "")
        return float(after) if after.isdigit() else 0.0
    passing = (kinds.ConnectionError, kinds.HTTPClientError, kinds.IncompleteReadError, OSError)
    return 0.0 if isinstance(error, (*passing, _NothingCameError)) else None


def _refused(error: Exception, url: str) -> WdsplitError:
    """Return our error for one that will not pass. What it says of credentials is left out."""
    code = _code(error)
    if code in _GONE:
        return DatasetNotFoundError(
            "there is no such object",
            place=url,
            found=code,
            remedy="check the URL; a dataset may have been copied in part",
            url=url,
        )
    if code in _EXPIRED:
        remedy = "renew the credentials, then resume"
    elif _status(error)[0] in (401, 403):
        remedy = "check the credentials and what they allow; storage_options={'anon': True} reads public buckets"
    else:
        remedy = "check the URL, the endpoint and the credentials (environment, profile or storage_options)"
    return StorageError("the store refuses", place=url, found=code or type(error).__name__, remedy=remedy, url=url)


def _gave_up(error: Exception, url: str, num_attempts: int, deadline_s: float) -> StorageError:
    return StorageError(
        "the store does not answer as it should",
        place=url,
        expected=f"an answer within {deadline_s:g} s",
        found=f"{num_attempts} attempts, the last of which ended with {_code(error) or type(error).__name__}",
        remedy="check the network and the store's limits; more patience: storage_options={'deadline_s': ...}",
        url=url,
    )


def _read_only(url: str) -> InputError:
    return InputError(
        "s3:// can only be read by this version",
        place=url,
        expected="a local path to write to",
        remedy="write to a local folder, and copy it with the tools of your store",
    )
