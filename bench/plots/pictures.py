"""One function for each picture: rows of a study in, an SVG out."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

Row = dict[str, Any]
_COLOURS = ("#2f6fde", "#c2612c", "#3c8d5a", "#8a5fbf", "#b9a43f", "#8a8f98", "#c24d7b", "#4aa3b5", "#555555")
_FIRST = ("locality", "residency slices")  # drawn thicker: what the router does


def capacity(rows: Sequence[Row], out: Path) -> None:
    """TTFT and hit rate by capacity, a line for each policy."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    ttft, hits = figure.subplots(1, 2)
    for number, (name, own) in enumerate(_grouped(rows, "name").items()):
        style = _style(str(name), number)
        _line(ttft, own, "capacity", "ttft_mean", **style)
        _line(hits, own, "capacity", "hit_rate", **style)
    ttft.set(yscale="log", ylabel="mean time to first token, s", xlabel="KV capacity over live context")
    hits.set(ylabel="hit rate", xlabel="KV capacity over live context")
    hits.legend(fontsize=8, loc="lower right")
    _save(figure, out)


def placement(rows: Sequence[Row], out: Path) -> None:
    """What a home on the ring costs: TTFT against the share of homes that are their ring's first choice."""
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    axis = figure.subplots()
    by_price = _grouped(rows, lambda row: row["policy_options"]["bound_price"])
    for number, (price, own) in enumerate(sorted(by_price.items())):
        points = []
        for margin, same in sorted(_grouped(own, lambda row: row["policy_options"]["margin"]).items()):
            points.append((_mean(same, "at_ring_home"), _mean(same, "ttft_mean"), margin))
        axis.plot(
            [x for x, _, _ in points], [y for _, y, _ in points], "o-", color=_COLOURS[number], label=f"{price:g}"
        )
        for x, y, margin in points:
            axis.annotate(f"{margin:g}", (x, y), fontsize=7, xytext=(3, 3), textcoords="offset points")
    axis.set(xlabel="share of homes at the ring's first choice", ylabel="mean time to first token, s", ylim=(0, None))
    axis.legend(title="price on bound context", fontsize=8)
    axis.set_title("at each point: margin, in mean contexts", fontsize=9)
    _save(figure, out)


def admissions(rows: Sequence[Row], out: Path) -> None:
    """Throughput against the longest wait, a panel for each length of thought, a point for each way and capacity."""
    thinks = sorted({row["max_think"] for row in rows}, key=lambda think: think or 1e9)
    figure = Figure(figsize=(4.4 * len(thinks), 4.4), layout="constrained")
    panels = figure.subplots(1, len(thinks), squeeze=False)[0]
    names = list(_grouped(rows, "name"))
    for axis, think in zip(panels, thinks, strict=True):
        for number, name in enumerate(names):
            own = [row for row in rows if row["max_think"] == think and row["name"] == name]
            by_capacity = sorted(_grouped(own, "capacity").items())
            waits = [max(row["wait_max"] for row in same) for _, same in by_capacity]
            turns = [_mean(same, "turns_per_second") for _, same in by_capacity]
            axis.plot(waits, turns, "o-", **_style(str(name), number))
            for (size, _), wait, turn in zip(by_capacity, waits, turns, strict=True):
                axis.annotate(f"{size:g}x", (wait, turn), fontsize=7, xytext=(3, 3), textcoords="offset points")
        axis.axvline(900, color="#bbbbbb", linestyle=":")
        title = f"think time at most {think:g} s" if think else "think time as recorded"
        axis.set(title=title, xlabel="longest wait, s", ylabel="turns/s", ylim=(0, None))
        axis.set_xscale("symlog", linthresh=100)  # from "nobody waits" to "the whole run"
        axis.set_xlim(-5, 10_000)
    panels[-1].legend(fontsize=7)
    _save(figure, out)


def slices(rows: Sequence[Row], out: Path) -> None:
    """Each parameter of admission alone: throughput and TTFT around its default."""
    by_parameter = _grouped(rows, lambda row: next(iter(row["admission_options"])))
    figure = Figure(figsize=(3.2 * len(by_parameter), 5.4), layout="constrained")
    panels = figure.subplots(2, len(by_parameter))
    for column, (parameter, own) in enumerate(by_parameter.items()):
        for number, (think, same) in enumerate(sorted(_grouped(own, "max_think").items())):
            label = f"think <= {think:g} s" if think else "as recorded"
            for line, measure in enumerate(("turns_per_second", "ttft_mean")):
                _line(panels[line][column], same, lambda row: _only(row), measure, color=_COLOURS[number], label=label)
        panels[0][column].set(title=str(parameter), ylabel="turns/s" if not column else "")
        panels[1][column].set(ylabel="mean time to first token, s" if not column else "")
    panels[0][0].legend(fontsize=7)
    _save(figure, out)


def _only(row: Row) -> float:
    return float(next(iter(row["admission_options"].values())))


def _grouped(rows: Sequence[Row], by: str | Callable[[Row], Hashable]) -> dict[Any, list[Row]]:
    made: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        made[row[by] if isinstance(by, str) else by(row)].append(row)
    return made


def _mean(rows: Sequence[Row], measure: str) -> float:
    return float(mean(row[measure] for row in rows))


def _line(axis: Any, rows: Sequence[Row], by: str | Callable[[Row], Hashable], measure: str, **style: Any) -> None:
    """Mean over seeds, and from the smallest to the largest of them."""
    points = sorted(_grouped(rows, by).items())
    places = [place for place, _ in points]
    axis.plot(places, [_mean(same, measure) for _, same in points], "o-", markersize=4, **style)
    low = [min(row[measure] for row in same) for _, same in points]
    high = [max(row[measure] for row in same) for _, same in points]
    axis.fill_between(places, low, high, color=style["color"], alpha=0.12, linewidth=0)


def _style(name: str, number: int) -> dict[str, Any]:
    return {"color": _COLOURS[number % len(_COLOURS)], "label": name, "linewidth": 2.6 if name in _FIRST else 1.2}


def _save(figure: Figure, out: Path) -> None:
    with mpl.rc_context({"svg.hashsalt": "pictures", "svg.fonttype": "none"}):  # the same rows, the same file
        figure.savefig(out, metadata={"Date": None})
