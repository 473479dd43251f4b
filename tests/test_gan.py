"""A GAN's generator is trained on released values alone: its blocks keep the claim, and records in them are found."""

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import relu
from torch.utils.data import Dataset, TensorDataset

import sordino as sd

STEPS, BATCH = 4, 16


class _Gan:
    """A small GAN on points, with the loop that its users write; `inside` is what happens in the block."""

    def __init__(self, *, data=None, batch_norm=False, loss=None, seed=None):
        torch.manual_seed(0)
        self.x = torch.randn(64, 6) + 2.0
        self.data = TensorDataset(self.x) if data is None else data(self.x)
        layers = [nn.Linear(3, 8), *([nn.BatchNorm1d(8)] if batch_norm else []), nn.ReLU(), nn.Linear(8, 6)]
        self.generator = nn.Sequential(*layers)
        self.discriminator = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
        query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
        self.private = sd.Private(self.discriminator, loss or self._discriminator_loss, query, seed=seed)
        self.of_d = torch.optim.SGD(self.discriminator.parameters(), lr=0.05)
        self.of_g = torch.optim.Adam(self.generator.parameters(), lr=0.01)

    def _discriminator_loss(self, discriminator, x):
        """Returns one loss per record: that it is real, and that one of its own fakes is not."""
        fake = self.generator(torch.randn(len(x), 3)).detach()
        real_score, fake_score = discriminator(x)[:, 0], discriminator(fake)[:, 0]
        return relu(1 - real_score) + relu(1 + fake_score)

    def generator_loss(self):
        scores = self.discriminator(self.generator(torch.randn(BATCH, 3)))
        return bce(scores, torch.ones_like(scores))

    def step_generator(self, loss):
        self.of_g.zero_grad()
        loss.backward()
        self.of_g.step()

    def train(self, inside, before=lambda: None):
        for lot in self.private.draws(self.data, sd.Poisson(0.25), STEPS, expected_batch=BATCH):
            self.private.backward(lot)
            self.of_d.step()
            before()
            with self.private.post_processing("the generator"):
                inside()
        return self.private.claim(1e-5)


def _line_about(claim, words):
    return [line for line in claim.rests_on if words in line]


def test_the_natural_loop_keeps_its_claim_and_says_what_it_rests_on():
    gan = _Gan()
    start = [p.detach().clone() for p in gan.generator.parameters()]
    claim = gan.train(lambda: gan.step_generator(gan.generator_loss()))
    assert isinstance(claim, sd.Guarantee), claim
    assert _line_about(claim, "by declaration: the generator")
    assert _line_about(claim, "gradients were taken through the released parameters")
    assert not _line_about(claim, "made outside"), "random numbers and constants made inside need no word"
    assert any(not torch.equal(p, q) for p, q in zip(start, gan.generator.parameters(), strict=True))


def test_the_claim_costs_what_the_discriminator_alone_costs():
    alone = _Gan()
    for lot in alone.private.draws(alone.data, sd.Poisson(0.25), STEPS, expected_batch=BATCH):
        alone.private.backward(lot)
        alone.of_d.step()
    gan = _Gan()
    claim = gan.train(lambda: gan.step_generator(gan.generator_loss()))
    assert claim.epsilon == alone.private.claim(1e-5).epsilon


def test_freezing_the_discriminator_inside_keeps_the_claim():
    gan = _Gan()

    def inside():
        gan.discriminator.requires_grad_(False)
        gan.step_generator(gan.generator_loss())
        gan.discriminator.requires_grad_(True)

    claim = gan.train(inside)
    assert isinstance(claim, sd.Guarantee), claim


def test_a_generator_with_batch_norm_keeps_the_claim():
    gan = _Gan(batch_norm=True, loss=lambda d, x: relu(1 - d(x)[:, 0]))
    claim = gan.train(lambda: gan.step_generator(gan.generator_loss()))
    assert isinstance(claim, sd.Guarantee), claim
    assert not _line_about(claim, "made outside"), "its running statistics are of the model"


