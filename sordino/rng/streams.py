"""Random streams: an AES-256 key stream in counter mode, split by purpose and resumable.

Randomness is an argument here, and the position of a stream is part of the checkpoint.

Every draw has its own number, and the number is half of the cipher's counter: draw k is a pure function of (key, k). So a
stream is resumed by its counter, and two streams never overlap. Keys of children are derived by keyed BLAKE2b.

Normal values are made in normals.py, or by the compiled kernel of kernels/, which gives the same bits. Noise for a model
on a device that can make it itself comes of ChaCha20 there (device_noise.py), and on the CPU with the same bits; the state
names the cipher.

A stream is never in two places: a copy, a pickle that is read, and the streams of a forked process have new keys from the
operating system, so that no value is drawn twice. `replay` is the one way to have a stream again, for what will give the
same bits again.

Privacy: without a seed the key is 32 bytes from the operating system. With one, whoever knows the seed knows the noise.
Two sums under one noise give away their difference.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.rng import normals
from sordino.rng.chacha_stream import ChaChaStream
from sordino.rng.device_noise import make_normals
from sordino.rng.keystream import KEY_BYTES, KeyStream, noise_kernel
from sordino.rng.prepared_normals import DrawAhead, PreparedNormals

if TYPE_CHECKING:
    from sordino.kernels.noise_kernel import NoiseKernel
    from sordino.rng.phase_noise import PhaseNoise

CIPHER = "AES-256-CTR"
"""The cipher of every stream, but for noise that is made on a device."""

DEVICE_CIPHER = "ChaCha20, 64-bit counter"
"""The cipher of noise that is made on a device. States of earlier versions have "ChaCha20", in another layout."""

_FEW = 64  # words for which OpenSSL's preparations would cost more than the words
_LONGEST = 1 << 34  # values of one draw: their words stay below those of the tails, and below the cipher's last block


class _Process:
    """Which process this is, counted in forks from the first."""

    forks = 0

    @staticmethod
    def count_fork() -> None:
        """Counts one more fork."""
        _Process.forks += 1


os.register_at_fork(after_in_child=_Process.count_fork)


def _encode_label(label: str | int) -> str:
    """Returns a label of a random stream as text, so that different lists of labels joined by "/" are different texts.

    A word stands for itself, and a number for its digits. In a word "/" and the backslash are escaped, and a word that is
    empty or looks like a number is marked. Labels that need no mark have the streams that they had in 0.2, so that states
    of 0.2 are replayed bit by bit.
    """
    if not isinstance(label, str):
        return str(index(label))
    # Escaped, so that the one label "a/b" and the two labels "a" and "b" name different streams.
    escaped = label.replace("\\", "\\\\").replace("/", "\\s")
    # The text "1" and the number 1 must not name the same stream either.
    looks_like_number = escaped.removeprefix("-").isdecimal()
    return f"\\={escaped}" if looks_like_number or not escaped else escaped


class Rng:
    """A stream of random values."""

    def __init__(self, key: bytes, counter: int = 0, cipher: str = CIPHER) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"key of {len(key)} bytes: needs {KEY_BYTES}")
        self._key = key
        self.counter = counter
        self.cipher = cipher
        self._process = _Process.forks
        self._prepared: PreparedNormals | None = None  # what was made ahead for a device
        self._last_for_copy: int | None = None  # number of the last draw that was made for a device
        self.phase: PhaseNoise | None = None
        """The phase of correlated noise that the step drawn last belongs to, if it belongs to one."""

    @property
    def was_forked(self) -> bool:
        """Whether this process was forked from the one that had the stream, so that its key is another one here."""
        return self._process != _Process.forks

    @staticmethod
    def from_entropy() -> Rng:
        """Returns a stream nobody can repeat."""
        return Rng(secrets.token_bytes(KEY_BYTES))

    @staticmethod
    def from_seed(seed: int) -> Rng:
        """Returns a stream for tests: the same seed gives the same values."""
        return Rng(hashlib.blake2b(f"sordino seed {int(seed)}".encode(), digest_size=KEY_BYTES).digest())

    def child(self, *labels: str | int) -> Rng:
        """Returns an independent stream for a purpose; the same labels give the same stream, and others another one."""
        text = "/".join(map(_encode_label, labels)).encode()
        return Rng(hashlib.blake2b(text, key=self._current_key(), digest_size=KEY_BYTES).digest())

    def with_device_cipher(self) -> Rng:
        """Returns the random stream with the cipher that devices compute; only before its first draw."""
        if self.counter:
            raise ValueError(f"a stream with {self.counter} draws behind it: its cipher cannot be another one now")
        return Rng(self._current_key(), cipher=DEVICE_CIPHER)

    def split(self) -> Rng:
        """Returns an independent random stream, another one at every call; it takes one draw of this stream."""
        key = bytearray(KEY_BYTES)
        self.fill(key)
        return Rng(bytes(key))

    def __copy__(self) -> Rng:
        """Returns a stream with a new key, because a copy that gave the same values would use noise twice."""
        return Rng.from_entropy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Rng:
        """Returns a stream with a new key, for the reason that `__copy__` gives."""
        return Rng.from_entropy()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the fact that there was a stream, not its key."""
        return Rng.from_entropy, ()

    def _current_key(self) -> bytes:
        """Returns the key of the random stream; in a forked process a new one, because the parent goes on with the old
        one.
        """
        if self._process != _Process.forks:
            self._key, self._process = secrets.token_bytes(KEY_BYTES), _Process.forks
            self._prepared = None  # its thread is not in this process
        return self._key

    def fill(self, buffer: bytearray) -> None:
        """Overwrites a buffer with key stream; it takes one draw."""
        self._next_stream().fill(buffer)

    def _next_stream(self) -> KeyStream | ChaChaStream:
        """Returns the key stream of the next draw."""
        self.counter += 1
        return self._stream_of(self.counter - 1)

    def _next_aes_stream(self) -> KeyStream:
        """Returns the key stream of the next draw for the compiled kernel, which only a stream of AES uses."""
        stream = self._next_stream()
        assert isinstance(stream, KeyStream), "the compiled kernel knows AES alone"
        return stream

    def _stream_of(self, number: int) -> KeyStream | ChaChaStream:
        """Returns the key stream of one draw, by the cipher of the random stream."""
        return (KeyStream if self.cipher == CIPHER else ChaChaStream)(self._current_key(), number)

    def key_stream_of(self, number: int) -> KeyStream:
        """Returns the key stream of a draw by its number, whether or not it was drawn; the stream does not go on."""
        return KeyStream(self._current_key(), number)

    def words(self, n: int) -> NDArray[np.uint64]:
        """Returns n uniform 64-bit words of the random stream."""
        # A few words come from the compiled cipher at once; both ways give the same words.
        compiled = self._compiled_kernel()
        if compiled is not None and compiled.makes_key_stream and 0 < n <= _FEW:
            return compiled.read_key_stream(self._next_aes_stream(), 0, (n + 1) // 2).view(np.uint64)[:n]
        buffer = bytearray(8 * n)
        if n:
            self.fill(buffer)
        return np.frombuffer(buffer, dtype=np.uint64)

    def seed(self) -> int:
        """Returns 63 random bits of the stream, as torch's generators take them; it takes one draw."""
        compiled = self._compiled_kernel()
        if compiled is None or not compiled.makes_key_stream:
            return int(self.words(1)[0] >> np.uint64(1))
        return int.from_bytes(compiled.read_block(self._next_aes_stream(), 0)[:8], "little") >> 1

    def uniform(self, n: int) -> NDArray[np.float64]:
        """Returns n values strictly between 0 and 1, in steps of 2⁻⁵³, offset by half a step."""
        # 53 bits are what a float64 holds exactly; the half step keeps 0 out, whose logarithm is infinite.
        return ((self.words(n) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def integers(self, n: int, high: int) -> NDArray[np.int64]:
        """Returns n whole numbers from the random stream, uniform on [0, high), without bias.

        Words past the last full multiple of high are redrawn.
        """
        # Words above the last multiple of `high` are drawn again; otherwise small numbers would be more likely.
        limit = np.uint64(2**64 - 1 - (2**64 % high))
        kept = np.empty(0, dtype=np.uint64)
        while len(kept) < n:
            words = self.words(n - len(kept))
            kept = np.concatenate([kept, words[words <= limit]])
        return (kept % np.uint64(high)).astype(np.int64)

    def permutation(self, n: int) -> NDArray[np.int64]:
        """Returns a uniform order of n things: the order of 64-bit keys, whose ties have probability below n²·2⁻⁶⁵."""
        return np.argsort(self.words(n), kind="stable").astype(np.int64)

    def normal(self, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns n independent standard normal values on the CPU, float32 or float64; it takes one draw."""
        blocks = [block.clone() for block in self.normal_blocks(n, 1.0, dtype)]
        return torch.cat(blocks) if blocks else torch.zeros(0, dtype=dtype)

    def normal_blocks(self, n: int, scale: float, dtype: torch.dtype = torch.float32) -> Iterator[Tensor]:
        """Yields n independent N(0, scale²) values of the random stream in consecutive blocks; it takes one draw.

        The blocks share their memory: each is valid until the next, so that adding them up stays in cache.
        """
        if n > _LONGEST:
            raise ValueError(f"n={n} values: one draw has at most {_LONGEST}")
        make = normals.double_normal_blocks if dtype == torch.float64 else normals.normal_blocks
        for block in make(self._next_stream(), n, scale):
            yield torch.from_numpy(block)

    def add_normal_(self, targets: Sequence[Tensor], scale: float, factor: float = 1.0) -> bool:
        """Adds the random stream's `normal_blocks` to dense tensors, end to end in memory order, in one draw and one
        pass.

        The sums are multiplied by the factor on the way.
        Only where there is a kernel and all are float32 on the CPU; otherwise nothing is drawn and the answer is False.
        """
        # All or nothing: where one tensor cannot be done, none is, and nothing has been drawn from the stream.
        compiled, sizes = self._compiled_kernel(), [tensor.numel() for tensor in targets]
        if compiled is None or sum(sizes) > _LONGEST or not sizes or not all(sizes):
            return False
        for tensor in targets:
            if tensor.dtype is not torch.float32 or not tensor.is_cpu:
                return False
        addresses = [tensor.data_ptr() for tensor in targets]
        compiled.add_normal(self._next_aes_stream(), scale, addresses, sizes, torch.get_num_threads(), factor)
        return True

    def make_normals_for_copy(self, n: int, scale: float, allocate: Callable[[int], Tensor]) -> Tensor | None:
        """Returns the random stream's `normal_blocks(n, scale)` on the CPU, in memory that `allocate` gives, zeros from
        which a device can copy; then a thread begins with those of the next such draw.

        The values are a function of key and number of the draw, made ahead or not. Where there is no kernel nothing is
        drawn and the answer is None.
        """
        compiled = self._compiled_kernel()
        if compiled is None or not 0 < n <= _LONGEST:
            return None
        key, number = self._current_key(), self.counter
        prepared = self._prepared = self._prepared or PreparedNormals()
        values = prepared.take(DrawAhead(key, number, n, scale))
        # The draw is counted in the moment in which its values are handed out, whoever made them.
        stream = self._next_aes_stream()
        if values is None:
            values = allocate(n)
            compiled.add_normal(stream, scale, [values.data_ptr()], [n], torch.get_num_threads())
        # The next draw of this kind comes after as many others as this one came after the last.
        last, self._last_for_copy = self._last_for_copy, number
        ahead = number + (1 if last is None else number - last)
        if ahead > number:
            room = allocate(n)
            coming, address = KeyStream(key, ahead), room.data_ptr()
            prepared.start(
                DrawAhead(key, ahead, n, scale),
                room,
                lambda: compiled.add_normal(coming, scale, [address], [n]),  # one thread: it has time
            )
        return values

    def make_normals_on(self, device: torch.device, n: int, scale: float) -> Tensor | None:
        """Returns the random stream's `normal_blocks(n, scale)` made on a device, bit by bit, in one draw that nobody
        waits for.

        Only for a stream with the cipher of devices, on one whose kernel passed its self-test; otherwise nothing is drawn
        and the answer is None.
        """
        if self.cipher != DEVICE_CIPHER or not 0 < n <= _LONGEST:
            return None
        values = make_normals(device, ChaChaStream(self._current_key(), self.counter), n, scale)
        # Counted only if the device made them: otherwise the caller makes the same draw on the CPU.
        if values is not None:
            self.counter += 1
        return values

    def _compiled_kernel(self) -> NoiseKernel | None:
        """Returns the compiled kernel for the random stream's cipher, or None: it knows AES alone."""
        return noise_kernel() if self.cipher == CIPHER else None

    def normals_at(
        self,
        total: int,
        stretches: Sequence[tuple[int, int]],
        scale: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Returns the values of the random stream's `normal_blocks(total, scale)` in each stretch (start, count), bit
        by bit, in one draw.

        Value j of draw k is a function of (key, k, j) and of the number of values, wherever and by whomever it is made.
        The price is that of the values asked for.
        """
        # Every stretch must lie within the draw.
        for start, count in stretches:
            if total > _LONGEST or not 0 <= start <= start + count <= total:
                raise ValueError(
                    f"values {start} to {start + count} of {total}: must lie in one draw of at most {_LONGEST}"
                )
        # One draw for all stretches; each path below gives the same bits.
        stream, compiled = self._next_stream(), self._compiled_kernel()
        pieces = []
        made: NDArray[Any]
        for start, count in stretches:
            if dtype == torch.float64:
                made = normals.double_normals_at(stream, total, start, count, scale)
            elif compiled is None or not compiled.makes_key_stream:
                made = normals.normals_at(stream, total, start, count, scale)
            else:
                assert isinstance(stream, KeyStream), "the compiled kernel knows AES alone"
                made = compiled.normals_at(stream, scale, total, start, count, torch.get_num_threads())
            pieces.append(torch.from_numpy(made))
        return pieces[0] if len(pieces) == 1 else torch.cat([torch.zeros(0, dtype=dtype), *pieces])

    def laplace(self, n: int) -> Tensor:
        """Returns n independent standard Laplace values in float64: sign · −ln u."""
        u = torch.from_numpy(self.uniform(2 * n)).view(2, n) if n else torch.zeros(2, 0, dtype=torch.float64)
        return u[0].log().neg() * torch.where(u[1] < 0.5, -1.0, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Returns the key and the position of the random stream, from which it can be resumed.

        Whoever reads them knows all past and future noise: they are as secret as the data.
        """
        return {"cipher": self.cipher, "key": self._current_key().hex(), "counter": self.counter}

    @staticmethod
    def replay(state: Mapping[str, Any]) -> Rng:
        """Returns the random stream of a saved state, at its saved position.

        Values that may have been used come once more, and must meet the same sums bit by bit.

        One of another cipher, as earlier versions had, would go on with other values.
        """
        # Another cipher gives other bits from the same key.
        if state.get("cipher") not in (CIPHER, DEVICE_CIPHER):
            raise ValueError(
                f"a random stream of {state.get('cipher', 'ChaCha20')} was saved, and this version has {CIPHER}: it cannot "
                "go on bit by bit; finish the run with the version that began it"
            )
        return Rng(bytes.fromhex(state["key"]), int(state["counter"]), state["cipher"])
