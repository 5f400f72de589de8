"""Which header fields pass: RFC 9110 section 7.6.1 both ways, and our own names kept to ourselves. Pure."""

from collections.abc import Collection, Iterable

Header = tuple[bytes, bytes]

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
# Framing and addressing are the pool's; `expect` was answered by the server that read the body.
_REQUEST_DROPS = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_OURS = b"x-router-"
_NAMELESS = (b"keep-alive", b"close")  # what nearly everybody says, and no field's name
# What `Connection` may not take away: a client could strip what the next hop relies on (hop-by-hop abuse).
_PROTECTED = frozenset((b"authorization", b"x-api-key", b"cookie", b"content-type", b"content-encoding", b"host"))
_PROTECTED_STARTS = (b"x-forwarded-", b"forwarded", b"x-session", b"session", b"x-request-id")


def value_of(headers: Iterable[Header], name: bytes) -> bytes:
    """The first field of that (lower-case) name; b"" if there is none."""
    for key, value in headers:  # a generator would cost twice as much
        if key == name:
            return value
    return b""


def named_by_connection(headers: Iterable[Header]) -> Collection[bytes]:
    """Fields that `Connection` declares hop-by-hop, less those it has no business with."""
    values = [value for key, value in headers if key == b"connection" and value.lower() not in _NAMELESS]
    if not values:
        return ()
    names = {word.strip().lower() for value in values for word in value.split(b",")}
    return {name for name in names if name not in _PROTECTED and not name.startswith(_PROTECTED_STARTS)}


def to_replica(headers: Iterable[Header], credential: bytes = b"") -> list[Header]:
    """What a replica gets of a client's fields. `credential` replaces the client's own authorization."""
    listed = list(headers)
    named = named_by_connection(listed)
    drops = _REQUEST_DROPS.union(named) if named else _REQUEST_DROPS
    kept = [field for field in listed if field[0] not in drops and not field[0].startswith(_OURS)]
    if credential:
        kept = [(key, value) for key, value in kept if key != b"authorization"]
        kept.append((b"authorization", credential))
    return kept


def to_client(headers: Iterable[Header], *, bodiless: bool = False) -> list[Header]:
    """What a client gets of a replica's fields; framing is the server's.

    `bodiless`: a 204 or 304, whose length would be that of a body which does not come.
    """
    listed = list(headers)
    named = named_by_connection(listed)
    drops = HOP_BY_HOP.union(named) if named else HOP_BY_HOP
    if bodiless:
        drops = drops | {b"content-length"}
    return [field for field in listed if field[0] not in drops and not field[0].startswith(_OURS)]


def is_websocket(headers: Iterable[Header]) -> bool:
    """An upgrade that the client cannot do without. Others, such as h2c, may be ignored (RFC 9110 section 7.8)."""
    return any(key == b"upgrade" and b"websocket" in value.lower() for key, value in headers)


def printable(value: str) -> bytes:
    """A header value that cannot break a header: other bytes are percent-encoded, length is capped."""
    return "".join(c if " " < c < "\x7f" and c != "%" else "".join(f"%{b:02X}" for b in c.encode()) for c in value)[
        :256
    ].encode("ascii")
