"""Refuses models and losses whose samples cannot be told apart, before anything is released.

DP-SGD bounds what one record contributes. That needs a loss per record which depends on that record alone, and a
forward pass that stores nothing about the records. The model's structure is checked here, before every lot; the loss in
`loss_probe.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter

from sordino import validate
from sordino.distributed.fully_sharded import wrap_if_sharded
from sordino.distributed.row_shard import is_shard
from sordino.per_sample.model_inventory import list_modules
from sordino.refusal import Refusal

_ONE_PER_SAMPLE = (
    "Each record is clipped by the gradient of its own loss.\n"
    "Return one loss per sample, shape (B,): use reduction='none' and reduce over a sample's own axes only."
)


def require_one_loss(losses: Tensor) -> Tensor:
    """Returns the loss of a batch of one, as a scalar."""
    return require_loss_vector(losses, 1)[0]


def require_loss_vector(losses: Any, samples: int) -> Tensor:
    """Checks the loss of a model: returns the losses of `samples` samples, and refuses any other shape or type than a
    vector of them.

    The count is quoted, so it must be a public one: one sample, or the probe's.
    """
    if not isinstance(losses, Tensor):
        raise Refusal(f"loss_fn returned a {type(losses).__name__}.\n{_ONE_PER_SAMPLE}")
    # A mean over the batch is the usual slip, so it is named before other shapes are.
    if losses.dim() == 0:
        raise Refusal(f"loss_fn returned a scalar.\n{_ONE_PER_SAMPLE}")
    if losses.shape != (samples,):
        # Binary losses of a model with one output are the usual case of a column.
        column = "\nFor a column, shape (B, 1), add .squeeze(1) to it." if losses.shape == (samples, 1) else ""
        raise Refusal(
            f"loss_fn returned shape {tuple(losses.shape)} for {samples} sample(s).\n{_ONE_PER_SAMPLE}{column}"
        )
    if not losses.is_floating_point():
        raise Refusal(
            f"loss_fn returned {losses.dtype}.\n"
            "Gradients can be taken of floating-point losses only.\n"
            "Return losses in a floating-point type."
        )
    return losses


def refuse_wrong_arguments(model: Any, loss_fn: Any, query: Any) -> None:
    """Checks what a model is trained by, and refuses what is no model, no loss and no query."""
    # Before the type is checked: a pipeline need not be a module, and then its message would not help.
    if type(model).__module__.startswith(_PIPELINES):
        raise Refusal(
            f"model={type(model).__name__}: pipeline parallelism is not supported.\n"
            "A record's loss must be asked for in one piece.\n"
            "Give every rank the whole model, or divide it by torch.distributed.fsdp.fully_shard."
        )
    if not isinstance(model, nn.Module):
        raise TypeError(f"model={type(model).__name__}: must be a torch.nn.Module")
    validate.function("loss_fn", loss_fn, "a function of the model and a batch that returns one loss per record")
    validate.query("query", query)


_OWN_HOOKS = ("torch", "sordino")
"""Packages whose hooks on parameters are known to change no gradient."""


def refuse_bad_structure(model: nn.Module) -> None:
    """Checks a model and refuses modules that mix the samples of a batch or store something about them, and parameters
    without a meaning.
    """
    refuse_wrappers(model)
    refuse_batch_statistics(model)
    refuse_outliers_of_batches(model)
    refuse_parameter_hooks(dict(model.named_parameters()))
    for name, p in model.named_parameters():
        if isinstance(p, UninitializedParameter):
            raise Refusal(
                f"parameter {name!r} has no shape yet.\n"
                "The first private records would decide it.\n"
                "Run the model once on public or made-up input first."
            )
        if p.is_complex():
            raise Refusal(
                f"parameter {name!r} is complex.\n"
                "Norms and noise are of real parameters.\n"
                "Hold real and imaginary parts apart."
            )


def refuse_parameter_hooks(parameters: Mapping[str, nn.Parameter]) -> None:
    """Checks the parameters of a model and refuses hooks on them, which would see sums before noise, or would not be
    called.

    Hooks of torch and of this package are left alone.
    """
    for name, p in parameters.items():
        # This runs at every lot, and almost no parameter has a hook.
        if not p._backward_hooks and not p._post_accumulate_grad_hooks:
            continue
        hooks = [*(p._backward_hooks or {}).values(), *(p._post_accumulate_grad_hooks or {}).values()]
        if any((getattr(hook, "__module__", None) or "").partition(".")[0] not in _OWN_HOOKS for hook in hooks):
            raise Refusal(
                f"parameter {name!r} has a hook on its gradient.\n"
                "A hook would see gradients of records before noise, or would not be called: .grad is written and not "
                "accumulated.\n"
                "Remove it, and change the released gradient inside `with private.post_processing(...)` after "
                "private.backward; an optimizer steps after that."
            )


def refuse_outliers_of_batches(model: nn.Module) -> None:
    """Checks a model and refuses layers in 8 bits that choose what they round by the largest record of the batch.

    LLM.int8() (Dettmers et al. 2022, arXiv:2208.07339) multiplies columns in which any activation of the batch is above a
    threshold in 16 bits, and the others in 8. So each record's loss depends on the others, by less than tests can tell
    from rounding.
    """
    for name, module in model.named_modules():
        # Known by names alone, so that the library of these layers need not be installed.
        threshold = getattr(getattr(module, "state", None), "threshold", 0.0)
        if type(module).__name__ == "Linear8bitLt" and threshold > 0.0:
            raise Refusal(
                f"module {name!r} is a Linear8bitLt with threshold={threshold:g}: the largest value in a batch decides "
                "which columns of all its records are rounded.\n"
                "Each loss must depend on its own record alone, or clipping bounds nothing.\n"
                "Load the model with BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0), or in 4 bits."
            )


_PIPELINES = "torch.distributed.pipelining"
_WRAPPERS = {
    "DataParallel": "It cuts batches over devices",
    "DistributedDataParallel": "It adds up gradients that are no releases, and Private divides lots among ranks by "
    "itself",
    "FullyShardedDataParallel": "Its parameters are pieces of one long vector; use torch.distributed.fsdp.fully_shard",
}


def refuse_wrappers(model: nn.Module) -> None:
    """Checks a model and refuses wrappers that are not supported, by name."""
    # Wrappers are known by the names in their class hierarchy, so that their libraries need not be imported.
    for name, module in model.named_modules():
        label = f"module {name!r}" if name else "the model"
        for kind in type(module).__mro__:
            if kind.__name__ in _WRAPPERS:
                raise Refusal(
                    f"{label} is a {kind.__name__}.\n{_WRAPPERS[kind.__name__]}.\nPass the plain module inside it."
                )
    # Shards of other kinds than fully_shard's cannot be gathered here.
    if any(map(is_shard, model.parameters())) and wrap_if_sharded(model) is None:
        name = next(name for name, p in model.named_parameters() if is_shard(p))
        raise Refusal(
            f"parameter {name!r} is a DTensor that fully_shard did not make.\n"
            "Tensor, context and expert parallelism are not supported.\n"
            "Give every rank the whole model, or divide it by torch.distributed.fsdp.fully_shard."
        )


def refuse_batch_statistics(model: nn.Module, modules: Iterable[nn.Module] | None = None) -> None:
    """Checks a model and refuses modules that take or store statistics of a batch; modes change in mid-run, so this is
    asked every lot.
    """
    for module in list_modules(model) if modules is None else modules:
        if isinstance(module, _NormBase):  # BatchNorm and InstanceNorm
            _refuse_statistics(model, module)


def _refuse_statistics(model: nn.Module, module: nn.Module) -> None:
    """Raises for a BatchNorm or InstanceNorm that uses or stores statistics of the batch in a model that is checked."""
    name = next(name for name, found in model.named_modules() if found is module)
    label = f"{type(module).__name__} {name!r}" if name else type(module).__name__
    # BatchNorm computes with the other records of the batch: no bound on one record's contribution would hold.
    if isinstance(module, _BatchNorm):
        if module.running_mean is None:
            raise Refusal(
                f"{label} keeps no running statistics, so it mixes the samples of every batch, in eval mode too.\n"
                "No bound on one record's contribution would hold.\n"
                "Replace it by GroupNorm or LayerNorm."
            )
        if module.training:
            raise Refusal(
                f"{label} is in training mode: it mixes the samples of a batch.\n"
                "It also stores their statistics, with or without trainable parameters.\n"
                "Replace it by GroupNorm, or freeze its statistics with .eval()."
            )
    # InstanceNorm mixes no records, but its running statistics would leave with the model, without noise.
    if isinstance(module, _InstanceNorm) and module.training and module.running_mean is not None:
        raise Refusal(
            f"{label} tracks running statistics of private samples.\n"
            "They would leave with the model, without noise.\n"
            "Make it with track_running_stats=False."
        )
