"""Bindings that must outlive or outreach this process: one protocol, one file per kind.

The grammar: `memory`, `sqlite:///path`. A new kind is one more file and one more line in `open_store`.
"""

from urllib.parse import unquote

from prometheus_client import CollectorRegistry

from router.stores.figures import Figures
from router.stores.memory import Memory
from router.stores.sharing import Sharing
from router.stores.sqlite import Sqlite
from router.stores.store import Limits, Store

__all__ = ["Figures", "Limits", "Memory", "Sharing", "Sqlite", "Store", "kind_of", "open_store", "sqlite_path"]


def open_store(url: str, limits: Limits | None = None, figures: Figures | None = None) -> Store:
    """The store that an operator's word names, not started yet. Raises ValueError for what it cannot read."""
    kind = kind_of(url)
    if kind == "memory":
        return Memory()
    return Sqlite(sqlite_path(url), limits or Limits(), figures or Figures(CollectorRegistry(), kind))


def kind_of(url: str) -> str:
    """The word that names the kind of store. Raises ValueError for one that does not exist."""
    kind = url if url == "memory" else url.partition("://")[0]
    if kind not in ("memory", "sqlite"):
        raise ValueError("expected memory or sqlite:///path")
    return kind


def sqlite_path(url: str) -> str:
    """The absolute path of `sqlite:///path`. Raises ValueError."""
    path = unquote(url.removeprefix("sqlite://"))
    if not path.startswith("/") or path.endswith("/") or "\0" in path or ":memory:" in path:
        raise ValueError("a sqlite store needs the absolute path of a file, for instance sqlite:///var/lib/router.db")
    return "/" + path.lstrip("/")  # others write sqlite:////path for an absolute one
