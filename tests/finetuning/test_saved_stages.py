"""A fine-tuning that is killed at any moment goes on to the parameters and the ledger that it would have come to."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import sordino as sd
from sordino.app.cli.main import main
from sordino.finetuning import FineTuned, make_plan
from sordino.finetuning.saved_stages import STAGES
from tests.finetuning.test_finetune import WIDTH, Tokenizer, encoder, sentences, write_csv, write_model

assert encoder  # a fixture

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def short_plan():
    """Returns a plan with all stages and a few lots in each."""
    plan = make_plan(600, classes=2, width=WIDTH, epsilon=8.0, delta=1e-5)
    assert plan.adapters is not None
    short = {name.replace(" ", "_"): replace(phase, steps=5) for name, phase in plan.phases.items()}
    return replace(plan, **short)


def tune(encoder, folder, *, texts=None, plan=None, seed=None, said=None):
    known_texts, labels = sentences(600, seed=0)
    return sd.finetune(
        encoder,
        Tokenizer(),
        known_texts if texts is None else texts,
        labels,
        epsilon=8.0,
        plan=plan or short_plan(),
        length=16,
        checkpoints=folder,
        seed=seed,
        say=(said if said is not None else []).append,
    )


def parameters_of(tuned):
    parts = [tuned.model.head, *([] if tuned.model.vectors is None else [tuned.model.vectors])]
    return torch.cat([p.detach().flatten() for part in parts for p in part.parameters()])


class Interrupted(BaseException):
    """What the signal raises, wherever the training is."""


def stop_at_step(steps, run):
    """Calls `run` and stops it when so many steps of its optimizers have been taken."""
    left = [steps]

    def count(optimizer, positional, named):
        left[0] -= 1
        if left[0] == 0:
            raise Interrupted

    hook = register_optimizer_step_post_hook(count)
    try:
        with pytest.raises(Interrupted):
            run()
    finally:
        hook.remove()


def test_a_run_that_is_stopped_at_random_moments_ends_as_the_one_that_was_not(encoder, tmp_path):
    whole = tune(encoder, tmp_path / "whole", seed=1)
    # Somewhere in the first stage, then somewhere in what is left: the adapters or, if those had ended, the last head.
    for most in (5, 10, 5):
        stop_at_step(random.randint(1, most), lambda: tune(encoder, tmp_path / "stopped", seed=1))
    again = tune(encoder, tmp_path / "stopped", seed=1)
    assert torch.equal(parameters_of(again), parameters_of(whole))
    # Within one process the claim also names that the parameters come from a run of this process.
    assert (again.claim.event, again.claim.epsilon) == (whole.claim.event, whole.claim.epsilon)
    assert again.claim.rests_on == whole.claim.rests_on
    assert again.adapters_lead == whole.adapters_lead
    assert again.signal_to_noise == whole.signal_to_noise


def test_stages_that_had_begun_are_repeated_with_their_own_noise_and_charged_once(encoder, tmp_path):
    # Without a seed only the noise key in the folder can bring the same bits again.
    said = []

    def stop_at_lead(text):
        said.append(text)
        if "adapters classify" in text:
            raise Interrupted

    texts, labels = sentences(600, seed=0)
    given = {"epsilon": 8.0, "plan": short_plan(), "length": 16, "checkpoints": tmp_path / "one"}
    with pytest.raises(Interrupted):
        sd.finetune(encoder, Tokenizer(), texts, labels, **given, say=stop_at_lead)
    # As if it had been killed within the adapters' lots: the stage has begun and has not ended.
    shutil.rmtree(tmp_path / "one" / "choice")
    (tmp_path / "one" / "adapters" / "done.pt").unlink()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    first, second = (tune(encoder, tmp_path / name) for name in ("one", "two"))
    # Stages up to the adapters repeat one key; the choice and the last head of each copy have keys of their own.
    one, two = (
        torch.load(tmp_path / name / "adapters" / "done.pt", weights_only=True)["parameters"] for name in ("one", "two")
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert first.adapters_lead != second.adapters_lead
    # One charge for each stage: the claim is about what an uninterrupted run is charged for.
    uninterrupted = sd.finetune(
        encoder, Tokenizer(), texts, labels, **given | {"checkpoints": tmp_path / "other"}, say=list
    )
    for tuned in (first, second):
        assert isinstance(tuned.claim, sd.Guarantee), tuned.claim
        assert tuned.claim.event == uninterrupted.claim.event
    # A lead that was told is on the disk before it is told, and is told again as it was.
    third, fourth = [], []
    with pytest.raises(Interrupted):
        sd.finetune(
            encoder, Tokenizer(), texts, labels, **given | {"checkpoints": tmp_path / "three"}, say=stop_at_lead
        )
    told = said[-1]
    tune(encoder, tmp_path / "three", said=third)
    tune(encoder, tmp_path / "three", said=fourth)
    assert third[-1] == fourth[-1] == told


def test_keys_are_there_while_the_run_lasts_and_gone_after_it(encoder, tmp_path):
    folder = tmp_path / "run"
    tune(encoder, folder)
    assert not list(folder.rglob("SECRET*"))
    assert all((folder / stage / "done.pt").is_file() for stage in STAGES)
    content = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert not any(text.encode() in content for text in sentences(600, seed=0)[0])


def test_other_data_another_plan_and_another_environment_are_refused(encoder, tmp_path):
    folder = tmp_path / "run"

    def stop(text):
        raise Interrupted

    texts, labels = sentences(600, seed=0)
    given = {"epsilon": 8.0, "plan": short_plan(), "length": 16, "checkpoints": folder}
    # The plan is said before the first stage, so the second thing said is the lead.
    said = iter([list, stop])
    with pytest.raises(Interrupted):
        sd.finetune(encoder, Tokenizer(), texts, labels, **given, say=lambda text: next(said)(text))
    with pytest.raises(sd.Refusal, match="not those that it began with"):
        tune(encoder, folder, texts=[*texts[1:], "bak bak"])
    with pytest.raises(ValueError, match="another plan"):
        tune(encoder, folder, plan=replace(short_plan(), delta=1e-6))
    begun = json.loads((folder / "begun.json").read_text())
    begun["environment"]["torch"] = "0.1"
    (folder / "begun.json").write_text(json.dumps(begun))
    with pytest.raises(sd.Refusal, match=r"torch was 0\.1"):
        tune(encoder, folder)


def test_a_command_that_is_killed_at_a_random_moment_goes_on_by_resume(encoder, tmp_path, capsys):
    model_folder = write_model(encoder, tmp_path)
    file = write_csv(tmp_path / "reviews.csv", *sentences(600, seed=0))
    out, work = tmp_path / "reviews", tmp_path / "reviews.unfinished"
    given = ["--text", "review", "--target", "stars", "--epsilon", "8", "--length", "16", "--model", str(model_folder)]
    arguments = ["finetune", str(file), *given, "--out", str(out)]
    with subprocess.Popen(
        [sys.executable, "-m", "sordino", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None and not (work / "stages" / "head" / "begun.json").is_file():
            time.sleep(0.02)
        time.sleep(random.uniform(0.0, 1.0))
        process.kill()
        said = process.stderr.read()
    assert process.returncode == -signal.SIGKILL, said
    assert not out.exists()
    assert list(work.rglob("SECRET*"))
    # The same command does not begin a second run over the first.
    assert main(arguments) == 2
    assert f"sordino resume {out}" in capsys.readouterr().err
    assert main(["resume", str(out), "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert outcome["status"] == "finished"
    assert not work.exists()
    loaded = FineTuned.load(out)
    assert 7.9 < loaded.claim.epsilon <= 8.0
    assert not list(out.rglob("SECRET*"))
