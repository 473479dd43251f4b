"""Lightning's module, misused in ways that are natural there: its own step, its log, hooks without `super`, loaders."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sordino as sd
from sordino.integrations import Privacy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of their imports, about themselves
    lightning = pytest.importorskip("lightning")
    from sordino.integrations.lightning import PrivateModule

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs: about devices and workers

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(240, 4, generator=GENERATOR)
Y = (X[:, 0] > 0).long()
DATA, HELD_OUT = TensorDataset(X[:200], Y[:200]), TensorDataset(X[200:], Y[200:])
PRIVACY = Privacy(query=sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), delta=1e-4)


def voided(claim, words):
    assert isinstance(claim, sd.NoGuarantee), claim
    assert words in claim.reason, claim.reason


class Classifier(PrivateModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 2)

    def record_losses(self, x, y):
        return nn.functional.cross_entropy(self.net(x), y, reduction="none")

    def validation_step(self, batch, _):
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fitted(module, folder, held_out=None, **more):
    lots = module.make_private(DATA, PRIVACY, sd.Poisson(0.25), 3, expected_batch=50)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    run = lightning.Trainer(default_root_dir=folder, accelerator="cpu", max_epochs=1, logger=False, **quiet | more)
    run.fit(module, lots, held_out)
    return run


class OwnTrainingStep(Classifier):
    def training_step(self, batch, _):
        return self.record_losses(*DATA[:50]).mean()


class Manual(Classifier):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class LogsTheLoss(Classifier):
    def record_losses(self, x, y):
        found = super().record_losses(x, y)
        self.log("train_loss", found.mean())
        return found


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (OwnTrainingStep, "training_step is overridden"),
        (Manual, "automatic_optimization=False"),
        (LogsTheLoss, "loss_bound"),
    ],
)
def test_a_module_that_goes_its_own_way_is_refused(tmp_path, kind, words):
    with pytest.raises(sd.Refusal, match=words):
        fitted(kind(), tmp_path)


class OwnHooks(Classifier):
    """Hooks without `super`, as they are often written."""

    def on_train_start(self):
        self.began = True

    def on_validation_start(self):
        self.looked = True

    def on_save_checkpoint(self, checkpoint):
        checkpoint["mine"] = 1

    def on_load_checkpoint(self, checkpoint):
        self.mine = checkpoint["mine"]


def test_hooks_that_forget_super_lose_neither_refusals_nor_the_ledger(tmp_path):
    with pytest.raises(sd.Refusal, match="give the same precision to make_private"):
        fitted(OwnHooks(), tmp_path, precision="bf16-mixed")
    module = OwnHooks()
    run = fitted(module, tmp_path)
    run.save_checkpoint(tmp_path / "it.ckpt")
    again = OwnHooks.load_from_checkpoint(tmp_path / "it.ckpt", weights_only=False)
    assert again.mine == 1
    fitted(again, tmp_path)
    assert again.private.steps == 6
    fitted(again, tmp_path, DataLoader(DATA, 50))
    assert again.looked
    voided(again.claim(), "trained on were evaluated")


@pytest.mark.parametrize(
    "loaders",
    [
        lambda: {"a": DataLoader(HELD_OUT, 20), "b": DataLoader(DATA, 50)},
        lambda: lightning.pytorch.utilities.CombinedLoader([DataLoader(DATA, 50)], "sequential"),
        lambda: DataLoader(TensorDataset(X[:200].clone(), Y[:200]), 50),
    ],
    ids=["a dict", "combined", "a copy"],
)
def test_the_training_set_is_known_again_in_every_wrapping(tmp_path, loaders):
    module = Classifier()
    run = fitted(module, tmp_path)
    run.predict(module, DataLoader(HELD_OUT, 50))
    assert isinstance(module.claim(), sd.Guarantee)
    run.predict(module, loaders())
    voided(module.claim(), "trained on were evaluated")


def test_a_copy_of_a_module_has_the_weights_and_no_run(tmp_path):
    module = Classifier()
    fitted(module, tmp_path)
    with pytest.raises(sd.Refusal, match="not made private"):
        copy.deepcopy(module).claim()
