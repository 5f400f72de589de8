"""Where replicas come from: async generators, each yields the whole set whenever it changes.

The grammar of sources: `http://…`, `https://…`, `file:///path.yaml`. A new kind is one more file and one more line in
`_KINDS`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from router.discovery.file import file
from router.discovery.merge import merged
from router.discovery.source import Replicas, Source, SourceError, replica_url
from router.discovery.static import replica, static

__all__ = ["Replicas", "Source", "SourceError", "file", "merged", "parse_source", "replica_url", "static"]


def parse_source(text: str) -> Source:
    """The source that an operator's word names. Raises ValueError, in whose text no password shows."""
    text = text.strip()
    scheme, separator, _ = text.partition("://")
    kind = _KINDS.get(scheme.lower()) if separator else None
    if kind is None:
        known = ", ".join(f"{name}://" for name in _KINDS)
        raise ValueError(f"{scheme if separator else 'a word without a scheme'} is no source of replicas: use {known}")
    return kind(text)


def _static(text: str) -> Source:
    return Source(text, partial(static, replica(text)))


def _file(text: str) -> Source:
    url = urlsplit(text)
    if url.netloc not in ("", "localhost") or not url.path.startswith("/") or url.path.endswith("/"):
        raise ValueError(f"{text} names no file by its absolute path: file:///etc/replicas.yaml")
    if url.query or url.fragment:
        raise ValueError(f"{text} must not have a query or a fragment: write ? as %3F and # as %23")
    return Source(text, partial(file, unquote(url.path)))


_KINDS: Mapping[str, Callable[[str], Source]] = MappingProxyType({"http": _static, "https": _static, "file": _file})
