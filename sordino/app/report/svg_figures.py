"""Draws figures for pages as inline SVG that follows the colours of the page, or as PNG.

Figures are drawn in the colours of the light page. In an SVG for a page these become the page's CSS variables, so that
one figure serves the light and the dark theme. Text is kept as text, and ids are made unique.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sordino.accounting import Tradeoff
from sordino.app.runs.directory import Row

INK, SOFT, LINE, CARD = "#1a242e", "#52606d", "#d5dbe1", "#ffffff"
SERIES = ("#1c6680", "#b3432b", "#7a4fa3", "#3d7a3a", "#a36a00", "#b02a72", "#4a5a6a", "#00757a")
"""Lines of a picture, in order; each has a CSS variable of its own."""
DASHES = ("-", "--", "-.", ":", "-", "--", "-.", ":")
_VARIABLES = {INK: "--ink", SOFT: "--soft", LINE: "--line", CARD: "--card"} | {
    colour: f"--series-{number}" for number, colour in enumerate(SERIES)
}
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sordino",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": SOFT,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "lines.linewidth": 2.2,
    "legend.frameon": False,
    "figure.facecolor": "none",
}
"""How every picture looks, in matplotlib's own words."""
_SIZE = (4.7, 3.1)
_COMPARED_HEIGHT = 2.5
"""Inches of each of several panels that compare runs."""
_LEGEND_LETTERS, _LEGEND_LINE = 56, 0.17
"""Letters that fit in a line of a legend under a figure, and its height in inches."""
_DOTS_PER_INCH = 160


@dataclass(frozen=True)
class Line:
    """A curve with its name."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    look: int = 0
    """Which of the colours and dashes."""
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    """The spread over seeds, as long as y or empty."""
    hollow: bool = False
    """Whether the marks are hollow, because there is no guarantee."""


@contextmanager
def open_figure(
    panels: int = 1, panel_height: float = 1.75, below: float = 0.0, above: float = 0.0
) -> Iterator[tuple[Any, list[Any]]]:
    """Yields a figure for an SVG in the style of the pages, with its axes one above the other.

    Several panels are `panel_height` inches high each. So many inches as `below` and `above` say stay free under the axes,
    for a legend, and over them.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        # Several panels share the x-axis and are lower each.
        size = (_SIZE[0], below + above + (_SIZE[1] if panels == 1 else panel_height * panels + 0.3))
        drawing, axes = plt.subplots(panels, 1, figsize=size, sharex=True, squeeze=False)
        inch_x, inch_y = 1 / size[0], 1 / size[1]  # margins by hand: automatic layout doubles the time to draw
        bottom, top = (0.5 + below) * inch_y, 1 - (0.1 + above) * inch_y
        drawing.subplots_adjust(0.66 * inch_x, bottom, 1 - 0.1 * inch_x, top, hspace=0.14)
        # Labels of several panels stand in one line.
        axes_list = [row[0] for row in axes]
        drawing.align_ylabels(axes_list)
        for one in axes_list:
            one.grid(axis="y")
            one.set_axisbelow(True)
        try:
            yield drawing, axes_list
        finally:
            plt.close(drawing)


def to_svg(drawing: Any, name: str, about: str) -> str:
    """Returns the figure as an inline SVG for a page; `about` says in words what it shows."""
    # The date is left out, so that the same figure is the same text.
    out = io.StringIO()
    drawing.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    # Remove what differs between runs of matplotlib, and make ids unique on the page.
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = _shorten_svg(text)
    text = _rename_ids(text, name)
    # Tie the colours to the CSS variables of the page.
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = text.replace("stroke: none", "stroke:none")
    # Its own width and height would not follow the page's.
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    escaped = about.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return re.sub(r"<svg", f'<svg role="img" aria-label="{escaped}"', text, count=1)


def _shorten_svg(text: str) -> str:
    """Returns an inline SVG of about half the length that looks the same.

    Coordinates get two decimals, a hundredth of a point. Groups lose ids that nothing refers to, groups of one element go,
    texts lose a turn by no angle, and space between tags goes.
    """

    def round_number(found: re.Match[str]) -> str:
        return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")

    def shorten_tag(found: re.Match[str]) -> str:
        return re.sub(r"-?\d+\.\d{3,}", round_number, re.sub(r"\s+", " ", found[0]))

    text = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", text)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    # Only tags are changed: the texts between them are numbers that people read.
    text = re.sub(r"<[^>]*>", shorten_tag, text)
    text = re.sub(r">\s+<", "><", text)
    # A group without attributes around one element, or around nothing, says nothing. Groups lie inside one another.
    before = ""
    while text != before:
        before = text
        text = re.sub(r"<g>(<(?:use|path|rect|text)\b[^<]*?(?:/>|</text>))?</g>", r"\1", text)
    return text


