"""HTTP/1.1 to one replica: a connection pool on asyncio.Protocol and llhttp, where foreign errors become ours.

Law: no request is worked on twice because of us, and a reply that did not end cleanly never looks as if it had.
"""

from router.upstream.connection import KEEPALIVE_RACE_SECONDS as KEEPALIVE_RACE_SECONDS
from router.upstream.connection import MAX_HEAD_BYTES as MAX_HEAD_BYTES
from router.upstream.connection import MAX_HEADERS as MAX_HEADERS
from router.upstream.errors import FirstByteTimeout as FirstByteTimeout
from router.upstream.errors import IdleTimeout as IdleTimeout
from router.upstream.errors import KeepAliveRace as KeepAliveRace
from router.upstream.errors import NeverSent as NeverSent
from router.upstream.errors import ReplicaFailed as ReplicaFailed
from router.upstream.errors import TooManyConnections as TooManyConnections
from router.upstream.errors import Truncated as Truncated
from router.upstream.errors import Unsendable as Unsendable
from router.upstream.errors import UpstreamError as UpstreamError
from router.upstream.exchange import Exchange as Exchange
from router.upstream.outgoing import Body as Body
from router.upstream.outgoing import Buffer as Buffer
from router.upstream.outgoing import Header as Header
from router.upstream.outgoing import Outgoing as Outgoing
from router.upstream.outgoing import Timeouts as Timeouts
from router.upstream.pool import SWEEP_SECONDS as SWEEP_SECONDS
from router.upstream.pool import Pool as Pool
