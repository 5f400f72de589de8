"""The production Fleet and policies in virtual time, against engines that are arithmetic.

A closed loop over the recorded agent sessions: each lane plays one session after another. Nothing here decides
anything that the router would: it feeds scrapes, asks the policy, and closes the lease as the proxy does.
"""

import argparse
import heapq
import json
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from rich.console import Console

from bench.model import Engine, EngineOptions, Event, Job, Stage
from bench.report import Figures, Sample, figures, show
from bench.traces import BLOCK_TOKENS, Prompted, Session, claude_sessions, prompts
from router.core.admission import AdmissionOptions
from router.core.decision import Policy, decide
from router.core.fleet import Fleet, FleetOptions
from router.core.lease import Lease
from router.core.replica import Replica
from router.core.request import Request, Usage
from router.core.ring import mix
from router.policies import load as load_policy

_BLOCK_BYTES = 4 * BLOCK_TOKENS
_LIVE_TOKENS = 17_500_000  # contexts of 128 agents of this trace at one time: the unit of `capacity`
_STAGGER = 60.0  # seconds over which lanes begin: people do not arrive in one instant


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    policy: str = "locality"
    policy_options: dict[str, Any] = field(default_factory=dict)
    replicas: int = 4
    lanes: int = 128  # agents at work at one time
    prefill_rate: float = 8_000.0  # tokens per second of one replica
    seed_rate: float = 12_000.0  # what the router believes at first; it has to find out
    admission: bool = False
    admission_options: dict[str, float] = field(default_factory=dict)
    quantum_tokens: int = 2_048  # vLLM's chunk; 0 = prefill first come, first served
    capacity: float = 1.25  # KV of the whole fleet over the contexts alive: enough, if nothing is kept twice
    scrape_interval: float = 1.0  # the router's default
    report_cached: bool = True  # False: engines that do not say what they cached
    header: bool = True  # False: no session header, the conversation names itself
    max_think: float = 300.0  # seconds: as AgentX replays them
    seconds: float = 7_200.0  # of virtual time
    warm_up: float = 900.0  # of these, not counted: caches fill
    seed: int = 0


@dataclass(slots=True, eq=False)
class _Lane:
    """One agent: the session it plays and the turn that runs."""

    number: int
    script: Iterator[Prompted]
    session: Session
    ready: Prompted
    sent_at: float = 0.0
    first_at: float = 0.0
    lease: Lease | None = None
    engine: str = ""
    held_since: float | None = None
    waited: float = 0.0


