"""A simulated accelerator for tests of device code on machines without one.

    from tests.device.simulated import start
    sim = start()                       # from here on device="sim" works in this process
    move(model)                         # model.to("sim"), with tied parameters kept tied
    with sim.counting() as cost:        # launches, copies, bytes and waits, and who asked for them
        private.backward(...)
    with sim.switches(tf32=True):       # or round_by_shape, unordered, no_float64
        ...

`accelerator.cpp` says in which ways it is like a real device. It cannot be taken out of a process again, and PyTorch then
takes it for the machine's accelerator, so every file of checks has a process of its own.
"""

from __future__ import annotations

import ctypes
import sys
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.device.simulated.build import NoSimulatedDevice, build

__all__ = ["Cost", "NoSimulatedDevice", "Simulated", "build", "move", "start"]

DEVICES = 2
_WATCHER = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int64, ctypes.c_char_p)
_TOTAL_MEMORY = 8 << 30


@dataclass
class Cost:
    """What was asked of the device while it was counted."""

    counters: dict[str, int] = field(default_factory=dict)
    sites: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """How often (kind of copy or wait, or a launch, operation, file:line of the caller) happened."""

    def __getitem__(self, name: str) -> int:
        return self.counters.get(name, 0)

    @property
    def launches(self) -> int:
        return self["launches"]

    @property
    def waits(self) -> int:
        """How often the host waited: for values it reads, blocking copies, synchronisations, results of unknown size."""
        return self["waits"]

    @property
    def copies(self) -> int:
        return sum(self[kind] for kind in ("to_device", "to_device_async", "to_host", "to_host_async"))

    @property
    def bytes_copied(self) -> int:
        return sum(self[f"{kind}_bytes"] for kind in ("to_device", "to_device_async", "to_host", "to_host_async"))

    def waiting_sites(self) -> dict[str, int]:
        """Returns the places in the program at which the host waited, most frequent first."""
        found: Counter[str] = Counter()
        for (kind, operation, where), times in self.sites.items():
            if kind != "launch" and not kind.endswith("_async"):
                found[f"{where} ({kind}: {operation})"] += times
        return dict(found.most_common())

    def launch_sites(self) -> dict[str, int]:
        """Returns the places in the program that launched kernels, with what they launched, most frequent first."""
        found: Counter[str] = Counter()
        for (kind, operation, where), times in self.sites.items():
            if kind == "launch":
                found[f"{where} ({operation.removeprefix('aten::')})"] += times
        return dict(found.most_common())


