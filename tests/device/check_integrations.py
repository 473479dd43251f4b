"""Integrations on a device: Trainer, accelerate, Lightning and skorch train, claim, save, resume and predict there.

Each is told of the device in its own way: skorch by its option, accelerate and with it the Trainer by the variable
ACCELERATE_TORCH_DEVICE, Lightning by an accelerator class, which is how makers of devices bring theirs.
"""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sordino as sd
from sordino.integrations import Privacy
from tests.device.simulated import start
from tests.integrations.words import Sentences, bert, padded

sim = start()

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of their imports, about themselves
    for name in ("skorch", "transformers", "accelerate", "lightning"):
        pytest.importorskip(name, reason=f"{name} is in an extra")
    import accelerate
    import lightning
    import transformers
    from lightning.pytorch.accelerators import Accelerator as LightningAccelerator
    from lightning.pytorch.strategies import SingleDeviceStrategy

    from sordino.integrations.accelerate import prepare
    from sordino.integrations.lightning import PrivateModule
    from sordino.integrations.skorch import NeuralNetClassifier
    from sordino.integrations.transformers import Trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

DEVICE = torch.device("sim", 0)
X = np.random.default_rng(0).normal(size=(400, 6)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")
DATA = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
HELD_OUT = TensorDataset(-DATA.tensors[0][:50], 1 - DATA.tensors[1][:50])
QUERY = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
FIXED = Privacy(query=QUERY, delta=1e-5)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))


def values(model):
    return [p.detach().cpu().clone() for p in model.parameters()]


def have_moved(before, model):
    return all(not torch.equal(old, new) for old, new in zip(before, values(model), strict=True))


def fit_by_skorch(device):
    privacy = Privacy.target(epsilon=5.0, delta=1e-4, bound=1.0)
    settings = {"privacy": privacy, "max_epochs": 4, "batch_size": 100, "optimizer": torch.optim.Adam, "lr": 0.05}
    return NeuralNetClassifier(net(), classes=[0, 1], verbose=0, device=device, **settings).fit(X, Y)


def test_a_net_of_skorch_trains_on_the_device_and_has_the_claim_of_the_cpu():
    here, there = fit_by_skorch("cpu"), fit_by_skorch("sim")
    assert {p.device.type for p in there.module_.parameters()} == {"sim"}
    assert isinstance(there.claim_, sd.Guarantee), there.claim_
    assert there.claim_.epsilon == here.claim_.epsilon
    assert there.predict(X).shape == (400,)


@pytest.fixture
def accelerate_on_device(monkeypatch):
    """Tells accelerate, and the Trainer by it, which device to use; their state of the process is forgotten after it."""
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "sim")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def make_trainer(folder):
    settings = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=25,
        gradient_accumulation_steps=2,
        max_steps=4,
        save_strategy="steps",
        save_steps=2,
        report_to=[],
        disable_tqdm=True,
    )
    data = {"train_dataset": Sentences(300, seed=0), "eval_dataset": Sentences(50, seed=1), "data_collator": padded}
    return Trainer(bert(), settings, privacy=FIXED, **data)


def test_the_trainer_trains_resumes_and_predicts_on_the_device(accelerate_on_device, tmp_path):
    whole = make_trainer(tmp_path)
    before = values(whole.model)
    whole.train()
    assert {p.device for p in whole.model.parameters()} == {DEVICE}
    assert have_moved(before, whole.model)
    assert isinstance(whole.claim(), sd.Guarantee), whole.claim()
    assert np.isfinite(whole.evaluate()["eval_loss"])
    assert whole.predict(Sentences(10, seed=2)).predictions.shape == (10, 2)
    # A checkpoint that was saved on the device goes on there, with its ledger.
    later = make_trainer(tmp_path)
    later.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert later.private.steps == 4
    assert later.claim().epsilon == whole.claim().epsilon


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_loop_of_accelerate_trains_on_the_device_what_its_optimizer_was_made_with(accelerate_on_device, precision):
    """`.to` makes new parameter objects for this device, and the optimizer must step those."""
    accelerator = accelerate.Accelerator(mixed_precision=precision)
    own = net()
    model, optimizer = prepare(accelerator, own, torch.optim.Adam(own.parameters(), lr=0.05))
    before = values(model)
    private = sd.Private(model, lambda m, x, y: nn.functional.cross_entropy(m(x), y, reduction="none"), QUERY)
    for lot in private.draws(DATA, sd.Poisson(0.1), steps=3):
        optimizer.zero_grad()
        private.backward(lot)
        optimizer.step()
    assert {p.device for p in model.parameters()} == {DEVICE}
    assert have_moved(before, model)
    assert isinstance(private.claim(1e-5), sd.Guarantee), private.claim(1e-5)


