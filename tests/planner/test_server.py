"""The planner's server: loopback only, its own host name and origin only, one page and two questions."""

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from sordino.app.planner import Planner

USUAL = {"dataset_size": 1000, "batch": 50, "epochs": 1, "delta": 1e-5, "multiplier": 1.1}


@pytest.fixture(scope="module")
def planner():
    with Planner(0) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(planner, method="POST", path="/api/answer", body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", planner.port, timeout=90)
    with contextlib.closing(connection):
        given = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        text = body if isinstance(body, str | bytes) else json.dumps(USUAL if body is None else body)
        connection.request(method, path, text if method == "POST" else None, given)
        got = connection.getresponse()
        return got.status, got.read(), got.headers


def test_it_answers_questions_and_serves_the_page(planner):
    status, body, _ = ask(planner)
    assert status == 200
    assert json.loads(body)["lots"] == 20
    status, body, headers = ask(planner, "GET", "/")
    assert status == 200
    assert b"<title>" in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_it_listens_on_the_loopback_interface_only(planner):
    assert planner.server_address[0] == "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as elsewhere:
        elsewhere.settimeout(2)
        assert elsewhere.connect_ex(("127.0.0.2", planner.port)) != 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1.evil.example:8733"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_sites_name_or_page_is_refused(planner, method, headers):
    status, body, _ = ask(planner, method, "/" if method == "GET" else "/api/answer", **headers)
    assert status == 403
    assert b"<title>" not in body
    assert b"epsilon" not in body


def test_its_own_origin_is_welcome(planner):
    assert ask(planner, Origin=planner.url.rstrip("/"))[0] == 200
    assert ask(planner, Host=f"localhost:{planner.port}", Origin=f"http://localhost:{planner.port}")[0] == 200


@pytest.mark.parametrize(
    ("request_", "status", "says"),
    [
        ({"body": "{"}, 400, "not JSON"),
        ({"body": "[]"}, 400, "need an object"),
        ({"body": b"\xff\xfe"}, 400, ""),
        ({"body": "NaN"}, 400, "need an object"),
        ({"body": {**USUAL, "delta": 2}}, 400, "delta=2"),
        ({"body": "[" * 5000}, 400, ""),
        ({"body": "x" * 20_000}, 413, "Content-Length"),
        ({"Content_Type": "text/plain"}, 415, "application/json"),
        ({"path": "/api/else"}, 404, "/api/answer"),
        ({"method": "GET", "path": "/../../etc/passwd"}, 404, "only the page"),
        ({"method": "GET", "path": "/api/answer"}, 404, "only the page"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_request_gets_one_line_of_json(planner, request_, status, says):
    got, body, _ = ask(planner, **request_)
    assert got == status
    assert says in json.loads(body)["error"]


def test_the_command_says_where_it_serves_and_ends_with_ctrl_c():
    # Whoever runs the tests in the background leaves them with Ctrl-C ignored, and children inherit that.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heard}; import sys; from sordino.app.cli.main import main; sys.exit(main(sys.argv[1:]))"
    with subprocess.Popen(
        [sys.executable, "-c", code, *["plan", "--port", "0", "--no-browser", "--json"]],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        said = json.loads(process.stdout.readline())
        connection = http.client.HTTPConnection("127.0.0.1", said["port"], timeout=90)
        with contextlib.closing(connection):
            connection.request("GET", "/")
            assert connection.getresponse().status == 200
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(90) == 0
        finally:
            process.kill()  # or leaving the block waits for ever


def test_a_port_that_is_taken_or_no_port_is_one_line_and_exit_code_2(planner, capsys):
    from sordino.app.cli.main import main

    for port in (planner.port, 70_000, -1):
        assert main(["plan", "--port", str(port), "--no-browser"]) == 2
        assert f"port={port}" in capsys.readouterr().err
