"""Recipes with the settings of the papers that this library follows.

    thesis-mnist, thesis-cifar      Pflaeging 2023, *Varianten von DPSGD*, ch. 4 and 5
    abadi-mnist, abadi-cifar        Abadi et al. 2016, figures 3 and 6
    wd-mnist, wd-cifar              weight decay in DP-SGD: the examples of Opacus with λ
    fashion-logistic                logistic regression on Fashion-MNIST under several σ

They are what a source says, not what is best here: `tuned` names what it does not say and was taken here, and what it did
otherwise than it printed. What was measured of them is in the lab, beside what is published.
"""

from __future__ import annotations

from sordino.app.runs.recipe import Recipe

DELTA = 1e-5
_THESIS = (
    "C, σ, batch and epochs are the thesis'; nothing was tuned here. It draws disjoint batches in every epoch and "
    "prints the ε of Poisson sampling, {printed}, also beside sorted and projected runs, which have none: "
    "`--sampler shuffle` draws as it did, at the true price. It does not say how pixels are scaled: {pixels}"
)
_THESIS_MNIST = (
    "as torchvision hands them out, in [0, 1], DP-SGD at learning rate 0.01 ends where its table 4.1 does (70.2 % and "
    "a loss of 0.94 beside 70.4 and 0.93), in [−1, 1] it does not (73.5 and 0.87)"
)
_ABADI_MNIST = (
    "lot, C, σ, σ of the PCA, its 60 directions and 1,000 hidden units are the paper's; nothing was tuned here. "
    "Learning rate 0.1, linearly to 0.052 in 10 epochs, and the number of epochs are those of its MNIST section; "
    "pixels in [0, 1]; the PCA is in the claim"
)
_ABADI_CIFAR = (
    "lot, C and σ are the paper's; nothing was tuned here. Its convolutions were trained on CIFAR-100, taken to "
    "be public; in their place stand those of EfficientNet-Lite0, trained on ImageNet, frozen; two hidden layers "
    "of 384 as there. The learning rate and the number of steps are chosen here: so many that the moments "
    "accountant says about the printed ε, 2 and 8"
)
_DECAY = (
    "R, σ and λ are the slides'; nothing was tuned here. Everything else, which they do not say, is the default "
    "of Opacus' example that they use. `--weight-decay 0 --penalty 0.0001` is their method, λ inside the clip"
)
_DECAY_MNIST = (
    f"{_DECAY}. With these lots the noise outweighs the gradients: 59.0 % after 10 epochs; `--rate 0.02 --steps 750 "
    "--learning-rate 0.5` has 96.8 % (`sordino lab run wd-mnist-baseline`)"
)
_FASHION = (
    "C and σ are the slides'; nothing was tuned here. Batch 256, learning rate 1 and 20 epochs are chosen here: "
    "the slides do not say theirs"
)


def _thesis_recipe(
    name: str, dataset: str, model: str, batches: int, bound: float, printed: str, centre: float, pixels: str
) -> Recipe:
    """Returns a recipe with the settings of Pflaeging 2023."""
    return Recipe(
        name=name,
        dataset=dataset,
        features="none",
        pixel_mean=centre,
        pixel_deviation=1.0 - centre,
        model=model,
        rate=1 / batches,
        steps=30 * batches,
        bound=bound,
        noise_multiplier=1.1,
        delta=DELTA,
        learning_rate=0.1,
        schedule="cosine",
        schedule_per="epoch",
        tuned=_THESIS.format(printed=printed, pixels=pixels),
    )


def _abadi_mnist_recipe(name: str, multiplier: float, pca: float, epochs: int) -> Recipe:
    """Returns a recipe with the MNIST settings of Abadi et al. 2016 (arXiv:1607.00133), with a private PCA."""
    return Recipe(
        name=name,
        dataset="mnist",
        features="none",
        pixel_mean=0.0,
        pixel_deviation=1.0,
        pca=pca,
        components=60,
        model="hidden-1000",
        rate=0.01,
        steps=100 * epochs,
        bound=4.0,
        noise_multiplier=multiplier,
        delta=DELTA,
        learning_rate=0.1,
        schedule="linear",
        schedule_steps=1000,
        final_rate=0.052,
        tuned=_ABADI_MNIST,
    )


def _abadi_cifar_recipe(name: str, rate: float, steps: int) -> Recipe:
    """Returns a recipe with the CIFAR-10 settings of Abadi et al. 2016 (arXiv:1607.00133), on frozen features."""
    return Recipe(
        name=name,
        dataset="cifar10",
        features="efficientnet-lite0",
        model="hidden-1000",
        widths=(384, 384),
        rate=rate,
        steps=steps,
        bound=3.0,
        noise_multiplier=6.0,
        delta=DELTA,
        learning_rate=0.1,
        tuned=_ABADI_CIFAR,
    )


SOURCES: tuple[Recipe, ...] = (
    _thesis_recipe("thesis-mnist", "mnist", "mnist-net", 240, 1.0, "1.769", 0.0, _THESIS_MNIST),
    _thesis_recipe("thesis-cifar", "cifar10", "cifar-net", 250, 5.0, "1.729", 0.5, "to [−1, 1] here"),
    _abadi_mnist_recipe("abadi-mnist-large-noise", 8.0, 16.0, 100),
    _abadi_mnist_recipe("abadi-mnist", 4.0, 7.0, 200),
    _abadi_mnist_recipe("abadi-mnist-small-noise", 2.0, 4.0, 700),
    _abadi_cifar_recipe("abadi-cifar", 0.04, 3500),
    _abadi_cifar_recipe("abadi-cifar-lot-4000", 0.08, 11_500),
    Recipe(
        name="wd-mnist",
        dataset="mnist",
        features="none",
        pixel_mean=0.1307,
        pixel_deviation=0.3081,
        model="mnist-cnn",
        rate=64 / 60_000,
        steps=9375,
        bound=3.0,
        noise_multiplier=1.3,
        delta=DELTA,
        learning_rate=0.1,
        weight_decay=1e-4,
        tuned=_DECAY_MNIST,
    ),
    Recipe(
        name="wd-cifar",
        dataset="cifar10",
        features="none",
        pixel_mean=(0.4914, 0.4822, 0.4465),
        pixel_deviation=(0.2023, 0.1994, 0.2010),
        model="cifar-net",
        rate=0.04,
        steps=2250,
        bound=10.0,
        noise_multiplier=1.5,
        delta=DELTA,
        learning_rate=0.1,
        momentum=0.9,
        weight_decay=1e-4,
        schedule="cosine",
        schedule_per="epoch",
        tuned=_DECAY,
    ),
    Recipe(
        name="fashion-logistic",
        dataset="fashion-mnist",
        features="none",
        pixel_mean=0.0,
        pixel_deviation=1.0,
        model="linear",
        rate=256 / 60_000,
        steps=4688,
        bound=0.5,
        noise_multiplier=0.7,
        delta=DELTA,
        learning_rate=1.0,
        tuned=_FASHION,
    ),
)
