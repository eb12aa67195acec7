"""The meaning of botocore's errors: which are temporary, and the message for the others."""

from __future__ import annotations

from typing import TypeGuard

from wdsplit.errors import DatasetNotFoundError, StorageError, WdsplitError
from wdsplit.storage.retry import Failure, FailureKind, is_transient_status, parse_retry_after, transient_kind

__all__ = ["OPERATIONS", "classify_s3", "error_code", "gone", "is_of_botocore"]

_GONE = frozenset({"404", "NoSuchKey", "NoSuchBucket", "NotFound"})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_MAYBE_EXPIRED = _EXPIRED | {"400", "403"}
"""If an answer has no body, its status is the code."""
_TRANSIENT = frozenset(
    {"409", "ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "SlowDown", "Throttling"}
    | {"BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch"}  # the request was damaged on its way
)
"""Errors that are retried whatever their HTTP status."""
_PERMANENT = frozenset({"NotImplemented", "QuotaExceeded", "RequestTimeTooSkewed"})
_REDIRECT_STATUS = 301
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
"""All requests that are sent, by their names in S3."""
_READING = ("s3:GetObject", "s3:ListBucket")
_CREDENTIALS = {
    "NoCredentialsError": "no credentials were found in the environment, a profile or storage_options",
    "PartialCredentialsError": "only one of key and secret was found",
}
_WAYS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or pass storage_options={'key': ..., "
    "'secret': ...} or {'profile': ...}; {'anon': True} reads public buckets"
)


def gone(kind: str, place: str, found: str, url: str) -> DatasetNotFoundError:
    """Return the error for a file or an object that does not exist."""
    remedy = "check the URL; the dataset may be an incomplete copy"
    return DatasetNotFoundError(f"there is no such {kind}", place, found=found, remedy=remedy, url=url)


def is_of_botocore(error: BaseException | None) -> TypeGuard[Exception]:
    """Tell whether an error is from botocore or aiobotocore."""
    return isinstance(error, Exception) and type(error).__module__.partition(".")[0] in ("aiobotocore", "botocore")


def error_code(error: Exception) -> str:
    """Return the store's code of an error; empty if the error is not from the store."""
    answer = getattr(error, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))


def _status(error: Exception) -> tuple[int, dict[str, str]]:
    """Return the HTTP status and headers of a failed request; 0 if there was no answer."""
    answer = (getattr(error, "response", None) or {}).get("ResponseMetadata", {})
    return int(answer.get("HTTPStatusCode", 0)), answer.get("HTTPHeaders", {})


def classify_s3(error: Exception, place: str, url: str) -> Failure | None:
    """Tell whether another attempt may succeed; our own errors are not retried."""
    if isinstance(error, WdsplitError):
        return None
    code = error_code(error)
    name = code or type(error).__name__
    if code in _MAYBE_EXPIRED:
        return Failure(FailureKind.EXPIRED, name, _refused(error, place, url), error)
    if _is_bad_header(error):  # its text contains the credentials
        return Failure(FailureKind.FINAL, name, _refused(error, place, url))
    if not _is_transient(error):
        return Failure(FailureKind.FINAL, name, _refused(error, place, url), error)
    after = parse_retry_after(_status(error)[1].get("retry-after", ""))
    return Failure(transient_kind(error), name, cause=error, retry_after_s=after)


def _is_transient(error: Exception) -> bool:
    import botocore.exceptions as kinds
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError  # while the body of an error is read

    if isinstance(error, kinds.ClientError):
        code = error_code(error)
        return code not in _PERMANENT and (code in _TRANSIENT or is_transient_status(_status(error)[0]))
    if _is_endless(error):
        return False
    transient = (kinds.ConnectionError, kinds.HTTPClientError, kinds.IncompleteReadError)
    return isinstance(error, (*transient, ResponseParserError, HTTPError, OSError))


def _is_endless(error: Exception) -> bool:
    """Tell whether botocore was redirected without end: it asks for a region that is not named, which is redirected."""
    return any(isinstance(each, RecursionError) for each in (error, error.__context__))


def _is_bad_header(error: Exception) -> bool:
    """Tell whether a header could not be sent; the error then contains it, for example a session token."""
    return "Invalid header" in str(error)


def _refused(error: Exception, place: str, url: str) -> WdsplitError:
    """Return our error for a permanent failure, without the credentials that its text may contain."""
    code = error_code(error)
    found = code or type(error).__name__
    if code == "NoSuchBucket":
        return DatasetNotFoundError(
            "there is no such bucket", place, found=found, remedy="check the URL, or make the bucket", url=url
        )
    if code in _GONE:
        return gone("object", place, found, url)
    if _is_endless(error) or _status(error)[0] == _REDIRECT_STATUS:
        return StorageError(
            "the bucket is in another region",
            place,
            found="a redirect that does not name the region",
            remedy="name the bucket's region: AWS_REGION, or storage_options={'region': ...}",
            url=url,
        )
    if found in _CREDENTIALS:
        return StorageError(_CREDENTIALS[found], place, remedy=_WAYS, url=url)
    return StorageError("the store refused the request", place, found=found, remedy=_remedy(error), url=url)


def _remedy(error: Exception) -> str:
    known = _REMEDIES.get(error_code(error)) or _REMEDIES.get(str(_status(error)[0]))
    if known:
        return known
    if _is_bad_header(error):
        return "check the credentials: the key, or the token, has a line break or another invalid character"
    if _status(error)[0] in (401, 403):
        permission = _PERMISSIONS.get(getattr(error, "operation_name", ""), "")
        if permission and permission not in _READING:
            return f"let the owner of the bucket give these credentials the permission {permission}"
        needed = f" ({permission})" if permission else ""
        return (
            f"check the credentials and what they allow{needed}; storage_options={{'anon': True}} reads public buckets"
        )
    return "check the URL, the endpoint and the credentials (environment, profile or storage_options)"
