"""The ids in the order of the papers, as the page has them."""

_IN_ORDER = """
    wd-fixed-point wd-linear-1d wd-linear-2d wd-mnist-baseline wd-mnist-clip wd-mnist-decay wd-mnist-ignored
    wd-mnist-noise wd-cifar-baseline wd-cifar-clip wd-cifar-decay wd-cifar-noise

    game one-step lr-cosine sorted-mnist-fixed sorted-mnist-median mnist-clip-search sorting-price
    sorted-cifar-fixed sorted-cifar-noise sorted-cifar-c5 sorted-cifar-c5-50 cifar-clip-search sorted-cifar-best
    sorted-cifar-best-curves update-cosine sorted-sgd-crash sorted-cifar-median sorted-cifar-median-50
    sorted-cifar-quantile sorted-cifar-quantile-median sorted-cifar-best-50 gradient-lengths log-schedule
    sorted-cifar-bounds sorted-private outlook-noisy-sort outlook-rise-and-fall outlook-similar-length
    outlook-outliers outlook-fine-tuning projected-landscape projected-cifar projected-cifar-bounds
    projected-cifar-noise projected-cosine projected-resnet projected-cosine-resnet projected-private outlook-rounds

    abadi-composition theorem-one abadi-mnist abadi-mnist-frontier abadi-mnist-sweeps abadi-mnist-parts abadi-cifar
    model-inversion

    gaussian-calibration mean-binary mean-clipped mean-noiseless mean-vector composition optimizers-path dp-gd
    optimizers-mnist amplification tradeoff-curves single-sample batch-size

    sensitivity fundamental-law printed-theorems clip-ntk noise-convergence fmnist-noise fmnist-tradeoff
    fmnist-batch disparate-impact transfer-cifar speed-jl
"""

ORDER: tuple[str, ...] = tuple(_IN_ORDER.split())
