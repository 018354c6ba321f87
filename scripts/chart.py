"""A bar chart as SVG text, readable on light and dark pages alike."""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Mapping, Sequence

WIDTH, LEFT, RIGHT = 760, 170, 150
ROW, BAR, TOP, BOTTOM = 24, 15, 64, 44
_STYLE = """text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600; font-size: 15px } .note { fill: #57606a }
line { stroke: #57606a } .grid { stroke-opacity: .25 }
.ours { fill: #2f6fd6 } .other { fill: #9aa4af } .page { fill: #fff }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .note { fill: #9aa4af } line { stroke: #9aa4af }
.ours { fill: #5b9dff } .other { fill: #68727d } .page { fill: #0d1117 } }"""


def bars(title: str, note: str, groups: Mapping[str, Mapping[str, Sequence[float]]], ours: Sequence[str]) -> str:
    """Horizontal bars at the median of each, with a line from the lowest to the highest value.

    Args:
        title, note: above the bars and below.
        groups: {heading: {name: values}}.
        ours: names whose bars stand out.
    """
    highest = max(max(values) for group in groups.values() for values in group.values())
    step = _step(highest)
    ticks = [step * n for n in range(math.ceil(highest / step) + 1)]
    scale = (WIDTH - LEFT - RIGHT) / ticks[-1]
    height = TOP + BOTTOM + ROW * sum(1 + len(group) for group in groups.values())
    found = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<text class="title" x="12" y="24">{html.escape(title)}</text>',
    ]
    for tick in ticks:
        x = LEFT + scale * tick
        found.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{height - BOTTOM}"/>')
        found.append(f'<text class="note" x="{x:.1f}" y="{TOP - 14}" text-anchor="middle">{tick:g}</text>')
    y = TOP
    for heading, group in groups.items():
        found.append(f'<text class="note" x="12" y="{y + 16}">{html.escape(heading)}</text>')
        y += ROW
        for name, values in group.items():
            found += _bar(name, values, y, scale, "ours" if name in ours else "other")
            y += ROW
    found.append(f'<text class="note" x="12" y="{height - 16}">{html.escape(note)}</text>\n</svg>\n')
    return "\n".join(found)


def _bar(name: str, values: Sequence[float], y: int, scale: float, kind: str) -> list[str]:
    median, middle = statistics.median(values), y + BAR / 2
    low, high = (LEFT + scale * edge for edge in (min(values), max(values)))
    told = f"{median:.2f} ({min(values):.2f} to {max(values):.2f})"
    return [
        f'<text x="{LEFT - 10}" y="{y + 12}" text-anchor="end">{html.escape(name)}</text>',
        f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{scale * median:.1f}" height="{BAR}"/>',
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>',
        f'<text x="{high + 8:.1f}" y="{y + 12}">{told}</text>',
    ]


def _step(highest: float) -> float:
    """1, 2 or 5 times a power of ten, so that there are 4 to 10 steps."""
    power: float = 10.0 ** math.floor(math.log10(highest / 4))
    return next(power * factor for factor in (1, 2, 5, 10) if highest / (power * factor) <= 8)