def _rename_ids(text: str, name: str) -> str:
    """Returns an SVG whose ids are short and begin with `name`, so that no two figures of a page share one."""
    # Matplotlib's ids are hashes, and a mark's id is repeated at every point where the mark stands.
    numbers: dict[str, str] = {}
    for found in re.findall(r'\bid="([^"]*)"', text):
        numbers.setdefault(found, f"{name}-{len(numbers)}")
    text = re.sub(r'\bid="([^"]*)"', lambda found: f'id="{numbers[found[1]]}"', text)
    text = re.sub(r"url\(#([^)]*)\)", lambda found: f"url(#{numbers[found[1]]})", text)
    # Browsers have read `href` without a namespace in inline SVG for years.
    return re.sub(r'(?:xlink:)?href="#([^"]*)"', lambda found: f'href="#{numbers[found[1]]}"', text)


def share_styles(page: str) -> str:
    """Returns a page of inline figures in which every style that several elements repeat is written once, as a class.

    Matplotlib writes the full style at every tick and mark, which is half of the text of a page of many figures.
    """
    counts = Counter(re.findall(r' style="([^"]*)"', page))
    classes = {style: f"s{number}" for number, (style, count) in enumerate(counts.most_common()) if count > 2}

    def shorten_style(found: re.Match[str]) -> str:
        # An element with a class of its own keeps its style, because a second attribute would be ignored.
        tag = found[0]
        if ' class="' in tag:
            return tag
        return re.sub(
            r' style="([^"]*)"', lambda style: f' class="{classes[style[1]]}"' if style[1] in classes else style[0], tag
        )

    begin = page.index("<svg") if "<svg" in page else len(page)
    shortened = re.sub(r"<[a-z][^>]*>", shorten_style, page[begin:])
    rules = "".join(f".{name}{{{style}}}" for style, name in classes.items())
    return page[:begin].replace("</head>", f"<style>{rules}</style></head>", 1) + shortened


def write_png(drawing: Any, path: Path) -> None:
    """Writes the figure to a PNG file, on white."""
    drawing.savefig(path, dpi=_DOTS_PER_INCH, facecolor=CARD)


def accuracies_or_losses(rows: Sequence[Row]) -> tuple[list[float], str, str, str]:
    """Returns accuracies in percent for an SVG figure, or losses if there are none, with axis label, name and unit."""
    # Runs on numbers have a loss and no accuracy.
    accuracies = [100 * row.test_accuracy for row in rows if row.test_accuracy is not None]
    if len(accuracies) == len(rows):
        return accuracies, "test accuracy, %", "Test accuracy", " %"
    return [row.test_loss for row in rows], "test loss", "Test loss", ""


def draw_over_steps(rows: Sequence[Row]) -> str:
    """Returns an SVG figure of accuracy or loss, and of ε if there is one, against steps."""
    # The ε panel is there only if every row has an ε.
    values, label, name, unit = accuracies_or_losses(rows)
    private = all(row.epsilon is not None for row in rows)
    with open_figure(2 if private else 1) as (made, axes):
        _plot_lines(axes[0], [Line("", [r.step for r in rows], values)], label)
        about = f"{name} against steps, {_describe_range(values, unit)}"
        if private:
            spent = [float(r.epsilon or 0.0) for r in rows]
            _plot_lines(axes[1], [Line("", [0, *(r.step for r in rows)], [0.0, *spent])], "ε spent", colours=SERIES[1:])
            axes[1].set_ylim(bottom=0)
            about += f"; privacy spent against steps, {_describe_range(spent, '')}"
        axes[-1].set_xlabel("steps")
        axes[-1].set_xlim(left=0)
        return to_svg(made, "steps", about)


def draw_accuracy_against_epsilon(rows: Sequence[Row]) -> str:
    """Returns one of the SVG figures of a report: accuracy or loss against the ε spent."""
    with open_figure() as (made, (axes,)):
        (values, label, name, unit), spent = accuracies_or_losses(rows), [float(row.epsilon or 0.0) for row in rows]
        _plot_lines(axes, [Line("", spent, values)], label)
        axes.set(xlabel="ε spent")
        axes.set_xlim(left=0)
        return to_svg(made, "spent", f"{name} against privacy spent, {_describe_range(values, unit)}")


