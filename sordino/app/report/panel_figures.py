"""Draws panels with matplotlib: curves with bands, boxes, points, contours and surfaces.

Marks of results without a privacy guarantee are hollow.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sordino.app.report import svg_figures
from sordino.app.report.method_colours import colour_of
from sordino.app.report.panels import Boxes, Field, Panel, Series
from sordino.app.report.svg_figures import CARD, DASHES, LINE, SOFT

_MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
_STAR = "*"
"""The mark of a published value."""
_MOST_MARKS = 40
_WIDTH, _HEIGHT = 4.7, 3.5
_LEGEND_ROW = 0.19
_COLUMNS = 3
_SHORT, _SHORTEST = 1_000, 3
"""Up to which ratio a logarithmic axis shows numbers, because it may have one or two powers of ten, and up to which it is
no better than a plain one."""
_MOST_TICKS, _MOST_TICK_LETTERS = 9, 26
"""Numbers on a logarithmic axis that do not run into one another, and letters of all of them together on an axis across."""
_MOST_VALUES, _AXIS_INCHES = 8, 3.4
"""Up to how many values a logarithmic axis across has its numbers at the values themselves, and how far it stretches."""
_DIGIT_INCHES, _POINT_INCHES, _GAP_INCHES = 0.084, 0.042, 0.06
"""Widths of a digit and of a decimal point on an axis, and the least space between two numbers."""
_LONG_NUMBERS = 10_000
"""From this number on, a plain axis across has fewer ticks."""
_NAMES = 42
"""Letters of all names together that fit under a panel side by side."""
_LEGEND_POINTS, _ENTRY_LETTERS, _SHORT_ENTRY_LETTERS = 8.2, 64, 26
"""The size of the letters of a legend; how many of them fit on a line, and how many where two entries share a line."""
_LETTERS = 13.0
"""Of a note, in an inch."""
_HEADING_LETTERS = 9.6
"""Of a heading, in an inch."""
_TITLE = 450
"""Points times letters that fit over a panel."""


@contextmanager
def draw_panels(panels: Sequence[Panel], note: str = "", heading: str = "") -> Iterator[Any]:
    """Yields all panels as one matplotlib figure, with `heading` written over it and `note` under it."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    # Four or eight panels are two rows or blocks of equal length, which three columns would tear apart. The height of a
    # row follows the longest legend in it.
    columns = min(_COLUMNS, len(panels)) if len(panels) % 4 else 2
    rows = math.ceil(len(panels) / columns)
    heights = [
        _HEIGHT + _LEGEND_ROW * max(_legend_rows(one) for one in panels[row * columns : (row + 1) * columns])
        for row in range(rows)
    ]
    width = _WIDTH * columns
    lines = textwrap.wrap(note, int(_LETTERS * width))
    note_height = 0.1 + 0.2 * len(lines)
    titles = textwrap.wrap(heading, int(_HEADING_LETTERS * width))
    heading_height = 0.1 + 0.24 * len(titles) if titles else 0.0
    height = sum(heights) + note_height + heading_height
    # Axes are placed by hand, so that all axes of a row are level.
    with plt.rc_context(svg_figures.STYLE):
        figure = plt.figure(figsize=(width, height))
        for number, panel in enumerate(panels):
            # Panels fill the rows from the top left.
            row, column = divmod(number, columns)
            bottom = height - heading_height - sum(heights[: row + 1])
            legend = heights[row] - _HEIGHT  # of the longest in the row, so that axes of a row are level
            solid = _is_solid(panel)
            box = (
                (column * _WIDTH + (0.2 if solid else 0.78)) / width,
                (bottom + (0.3 if solid else 0.6) + _slant_height(panel) + legend) / height,
                (_WIDTH - (0.4 if solid else 0.95)) / width,
                (heights[row] - legend - _slant_height(panel) - (0.7 if solid else 1.0)) / height,
            )
            axes = figure.add_axes(box, projection="3d" if solid else None)
            _draw_panel(axes, panel)
            _draw_legend(figure, axes, panel, (column * _WIDTH + 0.2) / width, (bottom + legend + 0.02) / height)
        figure.text(0.2 / width, 0.1 / height, "\n".join(lines), color=SOFT, fontsize=8.5)
        if titles:
            top = (height - 0.12) / height
            figure.text(
                0.2 / width, top, "\n".join(titles), color=svg_figures.INK, fontsize=12, va="top", weight="bold"
            )
        try:
            yield figure
        finally:
            plt.close(figure)


