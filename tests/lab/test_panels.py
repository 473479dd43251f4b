"""Figures as data: refused where they would mislead, and the same after JSON."""

import json
import re

import pytest

from sordino.app.report.method_colours import COLOURS, colour_of
from sordino.app.report.panel_figures import draw_panels, inline_svg, save_figure
from sordino.app.report.panels import Boxes, Field, Panel, Series, panel_from_table

LINE = Series("ours", [0, 1, 2], [1.0, 2.0, float("nan")], low=[0.5, 1, 1], high=[2, 3, 3], method="dpsgd")
HOLLOW = Series("sorted", [0, 1], [1, 2], method="sorted", hollow="lots by rank")


def test_what_has_no_guarantee_is_refused_on_an_axis_of_epsilon():
    Panel("accuracy", "epochs", "accuracy, %", [HOLLOW])
    with pytest.raises(ValueError, match="lots by rank"):
        Panel("spent", "ε at δ = 1e-5", "accuracy, %", [HOLLOW])
    with pytest.raises(ValueError, match="lots by rank"):
        Panel("spent", "epochs", "ε", boxes=[Boxes("b", [0], [(0, 1, 2, 3, 4)], "sorted", "lots by rank")])


def test_axes_must_be_named():
    with pytest.raises(ValueError, match="both axes"):
        Panel("a title", "", "loss", [LINE])


def test_rows_of_different_length_are_refused():
    with pytest.raises(ValueError, match="one length"):
        Series("ours", [0, 1], [1])


def test_a_panel_is_the_same_after_json():
    field = Field([0, 1], [0, 1, 2], [(0, 1), (1, 2), (2, 3)])
    one = Panel(
        "t", "x", "y", [LINE, HOLLOW], [Boxes("b", [0, 1], [(0, 1, 2, 3, 4)] * 2)], field, ylog=True, ylim=(0.1, 9)
    )
    again = panel_from_table(json.loads(json.dumps(one.table(), allow_nan=False)))
    assert again.table() == one.table()
    assert again.series[1].hollow == "lots by rank"


def test_every_kind_of_mark_can_be_drawn(tmp_path):
    solid = Series("path", [0, 1], [0, 1], z=[0, 1], method="projected")
    grid = {"x": [0, 1, 2], "y": [0, 1, 2], "z": [(0, 1, 2), (1, 2, 3), (2, 3, 4)]}
    panels = [
        Panel("lines", "x", "y", [LINE, HOLLOW, Series("points", [1], [2], low=[1], high=[3], points=True)], xlog=True),
        Panel("boxes", "x", "y", boxes=[Boxes("b", [0, 1], [(0, 1, 2, 3, 4)] * 2, "sorted", "no noise")]),
        Panel("contours", "x", "y", [LINE], field=Field(**grid)),
        Panel("surface", "x", "y", [solid], field=Field(**grid, surface=True), zlabel="loss"),
        Panel("image", "x", "y", field=Field(**grid, image=True)),
    ]
    for path in save_figure(panels, tmp_path, "all", "reduced (tiny): everything", "about"):
        assert path.stat().st_size > 1000
    text = inline_svg(panels[0], "one")
    assert all(part in text for part in ("no guarantee: lots by rank", 'role="img"', "var(--series-0)"))


def test_a_drawing_for_a_page_is_short_and_keeps_its_numbers():
    fine = Series("ours", [0, 1, 2, 3], [0.0001, 0.0002, 0.0003, 0.0004], method="dpsgd")
    text = inline_svg(Panel("small numbers", "x", "y", [fine]), "one")
    read = re.sub(r"<[^>]*>", "\n", text)
    assert "0.00010" in read
    tags = "".join(re.findall(r"<[^>]*>", text))
    assert re.search(r"\d\.\d{3}", tags) is None
    for used in re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', text):
        assert f'id="{used[0] or used[1]}"' in text
    assert len(text) < 14_000


