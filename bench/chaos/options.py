"""What one run of chaos is: how long, how many, and how much the router may keep of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    seconds: float = 120.0
    sessions: int = 2000  # alive at one time; each ends after some turns and another takes its place
    replicas: int = 12
    seed: int = 1
    lanes: int = 48  # clients at one time
    rate: float = 150.0  # requests begun per second: what two cores bear beside the replicas and the clients
    untouched: float = 0.34  # share of the replicas that never misbehave, so that their sessions have no cause to move
    kv_tokens: int = 10_000_000  # of a replica: room for everybody, so that admission has no cause to move anybody
    rss_bound_mib: float = 96.0  # growth after the first quarter: 2,000 sessions and their links are about 10 MiB
    blackout: bool = True  # at the end everybody dies, and /readyz must say so
    log: str = ""  # keep the router's log here
    router_flags: tuple[str, ...] = ()  # come after, and win over, the run's own

    @property
    def homes_last(self) -> bool:
        """Whether no session may leave an untouched replica: all fit anywhere, and the policy remembers homes."""
        return self.kv_tokens >= self.sessions * 5000 and "--policy" not in self.router_flags

    @property
    def kind_ones(self) -> int:
        return max(1, round(self.replicas * self.untouched))
