"""Which session lives where: bindings by session key, and the links of prompts that lead to them.

Law: nothing here knows replicas beyond their id and incarnation, and every map is bounded at insert.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from router.core.bounded import Generations
from router.core.request import Request
from router.core.value import value


@dataclass(slots=True, eq=False)
class Binding:
    """A session's home and what that home should hold of it."""

    session: int
    replica: str
    incarnation: int
    context: int  # tokens of its last prompt and reply
    root: int = 0  # first link of its last request: tools and system
    tail: int = 0  # last link of its last request
    seen: float = 0.0
    misses: int = 0  # replies in a row whose cached tokens fell far short of what home should have held
    kind: str = "unknown"  # how its last turn ended: tool, end, unknown
    counted: bool = False  # part of its home's bound tokens now
    slot: int = 0  # when it was counted, in Bound's steps
    recalled: bool = False  # put back from a store and not seen here since
    started_at: float | None = None  # of the engine it was put back for, epoch seconds; None = bound here, or unknown
    told: int = 0  # its context when it was last written to a store
    told_at: float = 0.0


@value
class Found:
    """What the maps know of a request. `session` is the key under which it will be bound; 0 = it cannot be bound."""

    session: int
    binding: Binding | None = None  # its own, or its ancestor's for a fork
    fork: bool = False
    named: bool = False  # a strong source named it
    known: int = -1  # index of the deepest link that anybody is known to hold
    holder: Binding | None = None  # whose that link is


class Affinity:
    """Sessions (exact LRU), links of prompts to sessions, and response ids to sessions."""

    def __init__(self, max_sessions: int, max_prefixes: int) -> None:
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[int, Binding] = OrderedDict()
        self._links: Generations[int, int] = Generations(max_prefixes)
        self._responses: Generations[str, tuple[str, int]] = Generations(max_sessions)

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    @property
    def prefixes(self) -> int:
        return len(self._links)

    def find(self, request: Request) -> Found:
        """Pure read. A named session is looked up by name, a conversation by its deepest known link."""
        known, holder = self._deepest(request.chain)
        session = request.session or self.continued(request.response_id)
        if session:
            return Found(session, self._sessions.get(session), False, True, known, holder)
        if not request.chain:
            return Found(0)
        name = request.chain[-1]
        if holder is None or known < request.opening:
            # Only a shared system prompt is known: a sibling, not an ancestor.
            return Found(name, self._sessions.get(name), False, False, known, holder)
        if holder.tail == request.chain[known]:
            return Found(holder.session, holder, False, False, known, holder)
        return Found(name, holder, holder.session != name, False, known, holder)

    def _deepest(self, chain: tuple[int, ...]) -> tuple[int, Binding | None]:
        for index in range(len(chain) - 1, -1, -1):
            session = self._links.peek(chain[index])
            if session is not None:
                binding = self._sessions.get(session)
                if binding is not None:
                    return index, binding
        return -1, None

    def maker(self, response_id: str) -> str:
        """The replica that made a response and keeps it, wherever its session went since; "" if unknown."""
        made = self._responses.peek(response_id) if response_id else None
        return made[0] if made is not None else ""

    def continued(self, response_id: str) -> int:
        """The session in which a response was made; 0 if unknown."""
        made = self._responses.peek(response_id) if response_id else None
        return made[1] if made is not None else 0

    def put(self, binding: Binding, request: Request, known: int) -> list[Binding]:
        """Bind; returns the bindings that had to go for it, least recently used first."""
        self._sessions[binding.session] = binding
        self._sessions.move_to_end(binding.session)
        # The deepest known link is put again: it keeps the conversation's way back alive.
        for link in request.chain[max(known, 0) :]:
            self._links.put(link, binding.session)
        return self._let_go()

    def _let_go(self) -> list[Binding]:
        gone = []
        while len(self._sessions) > self._max_sessions:
            gone.append(self._sessions.popitem(last=False)[1])
        return gone

    def binding(self, session: int) -> Binding | None:
        return self._sessions.get(session)

    def restore(self, binding: Binding, *links: int) -> list[Binding]:
        """Bind without a request; `links` that lead elsewhere already stay, but for the last. Returns who had to go."""
        self._sessions[binding.session] = binding
        for link in links:
            if link and (link is links[-1] or self._links.peek(link) is None):
                self._links.put(link, binding.session)
        return self._let_go()

    def answered(self, response_id: str, binding: Binding) -> None:
        self._responses.put(response_id, (binding.replica, binding.session))

    def __iter__(self) -> Iterator[Binding]:
        return iter(self._sessions.values())
