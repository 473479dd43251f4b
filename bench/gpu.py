"""Checks training on an accelerator, and measures it: correctness first, then speed and memory. One JSON to send in.

    python -m bench.gpu                          # CUDA, XPU, or whatever PyTorch takes for the accelerator
    python -m bench.gpu --simulated              # the same script on the simulated device of the tests, for its counts
    python -m bench.gpu --models mlp_dropout,cnn_dropout --out report.json

Nothing of this was run on a GPU by us: there was none. Please send the file it writes, whatever it says.
For every model it checks that norms equal autograd's with the same dropout, with TF32 off and on; that training ends with
a guarantee; and that a replay under deterministic algorithms gives the same bits. Then it times private and plain steps,
counts how often the host waits on CUDA, and says where the noise is made. Where Opacus is installed (`pip install
opacus`), its norms are checked in the same way and its step is timed beside ours; a model that Opacus cannot train has
its error in the report. On the simulated device times mean nothing, and launches are counted in their place.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import sordino as sd
from sordino import environment
from sordino.kernels import device_gram
from sordino.ledger.claims import Guarantee
from sordino.per_sample import Captured
from sordino.per_sample.formulas.output_gradient import compute_gram_sums
from sordino.per_sample.protocol import trainable_parameters
from sordino.rng.device_noise import find_device_noise_fault
from sordino.rng.global_generators import Seeded
from tests.device.zoo import ZOO, Problem

BATCH = 6


def true_norms(model: nn.Module, loss_fn: Any, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Returns the norms of every record's own gradient, by autograd, with the random numbers of seed 3."""
    with Seeded(3):
        losses = loss_fn(model, *batch)
    parameters = list(trainable_parameters(model).values())
    rows = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
    return torch.stack([torch.stack([g.double().square().sum() for g in row]).sum().sqrt() for row in rows])


def relative_error(norms: torch.Tensor, true: torch.Tensor) -> float:
    """Returns the largest relative difference between norms and the true ones."""
    return float(((norms.double() - true).abs() / true.clamp(min=1e-12)).max())


def check_gradients(model: nn.Module, problem: Problem, device: torch.device) -> float:
    """Returns the largest error of the engine's norms, relative to autograd's on the same pass."""
    _, data, loss_fn = problem
    batch = tuple(column[:BATCH].to(device) for column in data.tensors)
    with Seeded(3):
        norms = Captured().per_sample(model, loss_fn, batch).norms().total()
    return relative_error(norms, true_norms(model, loss_fn, batch))


