from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from commands import run
from paths import ROOT

import tracekit
from tracekit.errors import MissingDependencyError, UnreadableTraceError, UsageError
from tracekit.readers import remote

CNN_CPU = ROOT / "sample_traces/cnn_cpu/trace.json.gz"
BASIC = f"Basic {base64.b64encode(b'me:secret').decode()}"
DDP = ROOT / "sample_traces/bert_cpu_ddp"
REDIRECTS = {
    "/moved": "/run/rank3.json.gz",
    "/file": "file:///etc/passwd",
    "/ftp": "ftp://127.0.0.1/trace.json",
    "/loop": "/loop",
}


NAMES = ("job/manifest.json", "job/trace-rank1.json.gz", "job/trace-rank0.json.gz", "job/log.txt")
ODD = "odd/run 1 %20#2/trace-rank0.json.gz"


def listing(prefix: str) -> bytes:
    """What an S3 store answers for the objects below the prefix."""
    entry = "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>1</Size></Contents>"
    entries = "".join(entry.format(name) for name in (*NAMES, ODD) if name.startswith(prefix))
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()


class Handler(BaseHTTPRequestHandler):
    trace = CNN_CPU.read_bytes()
    asked: list[tuple[str, str | None]] = []  # noqa: RUF012 - what the server was asked, and by whom
    hold = threading.Event()

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        self.asked.append((self.path, self.headers["Authorization"]))
        if "list-type=2" in self.path:
            self._answer(200, listing(parse_qs(urlsplit(self.path).query).get("prefix", [""])[0]))
        elif path.removeprefix("/bucket/") in (*NAMES, ODD):
            self._answer(200, (DDP / Path(path).name).read_bytes())
        elif path in REDIRECTS or path == "/elsewhere":
            port = self.server.server_address[1]
            self._answer(302, Location=REDIRECTS.get(path, f"http://localhost:{port}/run/rank3.json.gz"))
        elif path == "/private/trace.json.gz" and self.headers["Authorization"] != BASIC:
            self._answer(401)
        elif path.endswith((".json.gz", "/trace")):
            self._answer(200, self.trace)
        elif path == "/page":
            self._answer(200, b"<html>no trace</html>")
        elif path == "/huge":
            self._answer(200, b"x", Content_Length=str(1 << 50))
        elif path == "/short":
            self._answer(200, self.trace[:1000], Content_Length=str(len(self.trace)))
        elif path.endswith("/slow"):
            self._answer(200, self.trace[:1000], Content_Length=str(len(self.trace)))
            self.wfile.flush()
            self.hold.wait(20)
        else:
            self._answer(500 if path == "/broken" else 404)

    def _answer(self, code: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        # Without these two gs has no object.
        headers = {"Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "ETag": "1", **headers}
        for name, value in {"Content_Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        serving.daemon_threads = True
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{serving.server_address[1]}"
        Handler.hold.set()
        serving.shutdown()


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files, in which nothing may be left."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield folder
    remote.forget()
    assert not [*folder.iterdir()]


def test_a_trace_is_read_and_nothing_of_it_stays(server: str, temporary: Path) -> None:
    trace = tracekit.read(f"http://me:secret@{server}/run/rank3.json.gz?signature=abc//d")
    assert trace.meta.path == f"http://{server}/run/rank3.json.gz"
    assert trace.meta.rank == 3
    assert trace.host.equals(tracekit.read(CNN_CPU).host)
    assert Handler.asked[-1] == ("/run/rank3.json.gz?signature=abc//d", BASIC)
    assert not [*temporary.iterdir()]


def test_a_file_address_is_the_file() -> None:
    assert remote.fetch(CNN_CPU.resolve().as_uri()) == CNN_CPU.resolve()
    assert remote.fetch(remote.address_of(Path(CNN_CPU.resolve().as_uri())) or "") == CNN_CPU.resolve()


@pytest.mark.slow
def test_the_commands_take_addresses(
    server: str, temporary: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    address = f"http://me:secret@{server}/run/rank3.json.gz?signature=abc"
    for words in (
        ["report", address],
        ["kernels", address, f"http://{server}/run/rank4.json.gz"],
        ["info", address],
        ["doctor", address],
        ["xsp", address, "--analysis", "A8"],
        ["nsys-stats", address, "-r", "nvtx_sum"],
        ["export", address, "-o", tmp_path / "frames"],
        ["report", address, "http://" + server + "/b/rank3.json.gz", "-o", tmp_path / "tables", "-f", "csv"],
    ):
        code, out, err = run(capsys, *words)
        assert code == 0, err
        assert "secret" not in out + err
        assert "signature" not in out + err
        assert not [*temporary.iterdir()]
    assert sorted(each.name for each in (tmp_path / "tables").iterdir()) == [
        "b-rank3",
        "run-rank3",
    ]


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("nothing", r"the server answers HTTP 404 \(Not Found\); check the address"),
        ("broken", r"HTTP 500 .*; try again later"),
        ("private/trace.json.gz", r"the server denies access \(HTTP 401\)"),
        ("short", r"the connection ended after 1,000 of [\d,]+ bytes; try again"),
        ("huge", "it is larger than 32 GB; download it yourself"),
        ("file", "redirects to something that is not a web page"),
        ("ftp", "cannot be fetched|redirects"),
        ("loop", "redirects"),
    ],
)
def test_what_goes_wrong_is_one_line(server: str, path: str, fault: str) -> None:
    with pytest.raises(UnreadableTraceError, match=fault) as raised:
        tracekit.read(f"http://{server}/{path}?signature=abc")
    assert str(raised.value).startswith(f"http://{server}/{path}: ")
    assert "abc" not in str(raised.value)


def test_an_error_of_the_reader_names_the_address(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnreadableTraceError, match=f"^http://{server}/page: "):
        tracekit.read(f"http://{server}/page?signature=abc")
    code, _, err = run(capsys, "report", f"http://me:secret@{server}/page?signature=abc")
    assert code == 3
    assert err.startswith(f"tracekit: error: http://{server}/page: ")
    assert "secret" not in err
    assert "abc" not in err


def test_no_other_server_gets_the_password(server: str) -> None:
    tracekit.read(f"http://me:secret@{server}/elsewhere")
    assert Handler.asked[-2:] == [("/elsewhere", BASIC), ("/run/rank3.json.gz", None)]


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    with pytest.raises(
        UnreadableTraceError, match=r"127.0.0.1:1/a: it cannot be fetched \(Connection refused\)"
    ):
        tracekit.read("http://127.0.0.1:1/a?signature=abc")
    with pytest.raises(UnreadableTraceError, match="it is not a valid address"):
        tracekit.read("http://127.0.0.1 /a")
    monkeypatch.setattr(remote, "_TIMEOUT_S", 1.5)
    with pytest.raises(UnreadableTraceError, match=r"/slow: it cannot be fetched \(no answer for 1.5 s\)"):
        tracekit.read(f"http://{server}/slow")


def test_addresses_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"hdfs://host/a: tracekit cannot fetch hdfs://; give .*https://"):
        tracekit.read("hdfs://me@host/a")
    with pytest.raises(UnreadableTraceError, match="it names no object; write s3://BUCKET/OBJECT"):
        tracekit.read("s3://bucket/")
    for address in ("https://", "s3://", "http:", "https://:80/trace.json"):
        with pytest.raises(
            UsageError, match=r"it is not complete; write (https?://HOST/PATH|s3://BUCKET/OBJECT)"
        ):
            tracekit.read(Path(address))
    for address in ("https://me:secret@host:80a/x", "https://[::1/x", "https://host:99999/x"):
        with pytest.raises(
            UsageError, match=r"^https://…: it is not a valid address; write https://HOST/PATH$"
        ):
            tracekit.read(address)
    monkeypatch.setattr(remote, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'tracekit-torch\[remote\]'"):
        tracekit.read("s3://bucket/trace.json.gz")


@pytest.mark.slow
@pytest.mark.parametrize("address", ["http://{}/slow", "s3://bucket/slow"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing(
    server: str, temporary: Path, address: str, number: int, code: int, request: pytest.FixtureRequest
) -> None:
    if address.startswith("s3"):
        request.getfixturevalue("store")
    words = [sys.executable, "-m", "tracekit", "report", address.format(server)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        while not [*temporary.rglob("slow")]:
            time.sleep(0.05)
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait(20) == code
        assert (process.stderr or sys.stderr).read().count("\n") == 1
    assert not [*temporary.iterdir()]


@pytest.fixture
def store(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server as an S3 store with credentials in the environment."""
    pytest.importorskip("obstore", reason="obstore is not installed")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server}")


@pytest.mark.usefixtures("store")
def test_an_object_of_s3(capsys: pytest.CaptureFixture[str], temporary: Path) -> None:
    trace = tracekit.read("s3://bucket/run/rank3.json.gz")
    assert (trace.meta.path, trace.meta.rank) == ("s3://bucket/run/rank3.json.gz", 3)
    asked, credentials = Handler.asked[-1]
    assert asked == "/bucket/run/rank3.json.gz"
    assert str(credentials).startswith("AWS4-HMAC-SHA256 Credential=key/")
    assert not [*temporary.iterdir()]
    code, _, err = run(capsys, "info", "s3://bucket/nothing")
    assert (code, err) == (
        3,
        "tracekit: error: s3://bucket/nothing: there is no such object; check the address\n",
    )


@pytest.mark.usefixtures("store")
def test_the_name_of_an_object_is_taken_sign_by_sign() -> None:
    assert tracekit.read(f"s3://bucket/{ODD}").meta.rank == 0
    assert remote.traces_at("s3://bucket/odd/run 1 %20#2/") == [f"s3://bucket/{ODD}"]


def test_objects_of_gs(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    account = {"gcs_base_url": f"http://{server}", "disable_oauth": True}
    account |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
    both = [f"gs://bucket/job/trace-rank{rank}.json.gz" for rank in (0, 1)]
    assert remote.traces_at("gs://bucket/job/") == both
    assert tracekit.read(both[1]).meta.rank == 1
    with pytest.raises(UnreadableTraceError, match="gs://bucket/nothing: there is no such object"):
        tracekit.read("gs://bucket/nothing")


@pytest.mark.usefixtures("store")
def test_an_object_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(
        UnreadableTraceError, match=r"s3://bucket/a: it cannot be fetched \(.*\); check the network"
    ):
        tracekit.read("s3://bucket/a")


@pytest.mark.usefixtures("store")
def test_a_folder_of_s3_is_its_traces() -> None:
    both = [f"s3://bucket/job/trace-rank{rank}.json.gz" for rank in (0, 1)]
    assert remote.traces_at("s3://bucket/job/") == both
    assert remote.traces_at("s3://bucket/job/*1.json*") == both[1:]
    assert remote.traces_at(both[0]) == both[:1]
    assert remote.traces_at("s3://bucket/jo") == ["s3://bucket/jo"]
    with pytest.raises(UnreadableTraceError, match="there is no such trace; check the address"):
        remote.traces_at("s3://bucket/job/*5*")


@pytest.mark.slow
@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("engine", [["--jobs", "2"], ["--engine", "dask"]])
def test_workers_open_addresses(
    server: str, temporary: Path, capsys: pytest.CaptureFixture[str], engine: list[str]
) -> None:
    words = ["s3://bucket/job/", f"http://me:secret@{server}/run/nothing?signature=abc", "--no-cache"]
    command = [sys.executable, "-m", "tracekit", "report", *words, *engine]
    made = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert made.stderr.startswith(
        f"tracekit: left out: http://{server}/run/nothing: the server answers HTTP 404"
    )
    assert made.stderr.count("\n") == 1
    assert "secret" not in made.stdout
    assert "both ranks" in " ".join(made.stdout.split())
    assert not [*temporary.iterdir()]


def test_a_thread_leaves_the_files_of_another_one(server: str) -> None:
    entered, left = threading.Event(), threading.Event()
    there: list[bool] = []

    def hold() -> None:
        with remote.fetched(f"http://{server}/run/rank4.json.gz") as file:
            entered.set()
            left.wait(20)
            there.append(file.exists())

    holding = threading.Thread(target=hold)
    with remote.fetched(f"http://{server}/run/rank3.json.gz"):
        holding.start()
        entered.wait(20)
    left.set()
    holding.join()
    assert there == [True]
