from __future__ import annotations

import base64
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from paths import ROOT

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
