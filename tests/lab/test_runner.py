"""Runs are made once, a sweep goes on where it was, and methods start from one network."""

import json
from dataclasses import replace

import pytest
from sordino_lab import pages, result_store, runner, training_store
from sordino_lab.catalogue import choose_experiments, find_experiment
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import ExperimentSize
from sordino_lab.thesis_plans import METHODS
from sordino_lab.training_curves import draw_learning, expect_reason
from sordino_lab.training_store import digest
from sordino_lab.workbench import Workbench

from sordino.app import atomic_files
from sordino.app.cli.main import main
from sordino.app.runs.settings import make_settings

ONE = CurvePlan(label="DP-SGD", method="dpsgd", recipe="thesis-mnist", given={"learning_rate": 0.1})


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path / "cache"))


def test_a_run_is_made_once(tmp_path, monkeypatch):
    bench = Workbench(ExperimentSize.TINY, tmp_path)
    first = bench.train([ONE])[0]
    monkeypatch.setattr(training_store, "_train_or_resume", lambda *given: pytest.fail("trained again"))
    again = bench.train([ONE])[0]
    assert again.final() == first.final()
    assert again.final("test_loss")[0] == pytest.approx(first.final("test_loss")[0], rel=1e-5)
    assert again.epsilon == first.epsilon


def test_a_run_is_known_by_recipe_seed_and_version(tmp_path, monkeypatch):
    names = {
        digest(ONE.settings(ExperimentSize.TINY, 0)),
        digest(ONE.settings(ExperimentSize.TINY, 1)),
        digest(ONE.settings(ExperimentSize.QUICK, 0)),
        digest(
            CurvePlan(label="x", method="dpsgd", recipe="thesis-mnist", given={"learning_rate": 0.2}).settings(
                ExperimentSize.TINY, 0
            )
        ),
    }
    assert len(names) == 4
    same = CurvePlan(label="another name", method="sorted", recipe="thesis-mnist", given={"learning_rate": 0.1})
    assert digest(same.settings(ExperimentSize.TINY, 0)) in names
    settings = ONE.settings(ExperimentSize.TINY, 0)
    training_store.train(settings, tmp_path)
    assert training_store.is_known(settings, tmp_path)
    monkeypatch.setattr("sordino_lab.training_store.__version__", "0.0.0")
    assert not training_store.is_known(settings, tmp_path)


def test_methods_that_are_compared_start_from_one_network():
    other = CurvePlan(label="sorted", method="sorted", recipe="thesis-mnist", given={"sampler": "sorted-top-k"})
    for seed in range(3):
        both = [plan.settings(ExperimentSize.QUICK, seed).options for plan in (ONE, other)]
        assert both[0].init_seed == both[1].init_seed == seed == both[0].seed


def test_a_run_without_a_guarantee_is_hollow_and_has_no_epsilon(tmp_path):
    sorted_ = CurvePlan(label="sorted", method="sorted", recipe="thesis-mnist", given={"sampler": "sorted-top-k"})
    private, none = Workbench(ExperimentSize.TINY, tmp_path).train([ONE, sorted_])
    assert private.hollow == ""
    assert private.epsilon is not None
    assert private.epsilon > 0
    assert none.hollow
    assert none.epsilon is None
    assert none.series().hollow


def test_the_command_of_a_plan_can_be_typed():
    plan = CurvePlan(label="x", method="sorted", recipe="thesis-mnist", epochs=1, batch=600, records=6000,
                given={"sampler": "sorted-top-k", "bound": 2.0}, parameters={"pool": 4.0})  # fmt: skip
    said = plan.command(ExperimentSize.QUICK)
    assert said.startswith("sordino train thesis-mnist ")
    for word in (
        "--sampler sorted-top-k",
        "--bound 2",
        "--rate 0.1",
        "--steps 10",
        "--records 6000",
        "--parameter pool=4",
    ):
        assert word in said


