"""Joins and divides URLs, and removes their secrets for display. Pure (no I/O)."""

from __future__ import annotations

import re
from urllib.parse import quote

__all__ = ["divided_url", "is_web", "joined_url", "shown_url"]

_WEB = ("http", "https")
_USER = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)[^/?#]*@")
_PASSWORD = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://[^/:@]*):[^/@]*@")


def is_web(url: str) -> bool:
    """Tell whether a URL is an http(s) one, which may have a query."""
    return url.partition("://")[0].lower() in _WEB


def shown_url(url: str) -> str:
    """Return a URL for display: without users, passwords and signatures."""
    if is_web(url):
        return _USER.sub(r"\1", url).partition("#")[0].partition("?")[0]
    return _PASSWORD.sub(r"\1@", url)


def divided_url(url: str) -> tuple[str, str]:
    """Return the folder of a file's path or URL, and the name of the file in it."""
    folder, separator, name = url.rpartition("/")
    return folder or separator or ".", name


def joined_url(folder: str, path: str) -> str:
    """Return the URL of a path below a folder; the query of an http(s) URL, such as a signature, is kept."""
    of_web = is_web(folder)
    base, mark, query = folder.partition("?") if of_web else (folder, "", "")
    return f"{base.rstrip('/')}/{quote(path) if of_web else path}{mark}{query}" if path else folder
