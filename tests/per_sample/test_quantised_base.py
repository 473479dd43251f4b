"""Adapters on a frozen base in 4 or 8 bits (QLoRA, Dettmers et al. 2023, arXiv:2305.14314): exact for every record.

The layers here stand in for those of bitsandbytes: integers and scales that the forward pass makes numbers of. Where
bitsandbytes itself is installed, its own layers are tested as well.
"""

import copy
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import sordino as sd
from sordino.integrations import Privacy
from sordino.per_sample import Captured, Loop
from tests.integrations.words import Sentences, bert, padded

BLOCK = 16
# The sixteen values of NF4, quantiles of the normal distribution (Dettmers et al. 2023, appendix E).
NF4 = torch.tensor(
    [-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626]
    + [0.7230, 1.0]
)


class EightBit(nn.Linear):
    """Rows of int8, each with a scale; the weight is a parameter of whole numbers, as in bitsandbytes."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=plain.bias is not None)
        scale = plain.weight.detach().abs().amax(1, keepdim=True) / 127
        self.weight = nn.Parameter((plain.weight.detach() / scale).round().to(torch.int8), requires_grad=False)
        self.register_buffer("scale", scale)
        if plain.bias is not None:
            self.bias = nn.Parameter(plain.bias.detach().clone(), requires_grad=False)

    def dequantise(self) -> Tensor:
        return self.weight * self.scale

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return nn.functional.linear(x, self.dequantise().to(x.dtype), bias)


class _Product(torch.autograd.Function):
    """A product that makes numbers of the weight in both passes, so that none of them is kept in between."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        return x @ layer.dequantise().to(x.dtype).t()

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.layer.dequantise().to(gradient.dtype), None


