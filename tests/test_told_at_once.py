"""A run that loses its guarantee says so where it happens, with the line of the user's code; a strict run stops there."""

import inspect
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.app.cli.main import main
from sordino.ledger.voiding import find_user_frame

pytestmark = pytest.mark.filterwarnings("always::sordino.ledger.voiding.ClaimVoidedWarning")


def _data(n=64, columns=3):
    x = torch.randn(n, columns)
    return TensorDataset(x, (x.sum(1) > 0).long())


def _loss(model, x, y):
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def _private(model, **options):
    return sd.Private(model, _loss, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), **options)


def _line():
    """Returns the number of the line that called this function."""
    return inspect.currentframe().f_back.f_lineno


def _train(private, model, data, step, steps=6):
    """Trains, and calls `step(k)` after every optimizer step; returns the lots' numbers that were drawn."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    drawn = []
    for lot in private.draws(data, sd.Poisson(0.25), steps, expected_batch=16):
        drawn.append(lot.step)
        private.backward(lot)
        optimizer.step()
        step(lot.step)
    return drawn


def test_a_stray_backward_warns_once_at_the_users_line():
    model, data = nn.Linear(3, 2), _data()
    private, lines = _private(model), []

    def stray(k):
        if k in (2, 4):
            x, y = data[:4]
            loss = _loss(model, x, y).mean()
            lines.append(_line() + 1)
            loss.backward()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        drawn = _train(private, model, data, stray)
    assert [one.category for one in told] == [sd.ClaimVoidedWarning], "once, though it happened twice"
    assert (Path(told[0].filename).name, told[0].lineno) == (Path(__file__).name, lines[0])
    assert "private.public" in str(told[0].message), "the cure is in the message"
    assert len(drawn) == 6
    assert isinstance(private.claim(1e-5), sd.NoGuarantee)


@pytest.mark.parametrize("way", ["parameter", "gradient", "backward", "batch", "records"])
def test_a_strict_run_raises_where_it_happens_and_stays_void(way):
    model, data = nn.Linear(3, 2), _data()
    private = _private(model, strict=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    drawn = 0

    def train():
        nonlocal drawn
        for lot in private.draws(data, sd.Poisson(0.25), 6, expected_batch=16):
            drawn += 1
            private.backward(lot)
            if way == "gradient" and drawn == 3:
                model.weight.grad.add_(1.0)
            optimizer.step()
            if drawn == 3:
                if way == "parameter":
                    with torch.no_grad():
                        model.weight += 1.0
                if way == "backward":
                    _loss(model, *data[:4]).sum().backward()
                if way == "batch":
                    private.backward(data[:4])
                if way == "records":
                    next(iter(lot.batches()))

    with pytest.raises(sd.ClaimVoided, match=Path(__file__).name):
        train()
    assert drawn == 3, "told at the lot where it happened"
    assert isinstance(private.claim(1e-5), sd.NoGuarantee), "catching the error does not bring the guarantee back"


def test_a_coupled_loss_is_told_with_the_line_of_the_loop():
    model, data = nn.Linear(3, 2), _data()
    calls = []

    def coupled(model, x, y):
        losses = _loss(model, x, y)
        return losses - losses.mean() if len(calls) > 0 else losses

    private = sd.Private(model, coupled, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), strict=True)
    with pytest.raises(sd.ClaimVoided):
        _train(private, model, data, lambda k: calls.append(k), steps=40)


def test_a_run_that_keeps_its_guarantee_says_nothing():
    model = nn.Linear(3, 2)
    private = _private(model, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _train(private, model, _data(), lambda k: None)
        assert isinstance(private.claim(1e-5), sd.Guarantee)


def test_two_runs_voided_by_the_same_line_are_both_told():
    def void_one():
        model = nn.Linear(3, 2)
        private = _private(model)
        private.backward((torch.randn(4, 3), torch.zeros(4, dtype=torch.long)))

    with warnings.catch_warnings(record=True) as told:
        for _ in range(2):
            void_one()
    assert len(told) == 2


def test_an_audit_voids_without_a_word():
    private = _private(nn.Linear(3, 2), strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        private.restart_query()
    assert isinstance(private.claim(1e-5), sd.NoGuarantee)


def test_strict_must_be_true_or_false():
    with pytest.raises(TypeError, match="strict"):
        _private(nn.Linear(3, 2), strict="yes")


def test_the_users_frame_is_found_behind_torch():
    found = []

    class Spy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            found.append(find_user_frame())
            return grad

    Spy.apply(torch.ones(1, requires_grad=True)).backward()
    assert found[0].f_code.co_filename == __file__


def test_fit_is_strict_and_its_files_promise_nothing(tmp_path):
    class Counting(nn.Linear):
        """Couples records after some steps, which the neighbour test finds."""

        calls = 0

        def forward(self, x):
            Counting.calls += 1
            shift = x.mean(0, keepdim=True) if Counting.calls > 60 else 0.0
            return super().forward(x - shift)

    given = {"epsilon": 3.0, "steps": 200, "rate": 0.25, "out": tmp_path / "run"}
    with pytest.raises(sd.ClaimVoided):
        sd.fit(Counting(3, 2), _data(200), strict=True, **given)
    assert '"epsilon"' not in (tmp_path / "run" / "privacy.json").read_text().split('"claim"')[-1]
    assert "reason" in (tmp_path / "run" / "privacy.json").read_text()


def test_expected_batch_can_be_given_to_fit_and_to_the_command(tmp_path, capsys):
    given = {"epsilon": 3.0, "steps": 5, "rate": 0.25}
    plain = sd.fit(nn.Linear(3, 2), _data(203), out=tmp_path / "plain", **given)
    divided = sd.fit(nn.Linear(3, 2), _data(203), out=tmp_path / "divided", expected_batch=50, **given)
    assert any("dataset size" in name for name in plain.claim.not_covered)
    assert not any("dataset size" in name for name in divided.claim.not_covered)
    flags = ["--steps", "3", "--records", "203", "--no-report", "--expected-batch", "50"]
    assert main(["train", "spiral", *flags, "--out", str(tmp_path / "command")]) == 0
    assert "dataset size" not in capsys.readouterr().out


def test_a_divisor_given_to_fit_scales_the_step(tmp_path):
    """Half the divisor is twice the step: with SGD from the same seed the parameters move exactly twice as far."""
    torch.manual_seed(0)
    data, first = _data(200), nn.Linear(3, 2)
    moved = []
    for divisor in (50.0, 25.0):
        model = nn.Linear(3, 2)
        model.load_state_dict(first.state_dict())
        start = model.weight.detach().clone()
        options = {"optimizer": "sgd", "schedule": "constant", "ema": 0.0, "learning_rate": 0.1, "seed": 3}
        sd.fit(
            model, data, epsilon=3.0, steps=1, rate=0.25, expected_batch=divisor, out=tmp_path / str(divisor), **options
        )
        moved.append(model.weight.detach() - start)
    torch.testing.assert_close(moved[1], 2 * moved[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["dataset", "arrays", "file"])
def test_a_second_fit_on_the_same_data_mentions_the_first(tmp_path, kind):
    torch.manual_seed(1)
    x, y = _data(300).tensors
    given = {"epsilon": 3.0, "steps": 3, "rate": 0.25}
    if kind == "file":
        rows = [f"{a},{b},{c},{label}" for (a, b, c), label in zip(x.tolist(), y.tolist(), strict=True)]
        path = tmp_path / "records.csv"
        path.write_text("\n".join(["a,b,c,label", *rows]))
        from sordino.app.runs.declared_file import OwnFile

        bounds = dict.fromkeys("abc", (-4.0, 4.0))
        data = [OwnFile(path=str(path), target="label", bounds=bounds, classes=("0", "1"))] * 2
        models = ["linear", "linear"]
    else:
        dataset = TensorDataset(x, y)
        data = [dataset] * 2 if kind == "dataset" else [(x.numpy(), y.numpy()) for _ in range(2)]
        models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    claims = [
        sd.fit(model, one, out=tmp_path / f"run{k}", **given).claim
        for k, (model, one) in enumerate(zip(models, data, strict=True))
    ]
    named = [[name for name in claim.not_covered if "another ledger" in name] for claim in claims]
    assert (len(named[0]), len(named[1])) == (0, 1)
    assert "budget file" in named[1][0], "the cure is one that can be followed in fit"
