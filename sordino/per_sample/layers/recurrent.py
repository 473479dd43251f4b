"""Rules for nn.LSTM, nn.GRU, nn.RNN and their cells, with all their layers and directions.

The input's product is one linear map over all T. An LSTM without projection runs through `LSTMLayer`, or through the
compiled layer where there is one; the others step through time with the hidden state's product recorded at every step,
and the T uses are joined along positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from sordino.kernels.lstm import Recurrence, Weights, is_usable, load_recurrence
from sordino.per_sample.formulas.gradient_part import GradientRows, Part, lift_precision
from sordino.per_sample.formulas.lstm_layer import CompiledLSTMLayer, HeldByLSTM, LSTMLayer, Port
from sordino.per_sample.formulas.matrix_product import Matmul
from sordino.per_sample.formulas.output_gradient import OutputGradient
from sordino.per_sample.layers.layer_registry import rule
from sordino.per_sample.layers.linear import move_samples_first, record_affine
from sordino.per_sample.recording.tape import Tape
from sordino.refusal import Refusal

State = tuple[Tensor, ...]
Step = Callable[[Tensor, Tensor, State], State]  # (input's product, hidden's product, state) -> state


def _lstm_step(x: Tensor, h: Tensor, state: State) -> State:
    """Makes one step of an LSTM, for the rules of recurrent layers and cells."""
    i, f, z, o = (x + h).chunk(4, 1)
    c = f.sigmoid() * state[1] + i.sigmoid() * z.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_step(x: Tensor, h: Tensor, state: State) -> State:
    """Makes one step of a GRU, for the rules of recurrent layers and cells."""
    xr, xz, xn = x.chunk(3, 1)
    hr, hz, hn = h.chunk(3, 1)
    z = (xz + hz).sigmoid()
    n = (xn + (xr + hr).sigmoid() * hn).tanh()
    return (n + z * (state[0] - n),)


def _tanh_step(x: Tensor, h: Tensor, state: State) -> State:
    """Makes one step of a plain recurrent layer with tanh."""
    return ((x + h).tanh(),)


def _relu_step(x: Tensor, h: Tensor, state: State) -> State:
    """Makes one step of a plain recurrent layer with ReLU."""
    return ((x + h).relu(),)


def _step_function(module: nn.RNNBase | nn.RNNCellBase) -> Step:
    """Returns the step function of a recurrent layer or cell."""
    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return _lstm_step
    if isinstance(module, nn.GRU | nn.GRUCell):
        return _gru_step
    return _relu_step if module.nonlinearity == "relu" else _tanh_step


def _make_lstm_parts(
    tape: Tape, weights: list[Any], g: Tensor, x: Tensor, h: Tensor, read: Tensor | None, sums: Tensor | None
) -> dict[Tensor, Part | Tensor]:
    """Returns the parts of all four parameters of a recurrent LSTM layer from the gates' gradient.

    Everything is (B, T, …); `read` holds x and h side by side.
    """
    w_ih, w_hh, *biases = weights
    found: dict[Tensor, Part | Tensor] = {}
    # Both weight matrices share the gates' gradient, so its Gram matrix is made once.
    output = OutputGradient(g, read, tape.workspace)
    if tape.wants(w_ih):
        found[w_ih] = Matmul(x, g, output)
    if tape.wants(w_hh):
        found[w_hh] = Matmul(h, g, output, start=x.shape[2])
    if any(tape.wants(p) for p in biases):
        # Both biases enter the gates as a sum and have the same gradient.
        total = GradientRows(g.sum(1) if sums is None else sums)
        found |= {p: total for p in biases if tape.wants(p)}
    return found


def _run_lstm_by_torch(tape: Tape, x: Tensor, state: State, weights: list[Any]) -> tuple[Tensor, State]:
    """Runs one direction of a recurrent LSTM layer, x (T, B, d), by torch."""
    w_ih, w_hh, *biases = weights
    # The gates' inputs are one linear map over all steps; the gradient at them is all that the parameters need.
    size, (steps, b, d) = tape.size, x.shape
    bias = (biases[0].detach() + biases[1].detach()) if biases else None
    gates = nn.functional.linear(x.reshape(-1, d), tape.leaf(w_ih, x), bias)  # (T·B, 4H)
    held: list[Tensor] = []

    def parts(saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
        """Returns the parts of a recurrent LSTM layer from the gradient at the gates, and the inputs and hidden states
        that each step read.
        """
        rows = move_samples_first(lift_precision(g).view(steps, b, -1), 1, size)  # (B, T, 4H)
        inputs, hidden = (move_samples_first(lift_precision(t, g), 1, size) for t in (saved[0], held[0]))
        return _make_lstm_parts(tape, weights, rows, inputs, hidden, None, None)

    gates = tape.record(gates, (x,), parts, rows=1)
    h0, c0 = (s.to(gates.dtype) for s in state)
    hidden = w_hh.detach().to(gates.dtype)
    out, last = LSTMLayer.apply(gates.view(steps, b, -1), h0, c0, hidden)  # type: ignore[no-untyped-call]
    held.append(torch.cat([h0.detach()[None], out.detach()[:-1]]))  # the hidden state each step read
    return out, (out[-1], last)


def _run_lstm_compiled(
    tape: Tape, kernel: Recurrence, x: Tensor, state: State, weights: list[Any]
) -> tuple[Tensor, State]:
    """Runs one direction of a recurrent LSTM layer, x (T, B, d), by the compiled kernel."""
    w_ih, w_hh, *biases = (p.detach().contiguous() for p in weights)
    (steps, b, d), wide = x.shape, len(w_ih)
    bias = biases[0] + biases[1] if biases else w_ih.new_zeros(wide)
    held = HeldByLSTM()

    def parts(saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
        """Returns the parts of a recurrent LSTM layer from what the backward pass of the compiled layer left."""
        assert held.read is not None, "the layer's backward pass came by"
        read, rows = held.read.transpose(0, 1), g.view(steps, b, wide).transpose(0, 1)  # (B, T, d + H), (B, T, 4H)
        return _make_lstm_parts(tape, weights, rows, read[:, :, :d], read[:, :, d:], read, held.sums)

    # The gates are no tensor of their own here, so the port gives their gradient a place in the graph.
    path = x if x.requires_grad else tape.leaf(weights[0])
    port: Tensor = Port.apply(path, steps * b, wide)  # type: ignore[no-untyped-call]
    port = tape.record(port, (x,), parts, rows=1)
    out, last = CompiledLSTMLayer.apply(x, port, *state, kernel, Weights(w_ih, w_hh, bias), held, tape.workspace)  # type: ignore[no-untyped-call]
    return out, (out[-1], last)


def _run_step_by_step(
    tape: Tape, module: nn.RNNBase, x: Tensor, state: State, weights: list[Any], there: Tensor | None = None
) -> tuple[Tensor, State]:
    """Runs one direction of any other recurrent layer, x (T, B, d); where a sequence is not there (T, B), its state
    stays.
    """
    # The input's product runs over all steps at once; the recurrent one step by step.
    w_ih, w_hh, *biases = weights
    projection = biases.pop() if module.proj_size else None
    b_ih, b_hh = biases or (None, None)
    inputs, step, out = record_affine(tape, x, w_ih, b_ih, 1), _step_function(module), []
    for t in range(x.shape[0]):
        before = state
        state = step(inputs[t], record_affine(tape, state[0], w_hh, b_hh, 0), state)
        if projection is not None:
            state = (record_affine(tape, state[0], projection, None, 0), *state[1:])
        # Where a sequence has ended, its state stays as it is.
        if there is not None:
            now = there[t].unsqueeze(1)
            state = tuple(torch.where(now, new, old) for new, old in zip(state, before, strict=True))
        out.append(state[0])
    return torch.stack(out), state


@rule(nn.LSTM, nn.GRU, nn.RNN)
def run_recurrent(tape: Tape, module: nn.RNNBase, input: Any, hx: Any = None) -> tuple[Any, Any]:
    """Runs all layers and directions of a recurrent module."""
    # Packed sequences are unpacked first.
    if isinstance(input, PackedSequence):
        return _run_packed(tape, module, input, hx)
    if input.dim() != 3:
        raise Refusal(
            f"layer '{tape.name}': {type(module).__name__} on an unbatched sequence.\n"
            "Samples are told apart by a batch dimension, as (B, T, d), or (T, B, d) with batch_first=False.\n"
            "Unsqueeze the input."
        )
    dim = 0 if module.batch_first else 1
    tape.batch_dim(input, only=dim, several=False)
    x, ends = _run_layers(tape, module, input.transpose(0, 1) if module.batch_first else input, hx, None)
    return x.transpose(0, 1) if module.batch_first else x, ends


def _run_packed(tape: Tape, module: nn.RNNBase, packed: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
    """Runs a recurrent layer on sequences of their own lengths: padded, with a state that stays where its sequence is
    over or has not begun.
    """
    x, lengths = pad_packed_sequence(packed)  # (T, B, d), in the order of the records
    tape.batch_dim(x[0], only=0, several=False)  # the longest of fewer records may be shorter
    there = torch.arange(len(x), device=x.device)[:, None] < lengths.to(x.device)
    out, ends = _run_layers(tape, module, x, hx, there)
    order = packed.sorted_indices
    if order is not None:
        out, lengths = out.index_select(1, order), lengths[order.cpu()]
    data = pack_padded_sequence(out, lengths)[0]
    return PackedSequence(data, packed.batch_sizes, order, packed.unsorted_indices), ends


def _run_layers(tape: Tape, module: nn.RNNBase, x: Tensor, hx: Any, there: Tensor | None) -> tuple[Tensor, Any]:
    """Returns the outputs and the last states of all layers and directions of a recurrent module, from x (T, B, d)."""
    # Directions and layers are run one after the other, each with its own weights.
    directions, is_lstm = 1 + module.bidirectional, isinstance(module, nn.LSTM)
    given = None if hx is None else (tuple(hx) if is_lstm else (hx,))
    sizes = (module.proj_size or module.hidden_size, module.hidden_size)[: 1 + is_lstm]
    last: list[State] = []
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            which = layer * directions + direction
            # The initial state is the one given, or zeros.
            state = (
                tuple(x.new_zeros(x.shape[1], n) for n in sizes) if given is None else tuple(s[which] for s in given)
            )
            weights = list(module.all_weights[which])
            turned = x.flip(0) if direction else x
            # Sequences of their own lengths step through time; an LSTM runs as a whole, compiled if possible.
            if there is not None:
                out, end = _run_step_by_step(
                    tape, module, turned, state, weights, there.flip(0) if direction else there
                )
            elif is_lstm and not module.proj_size:
                kernel = load_recurrence() if is_usable(x, *state, *weights) and x.numel() else None
                if kernel is None:
                    out, end = _run_lstm_by_torch(tape, turned, state, weights)
                else:
                    out, end = _run_lstm_compiled(tape, kernel, turned, state, weights)
            else:
                out, end = _run_step_by_step(tape, module, turned, state, weights)
            outputs.append(out.flip(0) if direction else out)
            last.append(end)
        # The next layer reads both directions side by side, with dropout between layers as torch has it.
        x = torch.cat(outputs, 2) if directions > 1 else outputs[0]
        if module.dropout and module.training and layer < module.num_layers - 1:
            x = nn.functional.dropout(x, module.dropout)
    ends = tuple(torch.stack(s) for s in zip(*last, strict=True))
    return x, ends if is_lstm else ends[0]


@rule(nn.LSTMCell, nn.GRUCell, nn.RNNCell)
def run_cell(tape: Tape, module: nn.RNNCellBase, input: Tensor, hx: Any = None) -> Any:
    """Runs the rule of a recurrent cell: makes one step."""
    tape.batch_dim(input, only=0, several=False)
    if input.dim() != 2:
        raise Refusal(
            f"layer '{tape.name}': its input has no batch dimension.\n"
            "Samples are told apart by it, as (B, d).\n"
            "Unsqueeze the input."
        )
    is_lstm = isinstance(module, nn.LSTMCell)
    # Without a state, zeros, as torch does.
    if hx is None:
        state = (input.new_zeros(input.shape[0], module.hidden_size),) * (1 + is_lstm)
    else:
        state = tuple(hx) if is_lstm else (hx,)
    x = record_affine(tape, input, module.weight_ih, module.bias_ih, 0)
    h = record_affine(tape, state[0], module.weight_hh, module.bias_hh, 0)
    end = _step_function(module)(x, h, state)
    return end if is_lstm else end[0]
