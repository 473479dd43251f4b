"""The site builds strictly, and a browser shows its pages: code fits, and there are a source link and a theme switch."""

import functools
import http.server
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import browser

ROOT = Path(__file__).parents[1]
PAGES = ["", "training_loop/", "tutorials/own_data/", "voided_claims/", "reference/training/", "project/contributing/"]
TOO_WIDE = """
() => [...document.querySelectorAll("pre > code")]
    .filter(code => code.scrollWidth > code.clientWidth + 1)
    .map(code => code.innerText.slice(0, 80))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site, served on this machine; yields its address."""
    pytest.importorskip("mkdocs", reason="mkdocs is in the extra [docs]")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    run = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_code_fits_on_a_desktop_and_no_page_scrolls_sideways_on_a_phone(site):
    with browser.opened() as opened:
        with browser.page(opened) as desktop:
            for page in PAGES:
                desktop.goto(site + page)
                assert desktop.evaluate(TOO_WIDE) == [], page
        with browser.page(opened, browser.PHONE) as phone:
            for page in PAGES:
                phone.goto(site + page)
                assert phone.evaluate("document.documentElement.scrollWidth") <= browser.PHONE[0], page


def test_a_page_has_a_logo_the_source_the_next_page_and_a_theme_switch(site):
    with browser.opened() as opened, browser.page(opened) as page:
        page.goto(site + "training_loop/")
        assert page.locator("header .md-logo img").first.get_attribute("src").endswith("logo.svg")
        assert "Source" in page.locator("header .md-source").first.inner_text()
        assert page.locator("a.md-footer__link--prev").count() == 1
        assert page.locator("a.md-footer__link--next").count() == 1
        scheme = "document.body.getAttribute('data-md-color-scheme')"
        page.locator("label[for='__palette_1']").click()
        assert page.evaluate(scheme) == "default"
        page.locator("label[for='__palette_2']").click()
        assert page.evaluate(scheme) == "slate"


def test_links_from_the_site_to_files_of_the_repository_lead_to_copies(site):
    with browser.opened() as opened, browser.page(opened) as page:
        page.goto(site + "benchmarks/")
        links = page.locator("article a[href*='files/bench']").evaluate_all("found => found.map(one => one.href)")
        assert links
        assert all(page.request.get(link).ok for link in links)
