"""Reads the list of models that every engine serves under `/v1/models`. Never raises on a bad page."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

Entry = dict[str, Any]  # one model as the engine describes it, kept verbatim for clients


def entries(body: bytes) -> tuple[Entry, ...] | None:
    """The entries that have an id, adapters included; None if this is no list of models."""
    try:
        data = json.loads(body)["data"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(data, list):
        return None
    return tuple(entry for entry in data if isinstance(entry, dict) and isinstance(entry.get("id"), str))


def served(listed: Sequence[Entry], only: str = "") -> tuple[Entry, ...]:
    """What of the list counts: all of it, or the one model that the operator named and its adapters."""
    if not only:
        return tuple(listed)
    kept = tuple(entry for entry in listed if only in (entry["id"], entry.get("parent")) or only in _aliases(entry))
    return kept or ({"id": only, "object": "model", "owned_by": "unknown"},)


def names(listed: Iterable[Entry]) -> frozenset[str]:
    """Every name a client may ask for: ids and, of llama.cpp, aliases."""
    return frozenset(name for entry in listed for name in (entry["id"], *_aliases(entry)))


def union(lists: Iterable[Iterable[Entry]]) -> list[Entry]:
    """One entry per id, the first that came, sorted by id."""
    found: dict[str, Entry] = {}
    for listed in lists:
        for entry in listed:
            found.setdefault(entry["id"], entry)
    return [found[name] for name in sorted(found)]


def _aliases(entry: Entry) -> tuple[str, ...]:
    aliases = entry.get("aliases")
    return tuple(name for name in aliases if isinstance(name, str)) if isinstance(aliases, list) else ()
