"""Serves the page and its two questions over HTTP, on the loopback interface only.

A page of another site may make the browser ask too (and may point its own host name at 127.0.0.1), so requests must
carry this server's address in `Host`, and in `Origin` when there is one. Nothing here reads a file but the page, and
nothing writes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sordino.accounting import Unsupported
from sordino.app.planner.answer import answer
from sordino.app.planner.scenario import Scenario, parse
from sordino.app.planner.scenario_curves import curves

LOOPBACK = "127.0.0.1"
PAGE = Path(__file__).with_name("page.html")
_LARGEST_QUESTION = 10_000
_PATIENCE = 30.0
_QUESTIONS: dict[str, Callable[[Scenario], dict[str, Any]]] = {"/api/answer": answer, "/api/curves": curves}


class Planner(ThreadingHTTPServer):
    """The HTTP server; port 0 takes any free one. `serve_forever` runs it, and `url` says where."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OverflowError as error:
            raise ValueError(f"port={port}: must lie between 0 and 65535") from error
        except OSError as error:
            raise ValueError(f"port={port}: {error.strerror or error}; take another, or --port 0 for any") from error
        self.page = PAGE.read_bytes()
        # The page's own script is allowed by its hash, and no other can run.
        script = re.search(rb"<script>(.*?)</script>", self.page, re.DOTALL)
        digest = hashlib.sha256(script.group(1) if script else b"").digest()
        self.policy = (
            f"default-src 'none'; script-src 'sha256-{base64.b64encode(digest).decode()}'; style-src 'unsafe-inline'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Reports an error, unless the browser merely closed the connection."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{LOOPBACK}:{self.port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Planner
    protocol_version = "HTTP/1.1"
    timeout = _PATIENCE

    def do_GET(self) -> None:
        """Sends the planner's page over HTTP."""
        if not self._is_from_own_page():
            return
        if self.path.partition("?")[0] != "/":
            self._refuse(HTTPStatus.NOT_FOUND, f"{self.path[:80]}: there is only the page at /")
            return
        self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        """Answers one of the two questions that the planner's page asks its server."""
        if not self._is_from_own_page():
            return
        # Only two questions exist; everything in the body is checked by `parse`.
        question = _QUESTIONS.get(self.path)
        if question is None:
            self._refuse(HTTPStatus.NOT_FOUND, f"{self.path[:80]}: ask {' or '.join(_QUESTIONS)}")
            return
        body = self._read_body()
        if body is None:
            return
        try:
            # A mistake in the question is an answer for the reader, and never a traceback.
            said = question(parse(json.loads(body)))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, f"not JSON: {error}")
        except (ValueError, TypeError, OverflowError, Unsupported) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        else:
            self._send(HTTPStatus.OK, json.dumps(said, allow_nan=False).encode(), "application/json")

    def _is_from_own_page(self) -> bool:
        """Returns whether a request comes from the planner server's own page; refuses any other."""
        # A page of another site could otherwise ask through the reader's browser, by a name that leads here.
        names = {f"{name}:{self.server.port}" for name in (LOOPBACK, "localhost")}
        if self.headers.get("Host") not in names:
            self._refuse(HTTPStatus.FORBIDDEN, f"Host must be {LOOPBACK}:{self.server.port}")
            return False
        origin = self.headers.get("Origin")
        if origin is not None and origin.removeprefix("http://") not in names:
            self._refuse(HTTPStatus.FORBIDDEN, "a page of another site may not ask")
            return False
        return True

    def _read_body(self) -> bytes | None:
        """Returns the body of a question to the planner's server; refuses one that is not JSON or too large."""
        # A form of another site cannot send JSON without asking first.
        if self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type must be application/json")
            return None
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _LARGEST_QUESTION:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"Content-Length must be at most {_LARGEST_QUESTION}")
            return None
        return self.rfile.read(int(length))

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        # What was not read would be taken for the next request.
        self.close_connection = True
        self._send(status, json.dumps({"error": why}).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        """Sends a response of the planner's server with headers that forbid the browser everything the page does not
        need.
        """
        self.send_response(status)
        # No cache, no frames, no scripts but the page's own.
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": self.server.policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """Returns the name alone, without a version."""
        return "sordino"

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""