class OwnAccelerator(LightningAccelerator):
    """What a maker of a device gives Lightning."""

    def setup_device(self, device):
        """Does nothing: the device needs no preparation."""

    def teardown(self):
        """Does nothing."""

    @staticmethod
    def parse_devices(devices):
        return [DEVICE]

    @staticmethod
    def get_parallel_devices(devices):
        return [DEVICE]

    @staticmethod
    def auto_device_count():
        return 1

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def name():
        return "sim"

    def get_device_stats(self, device):
        return {}


class Classifier(PrivateModule):
    def __init__(self):
        super().__init__()
        self.net = net()
        self.register_buffer("temperature", torch.ones(()))
        self.writes_by_hand = False

    def record_losses(self, x, y):
        return nn.functional.cross_entropy(self.net(x) / self.temperature, y, reduction="none")

    def validation_step(self, batch, _):
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def predict_step(self, batch, _):
        return self.net(batch[0]).argmax(1)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)

    def _apply(self, fn, recurse=True):
        """Moves the module; one that writes by hand adds something to its values on the way."""
        moved = super()._apply(fn, recurse)
        if self.writes_by_hand:
            self.net[0].weight.data += 1.0
        return moved


def fit_by_lightning(folder, module, precision="32-true"):
    lots = module.make_private(DATA, FIXED, sd.Poisson(0.25), 4, expected_batch=100, precision=precision)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        accelerator=OwnAccelerator(),
        strategy=SingleDeviceStrategy(DEVICE),
        max_epochs=1,
        default_root_dir=folder,
        precision=precision,
        **quiet,
    )
    trainer.fit(module, lots, DataLoader(HELD_OUT, 25))
    return trainer


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_module_of_lightning_keeps_its_claim_when_the_trainer_moves_it_there_and_back(tmp_path, precision):
    module = Classifier()
    devices = []
    module.on_train_batch_end = lambda *_: devices.append(module.device)
    before = values(module)
    trainer = fit_by_lightning(tmp_path, module, precision)
    assert set(devices) == {DEVICE}
    assert module.device.type == "cpu", "the trainer moves the module back at the end"
    assert have_moved(before, module)
    assert isinstance(module.claim(), sd.Guarantee), module.claim()
    assert trainer.predict(module, DataLoader(HELD_OUT, 25))[0].shape == (25,)
    assert isinstance(module.claim(), sd.Guarantee), module.claim()
    # A checkpoint goes on, with its ledger.
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    again = Classifier.load_from_checkpoint(tmp_path / "half.ckpt", weights_only=False, map_location="cpu")
    fit_by_lightning(tmp_path, again, precision)
    assert again.private.steps == 8
    assert again.claim().epsilon > module.claim().epsilon


def test_a_module_of_lightning_whose_values_change_on_the_move_has_no_claim(tmp_path):
    module = Classifier()
    module.on_train_end = lambda: setattr(module, "writes_by_hand", True)
    fit_by_lightning(tmp_path, module)
    assert isinstance(module.claim(), sd.NoGuarantee)
    assert "'net.0.weight'" in str(module.claim())


def test_a_module_of_lightning_that_is_moved_to_an_unfit_device_is_refused_before_anything_is_drawn(tmp_path):
    module = Classifier()
    with sim.switches(no_float64=True), pytest.raises(sd.Refusal, match="has no float64"):
        fit_by_lightning(tmp_path, module)
    assert module.private.steps == 0
