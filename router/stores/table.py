"""One SQLite file of bindings: its schema and its five statements. Used by one thread; raises `sqlite3.Error`.

Law: a file that cannot be ours is never touched, one that is ours and damaged is moved aside, never deleted.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from router.core.placed import Placed

APPLICATION = 0x70726678  # "prfx": PRAGMA application_id, so that nobody's other database is taken for ours
SCHEMA = 1  # PRAGMA user_version; raise it with every change, and add a migration to `_prepare` or let it set aside
BUSY_SECONDS = 0.01  # another worker's batch takes a few ms; longer, and questions would wait behind it
PRUNE_ROWS = 1000  # in one transaction: a few ms, so that nobody else waits for the lock

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_TABLE = """
CREATE TABLE placed (
    session BLOB PRIMARY KEY, replica TEXT NOT NULL, context INTEGER NOT NULL, root BLOB NOT NULL, tail BLOB NOT NULL,
    seen REAL NOT NULL, started_at REAL, kind TEXT NOT NULL
) WITHOUT ROWID
"""
_COLUMNS = "session, replica, context, root, tail, seen, started_at, kind"
# The first writer wins: a row gives way to its own replica, to a move from where it is, or when it has outlived itself.
_WRITE = f"""
INSERT INTO placed ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (session) DO UPDATE SET replica = excluded.replica, context = excluded.context, root = excluded.root,
    tail = excluded.tail, seen = excluded.seen, started_at = excluded.started_at, kind = excluded.kind
WHERE placed.replica IN (excluded.replica, ?) OR placed.seen < ?
"""
_NEWEST = f"""
SELECT {_COLUMNS} FROM (SELECT {_COLUMNS} FROM placed WHERE seen >= ? ORDER BY seen DESC LIMIT ?) ORDER BY seen
"""

Row = tuple[bytes, str, int, bytes, bytes, float, float | None, str]


class Write(NamedTuple):
    placed: Placed
    before: str  # the replica the row must be at; "" = there must be none


class NotOurs(sqlite3.Error):
    """A healthy database of somebody else."""


class OtherSchema(sqlite3.DatabaseError):
    """Ours, and written by another version: to this one it is as good as damaged."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


class Table:
    """An open file. `is_damaged_deep`: it would open, and yet it is broken.

    `moved_aside` is the name that what stood in the way has now, if anything did.
    """

    def __init__(self, path: str, now: float, *, is_damaged_deep: bool = False) -> None:
        self.path = path
        self.moved_aside = _move_aside(path, now) if is_damaged_deep else ""
        try:
            self._db = self._open()
        except sqlite3.Error as error:
            if not is_damaged(error):
                raise
            self.moved_aside = _move_aside(path, now)
            self._db = self._open()
        self._inode = _inode(path)

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, cached_statements=300)
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        self.is_new = False
        schema, application = _pragma(db, "user_version"), _pragma(db, "application_id")
        empty = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not empty and application != APPLICATION:
            raise NotOurs("it holds something else; it is left alone")
        if not empty and schema != SCHEMA:
            raise OtherSchema(f"schema {schema}, not {SCHEMA}")
        # A crash of this process loses nothing that was committed, a crash of the machine the last moments.
        db.execute("PRAGMA synchronous = NORMAL")
        if empty:
            self.is_new = True
            db.execute("PRAGMA journal_mode = WAL")
            _create(db)

    def is_here(self) -> bool:
        """Whether the path still leads to this file, and not to one that somebody put in its place."""
        return _inode(self.path) == self._inode

    def close(self) -> None:
        self._db.close()

    def newest(self, since: float, limit: int, piece: int) -> Iterator[list[Placed]]:
        """Everything seen since then, the newest `limit`, least recently seen first."""
        rows = self._db.execute(_NEWEST, (since, limit))
        while some := rows.fetchmany(piece):
            yield [_placed(row) for row in some]

    def find(self, keys: Sequence[int], since: float) -> Placed | None:
        """The row that the first of these leads to, as a session's key or as its last link."""
        for start in range(0, len(keys), 256):
            some = [_blob(key) for key in keys[start : start + 256]]
            marks = ",".join("?" * len(some))
            where = f"(session IN ({marks}) OR tail IN ({marks})) AND seen >= ?"
            rows: list[Row] = self._db.execute(
                f"SELECT {_COLUMNS} FROM placed WHERE {where}", (*some, *some, since)
            ).fetchall()
            if rows:
                order = {key: index for index, key in enumerate(some)}
                last = len(some)
                return _placed(min(rows, key=lambda row: min(order.get(row[0], last), order.get(row[4], last))))
        return None

    def write(self, batch: Sequence[Write], since: float) -> list[tuple[Write, Placed]]:
        """All of them in one transaction. Returns those that were refused, with the row that stands."""
        refused: list[tuple[Write, Placed]] = []
        with self._transaction():
            for write in batch:
                if self._db.execute(_WRITE, (*_row(write.placed), write.before, since)).rowcount:
                    continue
                stands = self.find((write.placed.session,), since)
                if stands is not None:
                    refused.append((write, stands))
        return refused

    def prune(self, since: float, limit: int) -> int:
        """Delete a piece of what is too old or too much; 0 when nothing is left to do."""
        oldest = "SELECT session FROM placed WHERE seen < ? LIMIT ?"
        row = self._db.execute("SELECT seen FROM placed ORDER BY seen DESC LIMIT 1 OFFSET ?", (limit - 1,)).fetchone()
        since = max(since, row[0]) if row is not None else since
        if self._db.execute(oldest, (since, 1)).fetchone() is None:
            return 0
        with self._transaction():
            return self._db.execute(
                f"DELETE FROM placed WHERE session IN ({oldest})", (since, PRUNE_ROWS)
            ).rowcount  # fmt: skip

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _transaction(self._db):
            yield


def is_damaged(error: sqlite3.Error) -> bool:
    """Whether the file itself is broken or of another schema, so that only a new one helps."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF in _DAMAGED


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else holds the lock."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _create(db: sqlite3.Connection) -> None:
    with _transaction(db):
        if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return  # another worker was here first
        db.execute(_TABLE)
        db.execute("CREATE INDEX placed_tail ON placed (tail)")
        db.execute("CREATE INDEX placed_seen ON placed (seen)")
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        db.execute(f"PRAGMA user_version = {SCHEMA}")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    value: int = db.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _move_aside(path: str, now: float) -> str:
    """The new name. OSError becomes sqlite3's: for whoever opens, it is one more way of not being able to."""
    aside = f"{path}.broken-{now:.0f}"
    try:
        for ending in ("", "-wal", "-shm"):
            if Path(path + ending).exists():
                os.replace(path + ending, aside + ending)
    except OSError as error:
        raise sqlite3.OperationalError(f"it is damaged and cannot be moved aside: {error}") from error
    return aside


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _blob(key: int) -> bytes:
    return key.to_bytes(16, "big")


def _row(placed: Placed) -> Row:
    blobs = _blob(placed.session), _blob(placed.root), _blob(placed.tail)
    return blobs[0], placed.replica, placed.context, *blobs[1:], placed.seen, placed.started_at, placed.kind


def _placed(row: Row) -> Placed:
    session, replica, context, root, tail, seen, started_at, kind = row
    number = int.from_bytes
    return Placed(
        number(session, "big"), replica, context, number(root, "big"), number(tail, "big"), seen, started_at, kind
    )
