"""The meaning of the errors of remote stores: which are temporary, and the message for the others.

Errors are of botocore, or of the libraries below fsspec. Texts of the latter may contain URLs with credentials, so they
are not passed on.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from wdsplit.errors import DatasetNotFoundError, InputError, StorageError, WdsplitError
from wdsplit.storage.retry import Failure, FailureKind

__all__ = ["NO_SUCH_UPLOAD", "OPERATIONS", "classify", "error_code", "status_of"]

_GONE_STATUS, _REFUSED_STATUS, _REDIRECT_STATUS = (404, 410), (401, 403), 301
NO_SUCH_UPLOAD = "NoSuchUpload"
_GONE = frozenset({"404", "NoSuchKey", "NoSuchBucket", "NotFound"})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_MAYBE_EXPIRED = _EXPIRED | {"400", "403"}
"""If an answer has no body, its status is the code."""
_TRANSIENT = frozenset(
    {"409", "ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "SlowDown", "Throttling"}
    | {"BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch"}  # the request was damaged on its way
)
"""Errors of S3 that are retried whatever their HTTP status."""
_TRANSIENT_STATUS = frozenset({408, 425, 429, *range(500, 600)}) - {501, 507}
"""All but: not implemented, and no space left."""
_UNKNOWN_HOST_ERRORS = frozenset(
    getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA") if hasattr(socket, name)
)  # not EAI_AGAIN: that says that the name server does not answer
_PERMANENT = frozenset({"NotImplemented", "QuotaExceeded", "RequestTimeTooSkewed"})
_TRANSIENT_TYPES = frozenset(
    {
        ("aiohttp", "ClientError"),
        ("aiohttp", "HttpProcessingError"),
        ("azure", "AzureError"),
        ("botocore", "ConnectionError"),
        ("botocore", "HTTPClientError"),
        ("botocore", "IncompleteReadError"),
        ("botocore", "ResponseParserError"),
        ("gcsfs", "ChecksumError"),
        ("google", "TransportError"),
        ("http", "HTTPException"),
        ("httpx", "TransportError"),
        ("urllib3", "HTTPError"),
    }
)
"""Errors of libraries that are retried, though they are not OSErrors: package and name."""
_PERMANENT_TYPES = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, ValueError, TypeError)
_REMEDIES = {
    **dict.fromkeys(_EXPIRED, "renew the credentials, then resume"),
    "QuotaExceeded": "free space in the bucket, or raise its quota",
    "507": "free space in the store",
    "RequestTimeTooSkewed": "set the clock of this machine: the store's differs by more than 15 minutes",
    "InvalidAccessKeyId": "check the credentials: the store does not know the access key's id",
    "SignatureDoesNotMatch": "check the credentials: the secret access key does not belong to the access key's id",
}
_PERMISSIONS = {
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "CompleteMultipartUpload": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListObjectsV2": "s3:ListBucket",
    "PutObject": "s3:PutObject",
    "UploadPart": "s3:PutObject",
}
"""The permission that each of our requests needs."""
OPERATIONS = tuple(_PERMISSIONS)
"""All requests to S3, by their names there."""
_READING = ("", "s3:GetObject", "s3:ListBucket")
_CREDENTIALS = {
    "NoCredentialsError": "no credentials were found in the environment, a profile or storage_options",
    "PartialCredentialsError": "only one of key and secret was found",
}


def classify(error: Exception, place: str, url: str) -> Failure | None:
    """Tell whether another attempt may succeed; our own errors are not retried."""
    if isinstance(error, WdsplitError):
        return None
    behind = error.__cause__  # s3fs translates botocore's errors
    if isinstance(behind, Exception) and _is_of_botocore(behind):
        error = behind
    elif isinstance(error, FileNotFoundError) and isinstance(behind, Exception):
        # fsspec raises FileNotFoundError for any failed request for a size
        error = behind if status_of(behind) or _is_transient(behind) else error
    code, status = error_code(error), status_of(error)
    name = code or (f"status {status}" if status else type(error).__name__.lstrip("_"))
    # The text of an error about a bad header has the header, such as a token.
    cause = error if _is_of_botocore(error) and not _is_bad_header(error) else None
    if code in _MAYBE_EXPIRED:
        return Failure(FailureKind.EXPIRED, name, _refused(error, name, place, url), cause)
    if not _is_transient(error):
        return Failure(FailureKind.FINAL, name, _refused(error, name, place, url), cause)
    after = str(_headers(error).get("retry-after") or _headers(error).get("Retry-After", ""))
    after_s = float(after) if after.isascii() and after.isdigit() else 0.0
    return Failure(_transient_kind(error), name, cause=cause, retry_after_s=after_s)


def error_code(error: Exception) -> str:
    """Return the code of an error that S3 has answered; empty for others."""
    return str(_answer(error).get("Error", {}).get("Code", ""))


def status_of(error: Exception) -> int:
    """Return the HTTP status of a failed request; 0 if there was no valid answer."""
    if any(type(each).__module__ == "aiohttp.http_exceptions" for each in (error, error.__cause__)):
        return 0  # aiohttp has a status of its own for an answer that it cannot parse
    for each in (error, getattr(error, "response", None)):
        for name in ("status", "status_code", "code"):
            if isinstance(value := getattr(each, name, None), int):
                return value
    return int(_answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _headers(error: Exception) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = _answer(error).get("ResponseMetadata", {}).get("HTTPHeaders")
    return found or getattr(error, "headers", None) or {}


def _answer(error: Exception) -> Mapping[str, Any]:
    """Return botocore's form of an answer, which is empty for errors of others."""
    answer = getattr(error, "response", None)
    return answer if isinstance(answer, Mapping) else {}