def save_figure(panels: Sequence[Panel], folder: Path, name: str, note: str, about: str) -> list[Path]:
    """Writes a figure of panels as NAME.svg and NAME.png into a folder, headed by `about`, and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    with draw_panels(panels, note, about) as made:
        svg_figures.write_png(made, folder / f"{name}.png")
        made.savefig(folder / f"{name}.svg", format="svg", facecolor=CARD, metadata={"Date": None, "Title": about})
    return [folder / f"{name}.png", folder / f"{name}.svg"]


def inline_svg(panel: Panel, name: str, note: str = "") -> str:
    """Returns one panel as an inline SVG that follows the page's colours."""
    with draw_panels([panel], note) as made:
        return svg_figures.to_svg(made, name, f"{panel.title}: {panel.ylabel} against {panel.xlabel}")


def _slant_height(one: Panel) -> float:
    """Returns the extra height of a panel's figure, in inches, for names under the axis that are too long to stand side
    by side.
    """
    if sum(map(len, one.xticks)) <= _NAMES:
        return 0.0
    return 0.035 * max(map(len, one.xticks))


def _is_solid(one: Panel) -> bool:
    return bool(one.zlabel) or (one.field is not None and one.field.surface)


def _legend_entries(one: Panel) -> list[Series | Boxes]:
    every: list[Series | Boxes] = [*one.series, *one.boxes]
    return [entry for entry in every if entry.label]


def _legend_text(entry: Series | Boxes) -> str:
    """Returns the legend text of an entry, with the reason if it has no guarantee, in lines that fit in a panel."""
    text = f"{entry.label}; no guarantee: {entry.hollow}" if entry.hollow else entry.label
    return "\n".join(textwrap.wrap(text, _ENTRY_LETTERS))


def _legend_columns(one: Panel) -> int:
    """Returns how many entries of a panel's legend share a line of its figure: two if all are short."""
    return 1 if any(len(_legend_text(entry)) > _SHORT_ENTRY_LETTERS for entry in _legend_entries(one)) else 2


def _legend_rows(one: Panel) -> int:
    """Returns how many lines the legend of a panel takes in its figure."""
    lines = sum(_legend_text(entry).count("\n") + 1 for entry in _legend_entries(one))
    return math.ceil(lines / _legend_columns(one))


