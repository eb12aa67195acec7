"""GETs of a bucket's objects, at a third of the cost of botocore's client.

The client takes half a millisecond per request to translate arguments and answers. Only the first request to a bucket,
and the first after an error, go through it. The others reuse its headers, its signatures, and urllib3's connections.
"""

from __future__ import annotations

import http.client
import io
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

from wdsplit.storage.retry import patience_s

__all__ = ["bound_reads", "get_object", "keep_requests"]

_OK = frozenset({200, 206})
_REDIRECTED = range(300, 400)
_SIGNED_S = 60.0
"""How long a signature is used: signing takes as long as sending. A store accepts a signature for 15 minutes."""
_URLLIB3 = {
    "retries": False,
    "redirect": False,
    "assert_same_host": False,
    "preload_content": False,
    "decode_content": False,
    "enforce_content_length": False,
}
"""How botocore uses urllib3."""
_MAX_SIGNED = 4096
"""Signatures to keep: more than a reader has shards open."""


@dataclass(frozen=True)
class _Sent:
    """An answered GET.

    Attributes:
        bucket_url: The URL of its bucket.
        headers: Its headers, except the object's own.
        context: The context of its signature.
        pool: The connections to its host, a pool of urllib3; None if a proxy is used.
        signed: By URLs of objects: when (`time.time`) a GET was signed, and its headers.
    """

    bucket_url: str
    headers: Mapping[str, str]
    context: Mapping[str, Any]
    pool: Any
    signed: dict[str, tuple[float, Mapping[str, str]]] = field(default_factory=dict)


_sent: WeakKeyDictionary[Any, dict[str, _Sent]] = WeakKeyDictionary()
"""The answered GETs, by botocore's client and bucket."""
_last = threading.local()
"""The last request of a thread, and its headers before it was signed."""


def keep_requests(client: Any) -> None:
    """Let a client of botocore keep the requests that `get_object` repeats."""

    def keep(request: Any, **_: Any) -> None:
        _last.request, _last.headers = request, dict(request.headers)

    client.meta.events.register_first("request-created.s3.GetObject", keep)
    _sent[client] = {}


def bound_reads(client: Any) -> None:
    """Let a client of botocore wait for answers no longer than `patience_s` allows, however slowly they trickle."""
    classes = client._endpoint.http_session._pool_classes_by_scheme
    for scheme, pool in list(classes.items()):
        connection = type("Connection", (pool.ConnectionCls,), {"response_class": _BoundedResponse})
        classes[scheme] = type("Pool", (pool,), {"ConnectionCls": connection})


class _BoundedResponse(http.client.HTTPResponse):
    """An answer whose head and body are read no longer than `patience_s` allows."""

    def __init__(self, sock: socket.socket, *arguments: Any, **keywords: Any) -> None:
        super().__init__(sock, *arguments, **keywords)
        raw: Any = self.fp.detach()
        raw.__class__ = _BoundedReads  # a new one would have to be counted as a user of the socket
        self.fp = io.BufferedReader(raw)


class _BoundedReads(socket.SocketIO):
    """The reading side of a socket."""

    def readinto(self, buffer: Any) -> int | None:
        sock: Any = self._sock  # type: ignore[attr-defined]
        timeout_s, left_s = sock.gettimeout(), patience_s()
        if left_s <= 0:
            raise TimeoutError("the answer came too slowly")
        if timeout_s is not None and timeout_s <= left_s:
            return super().readinto(buffer)
        sock.settimeout(left_s)
        try:
            return super().readinto(buffer)
        finally:
            sock.settimeout(timeout_s)


def get_object(client: Any, bucket: str, key: str, asked: Mapping[str, str], first: Callable[..., Any]) -> Any:
    """Return an answer's Body, status, ETag, LastModified, ContentLength and ContentRange, as botocore's client does.

    Args:
        client: The client of botocore.
        bucket: The bucket of the object.
        key: The key of the object.
        asked: The headers Range and If-Match, if any.
        first: Sends a GET through the client, and adds parameters that all GETs have.
    """
    sent = _sent[client].get(bucket)
    if sent is not None:
        try:
            answer = _repeated(client, sent, key, asked)
        except BaseException:
            _sent[client].pop(bucket, None)
            raise
        if answer is not None:
            return answer
    _last.request = None
    answer = first(Key=key, **{name.replace("-", ""): value for name, value in asked.items()})
    if _last.request is not None:
        bucket_url = _last.request.url.removesuffix(_quoted(key))
        if bucket_url != _last.request.url:
            headers = {name: value for name, value in _last.headers.items() if name not in asked}
            _sent[client][bucket] = _Sent(bucket_url, headers, dict(_last.request.context), _pool(client, bucket_url))
    return answer


