"""A run as an SVG: one panel per workload, one bar per row. No library needed, and a README can show it."""

from collections.abc import Iterator, Sequence
from html import escape

from bench.cost.results import Results, Row

_WIDTH, _BAR, _GAP, _LABEL, _TITLE = 420, 16, 4, 190, 30  # pixels
_COLUMNS = 2
_COLOURS = {"ours": "#2f6fde", "rust": "#c2612c", "proxy": "#8a8f98", "python": "#b9a43f"}


def picture(results: Results) -> str:
    """CPU per request of everybody; bars that would dwarf the others are cut and say so."""
    rows = [row for row in results.rows if row.cells]
    height = _TITLE + len(rows) * (_BAR + _GAP) + 12
    lines = -(-len(results.workloads) // _COLUMNS)
    panels = "".join(
        f'<g transform="translate({_WIDTH * (number % _COLUMNS)},{height * (number // _COLUMNS) + 24})">'
        f"{''.join(_panel(name, rows))}</g>"
        for number, name in enumerate(results.workloads)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH * _COLUMNS}" height="{height * lines + 28}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="8" y="18" font-size="14" font-weight="bold">CPU per request, microseconds: lower is better</text>'
        f"{panels}</svg>\n"
    )


def _panel(name: str, rows: Sequence[Row]) -> Iterator[str]:
    costs = [(row, row.cpu_us(name)) for row in rows]
    known = [(row, cost) for row, cost in costs if cost is not None]
    scale = max((cost for row, cost in known if row.kind != "python"), default=1.0) or 1.0
    yield f'<text x="8" y="{_TITLE - 10}" font-weight="bold">{escape(name)}</text>'
    for number, (row, cost) in enumerate(known):
        y = _TITLE + number * (_BAR + _GAP)
        length = max(min(cost / scale, 1.0) * (_WIDTH - _LABEL - 70), 1.0)
        colour = _COLOURS.get(row.kind, "#999")
        cut = " »" if cost > scale else ""
        yield f'<text x="{_LABEL - 6}" y="{y + 12}" text-anchor="end">{escape(row.name)}</text>'
        yield f'<rect x="{_LABEL}" y="{y}" width="{length:.1f}" height="{_BAR}" fill="{colour}"/>'
        yield f'<text x="{_LABEL + length + 5:.1f}" y="{y + 12}">{cost:,.0f}{cut}</text>'