def _draw_legend(made: Any, axes: Any, one: Panel, left: float, top: float) -> None:
    """Draws the legend of a panel under its axes in the figure."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        # A sample of a line is long enough to show its dashes on both sides of its mark.
        made.legend(
            handles,
            labels,
            loc="upper left",
            bbox_to_anchor=(left, top),
            ncols=_legend_columns(one),
            fontsize=_LEGEND_POINTS,
            borderaxespad=0,
            borderpad=0,
            labelspacing=0.28,
            handlelength=3.2,
            columnspacing=1.2,
        )


def _draw_panel(axes: Any, one: Panel) -> None:
    """Draws one panel into its axes of the figure: title, grid, content, labels, scales and ticks."""
    axes.set_title(one.title, fontsize=min(10.0, _TITLE / len(one.title)), loc="left", color=svg_figures.INK)
    solid = _is_solid(one)
    if not solid:
        axes.grid(axis="y")
        axes.set_axisbelow(True)
    # A field lies under boxes and curves.
    if one.field is not None:
        _draw_field(axes, one.field)
    for boxes in one.boxes:
        _draw_boxes(axes, boxes)
    colours = [colour_of(series.method) for series in one.series if not series.points and not series.arrows]
    for series in one.series:
        is_alone = colours.count(colour_of(series.method)) < 2
        _draw_solid_path(axes, series) if solid else _draw_series(axes, series, is_alone=is_alone)
    axes.set_xlabel(one.xlabel)
    axes.set_ylabel(one.ylabel)
    if solid:
        axes.set_zlabel(one.zlabel)
        axes.view_init(elev=40, azim=112)
        return
    # A logarithmic axis over a short range would show no number, so it stays linear.
    x_values, y_values = ([v for series in one.series for v in getattr(series, name)] for name in ("x", "y"))
    if one.ylim:
        y_values = [v for v in y_values if one.ylim[0] <= v <= one.ylim[1]]
    if one.xlog and _ratio_of_extremes(x_values) > _SHORTEST:
        axes.set_xscale("log")
        _set_log_ticks(axes.xaxis, x_values)
    elif not one.xticks:
        # Epochs and steps are counted, so ticks of 2.5 are avoided. Long numbers would run into one another at the usual
        # number of ticks.
        is_long = bool(x_values) and max(x_values) >= _LONG_NUMBERS
        axes.locator_params(axis="x", nbins=5 if is_long else 8, steps=[1, 2, 5, 10])
    if one.ylog and _ratio_of_extremes(y_values) > _SHORTEST:
        axes.set_yscale("log")
        _set_log_ticks(axes.yaxis, y_values)
    elif one.field is None:
        # Few ticks have short numbers, which leave room for the name of the axis.
        axes.locator_params(axis="y", nbins=7, steps=[1, 2, 5, 10])
    if one.xticks:
        # Names that would touch each other are set aslant; the axes give up a little height for them.
        slant = {"rotation": 28, "ha": "right", "rotation_mode": "anchor"} if _slant_height(one) else {}
        axes.set_xticks(range(len(one.xticks)), one.xticks, fontsize=8.0, **slant)
        axes.set_xlim(-0.5, len(one.xticks) - 0.5)
    if one.ylim:
        axes.set_ylim(*one.ylim)
    if one.equal:
        axes.set_aspect("equal", adjustable="datalim")


def _positive_values(values: Sequence[float]) -> list[float]:
    return [value for value in values if value > 0 and math.isfinite(value)]


def _ratio_of_extremes(values: Sequence[float]) -> float:
    positive = _positive_values(values)
    return max(positive) / min(positive) if positive else math.inf


def _set_log_ticks(axis: Any, values: Sequence[float]) -> None:
    """Sets the ticks of a logarithmic axis of a panel's figure: the values themselves if they are few, plain numbers if
    the axis is short, powers of ten if it is long.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    axis.set_minor_formatter(NullFormatter())
    if _ratio_of_extremes(values) >= _SHORT:
        return
    # A setting that was swept is read off best at the values that it had.
    ticks = sorted(set(_positive_values(values)))
    if axis.axis_name == "x" and 2 < len(ticks) <= _MOST_VALUES and _fit_side_by_side(ticks):
        axis.set_minor_locator(NullLocator())
    else:
        ticks = _choose_round_ticks(values, is_across=axis.axis_name == "x")
    # Without ticks the axis keeps powers of ten. Over a short range they would leave it with hardly a number.
    if ticks:
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _choose_round_ticks(values: Sequence[float], *, is_across: bool) -> list[float]:
    """Returns round numbers for a short logarithmic axis of a panel's figure; none if they would run into one another."""
    # The finest numbers of which there are not too many.
    positive = _positive_values(values)
    low, high = min(positive) / 1.3, max(positive) * 1.3
    for fine in ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1, 3)):
        ticks = [step for k in range(-12, 13) for m in fine if low <= (step := m * 10.0**k) <= high]
        letters = sum(len(f"{tick:g}") for tick in ticks) if is_across else 0
        if len(ticks) <= _MOST_TICKS and letters <= _MOST_TICK_LETTERS:
            return ticks
    return []


def _fit_side_by_side(ticks: Sequence[float]) -> bool:
    """Returns whether numbers on a logarithmic axis across a panel of a figure have space between them."""
    widths = [sum(_POINT_INCHES if sign == "." else _DIGIT_INCHES for sign in f"{tick:g}") for tick in ticks]
    inches = _AXIS_INCHES / math.log(ticks[-1] / ticks[0])
    return all(
        inches * math.log(after / before) >= (width + next_width) / 2 + _GAP_INCHES
        for (before, after), (width, next_width) in zip(pairwise(ticks), pairwise(widths), strict=True)
    )


