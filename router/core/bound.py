"""How much context is bound to each replica by sessions that are not idle: the working set, by arithmetic alone.

And in which order it was last used, which is the order in which an engine lets go of it.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping

from router.core.affinity import Binding
from router.core.replica import Load

_SLOT_SECONDS = 15.0  # sessions seen within one are taken as seen at once: sixty to sum up over an idle window


class Bound:
    """Keeps `Load.bound_tokens` true. A session counts until it was idle for a window; its binding outlives that."""

    def __init__(self, idle_window: float, mean_context: float) -> None:
        self._idle_window = idle_window
        self._default = mean_context
        self._active: OrderedDict[int, Binding] = OrderedDict()  # by last seen, oldest first
        self._tokens = 0
        self._slots: defaultdict[str, dict[int, int]] = defaultdict(dict)  # by replica: tokens by when last seen

    @property
    def mean_context(self) -> float:
        """Tokens per active session; the seed where there is none."""
        return self._tokens / len(self._active) if self._active else self._default

    def count(self, binding: Binding, context: int, loads: Mapping[str, Load]) -> None:
        """The session was just seen with this context."""
        self.forget(binding, loads)
        binding.context = context
        binding.counted = True
        binding.slot = int(binding.seen / _SLOT_SECONDS)
        self._active[binding.session] = binding
        self._add(binding, 1, loads)

    def forget(self, binding: Binding, loads: Mapping[str, Load]) -> None:
        if binding.counted:
            binding.counted = False
            del self._active[binding.session]
            self._add(binding, -1, loads)

    def newer(self, binding: Binding) -> int:
        """Tokens of the sessions at its home that were used since: what an engine would let go of later."""
        slots = self._slots.get(binding.replica)
        if slots is None:
            return 0
        seen = int(binding.seen / _SLOT_SECONDS)
        return sum([tokens for slot, tokens in slots.items() if slot > seen])

    def age(self, now: float, loads: Mapping[str, Load]) -> Iterator[Binding]:
        """Let go of those that have been idle for too long, and tell who they are."""
        oldest = now - self._idle_window
        while self._active:
            binding = next(iter(self._active.values()))
            if binding.seen > oldest:
                return
            self.forget(binding, loads)
            yield binding

    def leave(self, load: Load) -> None:
        """The replica left the fleet: what was bound to it no longer counts."""
        for binding in [binding for binding in self._active.values() if binding.replica == load.id]:
            self.forget(binding, {load.id: load})

    def _add(self, binding: Binding, sign: int, loads: Mapping[str, Load]) -> None:
        self._tokens += sign * binding.context
        slots = self._slots[binding.replica]
        slots[binding.slot] = slots.get(binding.slot, 0) + sign * binding.context
        if not slots[binding.slot]:
            del slots[binding.slot]
        load = loads.get(binding.replica)
        if load is not None:
            load.bound_tokens += sign * binding.context
            load.bound_sessions += sign
