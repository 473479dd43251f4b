"""Every attack, by kind."""

from __future__ import annotations

from tests.honesty.attacks.another_kind import ANOTHER_KIND
from tests.honesty.attacks.batchwise import BATCHWISE
from tests.honesty.attacks.collate import COLLATE
from tests.honesty.attacks.dataset import DATASET
from tests.honesty.attacks.guards import GUARDS
from tests.honesty.attacks.half_precision import HALF
from tests.honesty.attacks.hidden_state import HIDDEN
from tests.honesty.attacks.hooks import HOOKS
from tests.honesty.attacks.kept_once import KEPT_ONCE
from tests.honesty.attacks.large import LARGE
from tests.honesty.attacks.loop import LOOP
from tests.honesty.attacks.loss import LOSS
from tests.honesty.attacks.model import MODEL
from tests.honesty.attacks.modes import MODES
from tests.honesty.attacks.other_rows import OTHER_ROWS
from tests.honesty.attacks.padding import PADDING
from tests.honesty.attacks.random_padding import RANDOM_PADDING
from tests.honesty.attacks.randomness import RANDOM
from tests.honesty.attacks.rows import ROWS
from tests.honesty.attacks.wrappers import WRAPPERS

OWN = [*ANOTHER_KIND, *BATCHWISE, *HALF, *KEPT_ONCE, *RANDOM_PADDING]
"""Kinds that were added when a second round of attacks had been made."""

ATTACKS = [
    *OWN,
    *PADDING,
    *COLLATE,
    *DATASET,
    *GUARDS,
    *HIDDEN,
    *HOOKS,
    *LARGE,
    *LOOP,
    *LOSS,
    *MODEL,
    *MODES,
    *OTHER_ROWS,
    *RANDOM,
    *ROWS,
    *WRAPPERS,
]
