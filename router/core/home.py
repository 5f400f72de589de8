"""Where a session lives and what home should still hold of it: pure reads of the map.

Law: home is believed warm unless there is proof or arithmetic to the contrary. Half the warmth believed costs twenty
times what a miss does.
"""

from typing import TYPE_CHECKING

from router.core.affinity import Binding, Found
from router.core.decision import Held, Home, Reason
from router.core.placed import is_lost
from router.core.replica import Load
from router.core.request import Request

if TYPE_CHECKING:
    from router.core.fleet import Fleet

_MISSES = 3  # replies in a row: after each of them home is warm again; three, and it cannot keep the session
_REWRITTEN_TOKENS = 512  # two blocks of text; where less is gone, moving is not free but pointless
_EVICTED = 0.5  # less than that is left of what home should hold: staying costs nearly what moving does


def home(fleet: "Fleet", request: Request, found: Found, prompt: int) -> Home | None:
    """None for a session that lives nowhere yet. `prompt`: tokens of the whole prompt."""
    binding = found.binding
    reason = Reason.SESSION if found.named else Reason.PREFIX
    if binding is None:
        running = fleet.pending.get(found.session)
        return Home(running[0].id, reason, 0) if running else None
    load = fleet.loads.get(binding.replica)
    expected, extends = _expected(fleet, request, found, prompt)
    if load is None or is_lost(binding, load) or binding.misses >= _MISSES:
        return Home(binding.replica, reason, 0, True, extends)
    kept = min(expected, _kept(fleet, binding, load))
    return Home(binding.replica, reason, kept, False, extends, evicted=kept < _EVICTED * expected)


def held(fleet: "Fleet", request: Request, found: Found) -> Held | None:
    """The deepest link that anybody holds, whoever's session it was."""
    holder = found.holder
    if holder is None:
        return None
    load = fleet.loads.get(holder.replica)
    if load is None or is_lost(holder, load):
        return None
    return Held(holder.replica, fleet.estimates.tokens(request.model, request.sizes[found.known]))


def repeated(fleet: "Fleet", request: Request, found: Found, prompt: int) -> int:
    """Tokens of this prompt that some replica was sent before, whether or not it still holds them."""
    if request.chain and not request.response_id:
        return fleet.estimates.tokens(request.model, request.sizes[found.known]) if found.known >= 0 else 0
    return min(found.binding.context, prompt) if found.binding is not None else 0


def _expected(fleet: "Fleet", request: Request, found: Found, prompt: int) -> tuple[int, bool]:
    """(tokens of this prompt that home was sent before, whether the prompt still extends that)."""
    binding = found.binding
    assert binding is not None
    if not request.chain or request.response_id or not binding.root:  # no root: its text was never read
        return min(binding.context, prompt), True
    if found.known >= 0 and found.holder is not None and found.holder.replica == binding.replica:
        tokens = fleet.estimates.tokens(request.model, request.sizes[found.known])
        rewritten = found.known < request.opening and request.chain[0] == binding.root
        # The unfinished last block of a text prompt is no link of the longer one: too little to be a rewrite.
        return min(tokens, prompt), not (rewritten and binding.context - tokens > _REWRITTEN_TOKENS)
    return 0, True


def _kept(fleet: "Fleet", binding: Binding, load: Load) -> int:
    """Tokens of the session that home had room for: engines let go of what was used longest ago, its end first.

    Known only where the engine says how much it holds and nobody else sends there.
    """
    capacity = load.kv_capacity_tokens
    if capacity is None or load.is_shared:
        return binding.context
    return min(max(int(capacity) - fleet.bound.newer(binding), 0), binding.context)
