"""Names of version 0.2, which still work and warn: modules, functions and methods.

`sordino.weigh.flat` became `sordino.clipping.flat`, and so on. Imports by the old names work for one release: a finder
maps them to the modules of today, so both names give the same module object and the same classes.

Functions and methods were renamed too. `find_former_name` answers to the old names of a package's functions and
classes, `former_method` keeps an old name of a method in a class of this library, and `adopt_former_method` accepts a
user's own class that still defines the old name. `former_keyword` keeps an old name of a function's argument,
`former_field` one of a dataclass's field, as keyword and as attribute; `rename_saved_query` and `rename_saved_state` read
what was saved with it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar, cast

FORMER_NAMES = {
    "recipes": "app.runs",
    "accounting.accountants.composition": "accounting.accountants.composition_theorems",
    "accounting.gaussian": "privacy_loss.gaussian",
    "accounting.accountants.tuned": "accounting.accountants.search_bounds",
    "accounting.losses": "privacy_loss",
    "accounting.losses.certified": "privacy_loss.certified_bounds",
    "accounting.losses.closed": "privacy_loss.closed_forms",
    "accounting.losses.compose": "privacy_loss.tilted_windows",
    "accounting.losses.lossdist": "privacy_loss.composed_bounds",
    "accounting.losses.sums": "privacy_loss.tail_sums",
    "accounting.losses.phases": "accounting.phases",
    "accounting.losses.projection": "events.projected_clipping",
    "accounting.search": "accounting.calibration",
    "accounting.search.mechanisms": "accounting.calibration.single_release",
    "algorithms": "queries",
    "algorithms.calibrated": "queries.calibrate_query",
    "algorithms.dpsgd": "queries.noisy_sum",
    "algorithms.quantile": "queries.private_quantile",
    "app.runs.dict_records": "app.runs.given_data",
    "app.runs.distributed_files": "app.runs.directory",
    "app.runs.own_records": "app.runs.run_data",
    "app.runs.run_checkpoint": "app.runs.directory",
    "attack": "attacks",
    "attack.game": "app.attacks.membership_game",
    "attack.inversion": "app.attacks.model_inversion",
    "attack.membership": "app.attacks.membership_inference",
    "attack.pictures": "app.attacks.attack_figures",
    "audit": "auditing",
    "audit.bounds.curves": "auditing.bounds.tradeoff_tests",
    "audit.checks": "auditing.selftest_checks",
    "audit.checks.door": "auditing.selftest_checks.release_checks",
    "audit.checks.draws": "auditing.selftest_checks.sampler_checks",
    "audit.checks.entries": "auditing.selftest_checks.ledger_checks",
    "audit.checks.noise": "auditing.selftest_checks.noise_checks",
    "audit.checks.sums": "auditing.selftest_checks.sum_checks",
    "audit.neighbours": "auditing.neighbouring_records",
    "audit.of_run": "app.audits.audited_run",
    "audit.one_training": "app.audits.one_run_audit",
    "audit.pieces": "auditing.selftest_subject",
    "audit.replay": "app.audits.replay_audit",
    "audit.run_selftest": "auditing.selftest",
    "audit.taken_apart": "app.audits.step_parts",
    "cli": "app.cli",
    "cli.flags": "app.cli.flags",
    "cli.launched": "app.cli.training_command",
    "cli.outcome": "app.cli.training_command",
    "cli.parsing": "app.cli.argument_parsing",
    "cli.picture": "app.cli.privacy_figures",
    "cli.shared": "app.cli.accounting_options",
    "clipping.rowwise_check": "clipping.clipping_rule",
    "data": "app.data",
    "data.catalogue": "app.data.data_catalogue",
    "data.generated": "app.data.generated_data",
    "data.own.declared": "app.data.own.declared_columns",
    "data.sources": "app.data.download_sources",
    "data.text": "app.data.labelled_texts",
    "declared": "registry",
    "declares": "private",
    "door": "ledger",
    "door.claims": "ledger.claims",
    "door.diverged": "runtime_checks.lot_checks",
    "door.grid": "release.exact_sums",
    "door.grid_by_rows": "release.exact_sums_by_rows",
    "door.history": "ledger.history",
    "door.ledger": "ledger.ledger",
    "door.live_epsilon": "ledger.live_epsilon",
    "door.lot_counts": "ledger.lot_counts",
    "door.noise": "release.noise",
    "door.noise_tail": "release.noise_tail",
    "door.parameter_watch": "ledger.tripwire",
    "door.release": "release.release",
    "door.released_gradients": "ledger.tripwire",
    "door.rounding": "release.rounding",
    "door.sealed": "release.sealed",
    "door.sensitivity": "release.sensitivity",
    "door.tripwire": "ledger.tripwire",
    "door.vectors": "release.vectors",
    "events.composition": "events",
    "events.draws": "events",
    "events.mechanisms": "events",
    "gradients": "per_sample",
    "gradients.batch": "per_sample.batch_structure",
    "gradients.captured": "per_sample.engine",
    "gradients.captured.backward": "per_sample.engine.pruned_backward",
    "gradients.captured.buffers": "per_sample.engine.gradient_buffer",
    "gradients.captured.engine": "per_sample.captured_backend",
    "gradients.captured.functions": "per_sample.layers.functional_layers",
    "gradients.captured.graph": "per_sample.engine.pruned_backward",
    "gradients.captured.held": "per_sample.engine.backward_memory",
    "gradients.captured.keep_budget": "per_sample.engine.batch_result",
    "gradients.captured.layout": "per_sample.recording.sample_layout",
    "gradients.captured.meetings": "per_sample.engine.shared_tensor_uses",
    "gradients.captured.options": "per_sample.performance_options",
    "gradients.captured.plan": "per_sample.engine.module_plan",
    "gradients.captured.result": "per_sample.engine.batch_result",
    "gradients.captured.tape": "per_sample.recording.tape",
    "gradients.captured.use": "per_sample.recording.tape",
    "gradients.check": "per_sample.model_checks",
    "gradients.displaced": "per_sample.displaced_model",
    "gradients.first_batch.dropout": "per_sample.first_batch.without_dropout",
    "gradients.first_batch.layouts": "per_sample.first_batch.find_layouts",
    "gradients.first_batch.settle": "per_sample.first_batch.learn_model",
    "gradients.first_batch.shared_tensors": "per_sample.first_batch.find_layouts",
    "gradients.first_batch.stopwatch": "per_sample.formulas.formula_timing",
    "gradients.formulas.by_shape": "per_sample.formulas.choice_by_shape",
    "gradients.formulas.compound": "per_sample.formulas.compound_parts",
    "gradients.formulas.geometry": "per_sample.formulas.convolution_geometry",
    "gradients.formulas.part": "per_sample.formulas.gradient_part",
    "gradients.inventory": "per_sample.model_inventory",
    "gradients.jl": "per_sample.jl_norms",
    "gradients.captured.small_layers": "per_sample.accelerations.small_layers",
    "gradients.layers.pooling": "per_sample.accelerations.max_pooling",
    "gradients.layers.registry": "per_sample.layers.layer_registry",
    "gradients.layers.sequential": "per_sample.accelerations.linear_chains",
    "gradients.loop": "per_sample.loop_backend",
    "gradients.probe": "per_sample.loss_probe",
    "gradients.seeded": "rng.global_generators",
    "gradients.spectral": "per_sample.model_inventory",
    "gradients.tensors": "per_sample.row_arithmetic",
    "gradients.vmap": "per_sample.vmap_backend",
    "gradients.written": "per_sample.forward_writes",
    "integrations.fitted_tables": "runtime_checks.fitted_tables",
    "integrations.missing": "integrations.missing_library",
    "kernels.bytes_at": "kernels.abi",
    "kernels.noise": "kernels.noise_kernel",
    "kernels.tensors": "kernels.kernel_tensors",
    "kernels.threads": "kernels.abi",
    "lab": "sordino_lab",
    "lab.abadi": "sordino_lab.families.abadi_training",
    "lab.cost": "sordino_lab.curve_plan",
    "lab.curves": "sordino_lab.training_curves",
    "lab.fashion": "sordino_lab.families.fashion_mnist",
    "lab.index": "sordino_lab.pages",
    "lab.looks": "sordino_lab.training_curves",
    "lab.not_private": "sordino_lab.source_errors",
    "lab.order": "sordino_lab.catalogue",
    "lab.page": "sordino_lab.pages",
    "lab.plan": "sordino_lab.curve_plan",
    "lab.size": "sordino_lab.experiment",
    "lab.slides": "sordino_lab.families.weight_decay",
    "lab.slips": "sordino_lab.source_errors",
    "lab.sorted_table": "sordino_lab.thesis_plans",
    "lab.sweep": "sordino_lab.training_curves",
    "lab.thesis": "sordino_lab.thesis_plans",
    "lab.store": "sordino_lab.result_store",
    "lab.trained": "sordino_lab.training_store",
    "lab.weight_decay": "sordino_lab.families.weight_decay",
    "ledger.divergence": "runtime_checks.lot_checks",
    "ledger.lineage": "ledger.tripwire",
    "lots.chunking": "lots.loading",
    "lots.cutting": "lots.loading",
    "lots.draw_request": "lots.lot",
    "lots.draws": "lots.lot",
    "lots.pass_model": "lots.lot_gradients",
    "lots.phase": "lots.lot",
    "lots.request": "lots.lot",
    "lots.sites": "lots.data_owners",
    "lots.units": "lots.privacy_units",
    "nn.minilm": "app.data.minilm",
    "nn.pretrained": "app.data.pretrained_weights",
    "per_sample.chunked": "per_sample.protocol",
    "per_sample.engine.autograd_graph": "per_sample.engine.pruned_backward",
    "per_sample.engine.kept_rows_budget": "per_sample.engine.batch_result",
    "per_sample.engine.loss_identity": "per_sample.engine.module_plan",
    "per_sample.formulas.linear_map": "per_sample.formulas.matrix_product",
    "per_sample.recording.recorded_use": "per_sample.recording.tape",
    "per_sample.spectral_norm": "per_sample.model_inventory",
    "planner": "app.planner",
    "planner.curves": "app.planner.scenario_curves",
    "printed_numbers": "number_format",
    "queries.target_epsilon": "queries.calibrate_run",
    "random": "rng",
    "random.compiled": "rng.keystream",
    "random.global_state": "rng.global_generators",
    "random.rng": "rng.streams",
    "progress": "private",
    "random.steady": "rng.shape_independent",
    "ranks": "distributed",
    "ranks.checkpoint": "distributed.checkpoint_entry",
    "ranks.digest": "distributed.agreement_digest",
    "ranks.division": "distributed.noise_division",
    "ranks.facts": "distributed.claim_facts",
    "ranks.group": "distributed.process_group",
    "ranks.kept_memory": "distributed.reusable_buffers",
    "ranks.no_messages": "distributed.message_guard",
    "ranks.ranked_lot": "distributed.shared_lot",
    "ranks.rounds": "distributed.collectives_on_demand",
    "ranks.shard": "distributed.row_shard",
    "report": "app.report",
    "report.compare": "app.report.compare_runs",
    "report.figures": "app.report.svg_figures",
    "report.looks": "app.report.method_colours",
    "rng.compiled_noise": "rng.keystream",
    "runs": "app.runs",
    "runs.before": "app.runs.preparation",
    "runs.changed": "app.runs.settings",
    "runs.checkpoint": "app.runs.directory",
    "runs.cost": "app.runs.job",
    "runs.crew": "app.runs.directory",
    "runs.diagnosis": "app.runs.evaluate",
    "runs.digest": "app.runs.write_ahead",
    "runs.environment": "environment",
    "runs.files": "app.atomic_files",
    "runs.findings": "app.runs.directory",
    "runs.generated": "app.runs.known_recipes",
    "runs.known": "app.runs.known_recipes",
    "runs.loop": "app.runs.training_loop",
    "runs.losses": "app.runs.problem",
    "runs.mapped": "app.runs.preparation",
    "runs.measured": "app.runs.known_recipes",
    "runs.normalisation": "app.runs.preparation",
    "runs.number_of_runs": "app.runs.search",
    "runs.own_data": "app.runs.run_data",
    "runs.own_model": "app.runs.own_code",
    "runs.own_recipes": "app.runs.declared_file",
    "runs.packing": "state_packing",
    "runs.prepared": "app.runs.encoded_records",
    "runs.principal": "app.runs.preparation",
    "runs.run_parts": "app.runs.job",
    "runs.search_folder": "app.runs.search",
    "runs.several": "app.runs.several_seeds",
    "runs.signals": "app.runs.fit",
    "runs.sources": "app.runs.known_recipes",
    "runs.tables": "app.runs.known_recipes",
    "runs.text_data": "app.runs.features",
    "runs.toml": "app.toml_writer",
    "runs.view": "app.runs.progress_view",
    "runs.words": "app.runs.methods",
    "runtime_checks.check_schedule": "runtime_checks.test_runner",
    "sampling.by_length": "sampling.length_based",
    "sampling.records": "sampling.record_access",
    "sampling.told_size": "sampling.size_disclosure",
    "saved": "private",
    "standing": "runtime_checks",
    "standing.compare": "runtime_checks.compare_passes",
    "standing.double": "runtime_checks.double_precision",
    "standing.finding": "runtime_checks.coupling_finding",
    "standing.guard": "runtime_checks.test_runner",
    "standing.moments": "runtime_checks.test_runner",
    "standing.neighbours": "runtime_checks.test_batches",
    "standing.own_pass": "runtime_checks.lot_pass",
    "standing.questions": "runtime_checks.neighbour_test",
    "together": "distributed_run",
    "weigh": "clipping",
    "weigh.global_rule": "clipping.global_clipping",
    "weigh.reach": "clipping.clipping_rule",
    "weigh.rows": "clipping.clipping_rule",
    "weigh.shares": "clipping.noise_shares",
    "weigh.weigher": "clipping.clipping_rule",
}
"""Packages and modules by their old name below `sordino`; a module without a line of its own follows its package."""


def current_name(former: str) -> str | None:
    """Returns the full name that a module now has in place of its former name of 0.2, or None if `former` is no such
    module.
    """
    parts = former.split(".")
    if parts[0] != "sordino":
        return None
    # The longest known beginning decides, so that a module which moved out of its package is found before the package.
    for length in range(len(parts), 1, -1):
        head = ".".join(parts[1:length])
        if head in FORMER_NAMES:
            moved = ".".join([FORMER_NAMES[head], *parts[length:]])
            return moved if moved.split(".")[0] == "sordino_lab" else f"sordino.{moved}"
    return None


class FormerNameFinder(MetaPathFinder, Loader):
    """Imports modules by the names they had in 0.2."""

    def __init__(self) -> None:
        self._current_specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns an import spec for a former name of a module, which Python's own finders did not know."""
        return None if current_name(fullname) is None else ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Imports a module of a former name by its current name and warns that the former one goes away."""
        name = current_name(spec.name)
        assert name is not None, "find_spec accepts former names only"
        warnings.warn(f"{spec.name} is now {name}; the old name goes away in 0.4", DeprecationWarning, stacklevel=2)
        module = import_module(name)
        self._current_specs[module.__name__] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module back the spec of its current name, which Python replaced; it has run under that name."""
        module.__spec__ = self._current_specs.pop(module.__name__)


