"""The loop: engines, callers and routers, one event after another. The same options give the same figures."""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from bench.model import Engine, EngineOptions, Event, Job, Stage
from bench.report import Figures, Sample, figures
from bench.simulation.agents import Agents
from bench.simulation.arrivals import arrivals
from bench.simulation.asks import Ask, Caller
from bench.simulation.options import SimulationOptions
from bench.simulation.routers import Router
from bench.simulation.store import Store
from bench.traces import Session, claude_sessions
from router.core.fleet import Fleet
from router.core.health import Fault
from router.core.replica import Replica
from router.core.request import Usage
from router.core.ring import mix
from router.policies import load as load_policy

_AGAIN_SECONDS = 1.0  # a client whose reply broke off tries again after that
_PROGRESS_SECONDS = 60.0  # of virtual time


@dataclass(frozen=True, slots=True)
class Trail:
    """One finished turn, for questions that the figures do not answer."""

    at: float  # when it was sent
    session: int
    replica: str
    reason: str
    expected: int  # tokens of the prompt that the router believed to be cached
    cached: int
    prompt: int
    first_token: float
    waited: float


class Simulation:
    """`run()` once."""

    def __init__(self, options: SimulationOptions, sessions: Sequence[Session] = ()) -> None:
        self.options = options
        self.now = 0.0
        self.samples: list[Sample] = []
        self.trails: list[Trail] = []
        self.reasons: Counter[str] = Counter()
        self.refused = 0
        self._work = Agents(options, sessions) if options.workload == "agents" else arrivals(options.workload)
        self._store = Store(options.store_delay, options.store_outage) if options.store == "shared" else None
        policy = load_policy(options.policy, options.policy_options)
        self.routers = [
            Router(number, options, policy, lambda: self.now, self._store) for number in range(options.routers)
        ]
        self.engines: dict[str, Engine] = {}
        self._due: dict[str, float] = {}
        self._members: list[str] = []
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._turns = 0
        self._running: dict[Job, Caller] = {}
        self._reason: dict[Job, str] = {}

    @property
    def fleet(self) -> Fleet:
        """The first router's."""
        return self.routers[0].fleet

    def run(self, progress: Callable[[float], None] = lambda done: None) -> Figures:
        """`progress` is told every virtual minute how much is done, 0..1."""
        options = self.options
        self._plan()
        told = 0.0
        while self.now < options.seconds and (self._running or self._agenda):
            self._step()
            if self.now - told >= _PROGRESS_SECONDS:
                told = self.now
                progress(self.now / options.seconds)
        made = figures(self.samples, self.refused, options.seconds - options.warm_up, options.replicas)
        waiting = [caller for router in self.routers for caller in router.waiting]
        still = [self.now - caller.held_since for caller in waiting if caller.held_since is not None]
        return replace(made, held=made.held + len(still), wait_max=max([made.wait_max, *still]))

    def _plan(self) -> None:
        options = self.options
        for _ in range(options.replicas):
            self._join()
        for caller in self._work.callers():
            self._next_turn(caller)
        self._at(0.0, self._scrape)
        for when in options.joins:
            self._at(when, self._join)
        for when, number in options.leaves:
            self._at(when, partial(self._leave, number))
        for when, number in options.restarts:
            self._at(when, partial(self._restart, f"replica-{number}"))
        for when in options.router_restarts:
            for router in self.routers:
                self._at(when, router.restart)

    def _at(self, when: float, what: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (when, self._order, what))

    def _step(self) -> None:
        """To the next thing that happens anywhere."""
        name = min(self._due, key=self._due.__getitem__)
        due = self._due[name]
        if self._agenda and self._agenda[0][0] < due:
            self.now, _, what = heapq.heappop(self._agenda)
            what()
            return
        self.now = max(self.now, due)
        self._advance(name)

    def _advance(self, name: str) -> None:
        engine = self.engines[name]
        for event in engine.advance(self.now):
            self._hear(name, event)
        self._due[name] = engine.next_event()

    # What happens to the fleet

    def _join(self) -> None:
        options, number = self.options, len(self.engines)
        speed = options.slow if number == 0 else 1.0
        plain = EngineOptions()
        block = self._work.block_tokens
        name = f"replica-{number}"
        self.engines[name] = Engine(
            EngineOptions(
                kv_blocks=options.kv_tokens // block,
                block_tokens=block,
                prefill_rate=options.prefill_rate * speed,
                quantum_tokens=options.quantum_tokens,
                tpot_base=plain.tpot_base / speed,
                tpot_slope=plain.tpot_slope / speed,
            ),
            self.now,
        )
        self._due[name] = inf
        self._members.append(name)
        self._tell_members()

    def _leave(self, number: int) -> None:
        self._members.remove(f"replica-{number}")
        self._tell_members()

    def _tell_members(self) -> None:
        for router in self.routers:
            router.update([Replica(name, f"http://{name}") for name in self._members])

    def _restart(self, name: str) -> None:
        self._advance(name)
        for job in self.engines[name].restart(self.now):
            caller = self._running.pop(job)
            assert caller.lease is not None
            caller.lease.blame(Fault.FAULT)
            caller.lease.close()
            self._at(self.now + _AGAIN_SECONDS, partial(self._arrive, caller))
        self._due[name] = self.engines[name].next_event()

    def _scrape(self) -> None:
        for name in self._members:
            self._advance(name)
            for number, router in enumerate(self.routers):
                if not self._scrape_fails(name, number):
                    router.scraped(name, self.engines[name].signals())
        for router in self.routers:
            router.compare()
        self._wake()
        self._at(self.now + self.options.scrape_interval, self._scrape)

    def _scrape_fails(self, name: str, router: int) -> bool:
        share = self.options.scrape_failures
        return share > 0 and mix(self.options.seed, "scrape", name, router, int(self.now)) % 1000 < share * 1000

    # What callers do

    def _next_turn(self, caller: Caller) -> None:
        caller.ready = next(caller.asks, None)
        if caller.ready is not None:
            caller.waited = caller.sent_at = 0.0
            self._at(self.now + caller.ready.think, partial(self._arrive, caller))

    def _arrive(self, caller: Caller) -> None:
        """A turn comes in: it is sent, or waits for room as in the proxy's waiting room."""
        self._turns += 1
        caller.router = self._turns % len(self.routers)
        router = self.routers[caller.router]
        if not self._dispatch(router, caller, first=False):
            router.hold(caller)

    def _wake(self) -> None:
        """Room may have been made: the first in line tries, and after it the next."""
        for router in self.routers:
            while router.waiting:
                caller = router.next()
                assert caller.held_since is not None
                caller.waited = self.now - caller.held_since
                if not self._dispatch(router, caller, first=True):
                    break
                router.served(caller)

    def _dispatch(self, router: Router, caller: Caller, *, first: bool) -> bool:
        assert caller.ready is not None
        _, decision = router.choose(caller, first=first)
        if decision.replica is None:
            return False
        job = caller.ready.job
        caller.lease = router.fleet.lease(caller.ready.request, decision)
        caller.engine, caller.expected = decision.replica, decision.expected_cached
        caller.sent_at = caller.sent_at or self.now
        self.reasons[decision.reason] += 1
        self._reason[job] = decision.reason
        try:
            self.engines[caller.engine].submit(self.now, job)
        except ValueError:  # longer than the engine's whole cache: a 400
            caller.lease.close()
            self.refused += 1
            self._next_turn(caller)
            return True
        self._due[caller.engine] = self.engines[caller.engine].next_event()
        self._running[job] = caller
        return True

    def _hear(self, name: str, event: Event) -> None:
        caller = self._running[event.job]
        lease, ask = caller.lease, caller.ready
        assert lease is not None
        assert ask is not None
        if event.stage is Stage.FIRST_TOKEN:
            caller.first_at = event.at
            lease.first_byte()
            return
        del self._running[event.job]
        cached = event.cached_tokens if self.options.report_cached else None
        lease.settle(Usage(event.job.prompt_tokens, cached, event.job.output_tokens, ask.finish))
        lease.close()
        self.routers[caller.router].turned(caller)
        self._record(caller, ask, event)
        self._next_turn(caller)
        self._wake()

    def _record(self, caller: Caller, ask: Ask, event: Event) -> None:
        job, first = event.job, caller.first_at - caller.sent_at
        reason = self._reason.pop(job)
        if event.at >= self.options.warm_up:
            tokens = (job.prompt_tokens, event.cached_tokens, job.output_tokens)
            self.samples.append(Sample(*tokens, first, event.at - caller.sent_at, caller.engine, caller.waited))
        self.trails.append(
            Trail(
                caller.sent_at,
                ask.session,
                caller.engine,
                reason,
                caller.expected,
                event.cached_tokens,
                job.prompt_tokens,
                first,
                caller.waited,
            )
        )


def simulate(options: SimulationOptions, sessions: Sequence[Session] | None = None) -> Figures:
    """One run. ValueError for options that the policy refuses."""
    return Simulation(options, sessions or tuple(claude_sessions())).run()
