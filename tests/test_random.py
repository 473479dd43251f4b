"""Random streams and noise: distributions, independence, positions."""

import hashlib
import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

import sordino as sd
from sordino.release.release import choose, release
from sordino.release.sealed import Sealed
from sordino.release.sensitivity import Sensitivity
from sordino.rng import normals
from sordino.rng.keystream import KeyStream
from sordino.rng.streams import Rng

ALPHA = 1e-6  # the false-alarm rate of each test below, were its seed drawn anew


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_values_are_normal(dtype):
    z = Rng.from_seed(1).normal(400_001, dtype).double().numpy()
    assert len(z) == 400_001
    assert stats.kstest(z, "norm").pvalue > ALPHA
    assert stats.kstest(np.abs(z), "halfnorm").pvalue > ALPHA
    tails = (np.abs(z) > 4).sum()
    assert stats.binomtest(int(tails), len(z), 2 * stats.norm.sf(4)).pvalue > ALPHA


def test_the_two_values_of_a_pair_and_neighbouring_blocks_are_uncorrelated():
    z = Rng.from_seed(2).normal(2 * normals.BLOCK).double()
    limit = stats.norm.isf(ALPHA / 2) / math.sqrt(normals.BLOCK / 2)
    halves = z.view(4, -1)
    for i in range(4):
        for j in range(i):
            assert abs((halves[i] * halves[j]).mean()) < limit
            assert abs((halves[i].square() * halves[j].square()).mean() - 1) < 3 * limit


def test_single_and_double_tails_end_at_nine_and_a_half_deviations():
    """The smallest u is half of 2⁻⁶³, so the largest radius √(2·64·ln 2) = 9.42; 31 bits alone would stop at 6.66."""
    cosine, sine = np.empty((2, 1), dtype=np.float32)
    u = np.array([normals.refine_uniform(0, 0)])
    normals.box_muller(u, np.zeros(1, dtype=np.uint32), 1.0, cosine, sine)
    assert cosine[0] == pytest.approx(math.sqrt(2 * 64 * math.log(2)), rel=1e-6)
    assert sine[0] == 0

    class Zeros:
        def fill(self, buffer):
            buffer[:] = bytes(len(buffer))

    assert next(normals.double_normal_blocks(Zeros(), 2, 1.0))[0] == pytest.approx(
        math.sqrt(2 * 64 * math.log(2)), rel=1e-6
    )


def test_rare_radius_words_become_uniform_values_without_gaps():
    """Every word that takes more bits, once: the mass beyond 4.7 deviations is spread as it should be."""
    words = np.arange(normals.RARE, dtype=np.uint32)
    stream = KeyStream(bytes(32), 1)
    u = normals.scaled_uniforms(words, stream, 0).astype(np.float64) * 2.0**-31
    assert (u > 0).all()
    few = words < 2**10  # beyond these float32 itself has fewer than 14 further bits
    assert stats.kstest((u * 2.0**31 - words)[few], "uniform").pvalue > ALPHA
    assert (np.diff(u) > 0).all()


def test_single_precision_values_are_box_muller_to_rounding():
    """Against float64 for the same u and angles: five roundings of a value of size r."""
    rng = np.random.default_rng(0)
    k = np.concatenate([rng.integers(0, 2**31, 200_000), 2 ** np.arange(31), 2**31 - 2 ** np.arange(31)])
    v = k.astype(np.float32) + np.float32(0.5)
    angles = rng.integers(0, 2**32, len(v)).astype(np.uint32)
    angles[:16] = np.arange(16, dtype=np.uint32) << np.uint32(28)  # the corners
    cosine, sine = np.empty((2, len(v)), dtype=np.float32)
    normals.box_muller(v, angles, 1.0, cosine, sine)
    r = np.sqrt(-2 * np.log(v.astype(np.float64) * 2.0**-31))
    theta = angles.astype(np.float64) * (2 * math.pi / 2**32)
    assert (np.abs(cosine - r * np.cos(theta)) <= 3e-7 * r + 1e-12).all()
    assert (np.abs(sine - r * np.sin(theta)) <= 3e-7 * r + 1e-12).all()


def test_laplace_values_are_laplace():
    z = Rng.from_seed(3).laplace(200_000).numpy()
    assert stats.kstest(z, "laplace").pvalue > ALPHA


def test_uniforms_integers_and_permutations():
    rng = Rng.from_seed(4)
    assert stats.kstest(rng.uniform(100_000), "uniform").pvalue > ALPHA
    counts = np.bincount(rng.integers(70_000, 7), minlength=7)
    assert len(counts) == 7
    assert stats.chisquare(counts).pvalue > ALPHA
    assert sorted(rng.permutation(1000)) == list(range(1000))
    orders = {tuple(rng.permutation(3)) for _ in range(200)}
    assert len(orders) == 6


def test_integers_have_no_bias_where_a_remainder_would():
    high = 3 * 2**61  # a quarter of all words are past the last full multiple
    assert (Rng.from_seed(5).integers(20_000, high) < 2**61).mean() == pytest.approx(1 / 3, abs=0.02)


def test_a_stream_resumes_at_its_position():
    rng = Rng.from_seed(6)
    rng.normal(1000)
    state = rng.state_dict()
    assert torch.equal(Rng.replay(state).normal(10), rng.normal(10))


