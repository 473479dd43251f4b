"""Runs side by side: what is said of them is what their files hold, by an oracle that recomputes it plainly."""

import json
import shutil
import statistics

import pytest
import safetensors.torch
import torch

import sordino as sd
from sordino.app.cli.main import main
from sordino.app.report.compare_runs import _curves_of, compare_runs, describe_difference, write
from sordino.app.report.difference import Amounts
from sordino.app.report.svg_figures import ComparedLines, Line, draw_comparison
from sordino.app.runs.recipe import describe_gradient
from tests.browser import ACCESSIBLE, DESKTOP, PHONE, opened, page


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    setting = {"steps": 20, "records": 500, "evaluate_every": 4, "trace": True}
    sd.fit("spiral", epsilon=3.0, seed=1, out=folder / "one", **setting)
    sd.fit("spiral", epsilon=3.0, seed=1, out=folder / "again", **setting)
    sd.fit("spiral", epsilon=3.0, method="automatic", out=folder / "automatic", **setting)
    sd.fit("spiral", non_private=True, init_seed=7, out=folder / "elsewhere", **setting)
    return folder


def test_several_seeds_are_one_run_with_a_band_and_its_method_in_the_legend(runs, tmp_path, capsys):
    folder = tmp_path / "three"
    flags = ["--steps", "8", "--records", "300", "--evaluate-every", "4", "--method", "automatic", "--epsilon", "3"]
    assert main(["train", "spiral", "--seeds", "3", "--out", str(folder), "--no-report", "--json", *flags]) == 0
    found = compare_runs([runs / "one", folder])
    assert found.labels == ("one", "three")
    assert [len(seeds) for seeds in found.seeds] == [1, 3]
    # By an oracle that reads the files plainly.
    last = [json.loads((folder / f"seed-{k}" / "metrics.jsonl").read_text().splitlines()[-1]) for k in range(3)]
    accuracies = [row["test_accuracy"] for row in last]
    row = found.rows()[1]
    assert row["seeds"] == 3
    assert row["test_accuracy"] == pytest.approx(statistics.fmean(accuracies))
    assert row["accuracy_deviation"] == pytest.approx(statistics.stdev(accuracies))
    lines = _curves_of(found)[0][0]
    assert lines[1].label == "three: automatic, mean of 3 seeds ± deviation"
    assert lines[1].high[-1] - lines[1].low[-1] == pytest.approx(200 * statistics.stdev(accuracies))
    assert not lines[0].low
    write(found, tmp_path / "page.html")
    assert "3 seeds" in (tmp_path / "page.html").read_text()
    assert describe_difference(found, 1)[0] == "of several seeds the first is compared:"
    # Without its summary the folder is what an interrupted command leaves, and its mean would be over some seeds.
    (folder / "summary.json").unlink()
    with pytest.raises(ValueError, match=r"not all of its seeds are done .* compare single ones, as in .*seed-0"):
        compare_runs([runs / "one", folder])


def test_a_run_without_a_guarantee_has_hollow_marks_and_the_legend_says_what_they_mean(runs):
    lines = _curves_of(compare_runs([runs / "one", runs / "elsewhere"]))[0][0]
    assert [line.hollow for line in lines] == [False, True]
    assert [line.label.endswith("; no guarantee") for line in lines] == [False, True]
    assert [label for _, label, _, _ in _curves_of(compare_runs([runs / "one", runs / "again"]))] == [
        "test accuracy, %",
        "test loss",
    ]


def test_the_legend_of_a_comparison_stands_under_its_panels_and_is_not_cut_off():
    names = ("one: dpsgd", "another: " + "a long description of its method " * 4)
    lines = [Line(name, [0, 10, 20], [1.0, 2.0, 3.0], number) for number, name in enumerate(names)]

    def check(made):
        made.canvas.draw()
        legend, whole = made.legends[0].get_window_extent(), made.bbox
        assert [each.get_ylabel() for each in made.axes] == ["test accuracy, %", "test loss"]
        for each in made.axes:
            assert legend.y1 < each.get_tightbbox().y0
            # The words stand over the axes, in the figure.
            (words,) = each.texts
            assert each.bbox.y1 <= words.get_window_extent().y0 < words.get_window_extent().y1 < whole.y1
            assert words.get_window_extent().x1 < whole.x1
        assert whole.y0 <= legend.y0
        assert legend.x1 <= whole.x1

    panels = [ComparedLines(lines, "test accuracy, %", 20.0), ComparedLines(lines, "test loss", 0.0)]
    draw_comparison(panels, "steps", check)


def test_a_rule_of_ones_own_is_named_without_its_folder():
    table = {"method": "dpsgd", "weigher": "/some/where/rules.py:Smooth"}
    assert describe_gradient(table) == "rules.py:Smooth"


def flat(path):
    tensors = safetensors.torch.load_file(path)
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


def test_a_run_and_its_repetition_never_from_step(runs):
    (difference,) = compare_runs([runs / "one", runs / "again"]).differences
    assert difference.same_start
    assert (difference.accuracy_step, difference.parameters_step, difference.predictions_step) == (None, None, None)
    assert difference.distance == 0
    assert difference.cosine == pytest.approx(1)
    assert difference.agreement == 1
    assert list(difference.distances) == [4, 8, 12, 16, 20]


