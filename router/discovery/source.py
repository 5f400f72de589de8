"""What a source is, and the rules of replica URLs that all sources share. No I/O."""

import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from router.core.replica import Replica

Replicas = tuple[Replica, ...]

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9._~-]+")


class SourceError(ValueError):
    """A source that the operator must mend: trying again cannot help."""


@dataclass(frozen=True, slots=True)
class Source:
    """Somewhere replicas come from.

    `sets()` yields the whole set whenever it changes. When it ends, its last set stands; when it raises anything
    but SourceError it is started again.
    """

    text: str  # as the operator wrote it
    sets: Callable[[], AsyncGenerator[Replicas, None]]


def replica_url(text: str) -> tuple[str, str]:
    """(default id, normalised url) of a replica's address; any path is kept as a base. Raises ValueError.

    The id is host:port, always with the port, IPv6 in brackets.
    """
    url, port = _split(text)
    host = _host(url)
    netloc = host if url.port is None else f"{host}:{port}"
    return f"{host}:{port}", f"{url.scheme}://{netloc}{url.path.rstrip('/')}"


def _split(text: str) -> tuple[SplitResult, int]:
    if not text or not text.isprintable() or " " in text:
        raise ValueError("url is empty or holds spaces or control characters")
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as exc:
        raise ValueError(f"url is malformed ({exc}); IPv6 addresses need brackets: http://[::1]:8000") from None
    if url.scheme not in _DEFAULT_PORTS:
        raise ValueError(f"url must start with http:// or https://, not {url.scheme or 'nothing'}")
    if "@" in url.netloc:
        raise ValueError("url must not hold a user or password: name an environment variable in api_key_env")
    if url.query or url.fragment:
        raise ValueError("url must not have a query or a fragment")
    if port == 0:
        raise ValueError("url has port 0")
    return url, port or _DEFAULT_PORTS[url.scheme]


def _host(url: SplitResult) -> str:
    host = url.hostname or ""
    if "[" in url.netloc:
        return f"[{_ipv6(host)}]"
    if not _HOST.fullmatch(host):
        raise ValueError("url has no valid host name; IPv6 addresses need brackets: http://[::1]:8000")
    return host


def _ipv6(host: str) -> str:
    address, percent, zone = host.partition("%")
    try:
        return f"{ip_address(address).compressed}{percent}{zone}"
    except ValueError:
        raise ValueError(f"url has no valid IPv6 address in its brackets: {address}") from None
