"""Takes the screenshots of docs/img: a run's report and the planner in a browser.

    python -m bench.screenshots RUN

Needs playwright and a chromium; writes PNGs of 256 colours, which is enough for pages and keeps them small.
"""

from __future__ import annotations

import io
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from PIL import Image

from sordino.app.planner import Planner
from sordino.app.report import write

IMAGES = Path(__file__).parent.parent / "docs" / "img"
_WIDTH, _REPORT, _PLANNER = 1180, 950, 860
_PARTS = {
    "claim": ("", "In words"),
    "curves": ("Test accuracy, and the privacy spent", "The same promise in other terms"),
    "covered": ("What it rests on", "What is not covered"),
    "answers": ("What a claim of privacy should answer", "What a claim of privacy should answer"),
}
"""Pieces of a report for the tutorial: the texts of their first and last frames."""


def _clip(page: Any, first: str, last: str) -> dict[str, float]:
    """Returns the area from one heading to another; without the first, from the beginning of the page."""
    top = page.locator("section, figure", has_text=first).first.bounding_box()["y"] - 8 if first else 0
    end = page.locator("section, figure", has_text=last).first.bounding_box()
    return {"x": 0, "y": top, "width": _WIDTH, "height": end["y"] + end["height"] + 8 - top}


def _save(page: Any, name: str, clip: Any = None) -> None:
    picture = Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")
    IMAGES.mkdir(exist_ok=True)
    picture.quantize(256, dither=Image.Dither.NONE).save(IMAGES / name, optimize=True)


def main(run: Path) -> None:
    """Takes both screenshots."""
    from playwright.sync_api import sync_playwright

    report = write(run)
    with sync_playwright() as play, Planner(0) as planner:
        threading.Thread(target=planner.serve_forever, daemon=True).start()
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        )
        page = browser.new_page(viewport={"width": _WIDTH, "height": _REPORT}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        _save(page, "report.png")
        page.set_viewport_size({"width": _WIDTH, "height": page.evaluate("document.body.scrollHeight")})
        for name, (first, last) in _PARTS.items():
            _save(page, f"report_{name}.png", _clip(page, first, last))
        page.set_viewport_size({"width": _WIDTH, "height": _PLANNER})
        page.goto(f"{planner.url}#task=mnist&dataset_size=60000&batch=256&epochs=15&delta=1e-5&epsilon=3")
        page.wait_for_selector("#epochs-plot path.curve", timeout=60_000)
        page.wait_for_selector("#said:not(.busy)")
        page.wait_for_timeout(500)
        _save(page, "planner.png")
        browser.close()
        planner.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
