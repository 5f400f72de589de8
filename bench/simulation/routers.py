"""One router in virtual time: its fleet, its policy, its waiting room. It decides nothing that the proxy would not."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module
from typing import Any

from bench.simulation.asks import Caller
from bench.simulation.options import SimulationOptions
from bench.simulation.store import Store, hear, recall, tell
from router.core.admission import Admission, AdmissionOptions
from router.core.decision import Decision, Policy, Snapshot, decide
from router.core.fleet import Fleet, FleetOptions
from router.core.placed import placed
from router.core.replica import Replica, Signals
from router.policies import load as load_policy


class Router:
    def __init__(
        self,
        number: int,
        options: SimulationOptions,
        policy: Policy,
        clock: Callable[[], float],
        store: Store | None,
    ) -> None:
        self._number, self._options, self._clock, self._store = number, options, clock, store
        self._policy = policy
        self._heard = 0  # of the store's turns
        self._cut_off: Policy = without_store(options)  # what it does while nobody can be asked
        self.waiting: deque[Caller] = deque()
        self.fleet = self._begin(())

    def restart(self) -> None:
        """A new process takes what comes from now on; the old one finishes what runs."""
        self.fleet = self._begin([load.replica for load in self.fleet.loads.values()])
        self._tell_waiting()

    def _begin(self, replicas: Iterable[Replica]) -> Fleet:
        options = self._options
        admission = _admission_options(options)
        fleet = Fleet(
            self._clock,
            FleetOptions(prefill_rate=options.seed_rate, admission=admission, max_sessions=options.max_sessions),
        )
        if admission is not None:
            fleet.admission = _kind(options.admission_kind)(admission)
        self._update(fleet, replicas)
        if self._store is not None:
            tell(fleet, self._store)
        return fleet

    def update(self, replicas: Iterable[Replica]) -> None:
        self._update(self.fleet, replicas)

    @staticmethod
    def _update(fleet: Fleet, replicas: Iterable[Replica]) -> None:
        added, _ = fleet.update(replicas)
        for load in added:
            fleet.probed(load, True)

    def scraped(self, name: str, signals: Signals) -> None:
        load = self.fleet.loads.get(name)
        if load is None:
            return
        self.fleet.probed(load, True)
        if not self._options.report_capacity:
            signals = replace(signals, kv_capacity_tokens=None)
        self.fleet.observe(load, signals)

    def compare(self) -> None:
        """What other routers wait for and whom they saw, in the background as the store allows."""
        if self._store is None or not self._options.share_turns:
            return
        queued = {load.id: load.queued_tokens for load in self.fleet.loads.values()}
        owed = self._store.owed(self._number, queued, self._clock())
        for load in self.fleet.loads.values():
            load.others_queued_tokens = owed.get(load.id, 0)
        self._heard, turns = self._store.turns(self._number, self._heard, self._clock())
        for told in turns:
            hear(self.fleet, told)

    def turned(self, caller: Caller) -> None:
        """A turn of the caller ended."""
        if self._store is None or not self._options.share_turns or caller.ready is None:
            return
        found = self.fleet.affinity.find(caller.ready.request)
        if found.binding is not None:
            self._store.turned(self._number, placed(self.fleet, found.binding, self._clock()))

    def choose(self, caller: Caller, *, first: bool) -> tuple[Snapshot, Decision]:
        assert caller.ready is not None
        request, policy = caller.ready.request, self._policy
        if self._store is not None:
            recall(self.fleet, self._store, request)
            if self._store.is_down(self._clock()):
                policy = self._cut_off
        snapshot = self.fleet.snapshot(request, first=first)
        return snapshot, decide(policy, request, snapshot)

    def hold(self, caller: Caller) -> None:
        assert caller.ready is not None
        self.fleet.hold(caller.ready.request)
        caller.held_since = self._clock()
        self.waiting.append(caller)
        assert caller.ready is not None
        self.fleet.hold(caller.ready.request)
        self._tell_waiting()

    def next(self) -> Caller:
        """Whose turn it is: first come, first served, unless an arm says otherwise."""
        if getattr(self.fleet.admission, "smallest_first", False):
            return min(self.waiting, key=lambda caller: caller.ready.job.prompt_tokens if caller.ready else 0)
        return self.waiting[0]

    def served(self, caller: Caller) -> None:
        self.waiting.remove(caller)
        caller.held_since = None
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        if self.fleet.admission is not None:
            self.fleet.admission.first_waiting_since = self.waiting[0].held_since if self.waiting else None


def without_store(options: SimulationOptions) -> Policy:
    """The policy with homes that are a pure function of the key."""
    if options.policy != "locality":
        return load_policy(options.policy, options.policy_options)
    return load_policy("locality", options.policy_options | {"placement": "ring"})


def _admission_options(options: SimulationOptions) -> AdmissionOptions | None:
    return AdmissionOptions(**options.admission_options) if options.admission else None


def _kind(place: str) -> Callable[[AdmissionOptions], Admission]:
    module, _, name = place.partition(":")
    kind: Any = getattr(import_module(module), name)
    return kind  # type: ignore[no-any-return]  # our own arms
