"""Trainer, Lightning and accelerate under torchrun: any number of processes has the bits and the claim of one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings

import pytest
import torch

import sordino as sd
from sordino.integrations import Privacy
from sordino.integrations.launched import refuse_training_alone
from tests.integrations.words import Sentences, bert, padded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("lightning")
    accelerate = pytest.importorskip("accelerate")
    from sordino.integrations.accelerate import prepare
    from sordino.integrations.transformers import Trainer

pytestmark = pytest.mark.filterwarnings("ignore")
PATIENCE = 300.0
STEPS = 4
FIXED = Privacy(query=sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), delta=1e-5)


def launch(size, kinds, folder, *more):
    """Starts torchrun on so many processes of this machine; none waits for a dead one for ever."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size), "-m"]
    command += ["tests.integrations.launched_loops", kinds, str(folder), *map(str, more)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said[-3000:]


def came_to(folder):
    said = json.loads((folder / "claim.json").read_text())
    return torch.load(folder / "parameters.pt", weights_only=True), said


KINDS = "trainer+accelerate+lightning"


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """What every framework comes to on one process, with a checkpoint of every step."""
    folder = tmp_path_factory.mktemp("one")
    finish(launch(1, KINDS, folder, "--steps", STEPS))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_every_framework_has_the_bits_of_one_process(one_process, tmp_path, size):
    """Several processes continue a copy of the first checkpoint: every bit and the claim must be the same."""
    shutil.copytree(one_process, tmp_path / "several")
    finish(launch(size, KINDS, tmp_path / "several", "--steps", STEPS, "--resume", 1))
    for kind in KINDS.split("+"):
        (one, one_said), (several, several_said) = (came_to(run / kind) for run in (one_process, tmp_path / "several"))
        assert (one_said.pop("ranks"), several_said.pop("ranks")) == (1, size)
        # Held-out records lie in other batches on several processes, and their mean loss is one of batch means.
        assert several_said.pop("evaluated", 0.0) == pytest.approx(one_said.pop("evaluated", 0.0), rel=0.05)
        assert several_said == one_said  # ε and the event
        assert all(torch.equal(several[name], value) for name, value in one.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "checkpoint", "size", "after"),
    [("trainer", "checkpoint-{}/sordino.json", 2, 3), ("lightning", "{}.ckpt", 3, 2), ("accelerate", "{}.pt", 2, 1)],
)
def test_a_killed_rank_ends_the_others_and_another_number_goes_on_to_the_same_bits(
    one_process, tmp_path, kind, checkpoint, size, after
):
    # The run that is killed begins with the first checkpoint of the whole one, and so with its key.
    run = tmp_path / "run" / kind
    shutil.copytree(one_process / kind, run)
    for step in range(2, STEPS + 1):
        left_over = run / checkpoint.format(step).split("/")[0]
        shutil.rmtree(left_over) if left_over.is_dir() else left_over.unlink()
    (run / "parameters.pt").unlink()
    process = launch(size, kind, tmp_path / "run", "--steps", STEPS, "--resume", 1, "--pause", 2)
    until = time.monotonic() + PATIENCE
    while not (run / checkpoint.format(2)).exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(last_child_of(process.pid), signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert not (run / "parameters.pt").exists()  # nobody went on alone
    finish(launch(after, kind, tmp_path / "run", "--steps", STEPS, "--resume", 2))
    (whole, whole_said), (found, said) = came_to(one_process / kind), came_to(run)
    assert said["epsilon"] == whole_said["epsilon"]
    assert all(torch.equal(found[name], value) for name, value in whole.items())


def last_child_of(pid):
    """The process of the last rank: the youngest that torchrun started and that runs the loop."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        children = [int(child) for child in file.read().split()]
    loops = []
    for child in children:
        with open(f"/proc/{child}/cmdline", "rb") as file:
            if b"launched_loops" in file.read():
                loops.append(child)
    return max(loops)


def make_trainer(folder, key_folder=None, max_steps=4, **more):
    settings = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=25,
        gradient_accumulation_steps=2,
        max_steps=max_steps,
        save_strategy="steps",
        save_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **more,
    )
    data = Sentences(300, seed=0)
    return Trainer(bert(), settings, data_collator=padded, train_dataset=data, privacy=FIXED, key_folder=key_folder)


def test_a_trainer_with_a_key_folder_repeats_its_bits_and_says_so(tmp_path):
    whole = make_trainer(tmp_path / "run", tmp_path / "key")
    whole.train()
    again = make_trainer(tmp_path / "run", tmp_path / "key")
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    ours, theirs = dict(again.model.named_parameters()), dict(whole.model.named_parameters())
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    assert again.claim().epsilon == whole.claim().epsilon
    assert "the same script, data and settings" in str(again.claim())
    # With a new key the noise is another, so a test that compares bits can fail.
    other = make_trainer(tmp_path / "run")
    other.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert not all(torch.equal(p, theirs[name]) for name, p in other.model.named_parameters())


def test_a_checkpoint_that_was_not_finished_is_passed_over(tmp_path):
    make_trainer(tmp_path).train()
    (tmp_path / "checkpoint-4" / "sordino.json").unlink()  # as a rank leaves it that is killed while it saves
    again = make_trainer(tmp_path)
    again.train(resume_from_checkpoint=True)
    assert again.private.steps == 4
    assert again.state.global_step == 4


def test_processes_that_do_not_know_each_other_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")  # as a launcher sets it; without LOCAL_RANK accelerate trains alone
    with pytest.raises(sd.Refusal, match=r"2 processes were started, 1 are known.*\n.*\nsay so"):
        refuse_training_alone(1, "say so")


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"mixed_precision": "fp16"}, "gradient scaler"), ({"gradient_accumulation_steps": 2}, "a lot is one step")],
)
def test_accelerators_that_change_gradients_are_refused(settings, said):
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    if settings.get("mixed_precision") == "fp16":
        accelerator = accelerate.Accelerator(cpu=True)
        accelerator.state._mixed_precision = "fp16"  # which theirs refuses on CPUs by itself
    else:
        accelerator = accelerate.Accelerator(cpu=True, **settings)
    model = torch.nn.Linear(2, 1)
    with pytest.raises(sd.Refusal, match=said):
        prepare(accelerator, model, torch.optim.SGD(model.parameters(), lr=0.1))
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
