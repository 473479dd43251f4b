"""How claims, ledgers and runs look at a prompt and in a notebook, and what progress shows to whom."""

import io
import os
import pty
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import torch
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.app.runs.progress_view import OneLine, Silent, choose_fit_view
from sordino.progress_bar import ProgressBar, can_show_progress, render_bar

DATA = TensorDataset(torch.randn(200, 3), torch.randint(2, (200,)))


class Text(HTMLParser):
    """Collects the text of HTML, and refuses tags that do not match."""

    def __init__(self, html):
        super().__init__()
        self.text, self.open = [], []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def text_of(one):
    return " ".join(Text(one._repr_html_()).text)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def make_private(**arguments):
    return sd.Private(
        torch.nn.Linear(3, 2),
        lambda model, x, y: torch.nn.functional.cross_entropy(model(x), y, reduction="none"),
        sd.NoisySum(sd.Flat(1.0), sd.Gaussian(2.0)),
        seed=0,
        **arguments,
    )


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return sd.fit("spiral", steps=40, records=300, seed=0, out=tmp_path_factory.mktemp("runs") / "run")


def test_a_claim_at_a_prompt_is_a_sentence():
    ledger = sd.Ledger()
    ledger.release(sd.events.Gaussian(5.0))
    ledger.disclose("dataset size")
    ledger.disclose("seed")
    claim = ledger.claim(delta=1e-5)
    assert repr(claim) == (
        "Guarantee: (0.726, 1e-05)-differential privacy for one record added or removed; "
        "not covered: dataset size and 1 more, which print() lists."
    )
    assert repr(sd.NoGuarantee("the records were printed")) == "NoGuarantee: the records were printed"


def test_a_claim_in_a_notebook_says_all_that_print_says():
    ledger = sd.Ledger()
    ledger.release(sd.events.Gaussian(5.0))
    ledger.disclose("dataset <size>")
    ledger.declare("your word: initial weights are public")
    claim = ledger.claim(delta=1e-5)
    shown = text_of(claim)
    for line in str(claim).splitlines()[2:]:
        name, value = line[:15].strip(), line[15:].strip()
        assert name in shown
        assert value in shown
    assert "(0.726, 1e-05)-differential privacy" in shown
    assert "dataset <size>" not in claim._repr_html_()  # escaped


def test_no_guarantee_in_a_notebook_has_its_reason_and_no_epsilon():
    shown = text_of(sd.NoGuarantee("the records were printed"))
    assert "No privacy guarantee" in shown
    assert "the records were printed" in shown
    assert "ε" not in shown


def test_a_ledger_shows_its_event_what_was_disclosed_and_why_it_is_void():
    ledger = sd.Ledger()
    assert repr(ledger) == "Ledger\n  event      nothing yet"
    ledger.release(sd.events.Gaussian(5.0))
    ledger.disclose("seed")
    assert repr(ledger) == "Ledger\n  event      Gaussian(5)\n  disclosed  seed"
    ledger.void("the records were printed")
    assert "the records were printed" in repr(ledger)
    assert "the records were printed" in text_of(ledger)


def test_a_private_shows_what_was_chosen():
    private = make_private()
    assert "Flat(bound=1.0)" in text_of(private)
    assert "0 lots so far" in text_of(private)


def test_a_history_is_a_short_table(history):
    lines = repr(history).splitlines()
    assert len(lines) <= 16
    assert max(map(len, lines)) <= 200
    assert "finished, 40 steps" in lines[0]
    assert lines[1].split() == ["step", "epoch", "ε", "test", "accuracy", "test", "loss"]
    assert lines[2].split()[0] == str(history.rows[0].step)
    assert any(line.split()[0] == "40" for line in lines[2:8])  # the last evaluation is always shown
    assert lines[-1].strip() == repr(history.claim)
    assert any("AUC" in line and "baseline 0.5000" in line for line in lines)


