"""Small models of the usual kinds, each with data and a loss, for checks on a device."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

Problem = tuple[nn.Module, TensorDataset, Callable[..., Tensor]]


def classify(model, x, y):
    return F.cross_entropy(model(x).float(), y, reduction="none")


def _table(classes: int = 2) -> TensorDataset:
    return TensorDataset(torch.randn(400, 20), torch.randint(0, classes, (400,)))


def mlp() -> Problem:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2)), _table(), classify


def mlp_dropout() -> Problem:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 2)), _table(), classify


def mlp_bf16() -> Problem:
    model, data, loss = mlp()
    x, y = data.tensors
    return model.bfloat16(), TensorDataset(x.bfloat16(), y), loss


def cnn(p: float = 0.0) -> Problem:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(p),
        nn.Linear(16, 4),
    )
    return model, TensorDataset(torch.randn(200, 3, 12, 12), torch.randint(0, 4, (200,))), classify


def cnn_dropout() -> Problem:
    return cnn(0.3)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.drop(self.lstm(self.embedding(x))[0][:, -1]))
        return out


def lstm_dropout() -> Problem:
    return _Recurrent(), TensorDataset(torch.randint(0, 50, (200, 9)), torch.randint(0, 3, (200,))), classify


def gpt2(p: float = 0.0) -> Problem:
    import transformers

    sizes = {"vocab_size": 100, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**sizes, resid_pdrop=p, embd_pdrop=p, attn_pdrop=p)

    def next_token(model: Any, x: Tensor) -> Tensor:
        logits = model(input_ids=x).logits
        return F.cross_entropy(logits[:, :-1].transpose(1, 2), x[:, 1:], reduction="none").mean(1)

    return transformers.GPT2LMHeadModel(config), TensorDataset(torch.randint(0, 100, (200, 12))), next_token


def gpt2_dropout() -> Problem:
    return gpt2(0.1)


def lora_dropout() -> Problem:
    import peft

    model, data, loss = gpt2(0.0)
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True)
    return peft.get_peft_model(model, config), data, loss


class _Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.position = nn.Parameter(0.02 * torch.randn(1, 10, 16))
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = self.drop(torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.position)
        out: Tensor = self.head(self.block(tokens)[:, 0])
        return out


def vit_dropout() -> Problem:
    return _Vit(), TensorDataset(torch.randn(200, 3, 12, 12), torch.randint(0, 4, (200,))), classify


class _Tanh(torch.autograd.Function):
    """An autograd function, which no engine can follow operation by operation."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.tanh()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y)


class _Leaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(20, 4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Tanh.apply(F.dropout(x, 0.3, self.training) @ self.weight)
        return out


def leaf_with_dropout() -> Problem:
    return nn.Sequential(_Leaf(), nn.Linear(4, 2)), _table(), classify


ZOO: dict[str, Callable[[], Problem]] = {
    made.__name__: made
    for made in (
        mlp,
        mlp_dropout,
        mlp_bf16,
        cnn,
        cnn_dropout,
        lstm_dropout,
        gpt2,
        gpt2_dropout,
        lora_dropout,
        vit_dropout,
        leaf_with_dropout,
    )
}


def _halve(problem: Problem) -> Problem:
    """Returns a problem with parameters and records in bfloat16."""
    model, data, loss = problem
    columns = [column.bfloat16() if column.is_floating_point() else column for column in data.tensors]
    return model.bfloat16(), TensorDataset(*columns), loss


def _autocast(problem: Problem) -> Problem:
    """Returns a problem whose loss computes under autocast to bfloat16, on whatever device the records are."""
    model, data, loss = problem

    def loss_under_autocast(model: Any, *batch: Tensor) -> Tensor:
        with torch.autocast(batch[0].device.type, dtype=torch.bfloat16):
            found: Tensor = loss(model, *batch)
        return found.float()

    return model, data, loss_under_autocast


_WITH_DROPOUT = {
    "mlp": mlp_dropout,
    "cnn": cnn_dropout,
    "lstm": lstm_dropout,
    "gpt2": gpt2_dropout,
    "lora": lora_dropout,
    "vit": vit_dropout,
}

GRID: dict[str, Callable[[], Problem]] = {
    **{f"{name} dropout": made for name, made in _WITH_DROPOUT.items()},
    **{f"{name} bf16": (lambda made=made: _halve(made())) for name, made in _WITH_DROPOUT.items()},
    **{f"{name} autocast": (lambda made=made: _autocast(made())) for name, made in _WITH_DROPOUT.items()},
}
"""Every model with dropout: in float32, in bfloat16, and under autocast."""