def _is_of_botocore(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("aiobotocore", "botocore")


def _is_transient(error: Exception) -> bool:
    code, status = error_code(error), status_of(error)
    if code or status:
        return code not in _PERMANENT and (code in _TRANSIENT or status in _TRANSIENT_STATUS)
    if isinstance(error, _PERMANENT_TYPES) or _is_forbidden(error) or _is_bad_header(error) or _is_endless(error):
        return False
    types = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    return isinstance(error, OSError) or bool(types & _TRANSIENT_TYPES) or any(n == "TimeoutError" for _, n in types)


def _is_endless(error: Exception) -> bool:
    """Tell whether botocore was redirected without end: it asks for a region that is not named, which is redirected."""
    return any(isinstance(each, RecursionError) for each in (error, error.__context__))


def _is_bad_header(error: Exception) -> bool:
    """Tell whether a header could not be sent; the error then contains it, for example a session token."""
    return "Invalid header" in str(error)


def _is_forbidden(error: Exception) -> bool:
    """Tell whether access is forbidden; gcsfs raises an OSError of this text."""
    return isinstance(error, PermissionError) or str(error).startswith("Forbidden")


def _refused(error: Exception, found: str, place: str, url: str) -> WdsplitError:
    """Return our error for a permanent failure, without the credentials that its text may contain."""
    status = status_of(error)
    if found == "NoSuchBucket":
        remedy = "check the URL, or make the bucket"
        return DatasetNotFoundError("there is no such bucket", place, found=found, remedy=remedy, url=url)
    if found == NO_SUCH_UPLOAD:
        return StorageError(
            "the store no longer knows an unfinished upload",
            place,
            expected="the upload parts that were sent",
            found=found,
            remedy="the store was restarted, a rule of the bucket ended the upload, or another run writes to this "
            "output: continue with --resume",
            url=url,
        )
    if found in _GONE or status in _GONE_STATUS or (not status and isinstance(error, FileNotFoundError)):
        remedy = "check the URL; the dataset may be an incomplete copy"
        return DatasetNotFoundError("there is no such file", place, found=found, remedy=remedy, url=url)
    if isinstance(error, NotImplementedError):
        remedy = "write to a local folder or another store"
        return StorageError("the file system is read-only", place, remedy=remedy, url=url)
    if isinstance(error, TypeError) and "argument" in str(error):
        expected = "options of the file system, or of RetryOptions"
        return InputError("unknown storage option", place, expected=expected, found=str(error))
    if _is_endless(error) or status == _REDIRECT_STATUS:
        return StorageError(
            "the bucket is in another region",
            place,
            found="a redirect that does not name the region",
            remedy="name the bucket's region: AWS_REGION, or storage_options={'region': ...}",
            url=url,
        )
    if found in _CREDENTIALS:
        remedy = (
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or pass storage_options={'key': ..., "
            "'secret': ...} or {'profile': ...}; {'anon': True} reads public buckets"
        )
        return StorageError(_CREDENTIALS[found], place, remedy=remedy, url=url)
    return StorageError("the store refused the request", place, found=found, remedy=_remedy(error, status), url=url)


def _remedy(error: Exception, status: int) -> str:
    known = _REMEDIES.get(error_code(error)) or _REMEDIES.get(str(status))
    if known:
        return known
    if _is_bad_header(error):
        return "check the credentials: the key, or the token, has a line break or another invalid character"
    if status in _REFUSED_STATUS or _is_forbidden(error):
        if not _is_of_botocore(error):
            return "check the credentials and what they allow, and that a signature has not expired"
        permission = _PERMISSIONS.get(getattr(error, "operation_name", ""), "")
        if permission not in _READING:
            return f"let the owner of the bucket give these credentials the permission {permission}"
        needed = f" ({permission})" if permission else ""
        return (
            f"check the credentials and what they allow{needed}; storage_options={{'anon': True}} reads public buckets"
        )
    return "check the URL, the endpoint and the credentials (environment, profile or storage_options)"


def _transient_kind(error: BaseException | None) -> FailureKind:
    """Return UNKNOWN_HOST if the error is that a host name does not exist, else TRANSIENT."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, socket.gaierror):
            return FailureKind.UNKNOWN_HOST if error.errno in _UNKNOWN_HOST_ERRORS else FailureKind.TRANSIENT
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return FailureKind.TRANSIENT