def install() -> None:
    """Makes former names importable. Python asks this finder last, so it never hides a module that exists."""
    if not any(isinstance(finder, FormerNameFinder) for finder in sys.meta_path):
        sys.meta_path.append(FormerNameFinder())


_ALIASES: set[Callable[..., Any]] = set()
"""The methods that `former_method` made: they are aliases of this library and no definition of a user's class."""


def find_former_name(package: str, renamed: Mapping[str, str], name: str) -> Any:
    """Returns what was called `name` in a package of 0.2, and warns; raises AttributeError if nothing was.

    A package calls this from its own `__getattr__`, which Python asks only for names that the package does not have.
    """
    if name not in renamed:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    _warn_of_former_name(f"{package}.{name}", renamed[name])
    return getattr(sys.modules[package], renamed[name])


def former_method(former: str, current: str) -> Callable[..., Any]:
    """Returns a method for the former name of a method, which warns and calls the method by its current name."""

    def call_current(self: Any, *args: Any, **kwargs: Any) -> Any:
        _warn_of_former_name(f"{type(self).__name__}.{former}", current)
        return getattr(self, current)(*args, **kwargs)

    call_current.__name__, call_current.__doc__ = former, f"Calls `{current}`, the name since 0.3; it goes away in 0.4."
    _ALIASES.add(call_current)
    return call_current


