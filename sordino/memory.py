"""How many samples fit in memory at once."""

from __future__ import annotations

import os

import torch

SHARE = 0.25
"""Of the memory that is free, what per-sample gradients may take."""

MOST = 4096
"""No physical batch is larger: past this, larger chunks gain nothing."""

_UNKNOWN = 2 << 30


def free_bytes(device: torch.device) -> int:
    """Memory free on a device; a cautious guess where it cannot be asked."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return _UNKNOWN


def physical_batch(sample_bytes: int, device: torch.device) -> int:
    """The number of samples processed at once."""
    return int(min(MOST, max(1, SHARE * free_bytes(device) // max(1, sample_bytes))))
