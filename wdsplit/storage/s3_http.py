"""Sends what botocore has signed, through a pool of connections of urllib3, and waits as long as `patience_s` allows.

All requests of a client go through the pool. botocore's client takes half a millisecond per GET to translate arguments
and answers, so only the first GET of a bucket, and the first after an error instead of an answer, is made by it. The
others reuse its headers, its signer and a signature of the object.
"""

from __future__ import annotations

import http.client
import io
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from wdsplit.storage.remote import Answer
from wdsplit.storage.retry import UnfitAnswerError, patience_s

__all__ = ["S3Http"]

_REDIRECTED = range(300, 400)
_SIGNED_S = 60.0
"""How long a signature is used: signing takes as long as sending. A store accepts a signature for 15 minutes."""
_MAX_SIGNED = 4096
"""Signatures to keep: more than a reader has shards open."""
_URLLIB3 = {
    "retries": False,
    "redirect": False,
    "assert_same_host": False,
    "preload_content": False,
    "decode_content": False,
    "enforce_content_length": False,
}
"""botocore follows redirects, and `RemoteFile` counts the bytes of an answer."""
_of_thread = threading.local()
"""What the parts of a request tell each other in a thread: `answer`, the last answer of `http.client`; `is_first`,
whether `get` waits for a GET of botocore; `get`, what `_keep` saw of that before it was signed."""


