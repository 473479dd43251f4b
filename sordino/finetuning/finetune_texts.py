"""Fine-tunes a pretrained text encoder privately, with every choice made by public numbers.

    tuned = sordino.finetune(model, tokenizer, texts, labels, epsilon=8.0)
    tuned.predict(["a fine film"])
    print(tuned.claim)

The frozen encoder reads the texts once. Then the phases of the plan (`plan.py`) are trained on what it made of them: the
head, adapters in the last layer together with it, and the head again. A noisy count of the texts that each classifies
correctly decides whether the last phase goes on from the adapters or from the head before them, so that adapters that do
harm are dropped. Some thousand sentences take minutes on one core.

Privacy: all phases are in one ledger, and the claim is about all of them. The encoder is public, each vector is made of its
own text alone, and every choice is a function of public numbers.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino import validate
from sordino.clipping.flat import Flat
from sordino.finetuning.frozen_texts import FrozenTexts, find_adaptable_layer, find_directions, read_texts
from sordino.finetuning.last_layer import AdaptedVectors
from sordino.finetuning.plan import ADAPTED, ADAPTER_LEARNING_RATES, BOUND, DIRECTION_SCALE, Phase, Plan, make_plan
from sordino.finetuning.saved_stages import SavedStages
from sordino.ledger.claims import Claim
from sordino.ledger.ledger import Ledger
from sordino.lots.privacy_units import Unit
from sordino.optim.signal_to_noise import SignalToNoise
from sordino.private import Private
from sordino.queries.noisy_sum import NoisySum
from sordino.refusal import Refusal
from sordino.release.noise import Gaussian
from sordino.sampling.full import Full
from sordino.sampling.poisson import Poisson

LENGTH = 128
"""Tokens of a text that are read, the first ones."""
MOST_KEPT_BYTES = 6e9
"""Memory for the inputs and outputs of the last layer; beyond it no adapters are trained."""
_WARM_UP = 4
"""Lots in which the learning rate rises where adapters are trained."""
_AT_ONCE = 256
_TRAINED_AT_ONCE = 64
"""Texts that are processed at once where adapters are trained: their token vectors are large, and more is no faster."""
_VECTORS_AT_ONCE = 4096
"""Vectors that are processed at once where the head is trained."""

Say = Callable[[str], Any]


class TextClassifier(nn.Module):
    """A frozen encoder, the vectors that training changed, and a linear head: from what the encoder made of
    texts to scores. Use `FineTuned.predict` for texts.
    """

    def __init__(self, encoder: nn.Module, vectors: AdaptedVectors | None, head: nn.Linear) -> None:
        super().__init__()
        self.encoder, self.vectors, self.head = encoder, vectors, head

    def forward(self, frozen_vectors: Tensor, *columns: Tensor) -> Tensor:
        """Returns the scores that a fine-tuned classifier gives to texts that the encoder has read, (B, classes)."""
        vectors = frozen_vectors if self.vectors is None else self.vectors(*columns)
        scores: Tensor = self.head(vectors)
        return scores


@dataclass(frozen=True, eq=False)
class FineTuned:
    """A fine-tuned classifier of texts with its claim; `sordino.finetune` returns it.

    Privacy:
        The model was released under the claim, and may be used and published. What it says about texts that it was
        trained on is not covered.

    Examples:
        >>> sorted(FineTuned.__dataclass_fields__)[:4]
        ['adapters_lead', 'claim', 'classes', 'length']

    """

    model: TextClassifier
    tokenizer: Any
    classes: tuple[Any, ...]
    claim: Claim
    plan: Plan
    length: int = LENGTH
    signal_to_noise: Mapping[str, float] = field(default_factory=dict)
    """Of each phase, measured on its released gradients over all of its steps."""
    adapters_lead: float | None = None
    """By what share of the texts the adapters were ahead of the head before them, with noise; the last head went on from
    the adapters if it is above 0. None if there was no choice."""

    def predict(self, texts: Sequence[str]) -> list[Any]:
        """Returns the class of each text, as the labels named it."""
        return [self.classes[place] for place in self.probabilities(texts).argmax(1).tolist()]

    @torch.no_grad()
    def probabilities(self, texts: Sequence[str]) -> Tensor:
        """Returns the probabilities that the classifier of `finetune` gives each text, (N, classes), in the order of
        `classes`.
        """
        read = read_texts(
            self.model.encoder,
            self.tokenizer,
            _list_of_texts(texts),
            length=self.length,
            with_last_layer=self.model.vectors is not None,
        )
        return score_texts(self.model, read).softmax(1)

    def accuracy(self, texts: Sequence[str], labels: Sequence[Any]) -> float:
        """Returns the share of texts to which the fine-tuned classifier gives their label. Give texts that were not
        trained on.
        """
        predicted = self.predict(texts)
        correct = [bool(one == label) for one, label in zip(predicted, labels, strict=True)]
        return sum(correct) / len(correct)

    def save(self, folder: str | Path) -> Path:
        """Writes what `finetune` made (classifier, encoder, tokenizer, claim) to a new or empty folder, and returns it.

        There is no noise key and no text in it: it may be published under its claim.
        """
        from sordino.finetuning.saved_classifier import save_classifier

        return save_classifier(self, folder)

    @classmethod
    def load(cls, folder: str | Path, *, model: nn.Module | None = None, tokenizer: Any = None) -> FineTuned:
        """Returns the fine-tuned text classifier that `save` or `sordino finetune` wrote to a folder.

        Args:
            folder: as it was written.
            model: the encoder, if it was none of transformers and is not in the folder.
            tokenizer: likewise.

        """
        from sordino.finetuning.saved_classifier import load_classifier

        return load_classifier(folder, model, tokenizer)

    def __repr__(self) -> str:
        return f"FineTuned({len(self.classes)} classes)\n{self.plan}\n{self.claim}"


def finetune(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    labels: Sequence[Any],
    *,
    epsilon: float,
    delta: float | None = None,
    classes: Sequence[Any] | None = None,
    records: int | None = None,
    length: int = LENGTH,
    plan: Plan | None = None,
    ledger: Ledger | None = None,
    equal_texts_differ: bool = False,
    checkpoints: str | Path | None = None,
    seed: int | None = None,
    say: Say | None = None,
) -> FineTuned:
    """Fine-tunes a pretrained encoder on labelled texts, privately, and returns a classifier with its claim.

    Everything else follows from public numbers: how many texts there are, classes, the encoder's width, ε and δ. What is
    chosen, and what share of a step will be noise, is said before the first step.

    Args:
        model: an encoder of transformers, a model for sequence classification, whose encoder is taken, or the path of one.
            It stays as it is.
        tokenizer: of that encoder, or a path.
        texts: one for each record.
        labels: their classes: numbers, texts or whatever can be compared.
        epsilon: what the whole may cost.
        delta: of the claim; by default 1e-5, or a tenth of 1 / records if that is smaller.
        classes: all classes. By default those that occur, and the claim then rests on their names being public.
        records: a public figure for the number of texts, by which sums are divided. By default their number is used, and
            the claim says that it does not cover it.
        length: how many tokens of a text are read.
        plan: in place of the one that public numbers make.
        ledger: where it is charged; a new one by default.
        equal_texts_differ: your word that texts which are equal, such as many a "Yes.", belong to different people and are
            no copies. Without it, equal rows are charged as a group where there are many; the claim names the declaration.
        checkpoints: a folder in which every phase is kept. If the process is killed, the same call goes on from there and
            ends with the same parameters and the same claim. While the run lasts the folder holds its noise key: share
            nothing of it, and delete it when the result is saved.
        seed: for tests.
        say: receives what is said before the first step; by default it goes to standard error.

    Returns:
        A `FineTuned`: `predict`, `probabilities`, `claim`, `plan` and the model.

    Privacy:
        One ledger for all phases; the claim is at most `epsilon`.

    Examples:
        >>> from sordino.finetuning import make_plan
        >>> print(str(make_plan(7000, classes=2, width=384, epsilon=8.0, delta=1e-5)).splitlines()[0])
        Fine-tuning of 7,000 texts within epsilon = 8 at delta = 1e-05

    """
    # Check everything before anything is read.
    encoder, tokenizer = _encoder_of(model), _tokenizer_of(tokenizer)
    texts = _list_of_texts(texts)
    if len(labels) != len(texts):
        raise ValueError("texts and labels of different length: need one label for each text")
    ledger = Ledger() if ledger is None else ledger
    public_classes, targets = _number_labels(labels, classes, ledger)
    public_records = len(texts) if records is None else validate.count("records", records)
    delta = min(1e-5, 0.1 / public_records) if delta is None else delta
    say = _write_to_stderr if say is None else say
    # Choose by public numbers, and say so.
    width = _width_of(encoder)
    fits = 4.0 * public_records * length * width <= MOST_KEPT_BYTES
    can_adapt = find_adaptable_layer(encoder) is not None and fits
    if plan is None:
        plan = make_plan(
            public_records, classes=len(public_classes), width=width, epsilon=epsilon, delta=delta, can_adapt=can_adapt
        )
    elif plan.adapters is not None and not can_adapt:
        raise Refusal("the plan has adapters, and this encoder's last layer cannot have them: make a plan without")
    say(plan.describe())
    # The encoder reads every text once; then the phases are trained on what it made of them.
    read = read_texts(encoder, tokenizer, texts, length=length, with_last_layer=plan.adapters is not None)
    directions = find_directions(encoder, tokenizer, plan.rank, length) if plan.adapters is not None else {}
    saved = None
    if checkpoints is not None:
        # Everything that decides a bit of the training: other data or directions are refused.
        data = [read.vectors, *read.columns, targets, *(directions[name] for name in sorted(directions))]
        saved = SavedStages(checkpoints, plan, data, ledger)
    try:
        tuned = train_plan(
            plan,
            encoder,
            tokenizer,
            read,
            targets,
            directions,
            classes=public_classes,
            divisor_records=records,
            length=length,
            unit=Unit(torch.arange(len(texts)), 1, "text") if equal_texts_differ else None,
            ledger=ledger,
            saved=saved,
            seed=seed,
            say=say,
        )
        if saved is not None:
            saved.erase_keys()
    finally:
        if saved is not None:
            saved.close()
    return tuned


def train_plan(
    plan: Plan,
    encoder: nn.Module,
    tokenizer: Any,
    read: FrozenTexts,
    targets: Tensor,
    directions: Mapping[str, Tensor],
    *,
    classes: tuple[Any, ...],
    divisor_records: int | None = None,
    length: int = LENGTH,
    unit: Unit | None = None,
    ledger: Ledger | None = None,
    saved: SavedStages | None = None,
    seed: int | None = None,
    say: Say = lambda text: None,
) -> FineTuned:
    """Fine-tunes by a plan: trains its phases on texts that the frozen encoder has read, and returns the classifier
    with its claim.

    With `saved`, phases that ended before the process was killed are loaded, and one that had begun is run again with its
    own noise key, to the same bits.
    """
    # All phases are charged to one ledger, so that the claim at the end is of all of them together.
    ledger = Ledger() if ledger is None else ledger
    signals: dict[str, float] = {}
    latest_run: list[Private] = []  # is kept until the claim is made, so that its last lots can be tested

    def train(name: str, model: nn.Module, columns: tuple[Tensor, ...], rates: Mapping[str, float]) -> None:
        """Trains one phase of the fine-tuning, or loads it if it has ended, and keeps its measured signal to noise."""
        if saved is not None and saved.is_done(name):
            keep_signal(name, saved.load(name, model)["signal"])
            return
        phase = plan.phases[name]
        private, signal = train_phase(
            model,
            columns,
            phase,
            rates,
            ledger=ledger,
            expected_batch=None if divisor_records is None else phase.rate * divisor_records,
            warm_up=_WARM_UP if name == "adapters" else 0,
            physical_batch=_TRAINED_AT_ONCE if name == "adapters" else _VECTORS_AT_ONCE,
            unit=unit,
            before_first_lot=None if saved is None else partial(saved.begin, name),
            seed=None if seed is None else seed + len(signals),
            say=say if name == "head" else None,  # later phases begin near their goal, where gradients are short
        )
        latest_run[:] = [private]
        measured = signal.of_run()
        keep_signal(name, measured)
        if saved is not None:
            saved.end(name, model, {"signal": measured})

    def keep_signal(name: str, measured: float | None) -> None:
        """Keeps the signal to noise of a phase of the fine-tuning; a phase whose noise is not known has none, because a
        zero would say that there was no signal.
        """
        if measured is not None:
            signals[name] = measured

    def measure_choice(gains: Tensor, multiplier: float) -> float:
        """Returns the adapters' noisy lead in the fine-tuning, or the one that was measured before the process was
        killed.
        """
        nothing = nn.Module()
        if saved is not None and saved.is_done("choice"):
            known = saved.load("choice", nothing)["lead"]
            assert known is not None, "a choice that has ended has a lead"
            return known
        measured = measure_lead(
            gains,
            read.vectors,
            multiplier,
            ledger=ledger,
            records=divisor_records,
            unit=unit,
            before_first_lot=None if saved is None else partial(saved.begin, "choice"),
            seed=None if seed is None else seed + len(plan.phases),
        )
        # On the disk before it is told: it is released once.
        if saved is not None:
            saved.end("choice", nothing, {"lead": measured})
        return measured

    # The head on frozen vectors. It begins at 0, without an opinion.
    head = nn.Linear(read.vectors.shape[1], len(classes))
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    train("head", head, (read.vectors, targets), {"": plan.head.learning_rate})
    vectors, lead = None, None
    if plan.adapters is not None:
        # Adapters, weights of the mean and the head together.
        layer = find_adaptable_layer(encoder)
        assert layer is not None, "the plan has adapters"
        frozen_head = copy.deepcopy(head)
        scaled = {name: DIRECTION_SCALE * directions[name][: plan.rank] for name in ADAPTED}
        vectors = AdaptedVectors(layer, read.vectors.shape[1], scaled).eval()
        both = _HeadOnVectors(vectors, head)
        train("adapters", both, (*read.columns, targets), ADAPTER_LEARNING_RATES)
        adapted = _compute_vectors(vectors, read)
        # Go on from the adapters, or from the head before them if a noisy count says that they did harm.
        if plan.choice_multiplier is not None:
            gains = _are_correct(head, adapted, targets) - _are_correct(frozen_head, read.vectors, targets)
            lead = measure_choice(gains, plan.choice_multiplier)
            say(f"adapters classify {lead:+.2%} of the texts more correctly than the head before them, with noise")
            if lead <= 0:
                vectors, adapted, head = None, read.vectors, frozen_head
        # The head again, on the vectors that were chosen.
        if plan.last_head is not None:
            train("last head", head, (adapted, targets), {"": plan.last_head.learning_rate})
    # The claim is the ledger's, which has the charges of all phases.
    classifier = TextClassifier(encoder, vectors, head).eval()
    return FineTuned(classifier, tokenizer, classes, ledger.claim(plan.delta), plan, length, signals, lead)


def train_phase(
    model: nn.Module,
    columns: tuple[Tensor, ...],
    phase: Phase,
    rates: Mapping[str, float],
    *,
    ledger: Ledger,
    expected_batch: float | None,
    warm_up: int,
    physical_batch: int = _TRAINED_AT_ONCE,
    unit: Unit | None = None,
    before_first_lot: Callable[[Private], None] | None = None,
    seed: int | None = None,
    say: Say | None = None,
) -> tuple[Private, SignalToNoise]:
    """Trains one phase of fine-tuning on texts by Adam with a learning rate that falls to 0, which does what averaging
    the weights would do.

    Args:
        model: what is trained, of the first columns.
        columns: tensors with a row for each record; the last are the classes.
        phase: rate, steps and noise of its lots.
        rates: learning rates by a part of a parameter's name; the first that fits counts, and others are frozen.
        ledger: where lots are charged.
        expected_batch: the public divisor; None for rate × N.
        warm_up: lots in which the learning rate rises.
        physical_batch: records that are processed at once.
        unit: what is drawn and claimed; a row by default.
        before_first_lot: is given the run before anything is drawn.
        seed: for tests.
        say: receives a warning if the run only walks at random.

    """
    # Only parameters with a learning rate are trained, and only they get noise.
    groups: dict[float, list[nn.Parameter]] = {}
    for name, p in model.named_parameters():
        learning_rate = next((rate for part, rate in rates.items() if part in name), 0.0)
        p.requires_grad_(learning_rate > 0)
        if learning_rate > 0:
            groups.setdefault(learning_rate, []).append(p)
    # Parameters of one learning rate form a group, because Adam takes a rate for each group.
    optimizer = torch.optim.Adam([{"params": group, "lr": rate} for rate, group in groups.items()])
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / (1 + warm_up)) * (1 - step / phase.steps)
    )
    # One lot a step.
    query = NoisySum(Flat(BOUND), Gaussian(phase.multiplier))
    private = Private(model, _cross_entropy, query, ledger=ledger, seed=seed)
    if before_first_lot is not None:
        before_first_lot(private)
    signal = SignalToNoise(private)
    for lot in private.draws(
        TensorDataset(*columns),
        Poisson(phase.rate),
        phase.steps,
        expected_batch=expected_batch,
        physical_batch=physical_batch,
        unit=unit,
    ):
        # The gradient is clipped and gets its noise here; signal and optimizer see nothing but the released one.
        private.backward(lot)
        signal.update()
        if say is not None and signal.finds_random_walk():
            say(signal.warning())
        optimizer.step()
        schedule.step()
    return private, signal


def measure_lead(
    gains: Tensor,
    vectors: Tensor,
    multiplier: float,
    *,
    ledger: Ledger,
    records: int | None,
    unit: Unit | None = None,
    before_first_lot: Callable[[Private], None] | None = None,
    seed: int | None = None,
) -> float:
    """Returns, with noise, by what share of the texts one fine-tuned classifier is ahead of another.

    The count Σ gains is the gradient of the loss `weight · gain` of a single weight, so it is released like the gradient
    of any lot, and equal texts and privacy units are treated as they are in training.

    Args:
        gains: 1 for a text that only the first classifies correctly, -1 for one that only the other does, else 0, (N,).
        vectors: the texts' vectors, by which equal texts are recognised, (N, width).
        multiplier: σ of the noise on the count.
        ledger: where the release is charged.
        records: the public number of texts by which the count is divided; None for N, which the claim then names.
        unit: what is claimed; a row by default.
        before_first_lot: is given the run before anything is drawn.
        seed: for tests.

    Privacy:
        One Gaussian release: a text changes the count by at most 1. The classifiers are releases themselves, and each gain
        is computed from its own text.

    """
    query = NoisySum(Flat(1.0), Gaussian(multiplier))
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    private = Private(model, _weigh_gain, query, ledger=ledger, seed=seed)
    if before_first_lot is not None:
        before_first_lot(private)
    expected = None if records is None else float(records)
    for lot in private.draws(
        TensorDataset(vectors, gains), Full(), 1, expected_batch=expected, physical_batch=_VECTORS_AT_ONCE, unit=unit
    ):
        private.backward(lot)
    gradient = model.weight.grad
    assert gradient is not None, "a lot was drawn"
    return float(gradient)


def _weigh_gain(model: nn.Module, vectors: Tensor, gains: Tensor) -> Tensor:
    """Returns the loss of each record, whose gradient is its gain; the vectors only identify the record."""
    weighed: Tensor = model(gains.unsqueeze(1)).squeeze(1)
    return weighed


class _HeadOnVectors(nn.Module):
    """The trainable parts of a `TextClassifier`: vectors and head."""

    def __init__(self, vectors: AdaptedVectors, head: nn.Linear) -> None:
        super().__init__()
        self.vectors, self.head = vectors, head

    def forward(self, *columns: Tensor) -> Tensor:
        """Returns the scores, (B, classes)."""
        scores: Tensor = self.head(self.vectors(*columns))
        return scores


def _cross_entropy(model: nn.Module, *batch: Tensor) -> Tensor:
    """Returns the loss of each record; the last column are the classes."""
    return nn.functional.cross_entropy(model(*batch[:-1]), batch[-1], reduction="none")


@torch.no_grad()
def score_texts(model: TextClassifier, read: FrozenTexts) -> Tensor:
    """Returns the scores of texts that the frozen encoder has read, (N, classes)."""
    rows = [read.vectors, *read.columns]
    return torch.cat([model(*part) for part in zip(*(column.split(_AT_ONCE) for column in rows), strict=True)])


@torch.no_grad()
def _compute_vectors(vectors: AdaptedVectors, read: FrozenTexts) -> Tensor:
    """Returns the vectors of texts as the fine-tuned last layer makes them, (N, width)."""
    return torch.cat(
        [vectors(*part) for part in zip(*(column.split(_AT_ONCE) for column in read.columns), strict=True)]
    )


@torch.no_grad()
def _are_correct(head: nn.Linear, vectors: Tensor, targets: Tensor) -> Tensor:
    """Returns 1 for each text whose highest score is that of its class and 0 for others, (N,)."""
    correct: Tensor = head(vectors).argmax(1) == targets
    return correct.float()


def _encoder_of(model: Any) -> nn.Module:
    """Returns the encoder that `finetune` fine-tunes: it was given as a path, an encoder, or a classifier with one
    inside.
    """
    # A path is loaded here, so that transformers is imported only by those who need it.
    if isinstance(model, str):
        import transformers

        model = transformers.AutoModel.from_pretrained(model)
    validate.instance("model", model, nn.Module, "an encoder such as transformers.AutoModel.from_pretrained(…)")
    # A classifier of transformers has its encoder as `base_model`; other modules are taken as encoders themselves.
    encoder = getattr(model, "base_model", model)
    return encoder if isinstance(encoder, nn.Module) else model


def _tokenizer_of(tokenizer: Any) -> Any:
    """Returns the tokenizer of the texts that `finetune` was given, loaded if it is a path."""
    if isinstance(tokenizer, str):
        import transformers

        tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer)
    # A wrong object is refused with what is needed, before it fails somewhere inside.
    if not callable(tokenizer):
        raise TypeError("tokenizer: must turn a list of texts into input_ids and attention_mask")
    return tokenizer


def _width_of(encoder: nn.Module) -> int:
    """Returns the width of the vectors of the encoder that `finetune` was given, from its configuration."""
    config = getattr(encoder, "config", None)
    width = getattr(config, "hidden_size", None) or getattr(config, "dim", None)
    if not isinstance(width, int):
        raise Refusal(
            f"{type(encoder).__name__} has no config.hidden_size, so the width of its vectors is not known.\n"
            "Give an encoder such as transformers.AutoModel.from_pretrained(…)."
        )
    return width


def _list_of_texts(texts: Sequence[str]) -> list[str]:
    """Returns the texts that `finetune` was given as a list, or raises TypeError; no text is quoted, because it is
    private.
    """
    # One text is a sequence of letters, and would pass for as many texts of one letter.
    if isinstance(texts, str):
        raise TypeError("texts is one text: need a list of them")
    listed = list(texts)
    if not listed or not all(isinstance(one, str) for one in listed):
        raise TypeError("texts: need a list of at least one text, each a str")
    return listed


def _number_labels(
    labels: Sequence[Any], classes: Sequence[Any] | None, ledger: Ledger
) -> tuple[tuple[Any, ...], Tensor]:
    """Returns the classes of the labelled texts that `finetune` was given, and the number of each text's class.

    Classes that are read off the labels are declared as public, so that the claim rests on it.
    """
    # Tensors are hashed by identity, so that equal labels would be different keys; the numbers are taken out.
    values = [label.item() if isinstance(label, Tensor) else label for label in labels]
    if any(value is None or value == "" or value != value for value in values):
        raise ValueError("labels: some are empty; leave out the texts that have no class")
    if classes is None:
        # Numbers and texts have no common order, so that classes of both kinds have none either.
        if len({isinstance(value, str) for value in values}) > 1:
            raise ValueError("labels: some are texts and some are not; give all of them as one kind, or classes=")
        classes = sorted(set(values))
        ledger.declare("the names of the classes are public; they were read off the labels")
    places = {label: place for place, label in enumerate(classes)}
    if len(places) < 2:
        raise ValueError("labels of fewer than two classes: nothing can be learnt from them")
    # The message does not name the label, which is private.
    if any(value not in places for value in values):
        raise ValueError("a label is none of the classes: give all of them as classes=")
    return tuple(classes), torch.tensor([places[value] for value in values])


def _write_to_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")
