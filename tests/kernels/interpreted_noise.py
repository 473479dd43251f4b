"""Compares the noise kernel with the CPU in Triton's interpreter; imported by a process with TRITON_INTERPRET=1."""

import numpy as np
import torch
import triton
import triton.language as tl

import sordino as sd
from sordino.kernels.triton_noise import _words_at
from sordino.rng import device_noise, normals, streams
from sordino.rng.chacha_stream import ChaChaStream


@triton.jit
def write_words(out, key, first, COUNT: tl.constexpr):  # noqa: N803
    """Writes words of the key stream as the noise kernel reads them."""
    place = tl.arange(0, COUNT)
    tl.store(out + place, _words_at(key, first + place.to(tl.int64)).to(tl.int32, bitcast=True))


# The counter carries: words around block 2³², where its low word begins again.
around = (1 << 36) - 24
words = torch.zeros(64, dtype=torch.int32)
stream = ChaChaStream(bytes(range(5, 37)), 2**63 + 11)
write_words[(1,)](words, device_noise._copy_key(stream, torch.device("cpu")), around, COUNT=64)
assert np.array_equal(words.numpy().view(np.uint32), stream.words_at(around, 64))

cpu = torch.device("cpu")
# Lengths around tiles and blocks, odd and even; the last has a whole block and a rest.
for n in (1, 33, normals.BLOCK + 70):
    made = device_noise._launch(cpu, ChaChaStream(bytes(range(9, 41)), 2**40 + n), n, 0.7).numpy()
    wanted = normals.normals_at(ChaChaStream(bytes(range(9, 41)), 2**40 + n), n, 0, n, 0.7)
    assert np.array_equal(made.view(np.uint32), wanted.view(np.uint32)), n

# The self-test, which has a radius of the rare branch.
words = device_noise._self_test_stream().words_at(0, device_noise.SELF_TEST_VALUES // 2)
assert int(((words & 0x7FFFFFFF) < normals.RARE).sum()) >= 1
device_noise.KINDS = ("cuda", "cpu")
assert device_noise.find_device_noise_fault(cpu) is None, device_noise.find_device_noise_fault(cpu)

# A run whose device makes its noise: named in the state, and equal to the same stream on the host.
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(60, 3))


def train(saved=None):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    private = sd.Private(model, lambda m, x: m(x).square().sum(1), sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
    kept = private.secret_state(), private.state_dict()
    if saved is not None:
        private.load_state_dict(saved[1], replay=sd.Replay("nothing left this process", secret=saved[0]))
    assert private.open_for_audit().noise_state["cipher"] == streams.DEVICE_CIPHER
    for lot in private.draws(data, sd.Poisson(0.2), steps=1):
        private.backward(lot)
    return model, kept


model, kept = train()
streams.make_normals = lambda *given: None  # the host makes the noise of the same stream
again, _ = train(kept)
assert torch.equal(model.weight.grad, again.weight.grad)
assert torch.equal(model.bias.grad, again.bias.grad)
print("equal")  # noqa: T201
