"""The map: the only mutable object. Who is there, how busy, who holds what.

Law: `snapshot` reads, `lease` and the feeders write; nothing here waits, so what happens between a
snapshot and its lease is atomic in one event loop.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from router.core.admission import Admission, AdmissionOptions
from router.core.affinity import Affinity, Binding, Found
from router.core.bound import Bound
from router.core.decision import Decision, Snapshot
from router.core.estimates import Estimates, PrefillMeter
from router.core.health import HealthRules, probed, relax, shows_restart
from router.core.home import held, home
from router.core.lease import Lease
from router.core.placed import is_lost
from router.core.pools import NoReplica, Pools
from router.core.replica import Load, Replica, Signals, State
from router.core.request import Request

_FADE = 0.95
_COLD_SESSIONS = 4  # one was evicted, two are chance
_FORGET = 0.99  # of the traffic before a scrape: a minute or two at the default interval


@dataclass(frozen=True, slots=True)
class FleetOptions:
    idle_window: float = 900.0  # seconds: 93 % of an agent's pauses are shorter than 300 s; three times that
    max_sessions: int = 100_000  # about 40 MB; an agent fleet sees thousands a day
    max_prefixes: int = 300_000  # about 40 MB; a turn adds two or three links
    bytes_per_token: float = 4.0  # seed until replies teach better
    prefill_rate: float = 8000.0  # tokens per second, seed likewise
    mean_context: float = 122_000.0  # tokens: the mean of real agent sessions, until sessions of our own are bound
    kv_capacity_tokens: float | None = None  # where the engine does not say
    max_inflight: int | None = None  # per replica
    tell_growth: float = 1.25  # a stored context is at most so much too small: home is believed a fifth colder
    tell_tokens: int = 4096  # growth below this is not worth a write
    tell_seconds: float = 21_600.0  # a binding in use is written again: a quarter of a day, the life of a stored one
    admission: AdmissionOptions | None = None  # None: off
    health: HealthRules = field(default_factory=HealthRules)


class Fleet:
    def __init__(self, clock: Callable[[], float], options: FleetOptions | None = None) -> None:
        self.now = clock
        self.options = options or FleetOptions()
        self.estimates = Estimates(self.options.bytes_per_token)
        self.affinity = Affinity(self.options.max_sessions, self.options.max_prefixes)
        self.bound = Bound(self.options.idle_window, self.options.mean_context)
        self.admission = Admission(self.options.admission) if self.options.admission is not None else None
        self.on_bound: Callable[[Binding, str], None] | None = None  # gets the replica it was at before
        self.only_model = ""  # the one that every replica says it serves, and nothing else; "" = several, or unknown
        self.pending: dict[int, list[Load]] = {}  # session without a binding → where its open leases run
        self._loads: dict[str, Load] = {}
        self._pools = Pools()
        self._cold: dict[str, list[Binding]] = {}  # by replica: sessions that found nothing there, one after another
        self._relax_at = float("inf")
        self.on_standing: Callable[[Load, str], None] = lambda load, before: None  # told (load, standing before)
        self._tick = 0
        self._seen: tuple[Request, Found, int] | None = None  # of the last snapshot, until anything is bound

    # What is there

    @property
    def loads(self) -> Mapping[str, Load]:
        return self._loads

    @property
    def sessions(self) -> int:
        return self.affinity.sessions

    @property
    def prefixes(self) -> int:
        return self.affinity.prefixes

    @property
    def tick(self) -> int:
        return self._tick

    # Fed by watch and by the operator

    def update(self, replicas: Iterable[Replica]) -> tuple[list[Load], list[Load]]:
        """Make the fleet exactly this set. A replica under a known id with another url is another one.

        Returns (added, removed). Open leases on a removed load stay valid: they release to that object.
        """
        wanted = {replica.id: replica for replica in replicas}
        removed = [load for load in self._loads.values() if self._is_gone(load, wanted)]
        for load in removed:
            self._lost(load)
            del self._loads[load.id]
        added: list[Load] = []
        for replica in wanted.values():
            known = self._loads.get(replica.id)
            if known is not None:
                known.replica = replica
                continue
            seed = self.options.prefill_rate
            load = Load(replica, replica.id, prefill_rate=seed, meter=PrefillMeter(seed))
            load.kv_capacity_default = self.options.kv_capacity_tokens
            load.models = frozenset({replica.model}) if replica.model else frozenset()
            self._loads[replica.id] = load
            added.append(load)
        self.changed()
        return added, removed

    @staticmethod
    def _is_gone(load: Load, wanted: Mapping[str, Replica]) -> bool:
        replica = wanted.get(load.id)
        return replica is None or replica.url != load.replica.url

    def observe(self, load: Load, signals: Signals) -> bool:
        """One good scrape. True if it shows that the engine restarted: start time changed or a counter went back."""
        restarted = shows_restart(load.signals, signals)
        if restarted:
            load.incarnation += 1
            self._lost(load)
        self._compare_traffic(load, signals, restarted)
        load.signals, load.signals_at = signals, self.now()
        load.dispatched_since_scrape = 0
        return restarted

    @staticmethod
    def _compare_traffic(load: Load, signals: Signals, restarted: bool) -> None:
        """How much of what the engine was asked came from here."""
        before, after = load.signals.cache_queries, signals.cache_queries
        if before is None or after is None or restarted:
            return
        load.sent_tokens *= _FORGET
        load.seen_tokens = load.seen_tokens * _FORGET + after - before

    def answered(self, load: Load, binding: Binding, *, cold: bool) -> None:
        """A session's turn ended at home; `cold`: nothing was found of what it should have held.

        Several sessions in a row show a restart that no scrape did. They have what they need again; the others do not.
        """
        if not cold:
            self._cold.pop(load.id, None)
            return
        those = self._cold.setdefault(load.id, [])
        if binding not in those:
            those.append(binding)
        if len(those) < _COLD_SESSIONS:
            return
        del self._cold[load.id]
        load.incarnation += 1
        self._lost(load)
        for each in those:
            each.incarnation = load.incarnation
            self.bound.count(each, each.context, self._loads)

    def _lost(self, load: Load) -> None:
        """What was cached there is gone."""
        self._cold.pop(load.id, None)
        self.bound.leave(load)
        if self.admission is not None:
            self.admission.gone(load)

    def probed(self, load: Load, ok: bool | None) -> None:
        """An active probe's verdict; None is "no answer in time", which alone says little of a busy engine."""
        before = load.state
        relax(load, self.now())  # also where no request comes: an orchestrator that reads /readyz sends none until then
        probed(load, ok, self.now(), self.options.health)
        if load.state is not before:
            self.changed()

    def learn(self, load: Load, engine: str | None = None, models: frozenset[str] | None = None) -> None:
        if engine is not None:
            load.engine = engine
        if models is not None and models != load.models:
            load.models = models | ({load.replica.model} if load.replica.model else set())
            self.changed()

    def drain(self, replica_id: str) -> None:
        """Take nothing new. Raises KeyError for an unknown id."""
        self._loads[replica_id].drained = True
        self.changed()

    def undrain(self, replica_id: str) -> None:
        self._loads[replica_id].drained = False
        self.changed()

    def changed(self) -> None:
        """Somebody's eligibility may have changed."""
        self._pools.changed()
        for load in self._loads.values():
            if load.told != load.standing:
                before, load.told = load.told, load.standing
                self.on_standing(load, before)
        waits = (load.until for load in self._loads.values() if load.state is State.COOLING)
        self._relax_at = min(waits, default=float("inf"))
        served = set().union(*(load.models or ("", "?") for load in self._loads.values()))  # unknown is several
        self.only_model = served.pop() if len(served) == 1 else ""

    # One request

    def snapshot(self, request: Request, excluding: Collection[str] = (), *, first: bool = False) -> Snapshot:
        """The fleet as this request may see it. Raises NoReplica.

        `first`: it is the first in the waiting room.
        """
        now = self.now()
        self._age(now)
        if now >= self._relax_at:
            for load in self._loads.values():
                relax(load, now)
            self.changed()
        pool = self._pools.of(request.model, self._loads.values())
        if pool is None:
            raise NoReplica("empty")
        loads, by_id, passed_over = pool.open_to(excluding, self.options.max_inflight)
        found, prompt = self._look_up(request)
        self._seen = request, found, prompt
        hold = False
        room = self._room(found, prompt, loads, now, first)
        if room is not None:
            hold = not room
            passed_over += tuple((load.id, "full") for load in loads if load.id not in room and not hold)
            loads = tuple(load for load in loads if hold or load.id in room)
            by_id = {load.id: load for load in loads}
        return Snapshot(
            now,
            self._tick,
            loads,
            by_id,
            pool.ring,
            home(self, request, found, prompt),
            held(self, request, found),
            prompt,
            self.bound.mean_context,
            self._pinned(request, excluding),
            pool.panic,
            passed_over,
            self.estimates.reuse,
            hold,
        )

    def lease(self, request: Request, decision: Decision) -> Lease:
        """Take a place on the chosen replica until the lease is closed."""
        if decision.replica is None:
            raise ValueError("a hold cannot be leased")
        load = self._loads[decision.replica]
        self._tick += 1
        # Nothing awaits since the snapshot, so what it found still holds: looking again costs 4 % of a small request.
        seen, self._seen = self._seen, None
        found, prompt = seen[1:] if seen is not None and seen[0] is request else self._look_up(request)
        return Lease(self, load, request, found, prompt, decision.expected_cached)

    def hold(self, request: Request) -> None:
        """The request goes to the waiting room: a place that its session had is another's now."""
        found = self.affinity.find(request)
        if self.admission is not None and found.session:
            self.admission.leave(found.session)

    def _look_up(self, request: Request) -> tuple[Found, int]:
        found = self.affinity.find(request)
        return found, self._prompt(request, found)

    def _prompt(self, request: Request, found: Found) -> int:
        """Tokens of the whole prompt; one that continues a response is sent without what came before."""
        tokens = self.estimates.tokens(request.model, request.prompt_bytes)
        if request.response_id and found.binding is not None:
            tokens += found.binding.context
        return tokens

    def _age(self, now: float) -> None:
        for binding in self.bound.age(now, self._loads):
            if self.admission is not None:
                self.admission.leave(binding.session)
                self.admission.stayed_away(binding.kind)

    def _room(
        self, found: Found, prompt: int, loads: tuple[Load, ...], now: float, first: bool
    ) -> frozenset[str] | None:
        """Replicas with room for the session; None where admission has no say."""
        if self.admission is None or not found.session:
            return None
        return self.admission.room(found.session, prompt, loads, now, first=first)

    def _pinned(self, request: Request, excluding: Collection[str]) -> str:
        """The replica that keeps the response, also while it cools, drains or is full: nobody else has it."""
        if not request.response_id:
            return ""
        maker = self._loads.get(self.affinity.maker(request.response_id))
        if maker is None or maker.id in excluding or maker.state not in (State.UP, State.COOLING):
            return ""
        return maker.id

    # Called by leases

    def bind(self, load: Load, request: Request, found: Found, context: int) -> Binding | None:
        """This replica now holds the prompt: make it the session's home. None where nothing names a session."""
        if not found.session:
            return None
        self._seen = None
        binding = None if found.fork else found.binding
        before, told = binding.replica if binding is not None else "", False
        if binding is None:
            binding = Binding(found.session, load.id, load.incarnation, 0)
        elif binding.replica != load.id or is_lost(binding, load):
            self.bound.forget(binding, self._loads)
            binding.replica, binding.incarnation, binding.misses = load.id, load.incarnation, 0
        else:
            told = self.on_bound is None or self._is_told(binding, context)
        binding.recalled, binding.started_at = False, None
        binding.seen = self.now()
        if request.chain:
            # Another thread of the same session (other tools and system) does not shrink its context.
            context = context if binding.root in (0, request.chain[0]) else max(context, binding.context)
            binding.root, binding.tail = request.chain[0], request.chain[-1]
        else:
            # Unread, it cannot be told from another thread's: what was larger fades over a few dozen turns.
            context = max(context, int(_FADE * binding.context))
        for gone in self.affinity.put(binding, request, found.known):
            self.let_go(gone)
        self.bound.count(binding, context, self._loads)
        if self.on_bound is not None and not told:
            binding.told, binding.told_at = context, binding.seen
            self.on_bound(binding, before)
        return binding

    def let_go(self, binding: Binding) -> None:
        """The maps had no room for it any more."""
        self.bound.forget(binding, self._loads)
        if self.admission is not None:
            self.admission.leave(binding.session)

    def _is_told(self, binding: Binding, context: int) -> bool:
        options = self.options
        if self.now() - binding.told_at >= options.tell_seconds:
            return False
        return context < max(binding.told * options.tell_growth, binding.told + options.tell_tokens)
