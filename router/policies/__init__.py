"""Which replica: one file each, one `choose` each, no state and no I/O. Imports happen only here, when asked for.

Add one without touching this repository: `docs/add-a-policy.md`.
"""

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from math import inf
from types import MappingProxyType

from router.core.decision import Policy

GROUP = "router.policies"  # entry points of this group add to the built-in names

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "locality": "router.policies.locality:Locality",
        "longest_prefix": "router.policies.longest_prefix:LongestPrefix",
        "prefix_hash": "router.policies.prefix_hash:PrefixHash",
        "session_hash": "router.policies.session_hash:SessionHash",
        "two_choices": "router.policies.two_choices:TwoChoices",
        "least_loaded": "router.policies.least_loaded:LeastLoaded",
        "random": "router.policies.random:Random",
        "round_robin": "router.policies.round_robin:RoundRobin",
    }
)


class UnknownPolicy(ValueError):
    """No policy has this name, or what it names cannot be imported."""


def names() -> tuple[str, ...]:
    """The built-in policies, and after them what installed packages add, by name."""
    added = sorted(point.name for point in entry_points(group=GROUP))
    return tuple(dict.fromkeys((*BUILT_IN, *added)))


def load(name: str, options: Mapping[str, object] = MappingProxyType({})) -> Policy:
    """The policy called `name`, or the class at `module:Class`, with its options.

    Raises UnknownPolicy for a name that leads nowhere, ValueError for a wrong option.
    """
    kind = _import(name)
    _check_options(name, kind, options)
    try:
        policy = kind(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"policy {name}: {error}") from error
    if not callable(getattr(policy, "choose", None)) or not isinstance(getattr(policy, "name", None), str):
        raise ValueError(f"policy {name}: a policy has a `name` and a method `choose(request, snapshot)`")
    return policy


def in_range(option: str, value: object, low: float, high: float = inf) -> None:
    """For `__post_init__`: raises ValueError, naming the option, unless it is a number from `low` to `high`."""
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        return
    raise ValueError(f"{option} must be a number {_words(low, high)}, not {value!r}")


def _words(low: float, high: float) -> str:
    return f"of at least {low:g}" if high == inf else f"from {low:g} to {high:g}"


def _import(name: str) -> Callable[..., Policy]:
    place = name if ":" in name else BUILT_IN.get(name) or _entry(name)
    module, _, attribute = place.partition(":")
    try:
        kind = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise UnknownPolicy(f"policy {name}: {error} (is its folder on PYTHONPATH?)") from error
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownPolicy(f"policy {name}: {error}") from error
    if not callable(kind):
        raise UnknownPolicy(f"policy {name}: {place} is not a class")
    return kind  # type: ignore[no-any-return]  # what the operator names is checked once it is made


def _entry(name: str) -> str:
    points: tuple[EntryPoint, ...] = tuple(entry_points(group=GROUP, name=name))
    if points:
        return points[0].value
    raise UnknownPolicy(f"no policy is called {name!r}; known: {', '.join(_nearest_first(name, names()))}")


def _check_options(name: str, kind: Callable[..., Policy], options: Mapping[str, object]) -> None:
    parameters = inspect.signature(kind).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    unknown = next((option for option in options if option not in parameters), None)
    if unknown is None:
        return
    known = ", ".join(_nearest_first(unknown, tuple(parameters))) or "none, it has no options"
    raise ValueError(f"policy {name} has no option {unknown!r}; known: {known}")


def _nearest_first(wrong: str, known: tuple[str, ...]) -> tuple[str, ...]:
    near = get_close_matches(wrong, known, n=1)
    return tuple(dict.fromkeys((*near, *known)))
