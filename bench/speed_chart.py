"""Draws docs/img/speed.svg, the chart of the README and the landing page, from bench/results/step_avx2.json.

    python -m bench.speed_chart

The chart shows the largest batch of every model. That result is the one in which all modes of Opacus were measured, so
each bar of Opacus is its best mode for that model.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

from bench.step import RESULTS

CHART = Path(__file__).parents[1] / "docs" / "img" / "speed.svg"
WIDTH, LEFT, TOP, ROW, BAR = 760, 146, 74, 40, 13
SCALE = 58.0
"""Pixels for the time of one plain step."""
INK, SOFT, OURS, THEIRS = "#1f2328", "#656d76", "#1b7f5c", "#c9ccd1"


def bars() -> list[tuple[str, float, float]]:
    """Returns the model, our time and the best time of Opacus, as multiples of plain PyTorch."""
    rows = {row["model"]: row for row in json.loads((RESULTS / "step_avx2.json").read_text())["steps"]}
    found = []
    for name, row in rows.items():
        ratio = row["cpu ratio"]
        found.append((f"{name} ({row['batch']})", float(ratio["sordino"]), float(ratio[row["best opacus"]])))
    return found


def chart() -> str:
    """Returns the chart as SVG."""
    rows = bars()
    bottom = TOP + ROW * len(rows)
    one = LEFT + SCALE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 34}" width="{WIDTH}" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13">',
        "<title>CPU time of one private training step, as a multiple of plain PyTorch</title>",
        f'<rect width="{WIDTH}" height="{bottom + 34}" fill="#ffffff" rx="6"/>',
        f'<text x="14" y="26" font-size="15" font-weight="600" fill="{INK}">'
        "CPU time of one private training step, plain PyTorch = 1 (shorter is better)</text>",
        f'<rect x="14" y="42" width="12" height="12" fill="{OURS}"/><text x="32" y="53" fill="{INK}">sordino</text>',
        f'<rect x="104" y="42" width="12" height="12" fill="{THEIRS}"/>'
        f'<text x="122" y="53" fill="{INK}">Opacus 1.6.0, its best mode for the model</text>',
    ]
    for number, (name, ours, theirs) in enumerate(rows):
        y = TOP + ROW * number
        lines.append(f'<text x="{LEFT - 8}" y="{y + 19}" text-anchor="end" fill="{INK}">{escape(name)}</text>')
        for offset, value, colour in ((0, ours, OURS), (BAR + 1, theirs, THEIRS)):
            width = value * SCALE
            lines.append(f'<rect x="{LEFT}" y="{y + offset}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>')
            lines.append(
                f'<text x="{max(LEFT + width, one) + 5:.1f}" y="{y + offset + 11}" font-size="12" '
                f'fill="{INK if colour == OURS else SOFT}">{value:.2f}</text>'
            )
    lines += [
        f'<line x1="{one}" x2="{one}" y1="{TOP - 6}" y2="{bottom - 4}" stroke="{INK}" stroke-dasharray="3 3"/>',
        f'<text x="14" y="{bottom + 18}" font-size="12" fill="{SOFT}">One thread, AMD EPYC with AVX2, batch size in '
        "brackets. Measured by python -m bench.step.</text>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    CHART.write_text(chart())