def train(
    model: nn.Module, problem: Problem, steps: int, run: sd.Private | None = None
) -> tuple[sd.Private, list[float]]:
    """Trains some steps and returns the run and the seconds of each step."""
    _, data, loss_fn = problem
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = run or sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
    taken = []
    for lot in run.draws(data, sd.Poisson(0.1), steps=steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        run.backward(lot)
        optimizer.step()
        torch.accelerator.synchronize()
        taken.append(time.perf_counter() - began)
    return run, taken


def measure_plain(model: nn.Module, problem: Problem, device: torch.device, steps: int) -> dict[str, Any]:
    """Returns time and memory of a plain training step on as many records as a lot has on average."""
    _, data, loss_fn = problem
    model = copy.deepcopy(model)  # no run watches the copy
    optimizer, n = torch.optim.SGD(model.parameters(), lr=0.05), len(data) // 10

    def step() -> None:
        optimizer.zero_grad()
        loss_fn(model, *(column[:n].to(device) for column in data.tensors)).mean().backward()
        optimizer.step()

    return measure_steps(step, device, steps)


def count_launches(model: nn.Module, problem: Problem) -> int:
    """Returns how many kernels the cheapest of ten private steps launches on the simulated device; those with a runtime
    check launch more.
    """
    from tests.device.simulated import start

    _, data, loss_fn = problem
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
    lots, launches = iter(run.draws(data, sd.Poisson(0.1), steps=10)), []
    for _ in range(10):
        with start().counting() as cost:
            optimizer.zero_grad()
            run.backward(next(lots))
            optimizer.step()
        launches.append(cost.launches)
    return min(launches)


def copy_for_opacus(model: nn.Module) -> nn.Module:
    """Returns a copy of the model that Opacus can wrap, with its own LSTM in place of torch's."""
    from opacus.layers import DPLSTM  # type: ignore[import-not-found, unused-ignore]

    plain = copy.deepcopy(model)
    for parent in list(plain.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.LSTM):
                # Made where it is to be: it has two names for each parameter, which `.to` makes two parameters of on
                # devices of other makers.
                with next(child.parameters()).device:
                    own = DPLSTM(child.input_size, child.hidden_size, batch_first=child.batch_first)
                own.load_state_dict(child.state_dict())
                setattr(parent, name, own)
    return plain


def examine_opacus(model: nn.Module, problem: Problem, device: torch.device, steps: int) -> dict[str, Any]:
    """Returns what was found of Opacus on one model: the error of its norms, then the time and memory of its step.

    An error of Opacus is part of it, and so is its absence.
    """
    try:
        import opacus  # type: ignore[import-not-found, unused-ignore]
        from opacus.grad_sample import GradSampleModule  # type: ignore[import-not-found, unused-ignore]
        from opacus.optimizers import DPOptimizer  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return {"error": "Opacus is not installed"}
    found: dict[str, Any] = {"version": opacus.__version__}
    _, data, loss_fn = problem
    try:
        found["largest error of a norm"] = check_opacus_norms(model, problem, device)
        # Then its step, on as many records as a lot has on average.
        wrapped, n = GradSampleModule(copy_for_opacus(model)), len(data) // 10
        settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": n}
        optimizer = DPOptimizer(torch.optim.SGD(wrapped.parameters(), lr=0.05), **settings)

        def step() -> None:
            optimizer.zero_grad()
            loss_fn(wrapped, *(column[:n].to(device) for column in data.tensors)).mean().backward()
            optimizer.step()

        found |= measure_steps(step, device, steps)
    except Exception as error:  # whatever happens belongs in the report
        found["error"] = first_line(error)
        # The same on the CPU tells whether the device has to do with it.
        try:
            check_opacus_norms(copy.deepcopy(model).to("cpu"), problem, torch.device("cpu"))
            found["on the CPU"] = "no error"
        except Exception as error:
            found["on the CPU"] = first_line(error)
    return found


def first_line(error: Exception) -> str:
    """Returns an error's kind and the first line of its text."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def check_opacus_norms(model: nn.Module, problem: Problem, device: torch.device) -> float:
    """Returns the largest error of Opacus's norms, relative to autograd's of the same layers with the same dropout."""
    from opacus.grad_sample import GradSampleModule  # type: ignore[import-not-found, unused-ignore]

    # The wrapped model has hooks, and autograd gets a copy without them.
    _, data, loss_fn = problem
    wrapped: Any = GradSampleModule(copy_for_opacus(model))
    batch = tuple(column[:BATCH].to(device) for column in data.tensors)
    with Seeded(3):
        loss_fn(wrapped, *batch).mean().backward()
    trained = [p for p in wrapped.parameters() if p.requires_grad]
    squares = [p.grad_sample.flatten(1).double().square().sum(1) for p in trained]
    norms = torch.stack(squares).sum(0).sqrt()  # it multiplies by the batch, since losses are means
    return relative_error(norms, true_norms(copy_for_opacus(model), loss_fn, batch))


def measure_gram_kernel(device: torch.device, steps: int) -> dict[str, Any]:
    """Returns time, memory and error of Gram sums by torch's products and by the Triton kernel, for layers of a GPT-2.

    The kernel is off by default. Where it cannot run here, the report says why.
    """
    os.environ[device_gram.SWITCH] = "1"
    device_gram.find_device_gram_fault.cache_clear()
    fault = device_gram.find_device_gram_fault(device)
    if fault is not None:
        return {"kernel": fault}
    found: dict[str, Any] = {}
    plain = compute_gram_sums.plain  # type: ignore[attr-defined]
    for b, t, d, p in ((32, 128, 768, 768), (8, 1024, 768, 3072)):
        a, g = (torch.randn(b, t, width, device=device) for width in (d, p))
        right = plain(a.double(), g.double())[0]
        for name, compute in (("torch", plain), ("kernel", device_gram.launch)):
            one = measure_steps(partial(compute, a, g), device, steps)
            one["largest error"] = relative_error(compute(a, g)[0], right)
            found.setdefault(f"{b} records, {t} positions, {d} by {p}", {})[name] = one
    return found


def measure_steps(step: Callable[[], object], device: torch.device, steps: int) -> dict[str, Any]:
    """Returns the median milliseconds of a step after the first, the most memory it took, and on the simulated device
    its launches.
    """
    module, taken = torch.get_device_module(device), []
    if hasattr(module, "reset_peak_memory_stats"):
        module.reset_peak_memory_stats()
    for _ in range(steps):
        began = time.perf_counter()
        step()
        torch.accelerator.synchronize()
        taken.append(time.perf_counter() - began)
    found: dict[str, Any] = {"step ms": round(1e3 * median(taken[1:]), 3)}
    found["peak bytes"] = module.max_memory_allocated() if hasattr(module, "max_memory_allocated") else None
    if device.type == "sim":
        from tests.device.simulated import start

        with start().counting() as cost:
            step()
        found["launches"] = cost.launches
    return found


def count_waits(model: nn.Module, problem: Problem) -> int | None:
    """Returns how often the host waits in the cheapest of ten private steps, as CUDA tells; None on other devices.

    `torch.cuda.set_sync_debug_mode` warns at every operation that waits. Steps with a runtime check wait more often.
    """
    if not torch.cuda.is_available():
        return None
    _, data, loss_fn = problem
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
    waits = []
    for lot in run.draws(data, sd.Poisson(0.1), steps=10):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                optimizer.zero_grad()
                run.backward(lot)
                optimizer.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        waits.append(sum("synchroniz" in str(one.message) for one in caught))
    return min(waits)


def check_replay(name: str, device: torch.device) -> bool:
    """Returns whether a run and its replay under deterministic algorithms come to the same parameters, bit by bit."""
    torch.use_deterministic_algorithms(True)
    try:
        found: list[torch.Tensor] = []
        saved: tuple[Any, Any, Any] | None = None
        for _ in range(2):
            torch.manual_seed(0)
            problem = ZOO[name]()
            model = problem[0].to(device)
            run = sd.Private(model, problem[2], sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
            if saved is None:
                saved = run.secret_state(), run.state_dict(), copy.deepcopy(model.state_dict())
            else:
                model.load_state_dict(saved[2])
                run.load_state_dict(saved[1], replay=sd.Replay("nothing has left this process", secret=saved[0]))
            train(model, problem, 3, run)
            found.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach().cpu())
        return torch.equal(*found)
    finally:
        torch.use_deterministic_algorithms(False)


def examine(name: str, device: torch.device, steps: int) -> dict[str, Any]:
    """Returns what was found of one model; an error is part of it."""
    found: dict[str, Any] = {}
    try:
        for allowed in (False, True):
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
            torch.manual_seed(0)
            problem = ZOO[name]()
            model = problem[0].to(device).train()
            found[f"largest error of a norm, TF32 {'on' if allowed else 'off'}"] = check_gradients(
                model, problem, device
            )
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        found["replay has the same bits"] = check_replay(name, device)
        module = torch.get_device_module(device)
        run, taken = train(model, problem, steps)
        claim = run.claim(1e-5)
        found["guarantee"] = isinstance(claim, Guarantee) or str(claim)
        found["private step ms"] = round(1e3 * median(taken[1:]), 3)
        found["peak bytes"] = module.max_memory_allocated() if hasattr(module, "max_memory_allocated") else None
        if device.type == "sim":
            found["launches"] = count_launches(model, problem)
        found["waits of a step"] = count_waits(model, problem)
        found["noise"] = find_device_noise_fault(device) or "made on the device"
        found["plain"] = measure_plain(model, problem, device, steps)
        found["Opacus"] = examine_opacus(model, problem, device, steps)
    except Exception as error:  # whatever happens belongs in the report
        found["error"] = f"{type(error).__name__}: {error}"
    return found


def main() -> None:
    """Examines all models and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(ZOO))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--simulated", action="store_true", help="use the simulated device of the tests")
    parser.add_argument("--out", type=Path, default=Path("gpu_report.json"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
    if options.simulated:
        from tests.device.simulated import start

        start()
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        print("PyTorch finds no accelerator here: nothing to check")  # noqa: T201
        return
    device = torch.device(kind.type, 0)
    torch.empty(1, device=device)  # starts it
    models = {name: examine(name, device, options.steps) for name in options.models.split(",")}
    result = {"environment": environment.current_environment(), "device": str(device), "models": models}
    result["Gram kernel"] = measure_gram_kernel(device, options.steps)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))  # noqa: T201
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
