"""What can go wrong between this router and a replica. Every foreign error becomes one of these, once, in this package.

The class answers the proxy's question (may it be sent elsewhere, whose fault is it); `code` is the word clients see.
"""


class UpstreamError(Exception):
    """A request that did not end well. `str()` says what happened, for logs; `code` is fixed per class."""

    code = "replica_failed"


class Unsendable(UpstreamError):
    """The request cannot be written as HTTP/1.1 without changing its meaning (CR, LF or NUL in its head)."""

    code = "bad_request"


class NeverSent(UpstreamError):
    """No connection came about, so the replica provably never got the request: safe to send elsewhere."""


class TooManyConnections(NeverSent):
    """The pool's own explicit bound is reached; says nothing about the replica."""

    code = "overloaded"


class ReplicaFailed(UpstreamError):
    """Reset, end of stream or garbage before the response head was complete; the replica may have begun to work."""


class KeepAliveRace(ReplicaFailed):
    """A reused connection died at once and without a byte: the replica closed it while the request was under way."""


class Truncated(UpstreamError):
    """The response head came, but its body ended before its end."""

    code = "truncated"


class FirstByteTimeout(UpstreamError):
    """The head or the first byte of the body did not come in time, or the replica stopped reading the request."""

    code = "first_byte_timeout"


class IdleTimeout(UpstreamError):
    """The body stopped coming while somebody waited for it."""

    code = "idle_timeout"
