"""Options for S3-compatible stores: those of s3fs under the same names, and ours. Unknown options are errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from wdsplit.errors import InputError, did_you_mean
from wdsplit.storage.retry import RETRY_NAMES, RetryOptions

__all__ = ["S3Options"]

_ALIASES = {
    "username": "key",
    "aws_access_key_id": "key",
    "password": "secret",
    "aws_secret_access_key": "secret",
    "aws_session_token": "token",
    "region_name": "region",
}
"""Other names of options in s3fs and its client_kwargs."""


@dataclass(frozen=True)
class S3Options:
    """How to reach a store. Options that are None come from the environment, profile or instance, as in AWS tools.

    Attributes:
        key: The access key's id.
        secret: The secret access key.
        token: The session token.
        anon: Do not sign requests: for public buckets.
        profile: A profile of the configuration files.
        endpoint_url: The URL of the store, if it is not AWS.
        region: Its region.
        path_style: Whether the bucket is in the path; None lets botocore choose.
        requester_pays: Whether to accept that requests are charged.
        use_ssl: Whether to use https where `endpoint_url` does not say so.
        verify: Whether to check the server's certificate; or a file with the certificates to check it with.
        config_kwargs: Arguments of `botocore.config.Config`.
        s3_additional_kwargs: Parameters of all requests that take them: `{"ServerSideEncryption": "aws:kms"}`.
        retries: How long to retry.

    Raises:
        InputError: An option has a wrong type.
    """

    key: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    anon: bool = False
    profile: str | None = None
    endpoint_url: str | None = field(default=None, repr=False)
    region: str | None = None
    path_style: bool | None = None
    requester_pays: bool = False
    use_ssl: bool | None = None
    verify: bool | str | None = None
    config_kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    s3_additional_kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    retries: RetryOptions = field(default_factory=RetryOptions)

    def __post_init__(self) -> None:
        wrong = [name for name, kinds in _KINDS.items() if not isinstance(getattr(self, name), kinds)]
        if wrong:
            raise InputError(
                "storage options are of a wrong type",
                expected=", ".join(f"{name}: {_expected(_KINDS[name])}" for name in wrong),
                found=", ".join(f"{name}: {type(getattr(self, name)).__name__}" for name in wrong),
            )
        if "retries" in self.config_kwargs:
            raise InputError(
                "invalid config_kwargs",
                expected="no retries: wdsplit has its own, which share one deadline",
                found="retries",
                remedy="use storage_options={'deadline_s': ..., 'max_delay_s': ...}",
            )

    def __hash__(self) -> int:
        return hash((self.key, self.profile, self.endpoint_url, self.region))

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> S3Options:
        """Return options by their names in s3fs, and ours.

        Raises:
            InputError: An option is unknown, or its value is invalid.
        """
        more: Any = options.get("client_kwargs", {}) if isinstance(options, Mapping) else {}
        for name, each in (("storage_options", options), ("client_kwargs", more)):
            if not isinstance(each, Mapping):
                raise InputError(f"invalid {name}", expected="a dict", found=type(each).__name__)
        given = {_ALIASES.get(str(name), str(name)): value for name, value in (*more.items(), *options.items())}
        given.pop("client_kwargs", None)
        unknown = sorted(given.keys() - _KNOWN)
        if unknown:
            known = sorted(_KNOWN | set(_ALIASES) | {"client_kwargs"})
            remedy = f"leave it out; s3fs's own options work with fs=s3fs.S3FileSystem({unknown[0]}=...)"
            raise InputError(
                "unknown storage option",
                place="storage_options",
                expected=", ".join(known),
                found=", ".join(unknown),
                remedy=did_you_mean(unknown[:1], known) or remedy,
            )
        times = {name: given.pop(name) for name in list(given) if name in RETRY_NAMES}
        return cls(**given, retries=RetryOptions(**times))


_KINDS = {
    name: tuple(get_origin(kind) or kind for kind in (get_args(hint) if isinstance(hint, UnionType) else (hint,)))
    for name, hint in get_type_hints(S3Options).items()
}
_KNOWN = ({each.name for each in fields(S3Options)} | RETRY_NAMES) - {"retries"}
_WORDS = {bool: "True or False", str: "a text", Mapping: "a dict", RetryOptions: "RetryOptions"}


def _expected(kinds: tuple[type, ...]) -> str:
    return " or ".join(_WORDS[kind] for kind in kinds if kind is not NoneType)
