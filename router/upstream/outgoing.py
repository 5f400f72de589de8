"""What is sent to a replica: the request as the proxy hands it over, and its head as bytes. Does no I/O.

The target and the headers go out byte for byte; only `host` and the framing header are added here.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from router.upstream.errors import Unsendable

Header = tuple[bytes, bytes]
Buffer = bytes | bytearray | memoryview
Body = tuple[Buffer, ...] | list[Buffer] | AsyncIterator[Buffer]

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. Each is looked at every `SWEEP_SECONDS`, so it may come that much late."""

    connect: float = 5.0  # a lost SYN is sent again after 1 and 3 s; whoever needs longer is not there
    first_byte: float = 600.0  # a long prompt at the end of a full queue takes minutes of prefill
    idle: float = 300.0  # tokens come many times a second; a preempted or swapped sequence comes back within minutes


@dataclass(slots=True)
class Outgoing:
    """One request. `headers` hold neither `host` nor framing nor hop-by-hop fields: the proxy has taken them out.

    `target` is the raw path and query. `body` is what is there already (buffers of single bytes, not to be changed
    before the exchange has ended) or an iterator, each item one chunk. `()` sends no framing header, `(b"",)` sends
    `content-length: 0`.
    """

    method: bytes
    target: bytes
    headers: list[Header]
    body: Body = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a replica listens, cut from its url once."""

    url: str
    host: str  # without brackets, with its zone if it has one
    port: int
    secure: bool
    base: bytes  # "" or "/base": goes before every target
    line_end: bytes  # the rest of the request line after the target, and the host header


def read_origin(url: str) -> Origin:
    """Raises ValueError for a url that names no HTTP origin."""
    parts = urlsplit(url)
    host = (parts.hostname or "").replace("%25", "%")  # RFC 6874: a zone is written %25eth0
    if parts.scheme not in DEFAULT_PORTS or not host or parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"not the url of a replica (http[s]://host[:port][/base]): {url!r}")
    default = DEFAULT_PORTS[parts.scheme]
    port = parts.port or default
    named = f"[{host.partition('%')[0]}]" if ":" in host else host  # the zone means nothing elsewhere
    authority = named if port == default else f"{named}:{port}"
    line_end = f" HTTP/1.1\r\nhost: {authority}".encode("ascii")
    return Origin(url, host, port, parts.scheme == "https", parts.path.rstrip("/").encode("ascii"), line_end)


def request_head(origin: Origin, outgoing: Outgoing) -> bytes:
    """The head with its final empty line. Raises Unsendable for a field that would end its line early."""
    target, body = outgoing.target, outgoing.body
    line = b"%b %b%b%b" % (outgoing.method, origin.base, target, origin.line_end)
    lines = [line, *map(b": ".join, outgoing.headers)]
    if not isinstance(body, (tuple, list)):
        lines.append(b"transfer-encoding: chunked")
    elif body:
        lines.append(b"content-length: %d" % sum(map(len, body)))
    lines += (b"", b"")
    head = b"\r\n".join(lines)
    # Three scans of the whole are cheaper than one check per field, and forget none.
    ends = len(lines)  # one fewer between them, one more inside `line`
    if head.count(b"\n") != ends or head.count(b"\r") != ends or b"\0" in head:
        raise Unsendable("CR, LF or NUL in the request's head")
    if not target.startswith((b"/", b"*")) or b" " in target or b" " in outgoing.method:
        raise Unsendable("the request line would not have three parts")
    return head
