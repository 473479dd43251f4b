"""The honest zoo: scripts whose claim is true. None of them is ever refused or voided."""

from __future__ import annotations

from tests.honesty.honest.datasets import HONEST_ROWS
from tests.honesty.honest.layers import LAYERS
from tests.honesty.honest.loop import LOOPS
from tests.honesty.honest.nouns import NOUNS
from tests.honesty.honest.randomness import CHANCE
from tests.honesty.honest.steps import STEPS
from tests.honesty.honest.valid_records import VALID
from tests.honesty.honest.weights import WEIGHTS

HONEST = [*VALID, *LAYERS, *WEIGHTS, *CHANCE, *LOOPS, *STEPS, *NOUNS, *HONEST_ROWS]