def test_a_sweep_goes_on_where_it_was(tmp_path, monkeypatch):
    some = [find_experiment("lr-cosine"), find_experiment("sorted-mnist-fixed")]
    said = []
    first = runner.run_experiments(some, ExperimentSize.TINY, tmp_path, processes=1, anew=False, say=said.append)
    assert [one["id"] for one in first] == ["lr-cosine", "sorted-mnist-fixed"]
    assert any("left" in line for line in said)
    assert (tmp_path / "lr-cosine.png").is_file()
    assert (tmp_path / "lr-cosine.svg").is_file()
    monkeypatch.setattr(runner, "make_result", lambda *given: pytest.fail("made again"))
    assert (
        runner.run_experiments(some, ExperimentSize.TINY, tmp_path, processes=1, anew=False, say=said.append) == first
    )


def test_the_longest_is_begun_first(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(runner, "_work", lambda job, bench, out: order.append(job.cost))
    jobs = [runner.ExperimentJob("a", 1.0), runner.ExperimentJob("b", 9.0), runner.ExperimentJob("c", 4.0)]
    runner._carry_out(
        jobs, Workbench(ExperimentSize.TINY, tmp_path), tmp_path, 1, runner.ProgressClock(jobs, lambda text: None)
    )
    assert order == [9.0, 4.0, 1.0]


def test_ids_are_chosen_by_name_by_source_and_by_time():
    assert [one.id for one in choose_experiments(["wd-fixed-point"])] == ["wd-fixed-point"]
    assert {one.source for one in choose_experiments(["002"])} == {"002"}
    assert all(one.is_first_look for one in choose_experiments(["seconds"]))
    assert len(choose_experiments([], everything=True)) > 70
    with pytest.raises(ValueError, match="near it: wd-fixed-point"):
        choose_experiments(["wd-fixed"])


def test_a_reduced_run_says_so_on_its_figure():
    one = find_experiment("sorted-mnist-fixed")
    assert result_store.describe_reduction(ExperimentSize.QUICK, one).startswith("reduced (quick): ")
    assert result_store.describe_reduction(ExperimentSize.MIDDLE, one).startswith("reduced (middle): ")
    assert (
        result_store.describe_reduction(ExperimentSize.MIDDLE, one).split(": ")[1]
        != result_store.describe_reduction(ExperimentSize.QUICK, one).split(": ")[1]
    )
    assert result_store.describe_reduction(ExperimentSize.FULL, one) == ""
    assert result_store.describe_reduction(ExperimentSize.MIDDLE, find_experiment("fmnist-noise")) == ""
    assert result_store.describe_reduction(ExperimentSize.QUICK, find_experiment("composition")) == ""


@pytest.fixture
def only_some(tmp_path, monkeypatch):
    """Returns a bench of the source's size that finds a training where the recipe passes a test, and trains nothing."""
    plan = replace(ONE, given={**ONE.given, "show_private": True})
    run = Workbench(ExperimentSize.TINY, tmp_path).train([plan])[0].runs[0]

    def make_bench(is_there):
        monkeypatch.setattr(training_store, "find", lambda settings, own: run if is_there(settings.recipe) else None)
        return Workbench(ExperimentSize.FULL, tmp_path, trains=False)

    return make_bench


def test_a_figure_that_lacks_curves_says_so_in_its_title_and_in_the_list(only_some, tmp_path, capsys):
    one = find_experiment("sorted-mnist-fixed")
    made = runner.make_result(one, only_some(lambda recipe: recipe.sampler is None), tmp_path)
    assert made["curves"] == {"drawn": 3, "planned": 6, "lacking": ["sorted"]}
    assert "(3 of 6 curves, none of sorted yet)" in (tmp_path / f"{one.id}.svg").read_text("utf-8")
    assert pages.describe_lack(made) == "3 of 6 curves, none of sorted yet"
    assert main(["lab", "list", one.id, "--out", str(tmp_path)]) == 0
    assert "known (full, 3 of 6 curves, none of sorted yet)" in capsys.readouterr().out
    # All curves are there, or the result was stored before their number was.
    assert result_store.describe_lack({**made, "curves": {"drawn": 6, "planned": 6}}) == ""
    del made["curves"]
    assert result_store.describe_lack(made) == ""


def test_only_what_the_source_ran_is_said_to_have_its_size(tmp_path):
    bench = Workbench(ExperimentSize.FULL, training_store.TRAININGS, trains=False)
    notes = [
        runner.make_result(find_experiment(name), bench, tmp_path)["note"]
        for name in ("mnist-clip-search", "outlook-fine-tuning", "dp-gd")
    ]
    assert [note.partition(",")[0] for note in notes] == ["the source's size", "full size", "full size"]


def test_the_figure_of_abadi_is_drawn_from_the_levels_that_are_there(only_some):
    bench = only_some(lambda recipe: recipe.epsilon != 8.0)
    found = find_experiment("abadi-mnist").run(bench)
    assert [panel.title for panel in found.panels[:3]] == ["ε = 0.5", "ε = 2", "ε = 8"]
    assert "δ at a fixed ε" in [panel.title for panel in found.panels]
    # As printed and with all of ε spent, on test and on training images, and the published value.
    looks = [(one.method, one.variant) for one in found.panels[0].series]
    assert len(looks) == len(set(looks)) == 5
    assert any("all of ε = 8" in note for note in found.notes)
    # What is judged are the lots and rate as printed, which are all there.
    assert [finding.says.split()[3] for finding in found.findings] == ["90", "95", "97"]


def test_stars_of_several_methods_have_an_entry_in_the_legend_each(tmp_path):
    other = CurvePlan(label="sorted", method="sorted", recipe="thesis-mnist", given={"sampler": "sorted-top-k"})
    both = Workbench(ExperimentSize.TINY, tmp_path).train([ONE, other])
    accuracy, loss = draw_learning(both, "t", {"DP-SGD": (0.5, 90.0), "sorted": (None, 91.0)})
    stars = {one.label: one.method for one in accuracy.series if one.points}
    assert stars == {"published, DP-SGD": "dpsgd", "published, sorted": "sorted"}
    assert [one.label for one in loss.series if one.points] == ["published, at the end"]


def test_what_is_published_of_a_curve_that_is_missing_is_drawn_where_it_would_end(only_some):
    found = find_experiment("sorted-mnist-fixed").run(only_some(lambda recipe: recipe.sampler is None))
    lines, stars = ([one for one in found.panels[0].series if one.points == points] for points in (False, True))
    assert [one.label for one in stars] == ["published, DP-SGD", "published, sorted (not run yet)"]
    assert [one.hollow for one in stars] == ["", "lots by rank"]
    # Both stand behind the end, where they hide nothing.
    end = max(x for line in lines for x in line.x)
    assert end < stars[0].x[0] < stars[1].x[0]


@pytest.mark.parametrize("name", METHODS)
def test_the_reason_that_a_missing_curve_has_no_guarantee_is_the_one_that_its_training_gives(name, tmp_path):
    colour, words = METHODS[name]
    plan = CurvePlan(label=name, method=colour, recipe="thesis-mnist", given=words)
    (one,) = Workbench(ExperimentSize.TINY, tmp_path).train([plan])
    assert expect_reason(plan) == one.hollow


def test_results_are_json(tmp_path):
    runner.make_result(find_experiment("log-schedule"), Workbench(ExperimentSize.TINY, tmp_path), tmp_path)
    kept = json.loads((tmp_path / "log-schedule.json").read_text())
    assert kept["id"] == "log-schedule"
    assert kept["size"] == "tiny"
    assert kept["panels"]
    assert kept["processor"]


def test_seconds_are_with_the_trainings_that_were_kept(tmp_path):
    bench, one = Workbench(ExperimentSize.TINY, tmp_path), find_experiment("wd-mnist-baseline")
    trained = bench.train(one.plans(bench))
    again = runner.make_result(one, bench, tmp_path)
    kept = sum(round(run.seconds, 1) for each in trained for run in each.runs)  # files keep tenths
    assert again["seconds"] >= round(kept, 1)


def test_what_units_alone_have_is_no_part_of_a_run_by_records():
    few, many = ({"steps": 3, "unit_records": count} for count in (8, 16))
    assert digest(make_settings("mnist", few)) == digest(make_settings("mnist", many))
    assert digest(make_settings("friends", few)) != digest(make_settings("friends", many))


def test_a_result_that_was_cut_off_while_it_was_written_is_not_taken_for_done(tmp_path, monkeypatch):
    one, bench = find_experiment("lr-cosine"), Workbench(ExperimentSize.TINY, tmp_path)

    def run_and_be_killed_at(write):
        writes = iter(range(write))
        write_file = atomic_files.write_file

        def write_or_die(path, content):
            if next(writes, None) is None:
                raise KeyboardInterrupt
            write_file(path, content)

        with monkeypatch.context() as patch:
            patch.setattr(atomic_files, "write_file", write_or_die)
            with pytest.raises(KeyboardInterrupt):
                runner.make_result(one, bench, tmp_path)

    for write in range(3):
        run_and_be_killed_at(write)
        assert not runner.is_done(one, bench.size, tmp_path)
    runner.make_result(one, bench, tmp_path)
    assert runner.is_done(one, bench.size, tmp_path)


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_trained(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["lab", "run", "dp-gd", "--quick", "--out", str(tmp_path / "file" / "lab")]) == 2
    said = capsys.readouterr().err
    assert "cannot be written to" in said
    assert "trainings" not in said


def test_figures_that_are_there_already_are_named_with_what_draws_them_again(tmp_path):
    some, said = [find_experiment("lr-cosine")], []
    for _ in range(2):
        runner.run_experiments(some, ExperimentSize.TINY, tmp_path, processes=1, anew=False, say=said.append)
    assert said[-1] == "1 figure of this size there already; --anew draws it again"


def test_an_unknown_id_is_answered_with_the_one_that_was_meant():
    with pytest.raises(ValueError, match="did you mean 'sorted-mnist-fixed'"):
        find_experiment("sorted-mnist-fixd")


def test_showing_nothing_says_what_can_be_named(tmp_path, capsys):
    assert main(["lab", "show", "--out", str(tmp_path)]) == 2
    assert "nothing named: give ids" in capsys.readouterr().err
    assert main(["lab", "show", "004", "--out", str(tmp_path)]) == 0
    assert "sensitivity:" in capsys.readouterr().out


FAILING = """
from sordino_lab import CurvePlan, Experiment

def plan(bench):
    return [CurvePlan(label="x", method="own", recipe="spiral", given={"weigher": "raises.py:Rule"}, seeds=2)]

EXPERIMENT = Experiment(id="failing", title="Failing", run=lambda bench: bench.train(plan(bench)), plans=plan)
"""


def test_a_training_that_fails_in_a_worker_says_why_in_one_line(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "failing.py").write_text(FAILING)
    (tmp_path / "raises.py").write_text("def Rule(bound):\n    raise KeyError('no')\n")
    assert main(["lab", "run", "failing.py", "--quick"]) == 1
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert "failing: x, seed 0: clipping=" in said
    assert said.splitlines()[-1].startswith("sordino lab: a worker ended with exit code 1; its message is above")


@pytest.mark.parametrize(
    ("code", "why"), [("x = = 1", "line 1: invalid syntax"), ("\nx = 1 / 0", "line 2: ZeroDivision")]
)
def test_an_own_file_that_cannot_be_run_is_refused_with_the_line(code, why, tmp_path):
    (tmp_path / "own.py").write_text(code)
    with pytest.raises(ValueError, match=rf"own\.py: cannot be run \({why}"):
        find_experiment(str(tmp_path / "own.py"))
