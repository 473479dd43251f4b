"""The honesty tests on a device: no attack ends in a claim there either, and honest scripts keep theirs.

The scripts are those of tests/honesty, with their model on the device. Some are written for the CPU and mix a tensor of
their own with the batch: PyTorch stops them, on any device, and they are left out here.
"""

import warnings

import pytest

from tests.device.simulated import move, start
from tests.honesty.attacks import ATTACKS
from tests.honesty.honest import HONEST
from tests.honesty.script import Case, outcome

start()

SOME = 30
"""Every so manieth attack and honest script is run in the fast tests; all of them in the slow ones."""
_FOR_THE_CPU = (
    "Expected all tensors to be on the same device",
    "convert sim:0 device type tensor to numpy",
    "`variable` and `tensor` have incompatible tensor type",  # a tensor of the CPU as `.data`
    "No backend type associated with device type sim",  # gloo under DistributedDataParallel
)


def end_of(case, seed=0):
    """Returns how a script ends with its model on the device, and in which words; skips one that only runs on the CPU."""

    def build(seed):
        script = case.build(seed)
        move(script.model)
        return script

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the strangers' own code
        try:
            return outcome(Case(case.name, build), seed)
        except (RuntimeError, TypeError) as error:
            if not any(text in str(error) for text in _FOR_THE_CPU):
                raise
            pytest.skip("the script mixes tensors of the CPU with the batch")


@pytest.mark.parametrize("case", ATTACKS[::SOME], ids=str)
def test_an_attack_ends_without_a_claim(case):
    end, words = end_of(case)
    assert end != "claimed", words


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for k, case in enumerate(ATTACKS) if k % SOME], ids=str)
def test_every_other_attack_ends_without_a_claim(case):
    end, words = end_of(case)
    assert end != "claimed", words


@pytest.mark.parametrize("case", HONEST[::SOME], ids=str)
def test_an_honest_script_keeps_its_claim(case):
    end, words = end_of(case)
    assert end == "claimed", words


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for k, case in enumerate(HONEST) if k % SOME], ids=str)
def test_every_other_honest_script_keeps_its_claim(case):
    end, words = end_of(case)
    assert end == "claimed", words
