"""bfloat16 in the Trainer, Lightning and accelerate: with almost no noise they train as plain bf16 training does."""

import warnings
from functools import partial

import pytest
import torch
from torch import nn

import sordino as sd
from sordino.integrations import Privacy
from tests.integrations.words import Sentences, bert, padded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")
    lightning = pytest.importorskip("lightning")
    accelerate = pytest.importorskip("accelerate")
    from sordino.integrations.accelerate import prepare
    from sordino.integrations.lightning import PrivateModule
    from sordino.integrations.transformers import Trainer

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS, RATE = 3, 0.1
QUERY = sd.NoisySum(sd.Flat(100.0), sd.Gaussian(1e-7))  # clips nothing, and its noise is far below bfloat16's rounding
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(60, 6, generator=GENERATOR)
DATA = torch.utils.data.TensorDataset(X, (X[:, 0] > 0).long())
WORDS = Sentences(60, seed=0)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2))


def losses(model, x, y):
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def plain(model, mean_loss, dtype):
    """Trains on all records at once, under autocast to bfloat16 or in float32."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            loss = mean_loss(model)
        loss.backward()
        optimizer.step()
    return model


def distance(one, other):
    return max(
        float((p.float() - q.float()).abs().max()) for p, q in zip(one.parameters(), other.parameters(), strict=True)
    )


def check_against_plain(private, make, mean_loss):
    """Compares with plain bf16 training; the yardstick is how far that is from float32 training of the same model."""
    low, full = (plain(make(), mean_loss, dtype) for dtype in (torch.bfloat16, torch.float32))
    yardstick = distance(low, full)
    assert yardstick > 0
    assert distance(private, low) <= yardstick
    assert distance(private, full) > 0.01 * yardstick  # bfloat16 was used: float32 would be at the noise's distance


def check_not_voided(claim):
    """So little noise supports no ε at this δ; but nothing in the run may have voided its claim."""
    assert isinstance(claim, sd.NoGuarantee)
    assert "below what the noise supports" in claim.reason


def mean_of_net(model):
    return losses(model, *DATA.tensors).mean()


def mean_of_bert(model):
    return model(**padded(WORDS.records)).loss


def test_the_trainer_in_bf16(tmp_path):
    model = bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    settings = transformers.TrainingArguments(
        str(tmp_path), max_steps=STEPS, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, bf16=True
    )
    run = Trainer(
        model,
        settings,
        data_collator=padded,
        train_dataset=WORDS,
        privacy=Privacy(query=QUERY, delta=1e-5),
        sampler=sd.Poisson(1.0),
        optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)),
    )
    run.train()
    assert run.private.steps == STEPS
    check_not_voided(run.claim())
    check_against_plain(model, partial(bert, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), mean_of_bert)


class Classifier(PrivateModule):
    def __init__(self):
        super().__init__()
        self.net = net()

    def record_losses(self, x, y):
        return losses(self.net, x, y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=RATE)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_lightning_in_bf16(tmp_path, precision):
    module = Classifier()
    lots = module.make_private(
        DATA, Privacy(query=QUERY, delta=1e-5), sd.Poisson(1.0), STEPS, expected_batch=60, precision=precision
    )
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    lightning.Trainer(
        default_root_dir=tmp_path, max_epochs=1, accelerator="cpu", devices=1, precision=precision, **quiet
    ).fit(module, lots)
    check_not_voided(module.claim())
    if precision == "bf16-mixed":
        check_against_plain(module.net, net, mean_of_net)
    else:  # parameters of eight bits of fraction: as far from float32 as their own rounding
        assert all(p.dtype is torch.bfloat16 for p in module.parameters())
        full = plain(net(), mean_of_net, torch.float32)
        assert distance(module.net, full) <= STEPS * 2**-8
    with pytest.raises(sd.Refusal, match="gradient scaler"):
        Classifier().make_private(DATA, Privacy(query=QUERY, delta=1e-5), sd.Poisson(1.0), 1, precision="16-mixed")


def test_accelerate_in_bf16():
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    plain_model = net()
    model, optimizer = prepare(accelerator, plain_model, torch.optim.SGD(plain_model.parameters(), lr=RATE))
    assert model is plain_model
    private = sd.Private(model, losses, QUERY)
    for lot in private.draws(DATA, sd.Poisson(1.0), STEPS, expected_batch=60):
        private.backward(lot)
        optimizer.step()
    check_not_voided(private.claim(1e-5))
    check_against_plain(model, net, mean_of_net)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
