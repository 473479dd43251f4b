"""Data sets from real files, held to their hashes; sources that fail say why, and nothing half-done is ever used."""

import gzip
import http.server
import shutil
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from sordino.app import data
from sordino.app.data import by_name, cache, data_catalogue, download_sources, formats


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """A cache with what can be had here; a data set that cannot is skipped by name."""
    return tmp_path_factory.mktemp("cache")


def loaded(name, folder, monkeypatch):
    monkeypatch.setenv(cache.FOLDER, str(folder))
    try:
        return data.load(name)
    except data.NotFetched as error:
        pytest.skip(f"no source can be reached from here: {error}")


@pytest.mark.parametrize(
    ("name", "shape", "train", "mean"),
    [
        ("mnist", (1, 28, 28), 60_000, 33.3),
        pytest.param("fashion-mnist", (1, 28, 28), 60_000, 72.9, marks=pytest.mark.slow),
        pytest.param("cifar10", (3, 32, 32), 50_000, 120.7, marks=pytest.mark.slow),
    ],
)
def test_a_real_data_set_and_again_from_the_cache(name, shape, train, mean, real, monkeypatch):
    """The mean pixel is a published figure: .1307, .2860 and (.4914 + .4822 + .4465)/3 of 255."""
    found = loaded(name, real, monkeypatch)
    assert found.train.images.shape == (train, *shape)
    assert found.test.images.shape == (10_000, *shape)
    assert found.train.labels.bincount().min() >= 5000
    assert found.train.images.float().mean().item() == pytest.approx(mean, abs=0.1)
    monkeypatch.setenv(download_sources.OFFLINE, "1")
    again = data.load(name)
    assert torch.equal(found.train.images, again.train.images)
    assert data.check(name)
    x, y = again.test.to_dataset(mean=0.5, std=0.5).tensors
    assert x.dtype == torch.float32
    assert x.min() >= -1
    assert len(x) == len(y)


def small(folder: Path, *, compressed: bool = False) -> None:
    """A data set of IDX files with ten training and two test images."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, name in formats._IDX.items():
        n = 10 if "train" in part else 2
        array = np.arange(n * (784 if "images" in part else 1)).astype(np.uint8)
        shape = (n, 28, 28) if "images" in part else (n,)
        raw = bytes([0, 0, 8, len(shape)]) + b"".join(s.to_bytes(4, "big") for s in shape) + array.tobytes()
        path = folder / (name + (".gz" if compressed else ""))
        path.write_bytes(gzip.compress(raw) if compressed else raw)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A data set of our own in the catalogue, with a mirror on this machine."""
    small(tmp_path / "mirror", compressed=True)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "mirror"))
    handler.func.log_message = lambda *_: None
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    arrays = formats.decode_idx_files(tmp_path / "mirror")
    files = tuple(path.name for path in (tmp_path / "mirror").iterdir())
    entry = data_catalogue.DataSetEntry(
        "toy",
        "ten images",
        ("a", "b"),
        (1, 28, 28),
        (10, 2),
        formats.decode_idx_files,
        (download_sources.Mirror(f"http://127.0.0.1:{server.server_port}", files),),
        {part: cache.array_digest(array) for part, array in arrays.items()},
    )
    monkeypatch.setitem(data_catalogue.ENTRIES, "toy", entry)
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    monkeypatch.delenv(by_name.FOLDER, raising=False)
    yield tmp_path
    server.shutdown()
    server.server_close()


def test_a_mirror_is_downloaded_checked_and_cached(toy):
    assert not data.check("toy")
    assert len(data.load("toy").train) == 10
    assert data.check("toy")
    shutil.rmtree(toy / "mirror")
    assert len(data.load("toy").test) == 2


def test_a_folder_of_the_users_comes_first(toy, monkeypatch):
    shutil.move(toy / "mirror", toy / "mine" / "toy")
    monkeypatch.setenv(by_name.FOLDER, str(toy / "mine"))
    assert len(data.load("toy").train) == 10


def test_a_download_cut_short_is_refused_and_leaves_nothing(toy):
    victim = next((toy / "mirror").glob("train-images*"))
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    with pytest.raises(data.NotFetched, match="toy could not be had"):
        data.load("toy")
    assert list((toy / "cache").iterdir()) == []


def test_a_file_with_one_other_byte_is_refused(toy):
    victim = next((toy / "mirror").glob("train-labels*"))
    raw = bytearray(gzip.decompress(victim.read_bytes()))
    raw[-1] ^= 1
    victim.write_bytes(gzip.compress(bytes(raw)))
    with pytest.raises(data.NotFetched, match="train_labels is not what it should be"):
        data.load("toy")


def test_damage_in_the_cache_is_found(toy):
    data.load("toy")
    path = toy / "cache" / "toy" / "test_images.npy"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="test_images"):
        data.check("toy")
    path.write_bytes(raw[:100])
    with pytest.raises(ValueError, match="damaged"):
        data.load("toy")
    data.fetch("toy")
    assert data.check("toy")


def test_offline_says_what_was_not_asked(toy, monkeypatch):
    monkeypatch.setenv(download_sources.OFFLINE, "1")
    with pytest.raises(data.NotFetched, match=r"SORDINO_OFFLINE is set[\s\S]*set SORDINO_DATA"):
        data.load("toy")


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="mnist, fashion-mnist, cifar10"):
        data.load("imagenet")


def test_the_official_cifar_binaries_are_read_too(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(6, 2, 3, 32, 32), dtype=np.uint8)
    for i, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
        rows = [bytes([i]) + images[i, j].tobytes() for j in range(2)]
        (tmp_path / name).write_bytes(b"".join(rows))
    arrays = formats.decode_cifar_files(tmp_path)
    assert np.array_equal(arrays["train_images"], images[:5].reshape(10, 3, 32, 32))
    assert arrays["test_labels"].tolist() == [5, 5]


def test_cached_images_are_mapped_not_read(toy):
    """So sixty thousand images open at once, whatever the disk."""
    data.load("toy")
    arrays = cache.find_arrays(data_catalogue.find_entry("toy"))
    assert all(isinstance(array, np.memmap) for array in arrays.values())


def test_generated_digits_say_so_and_can_be_learnt():
    digits = data.digits(2000, 500)
    assert digits.generated
    x, y = digits.train.to_dataset().tensors
    model = torch.nn.Linear(784, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x.flatten(1)), y).backward()
        optimizer.step()
    tx, ty = digits.test.to_dataset().tensors
    assert (model(tx.flatten(1)).argmax(1) == ty).float().mean() > 0.85


def test_linear_data_has_its_weights():
    x, y = data.linear([10.0, 5.0], 4000).tensors
    w = torch.linalg.lstsq(x, y).solution.squeeze()
    assert w.tolist() == pytest.approx([10.0, 5.0], abs=0.1)