def test_the_generators_gradients_do_not_reach_the_discriminators_step():
    """The oracle is the same run whose block takes no gradients: the discriminator is the same but for rounding."""
    found = []
    for takes in (True, False):
        gan = _Gan(seed=5)
        gan.train(lambda gan=gan, takes=takes: gan.generator_loss().backward() if takes else None)
        found.append([p.detach().clone() for p in gan.discriminator.parameters()])
    for p, q in zip(*found, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_without_the_block_the_loop_is_void_and_the_cure_is_named():
    gan = _Gan()
    for lot in gan.private.draws(gan.data, sd.Poisson(0.25), STEPS, expected_batch=BATCH):
        gan.private.backward(lot)
        gan.of_d.step()
        gan.step_generator(gan.generator_loss())
    claim = gan.private.claim(1e-5)
    assert isinstance(claim, sd.NoGuarantee)
    assert "private.post_processing" in claim.reason


class _Pictures(Dataset):
    """Makes every record anew, so that no memory is shared."""

    def __init__(self, x):
        self._rows = x.tolist()

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, at):
        return (torch.tensor(self._rows[at]),)


def _match(gan, real):
    """Returns the generator's loss of an attacker: its fakes are drawn to real records."""
    return (gan.generator(torch.randn(len(real), 3)) - real).square().mean()


ATTACKS = {
    "the tensor itself": lambda gan: gan.x,
    "a view of it": lambda gan: gan.data.tensors[0][5:9],
    "records by index": lambda gan: torch.stack([gan.data[at][0] for at in (3, 7)]),
    "a copy made before": lambda gan: gan.copy,
    "a copy in double precision": lambda gan: gan.copy.double().float(),
    "through the discriminator": lambda gan: gan.copy,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_records_in_a_block_void_the_claim(attack):
    gan = _Gan()

    def inside():
        real = ATTACKS[attack](gan)
        if attack == "through the discriminator":
            features = (gan.discriminator(real) - gan.discriminator(gan.generator(torch.randn(len(real), 3)))).mean()
            gan.step_generator(features.square() + gan.generator_loss())
        else:
            gan.step_generator(_match(gan, real) + gan.generator_loss())

    def before():
        gan.copy = gan.x[torch.randint(0, 64, (8,))].clone()

    with pytest.warns(sd.ClaimVoidedWarning, match="records of the dataset were read"):
        claim = gan.train(inside, before)
    assert isinstance(claim, sd.NoGuarantee)


def test_records_of_a_dataset_that_makes_them_anew_void_the_claim():
    gan = _Gan(data=_Pictures)
    real = torch.stack([gan.data[at][0] for at in range(8)])
    with pytest.warns(sd.ClaimVoidedWarning, match="records of the dataset were read"):
        claim = gan.train(lambda: gan.step_generator(_match(gan, real) + gan.generator_loss()))
    assert isinstance(claim, sd.NoGuarantee)


def test_a_write_of_records_into_parameters_voids_the_claim():
    gan = _Gan()

    def inside():
        with torch.no_grad():
            gan.discriminator[0].weight.add_(gan.x.mean(0))

    with pytest.warns(sd.ClaimVoidedWarning):
        claim = gan.train(inside)
    assert isinstance(claim, sd.NoGuarantee)


def test_tensors_made_of_records_outside_are_named_with_their_line():
    """A mean of the records is no record: it cannot be recognised, so the claim names the line that reads it."""
    gan = _Gan()
    mean = gan.x.mean(0)

    def inside():
        loss = (gan.generator(torch.randn(BATCH, 3)).mean(0) - mean).square().sum()
        gan.step_generator(loss + gan.generator_loss())

    claim = gan.train(inside)
    assert isinstance(claim, sd.Guarantee)
    (line,) = _line_about(claim, "made outside")
    assert "test_gan.py:" in line


def test_a_strict_run_stops_at_the_line_that_reads_records():
    gan = _Gan()
    gan.private._ledger.is_strict = True
    with pytest.raises(sd.ClaimVoided, match=r"test_gan\.py"):
        gan.train(lambda: gan.step_generator(_match(gan, gan.x[:8])))
