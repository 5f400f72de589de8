"""What a run came to: one `Sample` per request, folded into the figures and the table that every bench shows."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished request; times in seconds of the engines' clock."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    first_token: float  # seconds from sending to the first token
    duration: float  # and to the last
    replica: str = ""
    waited: float = 0.0  # held by admission before it was sent


@dataclass(frozen=True, slots=True)
class Figures:
    """NaN where there was nothing to measure."""

    requests: int
    errors: int
    hit_rate: float  # cached of all prompt tokens
    ttft_mean: float
    ttft_p50: float
    ttft_p95: float
    ttft_p99: float
    tpot_mean: float  # seconds per output token after the first
    turns_per_second: float
    imbalance: float  # requests of the busiest replica over the mean; 1 = even
    prompt_tokens: int
    per_replica: dict[str, int]
    held: int = 0  # requests that admission held
    wait_p95: float = 0.0  # seconds, of those held
    wait_max: float = 0.0


def figures(samples: Sequence[Sample], errors: int, seconds: float, replicas: int = 0) -> Figures:
    """`seconds` is how long the run lasted; `replicas` counts those too that got nothing."""
    ttft = sorted(sample.first_token for sample in samples)
    waits = sorted(sample.waited for sample in samples if sample.waited > 0)
    prompt = sum(sample.prompt_tokens for sample in samples)
    later = sum(max(0, sample.output_tokens - 1) for sample in samples)
    decoding = sum(sample.duration - sample.first_token for sample in samples if sample.output_tokens > 1)
    spread = Counter(sample.replica for sample in samples if sample.replica)
    return Figures(
        requests=len(samples),
        errors=errors,
        hit_rate=_ratio(sum(sample.cached_tokens for sample in samples), prompt),
        ttft_mean=_ratio(sum(ttft), len(ttft)),
        ttft_p50=quantile(ttft, 0.50),
        ttft_p95=quantile(ttft, 0.95),
        ttft_p99=quantile(ttft, 0.99),
        tpot_mean=_ratio(decoding, later),
        turns_per_second=_ratio(len(samples), seconds),
        imbalance=_imbalance(spread, replicas),
        prompt_tokens=prompt,
        per_replica=dict(sorted(spread.items())),
        held=len(waits),
        wait_p95=quantile(waits, 0.95) if waits else 0.0,
        wait_max=waits[-1] if waits else 0.0,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank; NaN of nothing."""
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(rows: dict[str, Figures], title: str) -> Table:
    """Arms as rows, figures as columns."""
    made = Table(title=title, title_justify="left")
    made.add_column("", no_wrap=True)
    for name in ("turns", "errors", "hit rate", "TTFT mean", "p50", "p95", "p99", "TPOT", "turns/s", "imbalance"):
        made.add_column(name, justify="right")
    for arm, of in rows.items():
        made.add_row(arm, *_cells(of))
    return made


def show(console: Console, rows: dict[str, Figures], title: str) -> None:
    """Print the table, as wide as it needs to be where no terminal says otherwise."""
    widen(console)
    console.print(table(rows, title))


def widen(console: Console) -> None:
    """A pipe has no width of its own: give it one in which no column is cut."""
    if not console.is_terminal:
        console.width = max(console.width, 120)


def _cells(of: Figures) -> list[str]:
    ttft = [seconds(value) for value in (of.ttft_mean, of.ttft_p50, of.ttft_p95, of.ttft_p99)]
    return [
        str(of.requests),
        str(of.errors),
        f"{100 * of.hit_rate:.1f} %",
        *ttft,
        f"{1000 * of.tpot_mean:.0f} ms",
        f"{of.turns_per_second:.2f}",
        f"{of.imbalance:.2f}",
    ]


def seconds(value: float) -> str:
    """Three figures are enough."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} s"


def _imbalance(spread: Counter[str], replicas: int) -> float:
    mean = _ratio(spread.total(), max(replicas, len(spread)))
    return _ratio(max(spread.values(), default=0), mean)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
