"""`tracekit view`, asked by a real HTTP client: one file, to one origin, under this machine's own name."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

from tracekit.cli.main import main
from tracekit.cli.serve import PERFETTO, Document, Server
from tracekit.errors import UsageError

SAMPLE = ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz"
ORIGIN = {"Origin": PERFETTO}


def ask(
    port: int, path: str, method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read()
    connection.close()
    return found


@pytest.fixture
def trace_server() -> Iterator[Server]:
    server = Server(Document.of_trace(SAMPLE), 0)
    server.start()
    yield server
    server.stop()


def test_perfetto_gets_the_file_as_it_is(trace_server: Server) -> None:
    status, headers, body = ask(trace_server.port, "/trace.json.gz", **ORIGIN)
    assert (status, body) == (200, SAMPLE.read_bytes())
    assert headers["Access-Control-Allow-Origin"] == PERFETTO
    assert headers["Content-Encoding"] is None
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert int(headers["Content-Length"]) == len(body)
    assert trace_server.served.wait(5)
    assert (
        trace_server.link
        == f"https://ui.perfetto.dev/#!/?url=http://127.0.0.1:{trace_server.port}/trace.json.gz"
    )


def test_browsers_may_ask_first(trace_server: Server) -> None:
    more = {"Access-Control-Request-Private-Network": "true", "Access-Control-Request-Method": "GET"}
    status, headers, body = ask(trace_server.port, "/trace.json.gz", "OPTIONS", **ORIGIN, **more)
    assert (status, body) == (204, b"")
    assert headers["Access-Control-Allow-Private-Network"] == "true"
    assert headers["Access-Control-Allow-Origin"] == PERFETTO
    status, _, body = ask(trace_server.port, "/trace.json.gz", "HEAD", **ORIGIN)
    assert (status, body) == (200, b"")
    assert not trace_server.served.is_set()


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/manifest.json",
        "/trace.json.gz?x",
        "/./trace.json.gz",
        "/../trace.json.gz",
        "/..%2f..%2fetc/passwd",
        "//etc/passwd",
        "/etc/passwd",
    ],
)
def test_only_that_file_is_served(trace_server: Server, path: str) -> None:
    assert ask(trace_server.port, path, **ORIGIN)[0] == 404


@pytest.mark.quick(12)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://ui.perfetto.dev"},
        {"Origin": "https://ui.perfetto.dev.evil.example"},
        {**ORIGIN, "Host": "evil.example:9001"},
        {**ORIGIN, "Host": "127.0.0.1"},
        {**ORIGIN, "Host": "127.0.0.1:1"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_everyone_else_is_refused(trace_server: Server, headers: dict[str, str], method: str) -> None:
    status, answered, body = ask(trace_server.port, "/trace.json.gz", method, **headers)
    assert status == 403
    assert answered["Access-Control-Allow-Origin"] is None
    assert len(body) < 1000


def test_nothing_can_be_written(trace_server: Server) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert ask(trace_server.port, "/trace.json.gz", method, **ORIGIN)[0] == 501


def test_localhost_is_this_machine(trace_server: Server) -> None:
    host = {"Host": f"localhost:{trace_server.port}"}
    assert ask(trace_server.port, "/trace.json.gz", **ORIGIN, **host)[0] == 200


def test_names_that_need_escaping(tmp_path: Path) -> None:
    path = tmp_path / "a b#?&%2f ü.json"
    path.write_text("[]")
    server = Server(Document.of_trace(path), 0)
    server.start()
    try:
        assert server.document.path == "/a%20b%23%3F%26%252f%20%C3%BC.json"
        assert ask(server.port, server.document.path, **ORIGIN)[2] == b"[]"
    finally:
        server.stop()


def test_a_page_is_for_its_own_origin() -> None:
    server = Server(Document.of_page("report.html", "<p>µ</p>"), 0)
    server.start()
    try:
        status, headers, body = ask(server.port, "/report.html")
        assert (status, body.decode()) == (200, "<p>µ</p>")
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert headers["Access-Control-Allow-Origin"] is None
        assert ask(server.port, "/report.html", Origin=f"http://127.0.0.1:{server.port}")[0] == 200
        assert ask(server.port, "/report.html", Origin=PERFETTO)[0] == 403
        assert ask(server.port, "/report.html", Host="evil.example")[0] == 403
    finally:
        server.stop()


def test_several_ask_at_once_and_one_goes_away(trace_server: Server) -> None:
    gone = socket.create_connection(("127.0.0.1", trace_server.port))
    gone.sendall(b"GET /trace.json.gz HTTP/1.1\r\nHost: ")
    answers: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(len(ask(trace_server.port, "/trace.json.gz", **ORIGIN)[2]))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gone.close()
    assert answers == [SAMPLE.stat().st_size] * 4


@pytest.mark.slow
@pytest.mark.parametrize("reset", [False, True])
def test_a_browser_that_goes_away_in_the_middle_says_nothing(
    reset: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was a traceback, and the file counted as fetched or not by chance."""
    path = tmp_path / "large.json"
    path.write_bytes(b"[" + b" " * (32 << 20) + b"]")
    server = Server(Document.of_trace(path), 0)
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as gone:
            if reset:
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            head = f"GET /large.json HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nOrigin: {PERFETTO}\r\n\r\n"
            gone.sendall(head.encode())
            assert gone.recv(1000)
        assert not server.served.wait(0.3)
        assert len(ask(server.port, "/large.json", **ORIGIN)[2]) == path.stat().st_size
        assert server.served.wait(5)
    finally:
        server.stop()
    assert capsys.readouterr() == ("", "")