def draw_attack(curve: Tradeoff) -> str:
    """Returns an SVG figure of the trade-off curve: true positives against false positives."""
    # The curve is steep near 0, where strong attacks show, so points are dense there and even elsewhere.
    grid = np.unique(np.concatenate([np.geomspace(1e-5, 1, 60), np.linspace(0, 1, 101)]))
    power = curve.power(grid)
    with open_figure() as (made, (axes,)):
        axes.fill_between(grid, grid, power, color=SERIES[0], alpha=0.12, linewidth=0)
        axes.plot(grid, power, color=SERIES[0], label="the best attack")
        axes.plot([0, 1], [0, 1], color=SOFT, linewidth=1.3, linestyle=":", label="guessing")
        axes.set(xlabel="false-positive rate", ylabel="true-positive rate", xlim=(0, 1), ylim=(0, 1))
        axes.legend(loc="lower right")
        # The caption gives one point in numbers, for readers who cannot see the curve.
        at = float(curve.power(0.1))
        return to_svg(
            made, "attack", f"No attack is above the curve: at 0.1 false positives at most {at:.3f} true ones"
        )


@dataclass(frozen=True)
class ComparedLines:
    """One pair of axes of a comparison: a line for each run."""

    lines: Sequence[Line]
    ylabel: str
    mark: float | None = None
    """Where the runs begin to differ."""


def draw_comparison(panels: Sequence[ComparedLines], xlabel: str, use: Callable[[Any], Any]) -> Any:
    """Draws several runs in one figure for a page, as SVG or PNG, and returns what `use` makes of it.

    The panels stand one above the other, over one legend.
    """
    # One entry for each run, whichever panels it is in; long ones are wrapped. One line needs no legend.
    names = dict.fromkeys(line.label for panel in panels for line in panel.lines)
    labels = {name: "\n".join(textwrap.wrap(name, _LEGEND_LETTERS)) for name in names}
    rows = sum(label.count("\n") + 1 for label in labels.values())
    below = 0.1 + _LEGEND_LINE * rows if len(labels) > 1 else 0.0
    above = 0.15 if any(panel.mark is not None for panel in panels) else 0.0
    with open_figure(len(panels), _COMPARED_HEIGHT, below, above) as (made, axes):
        for each, panel in zip(axes, panels, strict=True):
            _plot_lines(each, panel.lines, panel.ylabel)
            each.set_xlim(left=0)
            if panel.mark is not None:
                _mark_difference(each, panel.mark)
        axes[-1].set(xlabel=xlabel)
        if len(labels) > 1:
            handles = {
                name: each for axis in axes for each, name in zip(*axis.get_legend_handles_labels(), strict=True)
            }
            # The legend stands under the axes, where it hides neither curves nor the mark.
            top = (below - 0.02) / made.get_figheight()
            where = {"loc": "upper left", "bbox_to_anchor": (0.03, top), "borderaxespad": 0, "borderpad": 0}
            made.legend([handles[name] for name in labels], labels.values(), fontsize=8.5, labelspacing=0.3, **where)
        return use(made)


def _mark_difference(axes: Any, at: float) -> None:
    """Marks in the axes of a figure where runs begin to differ; the words stand over the axes, where no curve is."""
    axes.axvline(at, color=SOFT, linewidth=1.2, linestyle=":")
    # Near an end of the axis centred words would run out of the figure.
    along = at / axes.get_xlim()[1]
    side = "left" if along < 0.2 else "right" if along > 0.8 else "center"
    axes.annotate("they differ", (at, 1.01), xycoords=("data", "axes fraction"), ha=side, va="bottom", color=SOFT)


def _plot_lines(axes: Any, lines: Sequence[Line], ylabel: str, colours: Sequence[str] = SERIES) -> None:
    """Draws the lines of an SVG figure in the colours and dashes of their numbers."""
    for line in lines:
        look = {"color": colours[line.look % len(colours)], "linestyle": DASHES[line.look % len(DASHES)]}
        # Marks on more than forty points would hide the line.
        marks = {"marker": "o" if len(line.x) <= 40 or line.hollow else None, "markersize": 3.5}
        if line.hollow:
            marks |= {"markerfacecolor": CARD, "markevery": max(1, len(line.x) // 40)}
        axes.plot(line.x, line.y, label=line.label, **marks, **look)
        # A band is drawn only where both of its edges are known.
        if line.low and line.high:
            axes.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.16, linewidth=0)
    axes.set_ylabel(ylabel)


def _describe_range(values: Sequence[float], unit: str) -> str:
    return f"from {values[0]:.4g}{unit} to {values[-1]:.4g}{unit}" if values else "not measured"
