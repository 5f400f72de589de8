"""OpenAI embeddings: `input` is text, texts or token ids. Its blocks spread requests; there is nothing to resume."""

from router.core.keys import Sources
from router.core.request import Request, Usage
from router.dialects import reply
from router.dialects.dialect import Head
from router.dialects.reading import reading


class Embeddings:
    name = "embeddings"

    def read(self, head: Head, body: bytes | bytearray | memoryview, sources: Sources) -> Request:
        it = reading(self.name, head, body, sources)
        return it.request(it.over_prompt("input", "content"))

    def usage(self, first: bytes, last: bytes, event_stream: bool) -> Usage:
        return reply.tally((first, last), event_stream, reply.openai_event).usage()

    def error(self, status: int, code: str, message: str) -> bytes:
        return reply.openai_error(code, message)

    def error_event(self, code: str, message: str) -> bytes:
        return b"data: " + reply.openai_error(code, message) + b"\n\n"
