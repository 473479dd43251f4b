"""Lightning's own loop, loggers and checkpoints train a module for real; misuses print no ε."""

import warnings

import pytest
import torch
from torch import nn

import sordino as sd
from sordino.integrations import Privacy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning", reason="lightning is in the extra [lightning]")
    from sordino.integrations.lightning import PrivateModule

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs: about workers, devices and logging

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(500, 6, generator=GENERATOR)
Y = (X[:, 0] > 0).long()
DATA, HELD_OUT = (torch.utils.data.TensorDataset(X[rows], Y[rows]) for rows in (slice(0, 400), slice(400, 500)))
QUERY = sd.WithLoss(sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), bound=2.0, noise=sd.Gaussian(5.0))


class Classifier(PrivateModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 2)

    def record_losses(self, x, y):
        return nn.functional.cross_entropy(self.net(x), y, reduction="none")

    def validation_step(self, batch, _):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)


def trainer(folder, **more):
    usual = {"max_epochs": 1, "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(default_root_dir=folder, accelerator="cpu", devices=1, **usual | more)


def fitted(folder, module=None, steps=12, privacy=None, **more):
    made = Classifier() if module is None else module
    chosen = Privacy(query=QUERY, delta=1e-4) if privacy is None else privacy
    lots = made.make_private(DATA, chosen, sd.Poisson(0.25), steps, expected_batch=100)
    run = trainer(folder, **more)
    run.fit(made, lots, torch.utils.data.DataLoader(HELD_OUT, 50))
    return made, run


def test_a_module_learns_logs_and_meets_its_target(tmp_path):
    logger = lightning.pytorch.loggers.CSVLogger(tmp_path)
    target = Privacy.target(epsilon=5.0, delta=1e-4, bound=1.0, loss_bound=2.0)
    made, run = fitted(tmp_path, privacy=target, steps=30, logger=logger, log_every_n_steps=1)
    said = made.claim()
    assert isinstance(said, sd.Guarantee), said
    assert 4.8 < said.epsilon <= 5.0
    assert made.private.steps == 30
    assert float(run.callback_metrics["accuracy"]) > 0.8
    assert float(run.callback_metrics["privacy/epsilon"]) > 0
    assert "loss" in run.callback_metrics
    assert "privacy/epsilon" in (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text()


def test_a_checkpoint_brings_its_ledger(tmp_path):
    made, run = fitted(tmp_path)
    run.save_checkpoint(tmp_path / "half.ckpt")
    again = Classifier.load_from_checkpoint(tmp_path / "half.ckpt", weights_only=False)
    assert torch.equal(again.net.weight, made.net.weight)
    fitted(tmp_path, again)
    assert again.private.steps == 24
    assert again.claim().epsilon > made.claim().epsilon


def test_their_clip_of_what_was_released_costs_nothing(tmp_path):
    assert isinstance(fitted(tmp_path, gradient_clip_val=0.1)[0].claim(), sd.Guarantee)


@pytest.mark.parametrize(
    ("more", "words"),
    [({"accumulate_grad_batches": 2}, "A lot is one step"), ({"precision": "bf16-true"}, "the same precision")],
)
def test_options_that_have_no_private_meaning_are_refused(tmp_path, more, words):
    with pytest.raises(sd.Refusal, match=words):
        fitted(tmp_path, **more)


def test_plain_batches_are_refused(tmp_path):
    made = Classifier()
    made.make_private(DATA, Privacy(query=QUERY, delta=1e-4), sd.Poisson(0.25), 2)
    with pytest.raises(sd.Refusal, match="that no sampler drew"):
        trainer(tmp_path).fit(made, torch.utils.data.DataLoader(DATA, 50))


class MeanLoss(Classifier):
    def record_losses(self, x, y):
        return super().record_losses(x, y).mean()


def test_their_mean_loss_is_refused(tmp_path):
    with pytest.raises(sd.Refusal, match="one loss per sample"):
        fitted(tmp_path, MeanLoss())


class AccumulatesByHand(Classifier):
    def on_train_batch_start(self, batch, batch_idx):
        super().record_losses(X, Y).mean().backward()


class ClipsFirst(Classifier):
    def on_before_optimizer_step(self, optimizer):
        for p in self.parameters():
            p.grad = nn.functional.normalize(p.grad, dim=0)


class SecondOptimizer(Classifier):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        beside = nn.Parameter(torch.zeros(2))
        beside.grad = torch.ones(2)
        torch.optim.SGD([beside], lr=0.1).step()


class ReadsTheLot(Classifier):
    def on_train_batch_start(self, batch, batch_idx):
        list(batch.batches())


def test_evaluating_the_training_set_voids_the_claim(tmp_path):
    made, run = fitted(tmp_path, steps=3)
    run.validate(made, torch.utils.data.DataLoader(HELD_OUT, 50), verbose=False)
    assert isinstance(made.claim(), sd.Guarantee)
    run.validate(made, torch.utils.data.DataLoader(torch.utils.data.Subset(DATA, range(9)), 50), verbose=False)
    assert "trained on were evaluated" in made.claim().reason


@pytest.mark.parametrize("kind", [AccumulatesByHand, ClipsFirst, SecondOptimizer, ReadsTheLot])
def test_natural_misuses_print_no_epsilon(tmp_path, kind):
    assert isinstance(fitted(tmp_path, kind(), steps=3)[0].claim(), sd.NoGuarantee)


def test_records_can_be_isolated(tmp_path):
    made = fitted(tmp_path, steps=2, privacy=Privacy(query=QUERY, delta=1e-4, isolate=True))
    said = (made[0] if isinstance(made, tuple) else made).claim()
    assert any("by construction" in what for what in said.rests_on), str(said)