def _draw_series(axes: Any, one: Series, *, is_alone: bool) -> None:
    """Draws a panel's curve or cloud of points with its spread into the figure, in the colour of its method.

    A curve that is not alone in its colour has marks, however long it is.
    """
    # Colour says the method, dashes and mark the variant of it.
    line_colour, number = colour_of(one.method), one.variant % len(_MARKS)
    if one.arrows:
        _draw_arrows(axes, one, line_colour)
        return
    can_be_marked = one.method != "theory" and len(one.x) > 2
    marked = (
        one.points
        or bool(one.hollow)
        or (can_be_marked and (len(one.x) <= _MOST_MARKS or not is_alone))
        or len(one.x) == 1
    )
    mark_every = max(1, len(one.x) // 12) if not one.points and len(one.x) > _MOST_MARKS else 1
    # Long curves are marked sparsely; results without a guarantee are hollow. A published value lies over our curves and
    # under our single marks; a filled one has an edge that sets it off from a curve of its own colour.
    is_star = one.points and _MARKS[number] == _STAR
    has_edge = is_star and not one.hollow
    axes.plot(
        one.x,
        one.y,
        color=line_colour,
        label=_legend_text(one) if one.label else "_",
        linestyle="none" if one.points else DASHES[number % len(DASHES)],
        marker=_MARKS[number] if marked else None,
        markevery=mark_every,
        markersize=(14.0 if has_edge else 11.5 if is_star else 5.5) if one.points else 4.2,
        markerfacecolor=CARD if one.hollow else line_colour,
        markeredgecolor=CARD if has_edge else line_colour,
        markeredgewidth=0.6 if has_edge else 1.0,
        linewidth=1.5 if one.hollow else 2.0,
        zorder=2.1 if is_star else 2.2 if one.points else 2.0,
    )
    # The spread over seeds: error bars for points, a band for curves.
    if one.low and one.high:
        if one.points or len(one.x) <= 1:
            spread = [np.maximum(0, np.subtract(one.y, one.low)), np.maximum(0, np.subtract(one.high, one.y))]
            axes.errorbar(one.x, one.y, yerr=spread, fmt="none", ecolor=line_colour, elinewidth=1.2, capsize=2.5)
        else:
            axes.fill_between(one.x, one.low, one.high, color=line_colour, alpha=0.16, linewidth=0)


def _draw_arrows(axes: Any, one: Series, shade: str) -> None:
    """Draws, in a panel's figure, an arrow from each point to the next; without a guarantee the shafts are dashed."""
    style = {"arrowstyle": "-|>", "color": shade, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 11}
    points = list(zip(one.x, one.y, strict=True))
    for begin, end in pairwise(points):
        dashes = {"linestyle": "--"} if one.hollow else {}
        axes.annotate("", xy=end, xytext=begin, arrowprops={**style, **dashes})
    # Annotations neither widen the axes nor appear in the legend; an invisible line does both.
    axes.plot(one.x, one.y, color=shade, linewidth=0, marker=">", markersize=0.1)
    if one.label:
        axes.plot([], [], color=shade, marker=">", linestyle="--" if one.hollow else "-", label=_legend_text(one))


def _draw_boxes(axes: Any, one: Boxes) -> None:
    """Draws a panel's box plots into the figure, from five numbers each, and an entry for the legend."""
    shade = colour_of(one.method)
    # Boxes are as wide as their spacing allows.
    step = min(np.diff(one.x), default=1.0) if len(one.x) > 1 else 1.0
    # matplotlib takes the five numbers as they are, and computes nothing.
    stats = [
        {"whislo": row[0], "q1": row[1], "med": row[2], "q3": row[3], "whishi": row[4], "fliers": []}
        for row in one.five
    ]
    line = {"color": shade, "linewidth": 0.9}
    axes.bxp(
        stats,
        positions=list(one.x),
        widths=0.6 * float(step),
        showfliers=False,
        manage_ticks=False,
        patch_artist=True,
        boxprops={"facecolor": CARD if one.hollow else shade, "edgecolor": shade, "linewidth": 0.9},
        medianprops={"color": svg_figures.INK, "linewidth": 0.9},
        whiskerprops=line,
        capprops=line,
    )
    axes.plot(
        [],
        [],
        color=shade,
        marker="s",
        markerfacecolor=CARD if one.hollow else shade,
        linestyle="none",
        label=_legend_text(one) if one.label else "_",
    )


def _draw_field(axes: Any, one: Field) -> None:
    """Draws a panel's function of two variables into the figure as a surface, an image or contours."""
    # Contours and images lie flat; a surface is drawn pale, so that paths on it stay visible.
    x, y, z = np.asarray(one.x), np.asarray(one.y), np.asarray(one.z)
    if one.surface:
        axes.plot_surface(*np.meshgrid(x, y), z, color=LINE, alpha=0.45, linewidth=0, rasterized=True, shade=True)
    elif one.image:
        # A pixel reaches half a step to each side of its place, so that the picture has all of its edge.
        (left, right), (top, bottom) = (
            (at[0] - half, at[-1] + half) for at in (x, y) for half in [(at[1] - at[0]) / 2]
        )
        axes.imshow(z, cmap="gray_r", extent=(left, right, bottom, top), aspect="equal", interpolation="nearest")
        axes.grid(visible=False)
    else:
        axes.contour(x, y, z, levels=14, colors=SOFT, linewidths=0.6, alpha=0.6)


def _draw_solid_path(axes: Any, one: Series) -> None:
    """Draws a panel's path in three dimensions into the figure."""
    shade = colour_of(one.method)
    axes.plot(
        one.x,
        one.y,
        one.z,
        color=shade,
        label=_legend_text(one),
        marker=_MARKS[one.variant % len(_MARKS)],
        linestyle=DASHES[one.variant % len(DASHES)],
        markersize=3.2,
        markerfacecolor=CARD if one.hollow else shade,
        linewidth=1.4,
        zorder=10,
    )
