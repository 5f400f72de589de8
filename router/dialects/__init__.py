"""Where messages, tools, ids, usage and errors live in each API family. Pure: bytes in, values out, nothing raised."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from router.core.keys import Sources
from router.core.request import Request
from router.dialects.chat import Chat
from router.dialects.completions import Completions
from router.dialects.dialect import Dialect, Head
from router.dialects.embeddings import Embeddings
from router.dialects.generate import Generate
from router.dialects.messages import Messages
from router.dialects.other import Other
from router.dialects.reading import by_header, declared_bytes
from router.dialects.responses import Responses

__all__ = ["DIALECTS", "STATELESS", "Dialect", "Head", "by_header", "dialect_of", "read", "wants_body"]

OTHER = Other()
# Path ends, most specific first. A base path in front (/openai/v1/...) does not matter.
_PATHS: tuple[tuple[re.Pattern[str], Dialect], ...] = (
    (re.compile(r".*/chat/completions/?\Z"), Chat()),
    (re.compile(r".*/completions/?\Z"), Completions()),
    (re.compile(r"(?:.*/v1)?/messages(?:/count_tokens)?/?\Z"), Messages()),
    (re.compile(r".*/(?:responses|conversations)(?:/.*)?\Z"), Responses()),
    (re.compile(r".*/embeddings?/?\Z"), Embeddings()),
    (re.compile(r".*/(?:generate|completion)/?\Z"), Generate()),
)
DIALECTS: Mapping[str, Dialect] = MappingProxyType({d.name: d for d in (*(d for _, d in _PATHS), OTHER)})

# Families whose body holds nothing that a header does not say better: a Responses body may name an earlier response.
STATELESS = frozenset({"chat", "completions", "messages", "embeddings", "generate"})

UNKNOWN_PATH_BYTES = 1024 * 1024  # on a path without a dialect, a larger body is not held up for a name it may lack
_JSON = re.compile(
    rb"(?:application/(?:[\w.-]+\+)?json|text/(?:json|plain)|application/x-www-form-urlencoded)\s*(?:;|\Z)"
)
_BODILESS = frozenset({b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT"})


@lru_cache(maxsize=256)  # clients ask for few paths, and then only those: 3 us of patterns a request
def dialect_of(path: str) -> Dialect:
    """The family that a path belongs to; `other` if none."""
    return next((dialect for pattern, dialect in _PATHS if pattern.match(path)), OTHER)


def wants_body(head: Head) -> bool:
    """Whether the body must be read to know session and prefix; without it, headers are the key.

    JSON says yes: by its type, by none, or by the two that curl and careless clients send instead. Multipart, audio,
    octet streams and compressed bodies say no. On a path without a dialect only a body of a known, small size is read.
    """
    if head.method in _BODILESS or head.header(b"content-length") == b"0":
        return False
    if head.header(b"content-encoding").lower() not in (b"", b"identity"):
        return False
    kind = head.header(b"content-type").lower()
    if kind and not _JSON.match(kind):
        return False
    return dialect_of(head.path) is not OTHER or 0 < declared_bytes(head) <= UNKNOWN_PATH_BYTES


def read(head: Head, body: Sequence[bytes | bytearray | memoryview], sources: Sources, only_model: str) -> Request:
    """The request, its body in pieces as it came.

    Where a header names the session and one model is served, the size is all that the body would tell: it is not read.
    """
    dialect = dialect_of(head.path)
    if only_model and body and dialect.name in STATELESS:
        named = by_header(dialect.name, head, sources, only_model, sum(map(len, body)))
        if named is not None:
            return named
    return dialect.read(head, body[0] if len(body) == 1 else b"".join(body), sources)
