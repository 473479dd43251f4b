"""The compiled noise kernel: the standard's key stream, the slow path's bits, and when it is left alone."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import sordino
import sordino as sd
from sordino.kernels import build, noise_kernel
from sordino.release.release import release
from sordino.release.sealed import Sealed
from sordino.release.sensitivity import Sensitivity
from sordino.rng import keystream as choice
from sordino.rng import normals
from sordino.rng.keystream import KeyStream
from sordino.rng.streams import Rng
from tests.kernels.libraries import levels

compiled = levels(build.NOISE, noise_kernel.FUNCTIONS, noise_kernel.NoiseKernel, noise_kernel.LEVELS)


def slow(stream, n, scale):
    return np.concatenate([block.copy() for block in normals.normal_blocks(stream, n, scale)])


def test_the_key_stream_is_that_of_the_standard(compiled):
    """SP 800-38A, section F.5.5, CTR-AES256: its four counters, of which the first 64 bits are the draw's number."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    stream, first = KeyStream(key, 0xF0F1F2F3F4F5F6F7), 0xF8F9FAFBFCFDFEFF
    wanted = (
        "0bdf7df1591716335e9a8b15c860c5025a6e699d536119065433863c8f657b94"
        "1bc12c9c01610d5d0d8bd6a3378eca622956e1c8693536b1bee99c73a31576b6"
    )
    assert compiled.read_key_stream(stream, first, 4).astype("<u4").tobytes().hex() == wanted
    assert stream.word_at(4 * first) == int.from_bytes(bytes.fromhex(wanted)[:4], "little")


@pytest.mark.parametrize("blocks", [1, 7, 8, 16, 17, 64, 100])
def test_the_key_stream_is_that_of_the_slow_path(compiled, blocks):
    stream, wanted = KeyStream(b"k" * 32, 2**63 + 3), bytearray(16 * (blocks + 5))
    stream.fill(wanted)
    assert compiled.read_key_stream(stream, 5, blocks).astype("<u4").tobytes() == bytes(wanted)[5 * 16 :]


@pytest.mark.parametrize("n", [1, 2, 3, 31, 4096, 5001, normals.BLOCK, normals.BLOCK + 1, 3 * normals.BLOCK + 12_345])
def test_its_values_are_those_of_the_slow_path_to_the_bit(compiled, n):
    """Some of the longer ones hold radius words that take further bits: one in 2¹⁶ does."""
    got = np.zeros(n, dtype=np.float32)
    compiled.add_normal(KeyStream(b"x" * 32, n), 0.7, [got.ctypes.data], [n])
    assert np.array_equal(got, slow(KeyStream(b"x" * 32, n), n, 0.7))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_tensors_and_threads_do_not_change_the_values(compiled, threads):
    sizes = [1, 300_000, 7, 2, 100_000, normals.BLOCK // 2 + 1, 999]
    got = [np.ones(size, dtype=np.float32) for size in sizes]
    compiled.add_normal(KeyStream(bytes(32), 1), 2.0, [a.ctypes.data for a in got], sizes, threads)
    assert np.array_equal(np.concatenate(got), np.float32(1) + slow(KeyStream(bytes(32), 1), sum(sizes), 2.0))


def test_rare_words_were_among_those_compared():
    """The comparison above means something for the tails: its longest draw holds at least one word of each kind."""
    n = 3 * normals.BLOCK + 12_345
    buffer = bytearray(4 * n)
    KeyStream(b"x" * 32, n).fill(buffer)
    radii = np.frombuffer(buffer, dtype="<u4")[: 3 * normals.BLOCK].reshape(3, 2, -1)[:, 0]
    assert ((radii & np.uint32(2**31 - 1)) < normals.RARE).any()


def test_release_gives_the_same_bits_with_and_without_the_kernel(compiled, monkeypatch):
    def noised(kernel):
        monkeypatch.setattr("sordino.rng.streams.noise_kernel", lambda: kernel)
        value = {"a": torch.ones(30, 17), "b": torch.zeros(2, 3, 5, 5).to(memory_format=torch.channels_last)}
        rng = Rng.from_seed(4)
        out = [
            release(Sealed({k: v.clone() for k, v in value.items()}), Sensitivity(1.0), sd.Gaussian(1.5), rng)
            for _ in "ab"
        ]
        return [torch.cat([tensor.flatten() for tensor in each.value.values()]) for each in out], rng.counter

    (fast, counter), (plain, same) = noised(compiled), noised(None)
    assert counter == same == 2
    assert all(torch.equal(a, b) for a, b in zip(fast, plain, strict=True))
    assert not torch.equal(fast[0], fast[1])


def test_a_wrong_kernel_is_not_trusted(compiled):
    class Wrong(noise_kernel.NoiseKernel):
        def add_normal(self, stream, scale, addresses, sizes, threads=1):
            super().add_normal(stream, scale * (1 + 2e-7), addresses, sizes, threads)

    assert choice.gives_same_values(compiled)
    assert not choice.gives_same_values(Wrong(compiled.library, compiled.level))


def status(folder: Path, **environment: str) -> str:
    code = "from sordino.rng.keystream import describe_status; print(describe_status())"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder)} | environment,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return ran.stdout.strip()


def test_when_the_kernel_is_left_alone(tmp_path):
    """Missing, built, switched off, older than its source, not a library: each said, none an error."""
    package = tmp_path / "sordino"
    for path in Path(sordino.__file__).parent.rglob("*"):
        if path.suffix in (".py", ".c", ".h"):
            (package / path.relative_to(Path(sordino.__file__).parent)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, package / path.relative_to(Path(sordino.__file__).parent))
    assert status(tmp_path) == "numpy: no library was built at install"
    made = subprocess.run(
        [sys.executable, str(package / "kernels" / "build.py"), "noise"], check=False, capture_output=True, text=True
    )
    if build.find_compiler() is None:
        assert "there is no C compiler" in made.stderr
        return
    assert status(tmp_path).startswith("compiled, ")
    assert status(tmp_path, SORDINO_KERNELS="0") == "numpy: SORDINO_KERNELS=0"
    library = package / "kernels" / build.NOISE.path.name
    source = package / "kernels" / "noise.c"
    source.write_text(source.read_text() + "\n")
    assert status(tmp_path).startswith("numpy: the library is older than its source")
    library.write_bytes(b"not a library")
    assert status(tmp_path).startswith("numpy: the library cannot be loaded")