def adopt_former_method(instance: object, former: str, current: str) -> None:
    """Gives a user's class that defines a method by its former name the current name too, and warns.

    The class that comes first in the order of inheritance decides. A user's subclass of one of our classes that overrides
    the former name therefore keeps its own method; otherwise it would silently get the method of our class.
    """
    # Whichever name comes first in the order of inheritance is the one that the user meant.
    for kind in type(instance).__mro__:
        if current in vars(kind):
            return
        defined = vars(kind).get(former)
        if callable(defined) and defined not in _ALIASES:
            _warn_of_former_name(f"{kind.__name__}.{former}", current)
            setattr(kind, current, defined)
            return


_Class = TypeVar("_Class", bound=type[Any])
_Function = TypeVar("_Function", bound=Callable[..., Any])

SAVED_FIELDS = {"weigher": "clipping"}
"""Fields of queries by the names that states saved by 0.3 and before have for them."""


def former_keyword(former: str, current: str) -> Callable[[_Function], _Function]:
    """Returns a decorator by which a function takes the former name of an argument as a keyword, and warns."""

    def keep_former_name(function: _Function) -> _Function:
        """Returns the function with both names of its argument, the former and the current one."""
        called = function.__qualname__.removesuffix(".__init__")

        @wraps(function)
        def call_by_either_name(*args: Any, **kwargs: Any) -> Any:
            """Calls the function with an argument that came by its former name, or by its current one."""
            # `dataclasses.replace` gives the current name too, with the value that is to be replaced.
            if former in kwargs:
                _warn_of_former_name(f"{called}({former}=…)", f"{called}({current}=…)")
                kwargs[current] = kwargs.pop(former)
            return function(*args, **kwargs)

        return cast("_Function", call_by_either_name)

    return keep_former_name