class Simulation:
    """`run()` once. Deterministic: the same options give the same figures."""

    def __init__(self, options: SimulationOptions, sessions: Sequence[Session]) -> None:
        self.options = options
        self.now = 0.0
        self._policy: Policy = load_policy(options.policy, options.policy_options)
        kv_tokens = options.capacity * _LIVE_TOKENS * options.lanes / 128 / options.replicas
        engine = EngineOptions(
            kv_blocks=int(kv_tokens) // BLOCK_TOKENS,
            prefill_rate=options.prefill_rate,
            quantum_tokens=options.quantum_tokens,
        )
        self._engines = {f"replica-{number}": Engine(engine) for number in range(options.replicas)}
        admission = AdmissionOptions(**options.admission_options) if options.admission else None
        self.fleet = Fleet(lambda: self.now, FleetOptions(prefill_rate=options.seed_rate, admission=admission))
        self.fleet.update(Replica(name, f"http://{name}") for name in self._engines)
        for load in self.fleet.loads.values():
            self.fleet.probed(load, True)
        self._waiting: deque[_Lane] = deque()
        self._order = sorted(sessions, key=lambda session: mix(options.seed, session.id))
        self._taken = 0
        self._steps = 0
        self._agenda: list[tuple[float, int, _Lane | None]] = []  # None: scrape
        self._running: dict[Job, _Lane] = {}
        self.samples: list[Sample] = []
        self.refused = 0

    def run(self) -> Figures:
        options = self.options
        for number in range(options.lanes):
            self._enter(number)
        self._at(0.0, None)
        while self.now < options.seconds:
            self._step()
        return figures(self.samples, self.refused, options.seconds - options.warm_up, options.replicas)

    def _step(self) -> None:
        """To the next thing that happens anywhere."""
        due, name = min((engine.next_event(), name) for name, engine in self._engines.items())
        if due <= self._agenda[0][0]:
            self.now = max(self.now, due)
            for event in self._engines[name].advance(self.now):
                self._hear(event)
            return
        self.now, _, lane = heapq.heappop(self._agenda)
        if lane is None:
            self._scrape()
        else:
            self._send(lane)

    def _at(self, when: float, lane: _Lane | None) -> None:
        self._steps += 1
        heapq.heappush(self._agenda, (when, self._steps, lane))

    def _enter(self, number: int) -> None:
        """A lane's first session is joined in the middle, so that the run starts with grown contexts."""
        session = self._next_session()
        script = prompts(session)
        skip = int(len(session.turns) * (0.25 + mix(self.options.seed, "enter", number) % 1000 / 2000))
        ready = next(script)
        for _ in range(skip):
            ready = next(script, ready)
        self._at(
            mix(self.options.seed, "start", number) % 1000 / 1000 * _STAGGER, _Lane(number, script, session, ready)
        )

    def _next_session(self) -> Session:
        """Sessions come again when all were played, as new ones: another id, other blocks."""
        round_, place = divmod(self._taken, len(self._order))
        self._taken += 1
        session = self._order[place]
        again = session.index + round_ * len(self._order)
        return replace(session, id=f"{session.id}#{round_}", index=again)

    def _scrape(self) -> None:
        for name, engine in self._engines.items():
            for event in engine.advance(self.now):
                self._hear(event)
            self.fleet.observe(self.fleet.loads[name], engine.signals())
        self._wake()
        self._at(self.now + self.options.scrape_interval, None)

    def _send(self, lane: _Lane) -> None:
        """A turn arrives: it is sent, or waits for room as in the proxy's waiting room."""
        if not self._dispatch(lane, first=False):
            lane.held_since = self.now
            self._waiting.append(lane)
            self._tell_waiting()

    def _wake(self) -> None:
        """Room may have been made: the first in line tries, and after it the next."""
        while self._waiting:
            lane = self._waiting[0]
            assert lane.held_since is not None
            lane.waited = self.now - lane.held_since
            if not self._dispatch(lane, first=True):
                return
            self._waiting.popleft()
            lane.held_since = None
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        if self.fleet.admission is not None:
            self.fleet.admission.first_waiting_since = self._waiting[0].held_since if self._waiting else None

    def _dispatch(self, lane: _Lane, *, first: bool) -> bool:
        request = self._request(lane)
        snapshot = self.fleet.snapshot(request, first=first)
        decision = decide(self._policy, request, snapshot)
        if decision.replica is None:
            return False
        lane.lease = self.fleet.lease(request, decision)
        lane.engine, lane.sent_at = decision.replica, self.now
        turn = lane.ready.turn
        job = Job(lane.ready.blocks, turn.prompt_tokens, turn.output_tokens)
        try:
            self._engines[lane.engine].submit(self.now, job)
        except ValueError:  # longer than the engine's whole cache: a 400, and the agent gives up
            lane.lease.close()
            self.refused += 1
            self._next_turn(lane, give_up=True)
            return True
        self._running[job] = lane
        return True

    def _request(self, lane: _Lane) -> Request:
        size = 4 * lane.ready.turn.prompt_tokens
        if self.options.header:
            key = mix(lane.session.id)
            return Request("chat", session=key, source="x-session-id", key=key, body_bytes=size, stream=True)
        parts = lane.ready.parts
        chain = tuple(part.link for part in parts)
        sizes = tuple(_BLOCK_BYTES * part.end for part in parts)
        opening = min(1, len(chain) - 1)
        return Request(
            "chat",
            source="conversation",
            key=chain[opening],
            chain=chain,
            sizes=sizes,
            opening=opening,
            body_bytes=size,
        )

    def _hear(self, event: Event) -> None:
        lane = self._running[event.job]
        lease = lane.lease
        assert lease is not None
        if event.stage is Stage.FIRST_TOKEN:
            lane.first_at = event.at
            lease.first_byte()
            return
        del self._running[event.job]
        cached = event.cached_tokens if self.options.report_cached else None
        turn = lane.ready.turn
        lease.settle(Usage(event.job.prompt_tokens, cached, event.job.output_tokens, turn.finish))
        lease.close()
        if event.at >= self.options.warm_up:
            first, whole = lane.first_at - lane.sent_at, event.at - lane.sent_at
            tokens = (event.job.prompt_tokens, event.cached_tokens, event.job.output_tokens)
            self.samples.append(Sample(*tokens, first, whole, lane.engine, lane.waited))
        lane.waited = 0.0
        self._next_turn(lane)
        self._wake()

    def _next_turn(self, lane: _Lane, give_up: bool = False) -> None:
        ready = None if give_up else next(lane.script, None)
        while ready is None:
            lane.session = self._next_session()
            lane.script = prompts(lane.session)
            ready = next(lane.script, None)
        lane.ready = ready
        self._at(self.now + min(ready.turn.think, self.options.max_think), lane)


