"""Closed loop over the recorded agent sessions: each lane plays one session after another."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from bench.model import Job
from bench.simulation.asks import BYTES_PER_TOKEN, Ask, Caller
from bench.simulation.options import SimulationOptions
from bench.traces import BLOCK_TOKENS, Prompted, Session, prompts
from router.core.request import Request
from router.core.ring import mix

_STAGGER = 60.0  # seconds over which lanes begin: people do not arrive in one instant


class Agents:
    """Lanes as callers that never end. Sessions come again when all were played, under new names."""

    block_tokens = BLOCK_TOKENS

    def __init__(self, options: SimulationOptions, sessions: Sequence[Session]) -> None:
        self._options = options
        self._order = sorted(sessions, key=lambda session: mix(options.seed, session.id))
        self._taken = 0

    def callers(self) -> Iterator[Caller]:
        for number in range(self._options.lanes):
            yield Caller(self._lane(number, self._next_session()))

    def _lane(self, number: int, session: Session) -> Iterator[Ask]:
        """The first session is joined in the middle, so that the run starts with grown contexts."""
        seed = self._options.seed
        skip = int(len(session.turns) * (0.25 + mix(seed, "enter", number) % 1000 / 2000))
        start = mix(seed, "start", number) % 1000 / 1000 * _STAGGER
        for prompted in islice(prompts(session), skip, None):
            yield self._ask(session, prompted, start)
            start = -1.0
        while True:
            session = self._next_session()
            for prompted in prompts(session):
                yield self._ask(session, prompted)

    def _next_session(self) -> Session:
        round_, place = divmod(self._taken, len(self._order))
        self._taken += 1
        session = self._order[place]
        again = session.index + round_ * len(self._order)
        return replace(session, id=f"{session.id}#{round_}", index=again)

    def _ask(self, session: Session, prompted: Prompted, start: float = -1.0) -> Ask:
        options, turn = self._options, prompted.turn
        think = min(turn.think, options.max_think) if options.max_think else turn.think
        name = mix(session.id, turn.thread) if options.threads else mix(session.id)
        return Ask(
            _named(name, prompted) if options.header else _unnamed(prompted),
            Job(prompted.blocks, turn.prompt_tokens, turn.output_tokens),
            turn.finish,
            start if start >= 0 else think,
            mix(session.id, turn.thread),
        )


def _named(name: int, prompted: Prompted) -> Request:
    size = BYTES_PER_TOKEN * prompted.turn.prompt_tokens
    return Request("chat", session=name, source="x-session-id", key=name, body_bytes=size, stream=True)


def _unnamed(prompted: Prompted) -> Request:
    chain = tuple([part.link for part in prompted.parts])
    opening = min(1, len(chain) - 1)
    return Request(
        "chat",
        source="conversation",
        key=chain[opening],
        chain=chain,
        sizes=tuple([BYTES_PER_TOKEN * BLOCK_TOKENS * part.end for part in prompted.parts]),
        opening=opening,
        body_bytes=BYTES_PER_TOKEN * prompted.turn.prompt_tokens,
        stream=True,
    )
