"""Accelerate integration: prepares the model and the optimizer of a loop that `Private` draws lots for.

    accelerator = Accelerator()
    model, optimizer = prepare(accelerator, model, optimizer)
    private = sd.Private(model, loss_fn, query)
    for lot in private.draws(data, sd.Poisson(0.01), steps=500):
        private.backward(lot)                       # in place of accelerator.backward(loss)
        optimizer.step()

The model is placed on the accelerator's device and runs under its mixed precision, but is not wrapped in
DistributedDataParallel: under `accelerate launch` or torchrun the ranks of its process group divide each lot, with the
bits of one process.

Privacy: gradients come from `Private.backward` alone. What would add up or scale gradients behind it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from sordino.integrations.launched import refuse_training_alone
from sordino.integrations.missing_library import NotInstalled
from sordino.refusal import Refusal

try:
    import accelerate
except ImportError as error:
    raise NotInstalled("accelerate", "huggingface") from error

_PLAIN_KINDS = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_HPU")
"""Kinds of distributed training in which every process holds the plain model."""
_PRECISIONS = ("no", "bf16")


def prepare(accelerator: accelerate.Accelerator, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Any]:
    """Prepares a model and its optimizer for private training with Hugging Face Accelerate, in place of
    `accelerator.prepare`.

    Args:
        accelerator: theirs, on one process or on several.
        model: your own; the same object is returned, on the accelerator's device.
        optimizer: of its parameters.

    Returns:
        The model, and the optimizer as Accelerate wraps it. Schedulers and loaders of held-out records may go through
        `accelerator.prepare` as always.

    Privacy:
        Every process joins one run. FSDP and DeepSpeed plugins, float16 with its gradient scaler and accumulated steps are
        refused, because they change gradients that were released, or were not.

    Examples:
        >>> import torch
        >>> from accelerate import Accelerator
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> model, optimizer = prepare(Accelerator(cpu=True), model, optimizer)

    """
    # Accumulation makes one step of several batches; here a lot is one release and one step, and is charged as such.
    if accelerator.gradient_accumulation_steps != 1:
        raise Refusal(
            f"gradient_accumulation_steps={accelerator.gradient_accumulation_steps}: a lot is one step, however large.\n"
            "Leave it out, and give the sampler a larger rate; memory limits physical_batch alone."
        )
    before = dict(model.named_parameters())
    prepare_plain_model(accelerator, model)
    _replace_moved_parameters(optimizer, before, dict(model.named_parameters()))
    return model, accelerator.prepare_optimizer(optimizer)


def _replace_moved_parameters(
    optimizer: Optimizer, before: Mapping[str, nn.Parameter], after: Mapping[str, nn.Parameter]
) -> None:
    """Gives an optimizer the parameters of a model that accelerate moved, in place of those that it was made with.

    For CUDA `Module.to` keeps the parameter objects and gives them other memory. For devices of other makers it makes new
    objects, and the optimizer would go on stepping the old ones, which nothing trains.
    """
    renewed = {id(p): after[name] for name, p in before.items() if after[name] is not p}
    if not renewed:
        return
    # Optimizers keep their state by parameter: it goes with the parameter, to the same device.
    for group in optimizer.param_groups:
        group["params"] = [renewed.get(id(p), p) for p in group["params"]]
    for p in [p for p in optimizer.state if id(p) in renewed]:
        new = renewed[id(p)]
        optimizer.state[new] = {name: _move_with(new, value) for name, value in optimizer.state.pop(p).items()}


def _move_with(p: nn.Parameter, value: Any) -> Any:
    """Returns a part of an optimizer's state on the device of its parameter; counts of steps stay where they are."""
    return value.to(p.device) if isinstance(value, Tensor) and value.shape == p.shape else value


def prepare_plain_model(accelerator: accelerate.Accelerator, model: nn.Module) -> None:
    """Places a model as an accelerator does, under its autocast, and keeps it from being wrapped for several processes.

    Examples:
        >>> import torch
        >>> from accelerate import Accelerator
        >>> prepare_plain_model(Accelerator(cpu=True), torch.nn.Linear(2, 1))

    """
    _refuse_unfit_accelerator(accelerator)
    # Accelerate wraps the forward pass for autocast at most once, also if the model is trained again.
    if not getattr(model, "_is_accelerate_prepared", False):
        if "_original_forward" not in vars(model):
            accelerator.prepare_model(model, evaluation_mode=True)  # their name for: without DistributedDataParallel
        model._is_accelerate_prepared = True  # type: ignore[assignment]  # a later `prepare` leaves the model as it is


def _refuse_unfit_accelerator(accelerator: accelerate.Accelerator) -> None:
    """Raises a `Refusal` for an accelerator that shards the model, scales gradients or does not know all processes."""
    # Only kinds that leave the whole model in every process: a sharded gradient would be clipped by a part of its norm.
    kind = str(accelerator.distributed_type).rsplit(".", 1)[-1]
    if kind not in _PLAIN_KINDS:
        raise Refusal(
            f"accelerate is set up for {kind}, which holds parameters and gradients in its own way.\n"
            "Private divides the lots among ranks by itself and shards a model that torch's fully_shard was applied to.\n"
            "Start plain processes (distributed_type MULTI_CPU or MULTI_GPU), without an FSDP or DeepSpeed plugin."
        )
    # float16 needs a gradient scaler, which multiplies what was released; bf16 has float32's range and needs none.
    if accelerator.mixed_precision not in _PRECISIONS:
        raise Refusal(
            f"mixed_precision={accelerator.mixed_precision!r}: its gradient scaler would scale gradients that were "
            "released.\n"
            "Use mixed_precision='bf16', or 'no' for float32."
        )
    # A process that was launched with others but is in no group would be a second run on the same records.
    refuse_training_alone(
        accelerator.num_processes,
        "On CPUs, say so: Accelerator(cpu=True), or use_cpu=True in TrainingArguments.",
    )
