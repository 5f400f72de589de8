"""A run as tables for people and as JSON for programs."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

import msgspec
from rich.console import Console
from rich.table import Table

from bench.cost.results import Results, Row
from bench.cost.targets import best, verdicts


def show(results: Results, console: Console) -> None:
    console.print(_costs(results))
    console.print(_times(results))
    for row in results.rows:
        if row.kind == "ours" and row.cells:
            console.print(_targets(row, results))
    for row in results.rows:
        if row.failed:
            console.print(f"{row.name}: {row.failed}", style="red", markup=False, highlight=False)
        elif not row.verbatim:
            console.print(f"{row.name}: replies are rewritten on the way", style="yellow", highlight=False)


def as_json(results: Results) -> bytes:
    """Every pass of every row, and what the targets say."""
    ours = [row for row in results.rows if row.kind == "ours" and row.cells]
    judged = {
        row.name: [{**asdict(each), "ratio": each.ratio, "met": each.met} for each in verdicts(row, results)]
        for row in ours
    }
    return msgspec.json.format(msgspec.json.encode({**asdict(results), "verdicts": judged}), indent=1)


def _costs(results: Results) -> Table:
    table = _table(
        "CPU per request, us (user and system, whole proxy)", [*results.workloads, "idle, ms/s", "memory, MB"]
    )
    for row in results.rows:
        cells = (row.cpu_us(name) for name in results.workloads)
        table.add_row(row.name, *map(_number, cells), _number(row.idle(), 1), _memory(row))
    fastest = [best(results.rows, name) for name in results.workloads]
    for row in results.rows:
        if row.kind == "ours" and any(fastest):
            ratios = (_ratio(row, one, name) for name, one in zip(results.workloads, fastest, strict=True))
            table.add_row(f"{row.name} / best Rust", *ratios, "", "", style="bold")
    return table


def _times(results: Results) -> Table:
    names = [name for name in ("SMALL", "AGENT") if name in results.workloads]
    heads = [f"{name}, requests/s" for name in names] + [f"{name}, added p50 / p99" for name in names]
    table = _table("Rate with one core; latency added at concurrency 1, us", [*heads, "first chunk", "PACED arrivals"])
    for row in (results.direct, *results.rows):
        rates = [_number(row.per_second(name)) for name in names]
        table.add_row(
            row.name, *rates, *(_added(row, results, name) for name in names), _first(row, results), _held(row)
        )
    return table


def _targets(row: Row, results: Results) -> Table:
    table = _table(f"Targets: {row.name}", ["ours", "the best other", "ratio", "target", ""])
    for each in verdicts(row, results):
        theirs = f"{_number(each.theirs)} ({each.whose})" if each.theirs is not None else ""
        ratio = f"{each.ratio:.2f}" if each.theirs is not None else ""
        mark = "[green]met[/]" if each.met else "[red]missed[/]"
        table.add_row(each.what, f"{_number(each.ours)} {each.unit}", theirs, ratio, f"<= {each.limit:g}", mark)
    return table


def _table(title: str, columns: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _added(row: Row, results: Results, name: str) -> str:
    if row is results.direct:
        return _pair([each.p50 for each in row.latency.get(name, ())], [each.p99 for each in row.latency.get(name, ())])
    p50, p99 = row.over(results.direct, name, "p50"), row.over(results.direct, name, "p99")
    return "-" if p50 is None else f"{_number(p50)} / {_number(p99)}"


def _pair(p50: Sequence[float], p99: Sequence[float]) -> str:
    return f"({_number(min(p50))} / {_number(min(p99))})" if p50 else "-"


def _first(row: Row, results: Results) -> str:
    return "" if row is results.direct else _number(row.over(results.direct, "STREAM", "first_p50"))


def _held(row: Row) -> str:
    return _number(row.arrivals("PACED"), 1)


def _memory(row: Row) -> str:
    if row.memory is None:
        return "-"
    few = "" if row.memory.requests >= 2_000 else f" ({row.memory.requests})"
    return f"{_number(row.memory.before_mb)} → {_number(row.memory.after_mb)}{few}"


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _ratio(row: Row, other: Row | None, workload: str) -> str:
    mine, theirs = row.cpu_us(workload), other.cpu_us(workload) if other else None
    return "-" if mine is None or not theirs else f"{mine / theirs:.2f}"