def ticks_of(panel, axis="xaxis"):
    """Returns the numbers that stand on an axis of a panel as it is drawn."""
    with draw_panels([panel]) as made:
        made.canvas.draw()
        (axes,) = made.axes
        low, high = axes.get_xlim() if axis == "xaxis" else axes.get_ylim()
        return [
            text.get_text()
            for at, text in zip(
                getattr(axes, axis).get_majorticklocs(), getattr(axes, axis).get_ticklabels(), strict=True
            )
            if low <= at <= high
        ]


def test_a_logarithmic_axis_has_its_numbers_at_few_values_and_at_round_ones_otherwise():
    def sweep(values):
        return Panel("t", "σ", "accuracy, %", [Series("ours", values, range(len(values)), method="dpsgd")], xlog=True)

    assert ticks_of(sweep([1.3, 2.6, 6.5, 13, 65])) == ["1.3", "2.6", "6.5", "13", "65"]
    # These would run into one another.
    assert ticks_of(sweep([1, 2, 9.4, 9.5, 10])) == ["1", "1.5", "2", "3", "4", "5", "7", "10"]
    # So would round numbers here.
    assert all("10^" in text for text in ticks_of(sweep([1000 * 1.5**k for k in range(16)])))


def test_numbers_of_a_plain_axis_are_short():
    loss = Panel("t", "epochs", "test loss", [Series("ours", [0, 1], [2.3001, 2.3035], method="dpsgd")])
    assert ticks_of(loss, "yaxis") == ["2.300", "2.301", "2.302", "2.303"]


@pytest.mark.parametrize("label", ["sorted, median, lr 0.01", "sorted, mmmmmm, lr 0.01", "ab"])
def test_a_legend_gives_the_reason_in_full_within_the_panel(label):
    reason = "lots by rank, bound from the lot"
    one = Series(label, [0, 1], [1, 2], method="median", hollow=reason)
    with draw_panels([Panel("t", "epochs", "loss", [one])]) as made:
        made.canvas.draw()
        (legend,) = made.legends
        assert legend.get_texts()[0].get_text().replace("\n", " ") == f"{one.label}; no guarantee: {reason}"
        box = legend.get_window_extent()
        assert box.x1 <= made.bbox.x1
        assert box.y0 >= 0


def test_a_published_value_of_a_method_without_a_guarantee_is_a_hollow_star():
    stars = [Series(name, [1], [2], method=name, variant=7, points=True, hollow=why) for name, why in KINDS]
    with draw_panels([Panel("t", "epochs", "loss", stars)]) as made:
        private, none = made.axes[0].lines
    assert private.get_markerfacecolor() == colour_of("dpsgd")
    assert none.get_markerfacecolor() != none.get_markeredgecolor() == colour_of("sorted")


KINDS = (("dpsgd", ""), ("sorted", "lots by rank"))


def test_long_curves_of_one_colour_are_told_apart_by_marks():
    long = [Series(str(k), range(100), range(100), method="pld", variant=k) for k in range(2)]
    with draw_panels([Panel("t", "x", "y", long), Panel("t", "x", "y", long[:1])]) as made:
        both, alone = ([line.get_marker() for line in axes.lines] for axes in made.axes)
    assert len(set(both)) == 2
    assert "None" not in both
    assert alone == ["None"]


def test_a_picture_has_whole_pixels_at_its_edge():
    picture = Field(range(3), range(3), [(0, 1, 2)] * 3, image=True)
    with draw_panels([Panel("t", "x", "y", field=picture)]) as made:
        assert made.axes[0].get_xlim() == (-0.5, 2.5)


def test_a_method_has_one_colour_and_an_unknown_one_is_refused():
    assert colour_of("dpsgd") == COLOURS["dpsgd"] != colour_of("sorted")
    with pytest.raises(ValueError, match="no colour"):
        colour_of("nobody")