def _quoted(key: str) -> str:
    return quote(key, safe="/~")


def _repeated(client: Any, sent: _Sent, key: str, asked: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the answer to a GET like an earlier one; None for a redirect, which the client follows."""
    from botocore.awsrequest import AWSPreparedRequest, HeadersDict
    from botocore.exceptions import ClientError, HTTPClientError
    from urllib3.exceptions import HTTPError

    url = sent.bucket_url + _quoted(key)
    headers = {**_signed_headers(client, sent, url), **asked}
    if sent.pool is None:
        raw = client._endpoint.http_session.send(AWSPreparedRequest("GET", url, headers, None, True)).raw
    else:
        try:
            raw = sent.pool.urlopen("GET", urlsplit(url).path, headers=headers, **_URLLIB3)
        except HTTPError as error:
            raise HTTPClientError(error=error) from error
    if raw.status not in _OK:
        found = {"headers": HeadersDict(raw.headers), "status_code": raw.status, "body": raw.read()}
        shape = client.meta.service_model.operation_model("GetObject").output_shape
        if raw.status in _REDIRECTED:
            return None
        raise ClientError(client._response_parser.parse(found, shape), "GetObject")
    return {
        "Body": _body(raw, raw.headers.get("Content-Length")),
        "ResponseMetadata": {"HTTPStatusCode": raw.status},
        "ETag": raw.headers.get("ETag"),
        "LastModified": raw.headers.get("Last-Modified"),
        "ContentLength": raw.headers.get("Content-Length"),
        "ContentRange": raw.headers.get("Content-Range", ""),
    }


def _pool(client: Any, url: str) -> Any:
    """Return the connections that botocore has to a host; None if it uses a proxy."""
    session = client._endpoint.http_session
    is_direct = session._proxy_config.proxy_url_for(url) is None
    return session._get_connection_manager(url).connection_from_url(url) if is_direct else None


def _signed_headers(client: Any, sent: _Sent, url: str) -> Mapping[str, str]:
    """Return the headers of a GET with a recent signature.

    It covers the object, not Range and If-Match (Signature Version 4 demands only Host and x-amz-* headers): so one
    signature serves all ranges of an object.
    """
    from botocore.awsrequest import AWSRequest

    now = time.time()
    moment, headers = sent.signed.get(url, (-_SIGNED_S, {}))
    if not 0 <= now - moment < _SIGNED_S:
        request = AWSRequest("GET", url, headers=sent.headers)
        request.context.update(sent.context)
        client._request_signer.sign("GetObject", request)
        headers = dict(request.prepare().headers.items())
        if len(sent.signed) >= _MAX_SIGNED:
            sent.signed.clear()
        sent.signed[url] = now, headers
    return headers


def _body(raw: Any, length: str | None) -> Any:
    """Return the body of an answer, one that is read in place if urllib3's internals are as expected."""
    from botocore.response import StreamingBody

    response = getattr(raw, "_original_response", None)
    is_plain = bool(getattr(response, "length", None))  # None: it comes in chunks
    return _BodyInPlace(raw, response) if is_plain else StreamingBody(raw, length)


class _BodyInPlace:
    """A body that is read from its connection directly into the caller's memory; urllib3's `readinto` copies.

    Args:
        raw: The response of urllib3.
        response: The response of `http.client` in it, which knows how many bytes are left.
    """

    def __init__(self, raw: Any, response: Any) -> None:
        self._raw = raw
        self._response = response

    def readinto(self, buffer: memoryview) -> int:
        """Read into a buffer; return the number of bytes read, 0 at the end."""
        count: int = self._response.readinto(buffer)
        if not self._response.length:
            self._raw.release_conn()
        elif not count and buffer:
            raise ConnectionResetError("the connection was closed before the end of the answer")
        return count

    def read(self, num_bytes: int) -> bytes:
        """Return at most `num_bytes` bytes; none at the end."""
        data = bytearray(num_bytes)
        return bytes(data[: self.readinto(memoryview(data))])

    def close(self) -> None:
        """Close the connection, unless all was read: then the next request uses it."""
        self._raw.close()