def test_streams_of_different_purposes_differ():
    root = Rng.from_seed(7)
    streams = [root, root.child("noise"), root.child("draws"), root.child("draws", 0), root.child("draws", 1)]
    first = {tuple(stream.words(4)) for stream in streams}
    assert len(first) == len(streams)


def test_a_draw_never_repeats():
    rng = Rng.from_seed(8)
    seen = {int(rng.words(1)[0]) for _ in range(2000)}
    assert len(seen) == 2000


def test_entropy_is_not_a_seed():
    assert Rng.from_entropy().state_dict()["key"] != Rng.from_entropy().state_dict()["key"]


def test_the_key_stream_is_aes_256():
    """FIPS 197, appendix C.3: the key 00..1f and the block 00112233445566778899aabbccddeeff."""
    stream = KeyStream(bytes(range(32)), 0x0011223344556677)
    word = stream.word_at(4 * 0x8899AABBCCDDEEFF)
    assert word.to_bytes(4, "little").hex() == "8ea2b7ca"


def test_few_words_are_those_of_the_long_stream(monkeypatch):
    """They come from the compiled cipher, many from OpenSSL: the same stream, and every call is one draw of it."""
    few, many = Rng.from_seed(11), Rng.from_seed(11)
    for n in (1, 2, 3, 63, 64, 65, 200):
        buffer = bytearray(8 * n)
        many.fill(buffer)
        assert few.words(n).tobytes() == bytes(buffer)
        assert few.counter == many.counter


def test_a_seed_is_the_first_word_but_for_its_last_bit(monkeypatch):
    one, other = Rng.from_seed(13), Rng.from_seed(13)
    assert [one.seed() for _ in range(3)] == [int(other.words(1)[0]) >> 1 for _ in range(3)]
    monkeypatch.setattr("sordino.rng.streams.noise_kernel", lambda: None)
    assert one.seed() == int(other.words(1)[0]) >> 1
    assert one.counter == other.counter == 4


def test_a_stream_of_another_cipher_is_not_gone_on_with():
    state = Rng.from_seed(12).state_dict()
    assert Rng.replay(state).words(1) == Rng.from_seed(12).words(1)
    del state["cipher"]  # as ChaCha20 streams were saved
    with pytest.raises(ValueError, match="ChaCha20"):
        Rng.replay(state)


def test_release_adds_noise_in_proportion_to_the_bound_and_brings_the_event():
    value = Sealed({"a": torch.zeros(300, 100), "b": torch.zeros(20_000)})
    out = release(value, Sensitivity(l2=3.0), sd.Gaussian(2.0), Rng.from_seed(9))
    assert out.event == sd.events.Gaussian(2.0)
    for tensor in out.value.values():
        assert tensor.std().item() == pytest.approx(6.0, rel=0.02)


def test_laplace_noise_in_proportion_to_the_l1_bound():
    value = Sealed({"a": torch.zeros(200_000)})
    out = release(value, Sensitivity(l2=1.0, l1=3.0), sd.Laplace(2.0), Rng.from_seed(9))
    assert out.event == sd.events.Laplace(2.0)
    assert out.value["a"].abs().mean().item() == pytest.approx(6.0, rel=0.02)


def test_noise_is_drawn_in_float32_for_half_precision_sums():
    out = release(
        Sealed({"a": torch.zeros(999, dtype=torch.bfloat16)}), Sensitivity(1.0), sd.Gaussian(1.0), Rng(bytes(32))
    )
    assert out.value["a"].dtype == torch.float32
    assert len(out.value["a"].unique()) > 990  # bfloat16 has some 500 values between -3 and 3


def test_tensors_of_one_release_do_not_share_their_noise():
    out = release(
        Sealed({"a": torch.zeros(500), "b": torch.zeros(500)}), Sensitivity(1.0), sd.Gaussian(1.0), Rng.from_seed(1)
    )
    assert abs(torch.corrcoef(torch.stack([out.value["a"], out.value["b"]]))[0, 1]) < 0.25


def test_choose_is_the_exponential_mechanism():
    scores, epsilon, draws = torch.tensor([0.0, 1.0, 2.0]), 1.5, 20_000
    rng = Rng.from_seed(10)
    counts = np.bincount([choose(Sealed(scores), 1.0, epsilon, rng)[0] for _ in range(draws)], minlength=3)
    wanted = torch.softmax(scores.double() * epsilon / 2, dim=0).numpy()
    assert stats.chisquare(counts, wanted * draws).pvalue > ALPHA
    assert choose(Sealed(scores), 1.0, epsilon, rng)[1] == sd.events.Exponential(1.5)


def test_different_labels_give_different_streams():
    words = ["", "/", "\\", "a", "a/b", "b", "1", 1, "-1", -1, "\\=1", "=1", "s", "\\s", "²"]
    root = Rng.from_seed(0)
    lists = [labels for length in range(4) for labels in itertools.product(words, repeat=length)]
    keys = {root.child(*labels).state_dict()["key"] for labels in lists}
    assert len(keys) == len(lists)


@pytest.mark.parametrize(
    "labels", [("noise",), ("draws", 3), (7, "released"), (np.int64(7),), ("records of units", 0, 12)]
)
def test_plain_labels_have_the_streams_of_version_0_2(labels):
    root = Rng.from_seed(0)
    key = bytes.fromhex(root.state_dict()["key"])
    former = hashlib.blake2b("/".join(map(str, labels)).encode(), key=key, digest_size=32).hexdigest()
    assert root.child(*labels).state_dict()["key"] == former
