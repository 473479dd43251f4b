"""`sordino plan`: serves a what-if page on 127.0.0.1 with the exact accountant behind it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

from sordino.app.cli.help_page import HelpPage


@dataclass(frozen=True)
class Command:
    """Open a what-if page in the browser: data, lots, epochs, noise, δ and ε against each other. Ctrl-C ends it."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(("Open the page with sliders:", "sordino plan"),),
    )
    port: int = 8733
    """Where to listen on 127.0.0.1; 0 takes any free port."""
    browser: bool = True
    """Open the page in the browser."""
    json: bool = False
    """Say where the page is as one JSON object."""

    def run(self) -> int:
        """Carries out `sordino plan`: serves the what-if page until it is interrupted; returns the exit code."""
        from sordino.app.planner import Planner

        with Planner(self.port) as planner:
            # The address is printed before the browser opens, for machines that have none.
            address = json.dumps({"url": planner.url, "port": planner.port})
            print(
                address if self.json else f"planner at {planner.url} on this machine only; Ctrl-C ends it", flush=True
            )
            if self.browser:
                import webbrowser

                webbrowser.open(planner.url)
            try:
                planner.serve_forever()
            except KeyboardInterrupt:
                return 0
        return 0
