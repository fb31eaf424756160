"""Secrets that others write into URLs: what of a URL may stand in a message, and which URL is refused for them."""

from __future__ import annotations

import re

from partfile.filesystems.errors import ConfigError

_AT = re.compile("@|%40", re.IGNORECASE)
_COLON = re.compile(":|%3A", re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SCHEMES = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]*://")
_LEFT_OUT = "..."


def shown_url(url: str) -> str:
    """What of a URL may be shown, quoted: neither what stands before its last ``@`` nor what follows its first ``?``.

    A password may hold a slash or a ``?``, a signature an ``@``: where an ``@`` follows a ``?``, nothing is shown. A
    plain path is shown as it is.
    """
    if not _URL.match(url):
        return repr(url)
    before, is_query, query = url.partition("?")
    if _AT.search(query):
        return repr(_LEFT_OUT)
    signs = list(_AT.finditer(before))
    shown = f"{_LEFT_OUT}@{before[signs[-1].end() :]}" if signs else before
    return repr(f"{shown}?{_LEFT_OUT}" if is_query else shown)


def check_no_secret(url: str) -> None:
    """Refuse a URL that may carry a password or a signature, for URLs are in messages, logs and checkpoints.

    Raises:
        ConfigError: A colon stands before its last ``@``, or it has a query.
    """
    match = _SCHEMES.match(url)
    rest = url[match.end() :] if match else url
    signs = list(_AT.finditer(rest))
    if signs and _COLON.search(rest[: signs[-1].start()]):
        raise ConfigError(
            f"{shown_url(url)} has a password in it, or a colon before an @ that looks like one",
            hint="Pass it in storage_options; URLs are in messages.",
        )
    if "?" in rest:
        raise ConfigError(
            f"{shown_url(url)} has a ? in it, and what follows may be a signature",
            hint="Pass what the client needs in storage_options, and write the URL without it.",
        )
