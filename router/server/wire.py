"""What the lane reads off a request line and says on its own: bytes in, values out."""

import asyncio
import socket
import urllib.parse
from typing import TypeAlias

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from router.headers import Header

_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)  # Linux has it
_LEFT = (7, 8)  # TCP_CLOSE after a reset, TCP_CLOSE_WAIT after an end (linux/tcp_states.h)

Place: TypeAlias = tuple[str, bytes, bytes, bytes]  # decoded path, raw path, query, and the target as it is sent on


def place_of(url: bytes) -> Place:
    """Raises ValueError for a target that names no path."""
    if not url.startswith(b"/") and url != b"*":  # the absolute form, which a proxy must take (RFC 9112 section 3.2.2)
        scheme, colon, rest = url.partition(b"://")
        _, _, url = rest.partition(b"/")
        if not colon or scheme.lower() not in (b"http", b"https"):
            raise ValueError("the target names no path")
        url = b"/" + url
    raw, _, query = url.partition(b"?")
    path = raw.decode("ascii")
    return urllib.parse.unquote(path) if "%" in path else path, raw, query, url


def framing_of(headers: list[Header]) -> bytes:
    """The field that frames a body; b"" where there is none."""
    for name, value in headers:
        if name in (b"content-length", b"transfer-encoding") and value.strip() != b"0":
            return name + b": " + value
    return b""


def has_left(transport: asyncio.Transport) -> bool:
    """Whether the client reset or ended the connection, asked of the kernel. Never where the kernel does not tell."""
    sock = transport.get_extra_info("socket")
    if sock is None or _TCP_INFO is None:
        return False
    return sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] in _LEFT


def size_of(headers: list[Header]) -> int:
    return sum(len(name) + len(value) + 4 for name, value in headers)


def refusal(status: int, code: str, message: str) -> bytes:
    error = {"message": message, "type": "router_error", "param": None, "code": code}
    body = msgspec.json.encode({"error": error})
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    return STATUS_LINE[status] + head + body
