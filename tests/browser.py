"""A real browser for the tests of pages: the machine's chromium, driven by playwright. Skips, saying why, without one."""

import contextlib
import shutil
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PATIENCE = 90_000
"""Milliseconds until a test gives up; machines that run tests are busy."""
DESKTOP, PHONE = (1280, 900), (390, 844)


@contextlib.contextmanager
def opened():
    """A running browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no {' or '.join(NAMES)} on this machine: `.ci/browser` installs one on Debian, as root")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        yield browser
        browser.close()


@contextlib.contextmanager
def page(browser, size=DESKTOP, scheme="light", **options):
    """A page in a context of its own; errors of its scripts fail the test."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, service_workers="block", **options
    )
    context.set_default_timeout(PATIENCE)
    shown, errors = context.new_page(), []
    shown.on("pageerror", lambda error: errors.append(str(error)))
    yield shown
    context.close()
    assert errors == []


ACCESSIBLE = Path(__file__).with_name("accessible.js").read_text()
"""Labels, names, headings, references, contrast and width; evaluates to a list of what is wrong."""
