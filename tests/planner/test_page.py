"""The what-if page in a real browser: what a person sees, types and copies is what the accountant says."""

import json
import subprocess
import sys
import threading

import pytest

from sordino.accounting import PLD
from sordino.app.planner import Planner
from sordino.events import Gaussian, Poisson, Repeat
from tests.browser import ACCESSIBLE, DESKTOP, PHONE, opened, page

FOCUSED = """() => {
  const e = document.activeElement;
  if (e === document.body) return null;
  const style = x => getComputedStyle(x);
  const outlined = x => x && parseFloat(style(x).outlineWidth) >= 2 && style(x).outlineStyle !== 'none';
  return [e.id || e.dataset.copy || e.name || e.tagName, Boolean(outlined(e) || outlined(e.closest('label')))];
}"""
"""What has the focus, and whether one can see that."""


@pytest.fixture(scope="module")
def url():
    with Planner(0) as planner:
        thread = threading.Thread(target=planner.serve_forever, daemon=True)
        thread.start()
        yield planner.url
        planner.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser():
    with opened() as running:
        yield running


def epsilon(records, batch, epochs, multiplier, delta):
    event = Repeat(Poisson(batch / records, Gaussian(multiplier)), round(epochs * records / batch))
    return PLD().epsilon(event, delta)


def shown(view, text):
    view.wait_for_function("text => document.getElementById('big').textContent.includes(text)", arg=text)


def drawn(view):
    for name in ("epochs", "noise", "tradeoff"):
        view.wait_for_selector(f"#{name}-plot path.curve")


def test_it_opens_with_the_accountants_epsilon_and_three_curves(browser, url):
    with page(browser) as view:
        view.goto(url)
        shown(view, "1.134")  # rounded up from:
        assert 1.133 < epsilon(60_000, 256, 15, 1.1, 1e-5) <= 1.134
        drawn(view)
        assert view.inner_text("#lots") == "3,516"
        assert view.locator("#otherwise tr").count() == 3


def test_a_number_box_and_its_slider_say_the_same(browser, url):
    with page(browser) as view:
        view.goto(url)
        shown(view, "1.134")
        view.fill("#epochs", "30")
        shown(view, f"{-(-epsilon(60_000, 256, 30, 1.1, 1e-5) * 1000 // 1) / 1000:.3f}")
        before = view.input_value("#epochs-slider")
        view.focus("#epochs-slider")
        view.keyboard.press("ArrowRight")
        assert view.input_value("#epochs-slider") == str(int(before) + 1)
        assert float(view.input_value("#epochs")) > 30
        assert view.get_attribute("#epochs-slider", "aria-valuetext") == view.input_value("#epochs")


def test_a_target_is_met_by_the_noise_it_finds_with_the_keyboard_alone(browser, url):
    with page(browser) as view:
        view.goto(url)
        shown(view, "1.134")
        view.focus("#bands-slider")
        view.keyboard.press("Tab")
        view.keyboard.press("ArrowRight")  # from the noise to the target
        view.keyboard.press("Tab")
        assert view.evaluate("document.activeElement.id") == "epsilon"
        view.keyboard.press("Control+a")
        view.keyboard.type("3")
        shown(view, "3.000")
        found = float(view.input_value("#multiplier"))
        assert view.is_disabled("#multiplier")
        assert 2.999 < epsilon(60_000, 256, 15, found, 1e-5) <= 3


def test_bad_input_is_shown_beside_its_field_and_no_epsilon_is_left(browser, url):
    with page(browser) as view:
        view.goto(url)
        drawn(view)
        view.fill("#batch", "70000")
        view.wait_for_selector("#problem:not([hidden])")
        assert "must be <= Records N = 60000" in view.inner_text("#batch-wrong")
        assert view.get_attribute("#batch", "aria-invalid") == "true"
        assert view.inner_text("#big") == "no answer"
        assert not view.is_visible("#command")
        assert not view.is_visible("#epochs-plot")
        view.fill("#batch", "")
        view.wait_for_function("() => document.getElementById('batch-wrong').textContent.includes('needs a number')")
        view.fill("#batch", "256")
        shown(view, "1.134")
        assert view.is_hidden("#problem")


def test_what_is_copied_is_what_is_shown(browser, url):
    with page(browser, permissions=["clipboard-read", "clipboard-write"]) as view:
        view.goto(url)
        shown(view, "1.134")
        for name in ("command", "code"):
            view.click(f"[data-copy={name}]")
            view.wait_for_function("() => document.getElementById('told').textContent === 'Copied.'")
            assert view.evaluate("navigator.clipboard.readText()") == view.text_content(f"#{name}")
            view.wait_for_function("() => document.getElementById('told').textContent === ''")


def test_the_address_keeps_the_setting(browser, url):
    with page(browser) as view:
        view.goto(f"{url}#dataset_size=1000&batch=100&epochs=2&delta=1e-6&multiplier=2")
        shown(view, f"{-(-epsilon(1000, 100, 2, 2.0, 1e-6) * 1000 // 1) / 1000:.3f}")
        assert view.input_value("#task") == ""
        view.fill("#epochs", "3")
        view.wait_for_function("() => location.hash.includes('epochs=3')")


def test_a_planner_that_has_ended_is_said_on_the_page(browser):
    code = "from sordino.app.cli.main import main; main(['plan', '--port', '0', '--no-browser', '--json'])"
    with (
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process,
        page(browser) as view,
    ):
        view.goto(json.loads(process.stdout.readline())["url"])
        shown(view, "1.134")
        process.terminate()
        process.wait(60)
        view.fill("#epochs", "3")
        view.wait_for_function("() => document.getElementById('problem').textContent.includes('does not answer')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_it_is_labelled_readable_and_fits(browser, url, size, scheme):
    with page(browser, size, scheme) as view:
        view.goto(f"{url}#dataset_size=60000&batch=256&epochs=15&delta=1e-3&epsilon=3")
        shown(view, "3.000")
        drawn(view)
        assert view.locator(".note").count() > 0
        view.add_style_tag(content="* { transition: none !important }")
        view.wait_for_selector("#said:not(.busy)")
        assert view.evaluate(ACCESSIBLE) == []


def test_focus_is_visible_on_every_control(browser, url):
    with page(browser) as view:
        view.goto(url)
        drawn(view)
        seen = []
        for _ in range(60):
            view.keyboard.press("Tab")
            where = view.evaluate(FOCUSED)
            if where is None:
                break
            seen.append(where)
        names = [name for name, _ in seen]
        assert [name for name, visible in seen if not visible] == []
        assert {"task", "dataset_size", "dataset_size-slider", "delta", "set", "multiplier", "logs", "command"} <= {
            *names
        }
        assert names.index("dataset_size") < names.index("multiplier") < names.index("command")


def test_nothing_is_fetched_from_anywhere_else(browser, url):
    with page(browser) as view:
        asked = []
        view.on("request", lambda request: asked.append(request.url))
        view.goto(url)
        drawn(view)
        assert asked
        assert all(address.startswith((url, "data:")) for address in asked)


def test_bands_change_the_price_and_mark_their_error(browser, url):
    """Lots of 1/500 for four epochs at ε = 3: 16 bands leave about half of DP-SGD's error."""
    with page(browser) as view:
        view.goto(f"{url}#dataset_size=60000&batch=120&epochs=4&delta=1e-6&epsilon=3&bands=16")
        view.wait_for_selector("#bands-plot .mark")
        assert view.text_content("#bands-plot .warm") == "0.499 of DP-SGD's with 16 bands"
        assert "cyclic-poisson --bands 16" in view.inner_text("#command")
