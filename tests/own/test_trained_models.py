"""A trained model in use: rows as they are, classes with probabilities, numbers in their own units."""

import csv
import json
from datetime import date, timedelta

import numpy as np
import pytest
import safetensors.torch
import torch

import sordino
from sordino.app.cli import main
from sordino.app.data.own.held_out import choose_held_out
from sordino.app.data.own.rows import read_table
from sordino.app.runs.declared_file import OwnFile
from sordino.app.runs.encoded_records import encoder_from_table, read_encoder

TINY = {"epsilon": 8.0, "steps": 30, "rate": 0.1, "seed": 3}


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    path = tmp_path_factory.mktemp("people") / "people.csv"
    generator = np.random.default_rng(0)
    lines = ["age,town,pay,left"]
    for _ in range(400):
        age, town = generator.integers(20, 60), generator.choice(["Ulm", "Jena", "Rome"])
        pay = 20 + 2 * age + generator.normal()
        lines.append(f"{'' if generator.random() < 0.1 else age},{town},{pay:.2f},{'yes' if age > 40 else 'no'}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def run(people, tmp_path_factory):
    own = OwnFile(
        path=str(people),
        target="left",
        bounds={"age": (18, 70), "pay": (0, 200)},
        categories={"town": ("Ulm", "Jena", "Rome")},
        classes=("no", "yes"),
        missing=("age",),
    )
    out = tmp_path_factory.mktemp("runs") / "people"
    return sordino.fit("linear", own, out=out, **TINY)


def test_a_loaded_model_says_what_the_trained_one_does(run, people):
    model = sordino.load(run.run)
    encoded = model.encode(people)
    with torch.no_grad():
        expected = torch.softmax(run.model.eval()(encoded).double(), 1).numpy()
    np.testing.assert_array_equal(model.predict_proba(people), expected)
    assert model.predict(people) == [("no", "yes")[place] for place in expected.argmax(1)]
    assert "differential privacy" in model.claim


def test_rows_frames_and_files_are_one(run, people):
    model = sordino.load(run.run)
    table = read_table(people)
    rows = [dict(zip(table.columns, cells, strict=True)) for cells in table.cells[:50]]
    of_rows = model.predict_proba(rows)
    np.testing.assert_array_equal(of_rows, model.predict_proba(people)[:50])
    for row in rows:
        del row["left"]  # the target is not needed
    np.testing.assert_array_equal(of_rows, model.predict_proba(rows))
    pandas = pytest.importorskip("pandas")
    np.testing.assert_array_equal(of_rows, model.predict_proba(pandas.DataFrame(rows)))
    np.testing.assert_array_equal(model.predict_proba([{"age": None, "town": "Ulm", "pay": 99}]).shape, (1, 2))


def test_what_a_model_cannot_take_is_said(run):
    model = sordino.load(run.run)
    with pytest.raises(ValueError, match="lacks pay, town"):
        model.predict([{"age": 3}])
    with pytest.raises(ValueError, match="declared categories"):
        model.predict([{"age": 30, "town": "Oslo", "pay": 50}])
    with pytest.raises(TypeError, match="need a path"):
        model.predict(3)
    with pytest.raises(ValueError, match="the model takes"):
        model.predict(torch.zeros(2, 3))


def test_numbers_are_in_the_target_s_own_units(people, tmp_path):
    own = OwnFile(
        path=str(people),
        target="pay",
        bounds={"age": (18, 70), "pay": (0, 200)},
        categories={"town": ("Ulm", "Jena", "Rome")},
        drop=("left",),
        missing=("age",),
    )
    history = sordino.fit("linear", own, out=tmp_path / "run", loss="squared", **{**TINY, "steps": 200})
    said = np.array(sordino.load(history.run).predict(people))
    true = np.array([float(cell) for cell in read_table(people).column("pay")])
    assert said.shape == true.shape
    assert history.measures["rmse"] < history.measures["baseline"]["rmse"]
    # The run's own measure is that of the records which it held out, each by a hash of itself.
    held_out = choose_held_out(["\x1f".join(cells).encode() for cells in read_table(people).cells], 0.1)
    assert np.sqrt(np.mean((said - true)[held_out] ** 2)) == pytest.approx(history.measures["rmse"], rel=1e-4)


def test_an_encoder_comes_back_from_its_file(run):
    encoder = read_encoder(run.run)
    assert encoder_from_table(json.loads(json.dumps(encoder.table()))) == encoder
    assert encoder.classes == ("no", "yes")


def test_a_model_of_a_recipe_takes_tensors(tmp_path, capsys):
    history = sordino.fit("spiral", steps=5, records=200, seed=0, out=tmp_path / "run")
    model = sordino.load(history.run)
    assert model.predict(torch.zeros(2, 2))[0] in ("0", "1", "2")
    with pytest.raises(TypeError, match="trained on tensors"):
        model.predict([{"x": 1}])
    # On the command line there is no way to give a tensor, so the message names Python's.
    assert main.main(["predict", str(history.run), str(tmp_path / "new.csv")]) == 2
    assert f"sordino.load('{history.run}').predict(tensor)" in capsys.readouterr().err


def test_a_model_in_memory_is_given_again(tmp_path):
    x, y = torch.randn(300, 4), torch.randint(2, (300,))
    network = torch.nn.Linear(4, 2)
    history = sordino.fit(network, (x, y), out=tmp_path / "run", **TINY)
    with pytest.raises(ValueError, match="model=model"):
        sordino.load(history.run)
    model = sordino.load(history.run, model=torch.nn.Linear(4, 2))
    assert torch.equal(model.compute_outputs(x), history.model(x).detach())


def test_labels_that_are_to_be_ignored_and_empty_ones(tmp_path):
    (tmp_path / "t.csv").write_text(
        "a,y\n" + "".join(f"{k % 7},{'?' if k % 5 == 0 else 'ab'[k % 2]}\n" for k in range(300))
    )
    own = OwnFile(path=str(tmp_path / "t.csv"), target="y", bounds={"a": (0, 7)}, ignore_label="?")
    history = sordino.fit("linear", own, out=tmp_path / "run", **TINY)
    assert sordino.load(history.run).classes == ("a", "b")
    (tmp_path / "t.csv").write_text("a,y\n1,x\n2,\n3,y\n")
    with pytest.raises(ValueError, match="is empty; mend the cell, or say --ignore-label"):
        sordino.fit("linear", OwnFile(path=str(tmp_path / "t.csv"), target="y"), out=tmp_path / "no", **TINY)


def test_an_exported_model_agrees(run, people, tmp_path):
    model = sordino.load(run.run)
    encoded = model.encode(people)
    expected = model.compute_outputs(encoded)
    program = torch.export.load(model.export(tmp_path / "model.pt2")).module()
    for n in (1, 7, len(encoded)):  # any number of records
        torch.testing.assert_close(program(encoded[:n]), expected[:n])
    state = safetensors.torch.load_file(model.export(tmp_path / "model.safetensors"))
    network = torch.nn.Linear(encoded.shape[1], 2)
    network.load_state_dict({name.rpartition(".")[2]: value for name, value in state.items()})
    torch.testing.assert_close(network(encoded).detach(), expected)
    with pytest.raises(ValueError, match="ends in"):
        model.export(tmp_path / "model.txt")


@pytest.mark.parametrize(("form", "ending"), [("safetensors", ".safetensors"), ("torch-export", ".pt2")])
def test_the_export_command_writes_what_the_method_writes(run, tmp_path, capsys, form, ending):
    target = tmp_path / f"people{ending}"
    assert main.main(["export", str(run.run), "--format", form, "--out", str(target)]) == 0
    shown = capsys.readouterr().out
    assert str(target) in shown
    assert "differential privacy" in shown
    model = sordino.load(run.run)
    x = torch.rand(5, *model.encoder.shape)
    if form == "safetensors":
        written = safetensors.torch.load_file(target)
        assert all(torch.equal(written[name], value) for name, value in model.network.state_dict().items())
    else:
        torch.testing.assert_close(torch.export.load(target).module()(x), model.network(x))
    # Neither an existing file nor a wrong ending is accepted.
    assert main.main(["export", str(run.run), "--format", form, "--out", str(target)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main.main(["export", str(run.run), "--format", "onnx", "--out", str(target)]) == 2
    assert "ends in .onnx" in capsys.readouterr().err


def test_an_exported_onnx_model_agrees_for_any_number_of_records(run, people, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = sordino.load(run.run)
    encoded = model.encode(people)
    path = model.export(tmp_path / "model.onnx")
    assert [one.name for one in tmp_path.iterdir()] == ["model.onnx"]  # the parameters are inside
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for n in (1, 7, len(encoded)):
        (outputs,) = session.run(None, {"records": encoded[:n].numpy()})
        np.testing.assert_allclose(outputs, model.compute_outputs(encoded[:n]).numpy(), rtol=1e-4, atol=1e-5)


def test_predictions_as_a_file(run, people, tmp_path, capsys):
    assert main.main(["predict", str(run.run), str(people), "--keep", "town", "--out", str(tmp_path / "p.csv")]) == 0
    with open(tmp_path / "p.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["prediction"] for row in rows] == sordino.load(run.run).predict(people)
    assert list(rows[0]) == ["town", "prediction", "probability", "probability of no", "probability of yes"]


def write_table(path, n, seed, *, with_target=True):
    """Writes records with ids, dates, missing numbers, 500 cities and 2 % positives, some of whose causes can be learnt."""
    generator = np.random.default_rng(seed)
    risk_of_city = np.random.default_rng(0).normal(0, 1, 500)
    age, amount = generator.integers(18, 90, n), generator.lognormal(4, 1, n)
    city, day = generator.integers(0, 500, n), generator.integers(0, 2000, n)
    logit = -6.2 + 1.5 * (amount > 150) + 0.03 * (age - 40) + 1.2 * risk_of_city[city] + 1.5 * (day % 7 >= 5)
    positive = generator.random(n) < 1 / (1 + np.exp(-logit))
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "joined", "age", "amount", "city", *(["fraud"] if with_target else [])])
        for k in range(n):
            joined = (date(2018, 1, 1) + timedelta(days=int(day[k]))).isoformat()
            cells = [
                f"c{k:06d}",
                joined,
                "" if generator.random() < 0.1 else age[k],
                f"{amount[k]:.2f}",
                f"city {city[k]}",
            ]
            writer.writerow([*cells, *(["yes" if positive[k] else "no"] if with_target else [])])
    return positive


@pytest.mark.slow
def test_inspect_train_predict_and_report_in_four_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert 0.015 < write_table("people.csv", 20_000, 1).mean() < 0.03
    positive = write_table("new.csv", 4000, 2, with_target=False)
    assert main.main(["data", "inspect", "people.csv", "--target", "fraud", "--out", "schema.toml"]) == 0
    assert "no ε covers" in capsys.readouterr().out
    command = ["train", "--data", "people.csv", "--schema", "schema.toml", "--epsilon", "3", "--out", "run", "--json"]
    assert main.main(command) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert main.main(["predict", "run", "new.csv", "--keep", "id", "--out", "predictions.csv"]) == 0
    assert main.main(["report", "run"]) == 0
    # The model ranks new records far better than the baseline, which cannot; accuracy would not have shown it.
    assert result["measures"]["baseline"]["auc"] == 0.5
    assert result["measures"]["auc"] > 0.65
    with open("predictions.csv", newline="") as file:
        said = np.array([float(row["probability of yes"]) for row in csv.DictReader(file)])
    above = (said[positive][:, None] > said[~positive][None]).mean()
    assert above > 0.65
    # The claim says that the schema was read off the records; the report shows the measures beside the baseline.
    assert any("schema, read off" in one for one in result["claim"]["not_covered"])
    report = (tmp_path / "run" / "report.html").read_text()
    assert "AUC" in report
    assert "balanced accuracy" in report
