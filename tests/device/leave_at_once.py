"""A pytest plugin that ends the process without Python's finalisation.

PyTorch's backward threads of a device may ask for the interpreter's lock while it is being taken down, which aborts the
process. All tests have been reported by then.
"""

import os
import sys

import pytest

_STATUS = pytest.StashKey[int]()


def pytest_sessionfinish(session, exitstatus):
    session.config.stash[_STATUS] = int(exitstatus)


def pytest_unconfigure(config):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(config.stash.get(_STATUS, 1))