def former_field(former: str, current: str) -> Callable[[_Class], _Class]:
    """Returns a decorator by which a dataclass takes the former name of a field as a keyword, and answers to it."""

    def keep_former_name(kind: _Class) -> _Class:
        """Gives a dataclass both names of its field, the former and the current one, and returns it."""

        def read_former(self: Any) -> Any:
            _warn_of_former_name(f"{kind.__name__}.{former}", current)
            return getattr(self, current)

        kind.__init__ = former_keyword(former, current)(kind.__init__)
        setattr(kind, former, property(read_former, doc=f"The field `{current}`; this name goes away in 0.4."))
        return kind

    return keep_former_name


def rename_saved_query(text: str) -> str:
    """Returns the text of a query that a state was saved with, with the fields' current names in place of former ones.

    >>> rename_saved_query("NoisySum(weigher=Flat(bound=1.0), noise=Gaussian(multiplier=1.1))")
    'NoisySum(clipping=Flat(bound=1.0), noise=Gaussian(multiplier=1.1))'
    """
    for former, current in SAVED_FIELDS.items():
        text = text.replace(f"({former}=", f"({current}=").replace(f" {former}=", f" {current}=")
    return text


def rename_saved_state(state: Any) -> Any:
    """Returns the saved state of a query with current keys in place of former ones, also in the states of inner queries.

    >>> rename_saved_state({"step": 3, "weigher": 0.5})
    {'step': 3, 'clipping': 0.5}
    """
    if isinstance(state, dict):
        return {SAVED_FIELDS.get(key, key): rename_saved_state(value) for key, value in state.items()}
    return [rename_saved_state(value) for value in state] if isinstance(state, list) else state


def _warn_of_former_name(former: str, current: str) -> None:
    """Warns the caller's caller that a name of 0.2 goes away."""
    warnings.warn(f"{former} is now {current}; the old name goes away in 0.4", DeprecationWarning, stacklevel=3)