def test_distances_and_cosine_are_those_of_the_files(runs):
    (difference,) = compare_runs([runs / "one", runs / "automatic"]).differences
    start = flat(runs / "one" / "initial.safetensors")
    a, b = (flat(runs / name / "model.safetensors") - start for name in ("one", "automatic"))
    assert difference.distance == pytest.approx(float((a - b).norm()))
    assert difference.relative == pytest.approx(float((a - b).norm() / a.norm()))
    assert difference.cosine == pytest.approx(float(torch.nn.functional.cosine_similarity(a, b, dim=0)))
    at = flat(runs / "one" / "trace" / "00000008.safetensors") - start
    other = flat(runs / "automatic" / "trace" / "00000008.safetensors") - start
    assert difference.distances[8] == pytest.approx(float((at - other).norm() / at.norm()))


def test_predictions_that_differ_explain_the_difference_of_accuracies(runs):
    found = compare_runs([runs / "one", runs / "elsewhere"])
    (difference,) = found.differences
    here, there = (run.last.test_accuracy for run in found.runs)
    tested = 2000
    assert difference.only_this_right - difference.only_reference_right == round((there - here) * tested)
    assert difference.agreement <= 1 - (difference.only_this_right + difference.only_reference_right) / tested


def test_runs_part_at_the_first_evaluation_beyond_the_stated_amount(runs):
    # Accuracies are multiples of 0.001, so no difference is the amount itself but for rounding.
    amounts = Amounts(accuracy=0.0015, parameters=0.5, predictions=0.02)
    found = compare_runs([runs / "one", runs / "automatic"], amounts)
    (difference,) = found.differences
    rows = zip(found.runs[0].rows, found.runs[1].rows, strict=True)
    apart = [a.step for a, b in rows if abs(a.test_accuracy - b.test_accuracy) > amounts.accuracy]
    assert difference.accuracy_step == (apart[0] if apart else None)
    assert difference.parameters_step == next((s for s, d in difference.distances.items() if d > 0.5), None)
    assert difference.predictions_step == next((s for s, d in difference.disagreements.items() if d > 0.02), None)


def test_runs_from_different_networks_are_said_to_be(runs):
    (difference,) = compare_runs([runs / "one", runs / "elsewhere"]).differences
    assert difference.same_start is False
    assert difference.distance is None
    assert any("did not start from the same network" in note for note in difference.notes)


def test_missing_networks_are_said_and_not_guessed(runs, tmp_path):
    folder = shutil.copytree(runs / "one", tmp_path / "one")
    (folder / "model.safetensors").unlink()
    (folder / "initial.safetensors").unlink()
    (difference,) = compare_runs([folder, runs / "again"]).differences
    assert difference.same_start is None
    assert difference.agreement is None
    assert len(difference.notes) == 2


def test_the_command_prints_a_table_and_writes_page_and_picture(runs, tmp_path, capsys):
    names = ("one", "automatic", "elsewhere")
    out = tmp_path / "page.html"
    assert main(["compare", *(str(runs / name) for name in names), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "ε = 3.000 at δ = 1e-05" in said
    assert "no guarantee: the noise multiplier is 0" in said
    assert "automatic, beside one" in said
    assert out.stat().st_size > 10_000
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_json_has_no_epsilon_for_a_run_without_a_guarantee(runs, capsys):
    assert main(["compare", str(runs / "one"), str(runs / "elsewhere"), "--json"]) == 0
    private, plain = json.loads(capsys.readouterr().out)["runs"]
    assert private["claim"]["epsilon"] <= 3
    assert plain["epsilon"] is None
    assert set(plain["claim"]) == {"reason"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one"], "need two or more"),
        (["one", "nowhere"], "not a run directory"),
        (["one", "again", "--accuracy", "0"], "accuracy=0"),
        (["one", "again", "--out", "x.pdf"], "must end in .html"),
        (["one", "again", "--out", "/nowhere/x.html"], "cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(runs, capsys, arguments, message):
    given = [
        str(runs / word) if not word.startswith(("-", "/")) and word in ("one", "again", "nowhere") else word
        for word in arguments
    ]
    assert main(["compare", *given]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_damaged_network_is_refused_by_name(runs, tmp_path, capsys):
    folder = shutil.copytree(runs / "one", tmp_path / "one")
    (folder / "model.safetensors").write_bytes(b"not tensors")
    assert main(["compare", str(runs / "again"), str(folder)]) == 2
    assert "model.safetensors: not a network" in capsys.readouterr().err


@pytest.fixture(scope="module")
def browser():
    with opened() as running:
        yield running


@pytest.fixture(scope="module")
def compared(runs):
    out = runs / "page.html"
    assert main(["compare", str(runs / "one"), str(runs / "automatic"), "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_is_labelled_readable_and_fits(browser, compared, size, scheme):
    with page(browser, size, scheme) as view:
        view.goto(compared.as_uri())
        assert view.evaluate(ACCESSIBLE) == []
        assert view.locator("figure svg").count() == 5