class FourBit(nn.Linear):
    """Two values of NF4 in each byte, with a scale for every sixteen of them."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=plain.bias is not None)
        blocks = plain.weight.detach().reshape(-1, BLOCK)
        scale = blocks.abs().amax(1, keepdim=True)
        codes = (blocks / scale).unsqueeze(-1).sub(NF4).abs().argmin(-1).to(torch.uint8).reshape(-1, 2)
        self.weight = nn.Parameter(codes[:, 0] * 16 + codes[:, 1], requires_grad=False)
        self.register_buffer("scale", scale)
        if plain.bias is not None:
            self.bias = nn.Parameter(plain.bias.detach().clone(), requires_grad=False)

    def dequantise(self) -> Tensor:
        codes = torch.stack([self.weight // 16, self.weight % 16], 1).reshape(-1, BLOCK).long()
        return (NF4.to(self.scale.dtype)[codes] * self.scale).reshape(self.out_features, self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        y = _Product.apply(x, self)
        return y if self.bias is None else y + self.bias.to(y.dtype)


def quantised_bert(kind):
    """A small BERT whose attention is quantised and frozen, with LoRA adapters by PEFT on it."""
    peft = pytest.importorskip("peft")
    model = bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    for layer in model.bert.encoder.layer:
        for owner, name in ((layer.attention.self, "query"), (layer.attention.self, "value"), (layer.output, "dense")):
            setattr(owner, name, kind(getattr(owner, name)))
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["query", "value"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(model, config)
    for name, p in adapted.named_parameters():
        if "lora_B" in name:  # which begins at zero, and then has its sisters' gradients be zero
            nn.init.normal_(p, std=0.1)
    return adapted


def losses(model, batch):
    return nn.functional.cross_entropy(
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits,
        batch["labels"],
        reduction="none",
    )


@pytest.mark.parametrize("kind", [EightBit, FourBit])
@pytest.mark.filterwarnings("ignore")
def test_gradients_of_the_adapters_are_those_of_the_loop(kind):
    model, batch = quantised_bert(kind), padded(Sentences(6, seed=3).records)
    adapters = [name for name, p in model.named_parameters() if p.requires_grad]
    assert any("lora_A" in name for name in adapters)
    engine, loop = (backend.per_sample(model, losses, (batch,)) for backend in (Captured(), Loop()))
    torch.testing.assert_close(engine.losses, loop.losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(engine.norms().total(), loop.norms().total(), rtol=1e-4, atol=0.0)
    weights = torch.rand(6, 1, generator=torch.Generator().manual_seed(0))
    wanted, found = loop.weighted_sum(weights), engine.weighted_sum(weights)
    assert set(found) == set(wanted) == set(adapters)
    for name, total in found.items():
        torch.testing.assert_close(total, wanted[name], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", [EightBit, FourBit])
@pytest.mark.filterwarnings("ignore")
def test_the_trainer_trains_the_adapters_and_leaves_the_base_as_it_is(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    from sordino.integrations.transformers import Trainer

    model = quantised_bert(kind)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    settings = transformers.TrainingArguments(
        str(tmp_path), max_steps=3, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, bf16=True
    )
    run = Trainer(
        model,
        settings,
        data_collator=padded,
        train_dataset=Sentences(80, seed=0),
        privacy=Privacy(query=sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), delta=1e-5),
    )
    run.train()
    assert isinstance(run.claim(), sd.Guarantee), run.claim()
    for name, p in model.named_parameters():
        assert torch.equal(p.detach(), before[name]) is not p.requires_grad, name


@pytest.mark.parametrize("layer", ["Linear4bit", "Linear8bitLt"])
def test_layers_of_bitsandbytes_where_it_is_installed(layer):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    plain = nn.Linear(32, 16)
    if layer == "Linear4bit":
        base = bitsandbytes.nn.Linear4bit(32, 16, compute_dtype=torch.float32, quant_type="nf4")
    else:
        base = bitsandbytes.nn.Linear8bitLt(32, 16, has_fp16_weights=False, threshold=0.0)
    base.load_state_dict(copy.deepcopy(plain.state_dict()))
    base = base.to("cpu").requires_grad_(False)

    model, x = Adapted(base), torch.randn(5, 32)
    engine, loop = (backend.per_sample(model, squares, (x,)) for backend in (Captured(), Loop()))
    assert base.weight.dtype in (torch.uint8, torch.int8)
    tolerance = 1e-4 if layer == "Linear4bit" else 2e-3  # in eight bits theirs multiplies in float16
    torch.testing.assert_close(engine.norms().total(), loop.norms().total(), rtol=tolerance, atol=0.0)


class Outliers(EightBit):
    """Rounds activations too, but for columns in which any record of the batch is large, as LLM.int8() does."""

    def forward(self, x: Tensor) -> Tensor:
        large = x.detach().abs().amax(0) > 6.0
        scale = x.detach().masked_fill(large, 0.0).abs().amax(1, keepdim=True).clamp_min(1e-6) / 7
        rounded = torch.where(large, x, x + ((x / scale).round() * scale - x).detach())
        return super().forward(rounded)


class Adapted(nn.Module):
    """A frozen layer with an adapter beside it."""

    def __init__(self, base):
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(32, 2, bias=False), nn.Linear(2, 16, bias=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.base(x).float() + self.up(self.down(x))))


def squares(model, x):
    return model(x).square().sum(1)


def draw_two_lots(base):
    torch.manual_seed(0)
    x = torch.randn(200, 32)
    x[::3, 3] = 20.0
    private = sd.Private(Adapted(base), squares, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
    for lot in private.draws(torch.utils.data.TensorDataset(x), sd.Poisson(0.1), 2, expected_batch=20):
        private.backward(lot)
    return private.claim(1e-5)


def test_outliers_chosen_over_the_batch_couple_its_records_and_are_refused():
    """Which columns are rounded depends on the largest record, so every loss of the batch does."""
    plain = nn.Linear(32, 16)
    assert isinstance(draw_two_lots(EightBit(plain)), sd.Guarantee)
    with pytest.raises(sd.Refusal, match="coupled"):
        draw_two_lots(Outliers(plain))


class Linear8bitLt(EightBit):
    """Has the name and the state of the layer of bitsandbytes, by which that is known."""

    def __init__(self, plain: nn.Linear, threshold: float) -> None:
        super().__init__(plain)
        self.state = SimpleNamespace(threshold=threshold)


def test_the_layer_that_chooses_outliers_is_refused_by_name():
    assert isinstance(draw_two_lots(Linear8bitLt(nn.Linear(32, 16), 0.0)), sd.Guarantee)
    with pytest.raises(sd.Refusal, match=r"module 'base' is a Linear8bitLt with threshold=6(.|\n)*llm_int8_threshold"):
        draw_two_lots(Linear8bitLt(nn.Linear(32, 16), 6.0))


@pytest.mark.filterwarnings("ignore")
def test_outliers_of_bitsandbytes_are_refused_too():
    bitsandbytes = pytest.importorskip("bitsandbytes")
    plain = nn.Linear(32, 16)
    for threshold in (0.0, 6.0):
        base = bitsandbytes.nn.Linear8bitLt(32, 16, has_fp16_weights=False, threshold=threshold)
        base.load_state_dict(copy.deepcopy(plain.state_dict()))
        base = base.to("cpu").requires_grad_(False)
        if threshold:
            with pytest.raises(sd.Refusal, match=r"llm_int8_threshold=0\.0"):
                draw_two_lots(base)
        else:
            assert isinstance(draw_two_lots(base), sd.Guarantee)
