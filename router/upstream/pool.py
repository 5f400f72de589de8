"""All connections to one replica: the newest idle one is used first, the sweep watches deadlines and ages.

Law: there is no queue and no hidden bound; every connection is in exactly one of idle, open or being made.
"""

import asyncio
import ssl

from router.upstream.connection import Connection
from router.upstream.errors import KeepAliveRace, NeverSent, ReplicaFailed, TooManyConnections
from router.upstream.exchange import Exchange
from router.upstream.outgoing import Outgoing, Timeouts, read_origin, request_head

SWEEP_SECONDS = 0.25  # one look at all deadlines instead of one timer per request


class Pool:
    """HTTP/1.1 to the replica at `url`. Raises ValueError for a url that names no HTTP origin."""

    def __init__(
        self,
        url: str,
        timeouts: Timeouts,
        *,
        ssl_context: ssl.SSLContext | None = None,  # https without one: the system's authorities
        idle_expiry: float = 4.0,  # seconds; below the 5 s after which uvicorn, and so vLLM and SGLang, close
        max_age: float = 300.0,  # seconds; a name that moves to another address is followed within minutes
        max_connections: int | None = None,  # none: admission bounds what runs, a second bound would hide requests
        buffer_bytes: int = 256 * 1024,  # unread per exchange before the replica is slowed; one socket read is as much
    ) -> None:
        self.origin = read_origin(url)
        self.timeouts = timeouts
        self.buffer_bytes = buffer_bytes
        self._ssl = (ssl_context or ssl.create_default_context()) if self.origin.secure else None
        self._idle_expiry = idle_expiry
        self._max_age = max_age
        self._max_connections = max_connections
        self._idle: list[Connection] = []  # the last is the newest
        self._open: set[Connection] = set()  # each carries an exchange
        self._connecting = 0
        self._sockets: set[Connection] = set()  # whatever the loop still knows of
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._emptied: asyncio.Event | None = None

    @property
    def open_exchanges(self) -> int:
        """Requests written whose reply has not come in whole."""
        return len(self._open)

    @property
    def idle(self) -> int:
        return len(self._idle)

    def __repr__(self) -> str:
        state = f"{len(self._open)} open, {len(self._idle)} idle, {self._connecting} connecting"
        return f"<Pool {self.origin.url} [{'closed, ' if self._closed else ''}{state}]>"

    async def send(self, outgoing: Outgoing) -> Exchange:
        """Write the request and wait for the head of the reply. May be cancelled at any point.

        Raises Unsendable, NeverSent, TooManyConnections, ReplicaFailed or FirstByteTimeout, and whatever an
        iterator body raises.
        """
        head = request_head(self.origin, outgoing)
        resent = False
        connection = self._take()
        if connection is not None:
            exchange = self._begin(connection, outgoing, head)
            try:
                await exchange.answered()
                return exchange
            except KeepAliveRace:
                if not isinstance(outgoing.body, (tuple, list)):
                    raise  # part of it is gone
                resent = True
        try:
            connection = await self._connect()
        except NeverSent as error:
            if resent:  # then that is no longer certain
                raise ReplicaFailed(f"lost on a reused connection, then: {error}") from error
            raise
        exchange = self._begin(connection, outgoing, head, resent)
        await exchange.answered()
        return exchange

    async def retire(self) -> None:
        """Its replica left: send nothing new, keep nothing idle, return when what runs has ended."""
        self._closed = True
        for connection in tuple(self._idle):
            connection.drop(None)
        if self._sockets:
            self._emptied = asyncio.Event()
            await self._emptied.wait()

    async def aclose(self) -> None:
        """Abort everything, wait until the sockets are gone."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._sockets:
            return
        self._emptied = self._emptied or asyncio.Event()
        for connection in tuple(self._sockets):
            connection.drop(connection.death("the pool was closed"))
        await self._emptied.wait()

    def _begin(self, connection: Connection, outgoing: Outgoing, head: bytes, resent: bool = False) -> Exchange:
        exchange = Exchange(connection, reused=connection.used, resent=resent)
        self._open.add(connection)
        if self._timer is None:
            self._watch()
        try:
            connection.send(exchange, outgoing.method, head, outgoing.body)
        except BaseException:  # a body of the wrong type
            connection.drop(None)
            raise
        return exchange

    def _take(self) -> Connection | None:
        if not self._idle:
            return None
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.usable_until > now:
                return connection
            connection.drop(None)
        return None

    async def _connect(self) -> Connection:
        if self._closed:
            raise NeverSent("the pool is closed")
        if self._max_connections is not None and self._connecting + len(self._open) >= self._max_connections:
            raise TooManyConnections(f"{self._max_connections} connections are in use")
        loop = asyncio.get_running_loop()
        connection = Connection(self, loop)
        self._connecting += 1
        try:
            await self._dial(loop, connection)
        except BaseException:
            connection.drop(None)
            raise
        finally:
            self._connecting -= 1
        if self._closed or not connection.usable:
            connection.drop(None)
            raise NeverSent("closed while connecting")
        self._sockets.add(connection)  # not sooner: uvloop tells a cancelled one that it was made, not that it was lost
        return connection

    async def _dial(self, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        origin = self.origin
        name = origin.host.partition("%")[0] if self._ssl else None
        try:
            async with asyncio.timeout(self.timeouts.connect):
                await loop.create_connection(
                    lambda: connection, origin.host, origin.port, ssl=self._ssl, server_hostname=name
                )
        except TimeoutError as error:
            raise NeverSent(f"no connection within {self.timeouts.connect:g} s") from error
        except (OSError, UnicodeError) as error:  # refused, unreachable, no such name, TLS
            raise NeverSent(f"no connection: {error}") from error

    # What connections report.

    def finished(self, connection: Connection) -> None:
        self._open.discard(connection)
        now = asyncio.get_running_loop().time()
        connection.usable_until = min(now + self._idle_expiry, connection.born + self._max_age)
        self._idle.append(connection)
        if self._closed:
            connection.drop(None)

    def dropped(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def lost(self, connection: Connection) -> None:
        self._sockets.discard(connection)
        if self._emptied is not None and not self._sockets:
            self._emptied.set()

    # The sweep runs only while there is something to look at.

    def _watch(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in [each for each in self._open if each.deadline <= now]:
            connection.expire()
        for connection in [each for each in self._idle if each.usable_until <= now]:
            connection.drop(None)
        self._timer = None
        if self._open or self._idle:
            self._watch()
