"""The page in a real browser: nothing runs over the side, no card covers another, filters show what they say."""

import pytest
from sordino_lab.pages import write_html

from tests.browser import DESKTOP, PHONE, opened
from tests.browser import page as shown

OVERLAPS = """() => {
  const cards = [...document.querySelectorAll("section.card:not([hidden])")].map((card) => card.getBoundingClientRect());
  return cards.some((one, k) => k > 0 && one.top < cards[k - 1].bottom - 1);
}"""
WIDER = """() => [...document.querySelectorAll("svg, table, pre, code, button")].filter(
  (one) => one.getBoundingClientRect().right > document.documentElement.clientWidth + 1
).map((one) => one.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("page")
    return write_html(folder, folder / "index.html").as_uri()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_of_the_lab_fits_and_its_filters_work(address, size):
    with opened() as browser, shown(browser, size) as tab:
        tab.goto(address)
        assert tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert tab.evaluate(WIDER) == []
        assert not tab.evaluate(OVERLAPS)
        every = tab.locator(".entry:visible").count()
        tab.get_by_role("button", name="003 ", exact=False).first.click()
        some = tab.locator(".entry:visible").count()
        assert 0 < some < every
        assert tab.locator('.entry:visible:not([data-source="003"])').count() == 0
        tab.get_by_role("button", name="all sources").click()
        tab.get_by_role("button", name="does not hold").click()
        assert tab.locator('.entry:visible:not([data-verdicts~="fails"])').count() == 0