class Simulated:
    """The loaded device: its switches and counters."""

    def __init__(self, path: Path) -> None:
        self._library = library = ctypes.PyDLL(str(path))
        library.sim_default_generator.restype = ctypes.py_object
        library.sim_read_counters.restype = ctypes.c_size_t
        library.sim_read_counters.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        library.sim_live_bytes.restype = library.sim_peak_bytes.restype = ctypes.c_size_t
        library.sim_set_switches.argtypes = [ctypes.c_bool] * 4
        library.sim_set_watcher.argtypes = [ctypes.c_void_p, ctypes.c_bool]
        self.generators = tuple(library.sim_default_generator(index) for index in range(DEVICES))
        torch.utils.rename_privateuse1_backend("sim")
        self.module = self._torch_module()
        torch._register_device_module("sim", self.module)
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
        _teach_storages()

    def read_counters(self) -> dict[str, int]:
        """Returns the counters since they were last reset."""
        capacity = 1 << 16
        while True:
            text = ctypes.create_string_buffer(capacity)
            needed = self._library.sim_read_counters(text, capacity)
            if needed < capacity:
                break
            capacity = 2 * needed
        lines = (line.split("\t") for line in text.value.decode().splitlines())
        return {name: int(value) for name, value in lines}

    @property
    def peak_bytes(self) -> int:
        return int(self._library.sim_peak_bytes())

    @contextmanager
    def counting(self, package: str = "sordino", *, launch_sites: bool = False) -> Iterator[Cost]:
        """Counts what is asked of the device inside, and notes the line of `package` that asked, or else the caller's.

        Args:
            package: the package whose lines are noted.
            launch_sites: whether the lines that launch kernels are noted too, which takes long; all launches are counted.
        """
        cost = Cost()

        def note(kind: bytes, size: int, operation: bytes) -> None:
            cost.sites[kind.decode(), operation.decode(), _call_site(package)] += 1

        watcher = _WATCHER(note)
        self._library.sim_reset_counters()
        self._library.sim_set_watcher(ctypes.cast(watcher, ctypes.c_void_p), launch_sites)
        try:
            yield cost
        finally:
            self._library.sim_set_watcher(None, False)
            cost.counters = self.read_counters()

    @contextmanager
    def switches(
        self, *, tf32: bool = False, round_by_shape: bool = False, unordered: bool = False, no_float64: bool = False
    ) -> Iterator[None]:
        """Makes the device round as TF32, round by shape, add in no fixed order, or know no float64, for a while."""
        self._library.sim_set_switches(tf32, round_by_shape, unordered, no_float64)
        try:
            yield
        finally:
            self._library.sim_set_switches(False, False, False, False)

    def _torch_module(self) -> types.ModuleType:
        """Returns `torch.sim`, with what PyTorch and programs ask of such a module."""
        library, generators = self._library, self.generators

        def index_of(device: Any) -> int:
            if isinstance(device, int):
                return device
            found = torch.device(device).index if device is not None else None
            return int(library.sim_current_device()) if found is None else found

        @contextmanager
        def on_device(device: Any) -> Iterator[None]:
            before = library.sim_current_device()
            library.sim_set_device(index_of(device))
            try:
                yield
            finally:
                library.sim_set_device(before)

        def seed_all(seed: int) -> None:
            for generator in generators:
                generator.manual_seed(seed)

        module: Any = types.ModuleType("torch.sim")
        module.default_generators = generators
        module.is_available = module.is_initialized = lambda: True
        module._is_in_bad_fork = lambda: False
        module._lazy_init = lambda: None
        module.device_count = lambda: DEVICES
        module.current_device = lambda: int(library.sim_current_device())
        module.set_device = lambda device: library.sim_set_device(index_of(device))
        module.device = on_device
        module.synchronize = lambda device=None: library.sim_synchronize()
        module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
        module.mem_get_info = lambda device=None: (_TOTAL_MEMORY - library.sim_live_bytes(), _TOTAL_MEMORY)
        module.empty_cache = lambda: None
        module.memory_allocated = lambda device=None: int(library.sim_live_bytes())
        module.max_memory_allocated = lambda device=None: int(library.sim_peak_bytes())
        module.manual_seed = lambda seed: generators[library.sim_current_device()].manual_seed(seed)
        module.manual_seed_all = seed_all
        module.get_rng_state = lambda device=None: generators[index_of(device)].get_state()
        module.set_rng_state = lambda state, device=None: generators[index_of(device)].set_state(state)
        return module  # type: ignore[no-any-return]


@cache
def start() -> Simulated:
    """Loads the simulated accelerator into this process, once; `device="sim"` and `"sim:1"` work from then on."""
    return Simulated(build())


def move(model: nn.Module, device: str = "sim") -> nn.Module:
    """Moves a model to the device as `.to` moves one to CUDA: parameters stay the same objects, and shared ones shared.

    For backends outside PyTorch `.to` makes new parameters unless it is told to swap their contents.
    """
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return model.to(device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def _call_site(package: str) -> str:
    """Returns the innermost line of the package on the stack, or the innermost outside torch, in parentheses."""
    frame, outside = sys._getframe(1), None  # on autograd's own thread there may be no frame below
    while frame is not None:
        file = frame.f_code.co_filename
        if f"/{package}/" in file:
            return f"{file.rsplit(f'/{package}/', 1)[1]}:{frame.f_lineno}"
        if outside is None and "/torch/" not in file and "simulated" not in file:
            outside = f"({Path(file).name}:{frame.f_lineno})"
        frame = frame.f_back  # type: ignore[assignment]
    return outside or "(autograd)"


def _teach_storages() -> None:
    """Lets storages of the device be copied, saved and loaded; PyTorch does this in Python for each kind of device."""
    plain_clone = torch.UntypedStorage.clone

    def clone(storage: Any) -> Any:
        if storage.device.type != "sim":
            return plain_clone(storage)
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).clone().untyped_storage()

    def tag(storage: Any) -> str | None:
        return f"sim:{storage.device.index}" if storage.device.type == "sim" else None

    def restore(storage: Any, location: str) -> Any:
        if location.startswith("sim"):
            return torch.empty(0, dtype=torch.uint8).set_(storage).to(location).untyped_storage()
        return None

    torch.UntypedStorage.clone = clone  # type: ignore[method-assign, assignment]
    torch.serialization.register_package(17, tag, restore)
