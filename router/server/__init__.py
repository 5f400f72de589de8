"""The fast lane: it offers the proxy a request's buffers as they came and the way to its client's socket.

Law: the app sees plain ASGI; what is more stands in `scope["extensions"]["router.lane"]`.
"""

from router.server.lane import BODY_SECONDS as BODY_SECONDS
from router.server.lane import HEAD_SECONDS as HEAD_SECONDS
from router.server.lane import MAX_HEAD_BYTES as MAX_HEAD_BYTES
from router.server.lane import MAX_HEADERS as MAX_HEADERS
from router.server.lane import Lane as Lane