def test_a_name_that_comes_to_mean_another_file(tmp_path: Path) -> None:
    path, secret = tmp_path / "t.json", tmp_path / "secret"
    path.write_text("[]")
    secret.write_text("no")
    server = Server(Document.of_trace(path), 0)
    path.unlink()
    path.symlink_to(secret)
    server.start()
    try:
        assert ask(server.port, "/t.json", **ORIGIN)[2] == b"[]"
    finally:
        server.stop()


def test_it_ends_when_nobody_fetches_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tracekit.cli.commands.view.PATIENCE_S", 0.1)
    with pytest.raises(SystemExit) as left:
        main(["view", str(SAMPLE), "--no-browser", "--port", "0"])
    assert left.value.code == 2
    assert "no browser has fetched it" in capsys.readouterr().err


def test_it_listens_on_this_machine_only(trace_server: Server) -> None:
    assert trace_server._http.server_address[0] == "127.0.0.1"


def test_a_port_in_use_is_one_line(trace_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["view", str(SAMPLE), "--no-browser", "--port", str(trace_server.port)])
    assert left.value.code == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.count("\n") == 1
    assert f"port {trace_server.port} is in use" in out.err


def test_what_cannot_be_served_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, fault, code in (
        (tmp_path / "missing.json", "no such file", 3),
        (tmp_path, "the folder holds no trace", 3),
        (ROOT / "sample_traces" / "bert_cpu_ddp", "several traces", 2),
    ):
        with pytest.raises(SystemExit) as left:
            main(["view", str(path), "--no-browser", "--port", "0"])
        assert left.value.code == code
        assert fault in capsys.readouterr().err
    with pytest.raises(UsageError, match="cannot be used"):
        Server(Document.of_page("x", ""), 70000)


class _Program:
    """`tracekit view` in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tracekit", "view", str(SAMPLE), "--port", "0", *arguments]
        self.process = subprocess.Popen(
            command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}
        )
        assert self.process.stdout is not None
        self.link = self.process.stdout.readline().strip()
        self.port = int(self.link.split("127.0.0.1:")[1].split("/")[0])

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=20)
        return self.process.returncode, err


@pytest.mark.slow
def test_it_ends_when_the_file_was_fetched() -> None:
    program = _Program("--no-browser")
    assert ask(program.port, "/other", **ORIGIN)[0] == 404
    assert program.process.poll() is None
    assert ask(program.port, "/trace.json.gz", **ORIGIN)[2] == SAMPLE.read_bytes()
    assert program.end() == (0, "")


@pytest.mark.slow
def test_ctrl_c_ends_it_without_an_error() -> None:
    program = _Program("--no-browser", "--stay")
    for _ in range(2):
        assert ask(program.port, "/trace.json.gz", **ORIGIN)[0] == 200
    program.process.send_signal(signal.SIGINT)
    code, err = program.end()
    assert code == 0
    assert err.splitlines()[0] == "serving it until Ctrl-C"
    assert "Traceback" not in err


@pytest.mark.slow
def test_the_report_is_served_too() -> None:
    program = _Program("--no-browser", "--html", "--no-cache")
    assert program.link == f"http://127.0.0.1:{program.port}/report.html"
    body = ask(program.port, "/report.html")[2].decode()
    assert body.startswith("<!doctype html>")
    assert 'id="timeline"' in body
    assert program.end()[0] == 0


def test_the_browser_is_told_the_link(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []

    def fetch(link: str) -> bool:
        opened.append(link)
        port = int(link.split("127.0.0.1:")[1].split("/", maxsplit=1)[0])
        assert ask(port, "/trace.json.gz", **ORIGIN)[0] == 200
        return True

    monkeypatch.setattr("webbrowser.open", fetch)
    with pytest.raises(SystemExit) as left:
        main(["view", str(SAMPLE), "--port", "0"])
    assert (left.value.code or 0) == 0
    assert opened == [capsys.readouterr().out.strip()]


def test_without_a_browser_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(link: str) -> Any:
        threading.Thread(
            target=ask,
            args=(int(link.split("127.0.0.1:")[1].split("/", maxsplit=1)[0]), "/trace.json.gz"),
            kwargs=ORIGIN,
        ).start()
        return False

    monkeypatch.setattr("webbrowser.open", none)
    with pytest.raises(SystemExit):
        main(["view", str(SAMPLE), "--port", "0"])
    assert "open the address yourself" in capsys.readouterr().err