class _BoundedReads(io.RawIOBase):
    """The reading side of a socket; a read takes no longer than `patience_s` allows, however slowly bytes trickle."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase) -> None:
        self._sock, self._raw = sock, raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        timeout_s, left_s = self._sock.gettimeout(), patience_s()
        if left_s <= 0:
            raise TimeoutError("the answer came too slowly")
        if timeout_s is not None and timeout_s <= left_s:
            return self._raw.readinto(buffer)
        self._sock.settimeout(left_s)
        try:
            return self._raw.readinto(buffer)
        finally:
            self._sock.settimeout(timeout_s)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _BoundedResponse(http.client.HTTPResponse):
    """An answer whose head and body are read no longer than `patience_s` allows."""

    def __init__(self, sock: socket.socket, *arguments: Any, **keywords: Any) -> None:
        super().__init__(sock, *arguments, **keywords)
        self.fp = io.BufferedReader(_BoundedReads(sock, self.fp.detach()))
        _of_thread.answer = self


class _BodyInPlace:
    """A body that is read from its connection directly into the caller's memory; urllib3's `readinto` copies.

    Args:
        raw: The answer of urllib3.
        answer: The answer of `http.client` in it, which knows how many bytes are left.
    """

    def __init__(self, raw: Any, answer: http.client.HTTPResponse) -> None:
        self._raw = raw
        self._answer = answer

    def readinto(self, buffer: memoryview) -> int:
        """Read into a buffer; return the number of bytes read, 0 at the end."""
        count = self._answer.readinto(buffer)
        if not self._answer.length:
            self._raw.release_conn()
        elif not count and buffer:
            raise ConnectionResetError("the connection was closed before the end of the answer")
        return count

    def close(self) -> None:
        """Close the connection, unless all was read: then the next request uses it."""
        self._raw.close()


@dataclass(frozen=True)
class _Sent:
    """An answered GET.

    Attributes:
        bucket_url: The URL of its bucket.
        headers: Its headers before it was signed, except the object's own.
        context: The context of its signature.
        signer: What signed it.
        signed: By URLs of objects: when (`time.time`) a GET was signed, and its headers.
    """

    bucket_url: str
    headers: Mapping[str, str]
    context: Mapping[str, Any]
    signer: Any
    signed: dict[str, tuple[float, Mapping[str, str]]] = field(default_factory=dict)


class S3Http:
    """A client of botocore whose requests are sent through connections of our own.

    Args:
        client: The client.
        verify: Whether to check the server's certificate, or a file to check it with; None for the environment's.

    Attributes:
        client: The client.
    """

    def __init__(self, client: Any, verify: bool | str | None) -> None:
        self.client = client
        self._pools: dict[str, Any] = {}
        self._sent: dict[str, _Sent] = {}
        config = client.meta.config
        if config.proxies_config:  # of certificates for proxies: botocore knows them
            return
        import urllib3
        from botocore.httpsession import ProxyConfiguration, get_cert_path
        from botocore.utils import get_environ_proxies
        from urllib3.util.ssl_ import create_urllib3_context

        url = client.meta.endpoint_url
        self._proxies = ProxyConfiguration(get_environ_proxies(url) if config.proxies is None else config.proxies)
        verify = os.environ.get("REQUESTS_CA_BUNDLE", True) if verify is None else verify
        context = create_urllib3_context()
        context.check_hostname = bool(verify)
        if verify:
            context.load_verify_locations(get_cert_path(verify))
        certificate = config.client_cert
        if certificate:
            context.load_cert_chain(*([certificate] if isinstance(certificate, str) else certificate))
        self._pool_options = {
            "timeout": urllib3.Timeout(connect=config.connect_timeout, read=config.read_timeout),
            "maxsize": config.max_pool_connections,
            "ssl_context": context,
            "cert_reqs": "CERT_REQUIRED" if verify else "CERT_NONE",
        }
        client.meta.events.register("before-send.s3", self._send)
        client.meta.events.register_first("before-sign.s3.GetObject", self._keep)

    def _keep(self, request: Any, request_signer: Any, **_: Any) -> None:
        """Keep what `get` repeats."""
        if getattr(_of_thread, "is_first", False):
            _of_thread.get = request, dict(request.headers), request_signer

    def _send(self, request: Any, **_: Any) -> Any:
        """Send a request of botocore in its place."""
        from botocore.awsrequest import AWSResponse

        raw = self._sent_raw(request.method, request.url, request.headers, request.body)
        return AWSResponse(request.url, raw.status, raw.headers, raw)

    def _sent_raw(self, method: str, url: str, headers: Mapping[str, str], body: Any = None) -> Any:
        scheme, _, rest = url.partition("://")
        host, slash, path = rest.partition("/")
        origin = f"{scheme}://{host}"
        pool = self._pools.get(origin) or self._pools.setdefault(origin, self._new_pool(origin))
        is_forwarded = pool.proxy is not None and scheme == "http"
        return pool.urlopen(method, url if is_forwarded else slash + path, body, headers, **_URLLIB3)

    def _new_pool(self, origin: str) -> Any:
        import urllib3

        proxy = self._proxies.proxy_url_for(origin)
        manager = urllib3.PoolManager(**self._pool_options)
        if proxy is not None:
            headers = self._proxies.proxy_headers_for(proxy)
            manager = urllib3.ProxyManager(proxy, proxy_headers=headers, **self._pool_options)
        classes: dict[str, Any] = manager.pool_classes_by_scheme
        manager.pool_classes_by_scheme = {scheme: _bounded(pool) for scheme, pool in classes.items()}
        return manager.connection_from_url(origin)

    def get(self, bucket: str, key: str, asked: Mapping[str, str], first: Callable[..., Any]) -> Answer:
        """Send a GET of an object once.

        Args:
            bucket: The bucket of the object.
            key: The key of the object.
            asked: The headers Range and If-Match, if any.
            first: Sends a GET through the client, and adds parameters that all GETs have.
        """
        sent = self._sent.get(bucket)
        if sent is not None:
            try:
                answer = self._repeated(sent, key, asked)
            except BaseException:
                self._sent.pop(bucket, None)
                raise
            if answer is not None:
                return answer
        _of_thread.get, _of_thread.is_first = None, True
        try:
            answer = first(Key=key, **{name.replace("-", ""): value for name, value in asked.items()})
        finally:
            _of_thread.is_first = False
        if _of_thread.get is not None:
            request, headers, signer = _of_thread.get
            bucket_url = request.url.removesuffix(_quoted(key))
            if bucket_url != request.url:
                headers = {name: value for name, value in headers.items() if name not in asked}
                self._sent[bucket] = _Sent(bucket_url, headers, dict(request.context), signer)
        from botocore.awsrequest import HeadersDict

        about = answer["ResponseMetadata"]
        return _answer(about["HTTPStatusCode"], HeadersDict(about["HTTPHeaders"]), answer["Body"])

    def _repeated(self, sent: _Sent, key: str, asked: Mapping[str, str]) -> Answer | None:
        """Return the answer to a GET like an earlier one; None for a redirect, which the client follows."""
        url = sent.bucket_url + _quoted(key)
        raw = self._sent_raw("GET", url, {**_signed_headers(sent, url), **asked})
        if raw.status >= 300:
            from botocore.awsrequest import HeadersDict
            from botocore.exceptions import ClientError
            from botocore.parsers import create_parser

            data = raw.read()
            if raw.status in _REDIRECTED:
                return None
            found = {"headers": HeadersDict(raw.headers), "status_code": raw.status, "body": data}
            shape = self.client.meta.service_model.operation_model("GetObject").output_shape
            raise ClientError(create_parser("rest-xml").parse(found, shape), "GetObject")
        answer = _of_thread.answer  # the one of `http.client` in `raw`; its length is None if it comes in chunks
        return _answer(raw.status, raw.headers, _BodyInPlace(raw, answer) if answer.length else raw)


def _answer(status: int, headers: Mapping[str, str], body: Any) -> Answer:
    etag, length = headers.get("ETag"), headers.get("Content-Length", "")
    if not etag and not headers.get("Last-Modified"):  # each answer of a store about an object has one
        body.close()
        raise UnfitAnswerError("an answer without ETag and Last-Modified")
    return Answer(status, int(length) if length.isdecimal() else None, headers.get("Content-Range", ""), etag, body)


def _bounded(pool: Any) -> Any:
    """Return a class of pools like another, whose answers are bounded."""
    connection = type("Connection", (pool.ConnectionCls,), {"response_class": _BoundedResponse})
    return type("Pool", (pool,), {"ConnectionCls": connection})


def _quoted(key: str) -> str:
    return quote(key, safe="/~")


def _signed_headers(sent: _Sent, url: str) -> Mapping[str, str]:
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
        sent.signer.sign("GetObject", request)
        headers = dict(request.prepare().headers.items())
        if len(sent.signed) >= _MAX_SIGNED:
            sent.signed.clear()
        sent.signed[url] = now, headers
    return headers
