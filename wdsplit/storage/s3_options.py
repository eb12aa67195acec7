"""Options for S3-compatible stores: those of s3fs under the same names, and ours. Unknown options are errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from wdsplit.errors import InputError, MissingDependencyError, did_you_mean
from wdsplit.storage.retry import RETRY_NAMES, RetryOptions
from wdsplit.urls import shown_url

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
_BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


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
        check_etag: Whether to compare an ETag that looks like an MD5 with what was uploaded.
        config_kwargs: Arguments of `botocore.config.Config`.
        s3_additional_kwargs: Parameters of all requests that take them: `{"ServerSideEncryption": "aws:kms"}`.
        retries: How long to retry.

    Raises:
        InputError: An option has a wrong type.
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
    use_ssl: bool | None = None
    verify: bool | str | None = None
    check_etag: bool = True
    config_kwargs: Mapping[str, Any] = field(default_factory=dict)
    s3_additional_kwargs: Mapping[str, Any] = field(default_factory=dict)
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
        """Return options by their names in s3fs, and ours; they override fsspec's own configuration.

        Raises:
            InputError: An option is unknown, or its value is invalid.
        """
        configured = _configured()
        for name, each in (("storage_options", options), ("FSSPEC_S3", configured)):
            if not isinstance(each, Mapping):
                raise InputError(f"invalid {name}", expected="a dict", found=type(each).__name__)
        given = {**{name: _parsed(name, value) for name, value in configured.items()}, **options}
        more = given.pop("client_kwargs", {})
        if not isinstance(more, Mapping):
            raise InputError("invalid client_kwargs", expected="a dict", found=type(more).__name__)
        given = {_ALIASES.get(str(name), str(name)): value for name, value in (*more.items(), *given.items())}
        unknown = sorted(given.keys() - _KNOWN - {"client_kwargs"})
        if unknown:
            known = sorted(_KNOWN | set(_ALIASES) | {"client_kwargs"})
            remedy = f"leave it out; s3fs's own options work with fs=s3fs.S3FileSystem({unknown[0]}=...)"
            of_fsspec = set(unknown) <= configured.keys() - options.keys()
            raise InputError(
                "unknown storage option",
                place="fsspec's configuration of s3 (FSSPEC_S3...)" if of_fsspec else "storage_options",
                expected=", ".join(known),
                found=", ".join(unknown),
                remedy=did_you_mean(unknown[:1], known) or remedy,
            )
        times = {name: given.pop(name) for name in list(given) if name in RETRY_NAMES}
        return cls(**given, retries=RetryOptions(**times))

    def __repr__(self) -> str:
        """Leave out secrets."""
        shown = {name: getattr(self, name) for name in ("anon", "profile", "region")}
        shown["endpoint_url"] = shown_url(self.endpoint_url or "")
        return f"S3Options({', '.join(f'{name}={value!r}' for name, value in shown.items() if value)})"


_KINDS = {
    name: tuple(get_origin(kind) or kind for kind in (get_args(hint) if isinstance(hint, UnionType) else (hint,)))
    for name, hint in get_type_hints(S3Options).items()
}
_KNOWN = ({each.name for each in fields(S3Options)} | RETRY_NAMES) - {"retries"}
_WORDS = {bool: "True or False", str: "a text", Mapping: "a dict", RetryOptions: "RetryOptions"}


def _expected(kinds: tuple[type, ...]) -> str:
    return " or ".join(_WORDS[kind] for kind in kinds if kind is not NoneType)


def _configured() -> Mapping[str, Any]:
    """Return fsspec's configuration of s3: from its files, and the variables FSSPEC_S3 and FSSPEC_S3_NAME.

    Raises:
        MissingDependencyError: There are such variables, but fsspec is not installed.
    """
    named = any(name == "FSSPEC_S3" or name.startswith("FSSPEC_S3_") for name in os.environ)
    folder = os.environ.get("FSSPEC_CONFIG_DIR", os.path.expanduser("~/.config/fsspec"))
    if not (named or os.path.isdir(folder)):
        return {}
    try:
        from fsspec.config import set_conf_env, set_conf_files
    except ImportError as error:
        if not named:
            return {}
        raise MissingDependencyError(
            "the variables FSSPEC_S3... need fsspec", remedy="pip install fsspec, or unset them"
        ) from error
    found: dict[str, Any] = {}
    set_conf_files(folder, found)
    set_conf_env(found)
    configured: Mapping[str, Any] = found.get("s3", {})
    return configured


def _parsed(name: str, value: Any) -> Any:
    """Return the value of an option from fsspec's configuration, as the option's type where that is clear."""
    kinds = _KINDS.get(name, ())
    if bool in kinds:
        return _BOOLEANS.get(str(value).lower(), value)
    return str(value) if str in kinds and isinstance(value, (int, float)) else value
