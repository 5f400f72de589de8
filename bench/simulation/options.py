"""Every knob of a run, with the reason for its default."""

from dataclasses import dataclass, field
from typing import Any

LIVE_TOKENS = 17_500_000  # contexts of 128 agents of this trace at one time: the unit of `capacity`


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    policy: str = "locality"
    policy_options: dict[str, Any] = field(default_factory=dict)
    workload: str = "agents"  # agents (closed loop) | mooncake | azure_code | azure_conv (open loop)
    replicas: int = 4
    lanes: int = 128  # agents at work at one time
    prefill_rate: float = 8_000.0  # tokens per second of one replica
    seed_rate: float = 12_000.0  # what the router believes at first; it has to find out
    quantum_tokens: int = 2_048  # vLLM's chunk; 0 = prefill first come, first served
    capacity: float = 1.25  # KV of the whole fleet over the contexts alive: enough, if nothing is kept twice
    slow: float = 1.0  # speed of the first replica against the others
    scrape_interval: float = 1.0  # the router's default
    scrape_failures: float = 0.0  # share of scrapes that bring nothing
    report_cached: bool = True  # False: engines that do not say what they cached
    report_capacity: bool = True  # False: nor how much they could
    header: bool = True  # False: no session header, the conversation names itself
    threads: bool = False  # with a header: sub-agents are sessions of their own
    max_think: float = 300.0  # seconds: as AgentX replays them; 0 = as recorded
    admission: bool = False
    admission_kind: str = "router.core.admission:Admission"  # or one of bench.arms.admission
    admission_options: dict[str, float] = field(default_factory=dict)
    max_sessions: int = 100_000  # FleetOptions' default
    routers: int = 1  # turns are spread over them round robin
    store: str = "none"  # none | shared (by all routers, and it outlives them)
    store_delay: float = 0.02  # seconds until what one wrote is seen by another: the longest look-up allowed
    share_turns: bool = True  # with every scrape routers tell each other what they wait for and whom they saw
    store_outage: tuple[float, float] = (0.0, 0.0)  # from, until
    router_restarts: tuple[float, ...] = ()  # seconds at which every router comes back empty
    restarts: tuple[tuple[float, int], ...] = ()  # (seconds, replica): it comes back with an empty cache
    joins: tuple[float, ...] = ()  # seconds at which one more replica joins
    leaves: tuple[tuple[float, int], ...] = ()  # (seconds, replica): it finishes what runs and takes nothing new
    seconds: float = 7_200.0  # of virtual time
    warm_up: float = 900.0  # of these, not counted: caches fill
    seed: int = 0

    @property
    def kv_tokens(self) -> int:
        """Of one replica."""
        return int(self.capacity * LIVE_TOKENS * self.lanes / 128 / self.replicas)