def test_a_history_in_a_notebook_shows_measures_beside_the_baseline_and_the_claim(history):
    shown = text_of(history)
    assert f"{history.measures['auc']:.4f}" in shown
    assert "always the majority" in shown
    assert "differential privacy" in shown


def test_a_trained_model_says_what_it_takes_and_predicts(history):
    model = sd.load(history.run)
    assert "predicts one of 0, 1, 2" in repr(model)
    assert "differential privacy" in text_of(model)


def test_a_bar_shows_how_much_is_done_and_what_is_left():
    assert render_bar("lot", 30, 120, 62.0) == "lot  30/120 ██████░░░░░░░░░░░░░░░░░░  25 %  1:02 left"
    assert render_bar("lot", 120, 120, 0.0).endswith("100 %")


def test_a_bar_writes_one_line_on_a_terminal_and_nothing_to_a_file():
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        bar = ProgressBar(3, "lot", stream)
        for done in range(4):
            bar.update(done)
        bar.close()
    assert not file.getvalue()
    assert "3/3" in terminal.getvalue()
    assert terminal.getvalue().count("\n") == 1
    assert can_show_progress(terminal)
    assert not can_show_progress(file)


def test_draws_with_progress_count_lots_and_never_their_records(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    private = make_private()
    lots = private.draws(DATA, sd.Poisson(0.1), steps=5, expected_batch=20, progress=True)
    for lot in lots:
        private.backward(lot)
    shown = sys.stderr.getvalue()
    assert "lot 0/5" in shown
    assert "lot 5/5" in shown
    assert repr(lots) == "Draws: 5 of 5 lots drawn"


def test_draws_are_silent_unless_progress_is_asked_for(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    private = make_private()
    for lot in private.draws(DATA, sd.Poisson(0.1), steps=3, expected_batch=20):
        private.backward(lot)
    assert not sys.stderr.getvalue()


def test_progress_changes_no_bit_of_a_run(monkeypatch):
    models = []
    for progress in (False, True):
        monkeypatch.setattr(sys, "stderr", Terminal())
        torch.manual_seed(0)
        private = make_private()
        optimizer = torch.optim.SGD(private._model.parameters(), lr=1.0)
        for lot in private.draws(DATA, sd.Poisson(0.1), steps=5, expected_batch=20, progress=progress):
            private.backward(lot)
            optimizer.step()
        models.append(private._model.weight.detach().clone())
    assert torch.equal(*models)


def test_fit_is_silent_in_a_program(tmp_path, capfd):
    sd.fit("spiral", steps=4, records=200, out=tmp_path / "run")
    assert capfd.readouterr() == ("", "")
    assert isinstance(choose_fit_view(None), Silent)
    with pytest.raises(TypeError, match="progress"):
        sd.fit("spiral", steps=4, records=200, out=tmp_path / "other", progress="yes")


def run_on_a_terminal(code, cwd):
    """Runs Python code with standard error on a terminal; returns what was written to it."""
    reader, writer = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=writer, cwd=cwd, env=environment)
    os.close(writer)
    shown = b""
    while True:
        try:
            part = os.read(reader, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    assert process.wait() == 0
    os.close(reader)
    return shown.decode()


def test_fit_shows_a_bar_on_a_terminal_unless_it_is_not_wanted(tmp_path):
    code = "import sordino; sordino.fit('spiral', steps=6, records=200, out='{}', progress={})"
    shown = run_on_a_terminal(code.format("shown", None), tmp_path)
    assert "step 6/6" in shown
    assert "ε" in shown
    assert "[private]" not in shown
    assert not run_on_a_terminal(code.format("hidden", False), tmp_path)


def test_a_notebook_gets_one_line_with_epsilon_and_test_accuracy(tmp_path):
    stream = Terminal()
    sd.fit("spiral", steps=6, records=200, out=tmp_path / "run", view=OneLine(stream), evaluate_every=2)
    shown = stream.getvalue()
    assert "spiral: 200 records" in shown
    assert "step 6/6" in shown
    assert "of 3" in shown
    assert "%" in shown