def simulate(options: SimulationOptions, sessions: Sequence[Session] | None = None) -> Figures:
    """One run. ValueError for options that the policy refuses."""
    return Simulation(options, sessions or tuple(claude_sessions())).run()


def _arguments() -> argparse.ArgumentParser:
    default = SimulationOptions()
    parser = argparse.ArgumentParser(prog="python -m bench.simulate", description="Policies in virtual time.")
    add = parser.add_argument
    add("policies", nargs="*", default=["round_robin", "session_hash", "locality"], help="policies to compare")
    add("--seeds", default="0", help="comma list; each policy runs once per seed")
    add("--policy-options", type=json.loads, default={}, help="JSON object, for every policy given")
    add("--no-header", action="store_true", help="no session header: the conversation names itself")
    add("--no-cached-tokens", action="store_true", help="engines do not report cached_tokens")
    add("--json", default="", help="write all figures to this file")
    for one in fields(default):
        value = getattr(default, one.name)
        if isinstance(value, int | float) and not isinstance(value, bool) and one.name != "seed":
            add(f"--{one.name.replace('_', '-')}", type=type(value), default=value, help="(%(default)s)")
    return parser


def _runs(given: dict[str, Any]) -> Iterator[SimulationOptions]:
    policies, seeds = given.pop("policies"), given.pop("seeds")
    header, report_cached = not given.pop("no_header"), not given.pop("no_cached_tokens")
    for policy in policies:
        for seed in seeds.split(","):
            yield SimulationOptions(policy=policy, seed=int(seed), header=header, report_cached=report_cached, **given)


def main(argv: Sequence[str] | None = None) -> int:
    given = vars(_arguments().parse_args(argv))
    json_path = given.pop("json")
    sessions = tuple(claude_sessions())
    rows: dict[str, Figures] = {}
    results: list[dict[str, Any]] = []
    for options in _runs(given):
        started = time.monotonic()
        result = simulate(options, sessions)
        name = f"{options.policy} (seed {options.seed})"
        print(f"{name}: {time.monotonic() - started:.1f} s", file=sys.stderr)
        rows[name] = result
        results.append(asdict(options) | asdict(result))
    show(Console(), rows, f"{given['lanes']} agents, {given['replicas']} replicas, simulated")
    if json_path:
        with open(json_path, "w") as out:
            json.dump(results, out, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
