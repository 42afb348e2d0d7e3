"""One document on this machine's own address, for one page to fetch: a trace for the Perfetto UI, or a report.

Perfetto's UI may load traces from `http://127.0.0.1:9001` only, which its Content-Security-Policy names, and asks by
`https://ui.perfetto.dev/#!/?url=…`; the answer must allow its origin (CORS). Anything else is refused: other paths,
other origins, and requests that reach this machine under another name (DNS rebinding).
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import quote

from tracekit.classes import dataclass
from tracekit.cli.output import say
from tracekit.errors import UnreadableTraceError, UsageError, reason_of

__all__ = ["PERFETTO", "Document", "Server"]

PERFETTO: Final = "https://ui.perfetto.dev"
_ADDRESS: Final = "127.0.0.1"
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Document:
    """What is served: its `name` in the address, its type, its content, and the one `origin` that may fetch it.

    `read` returns at most so many bytes from a place on, until `close`. Without an origin it is for opening in a browser,
    and pages of no other origin may fetch it.
    """

    name: str
    content_type: str
    read: Callable[[int, int], bytes]
    size: int
    origin: str | None = None
    close: Callable[[], None] = lambda: None

    @classmethod
    def of_trace(cls, path: Path) -> Document:
        """A trace file, as it is, for the Perfetto UI. It stays open, so that nothing else is served if its name comes to
        mean another file. Raises UsageError for a folder, and UnreadableTraceError when it cannot be read.
        """
        try:
            if path.exists() and not path.is_file():
                raise UsageError("it is not a file", path=path, remedy="give one trace file")
            file = path.open("rb")
            size = os.fstat(file.fileno()).st_size
        except FileNotFoundError as error:
            raise UnreadableTraceError("no such file", path=path, remedy="check the path") from error
        except OSError as error:
            raise UnreadableTraceError(
                f"it cannot be opened ({reason_of(error)})", path=path, remedy="check its permissions"
            ) from error
        alone = threading.Lock()

        def read(offset: int, count: int) -> bytes:
            with alone:
                file.seek(offset)
                return file.read(count)

        return cls(path.name, "application/octet-stream", read, size, PERFETTO, file.close)

    @classmethod
    def of_page(cls, name: str, page: str) -> Document:
        """A page of HTML."""
        data = page.encode("utf-8", errors="replace")
        return cls(name, "text/html; charset=utf-8", lambda at, count: data[at : at + count], len(data))

    @property
    def path(self) -> str:
        """The one path that is answered."""
        return "/" + quote(self.name.encode("utf-8", errors="surrogateescape"), safe="")


@dataclass(slots=True)
class Server:
    """Serves a document on 127.0.0.1 from `start` on, until `stop`; `served` is set once it was sent whole.

    `active_at` is when a part of it was last sent, else when the server was made (`time.monotonic`). Port 0 is any free one. Raises UsageError when the port is taken.
    """

    document: Document
    port: int
    served: threading.Event = field(default_factory=threading.Event)
    active_at: float = field(default_factory=time.monotonic)
    _http: ThreadingHTTPServer = field(init=False)
    _thread: threading.Thread | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Take the port."""
        try:
            self._http = _Http((_ADDRESS, self.port), _handler(self))
        except (OSError, OverflowError) as error:
            self.document.close()
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            fault = f"port {self.port} is in use" if taken else f"port {self.port} cannot be used ({error})"
            raise UsageError(fault, remedy=_REMEDY) from error
        self.port = int(self._http.server_address[1])

    @property
    def address(self) -> str:
        """Where the document is."""
        return f"http://{_ADDRESS}:{self.port}{self.document.path}"

    @property
    def link(self) -> str:
        """What to open in a browser: the document, or the Perfetto UI told to load it."""
        if self.document.origin is None:
            return self.address
        return f"{self.document.origin}/#!/?url={self.address}"

    def start(self) -> None:
        """Answer requests from now on, in a thread of its own."""
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answer no more, and give the port back."""
        if self._thread is not None:
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()
        self.document.close()


_REMEDY: Final = "end what uses it; another tracekit view, or Perfetto's trace_processor, may"


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True  # a port in use is still refused; this is about connections that linger

    def handle_error(self, *_: object) -> None:
        """Say in a line what kept a request from being answered, and nothing of a browser that went away."""
        error = sys.exc_info()[1]
        if not isinstance(
            error, ConnectionError | TimeoutError | ValueError
        ):  # the file is closed at the end
            say(f"warning: a request could not be answered ({error})")


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for one path, and the browser's question whether it may ask."""

    owner: ClassVar[Server]
    timeout = 60
    server_version = "tracekit"
    sys_version = ""

    def do_GET(self) -> None:
        if not self._allowed():
            return
        document, sent = self.owner.document, 0
        self._send_headers()
        while sent < document.size:
            block = document.read(sent, min(_BLOCK, document.size - sent))
            if not block:
                return  # the file was cut meanwhile, which the browser sees by the length
            self.wfile.write(block)
            sent += len(block)
            self.owner.active_at = time.monotonic()
        self.wfile.flush()
        self.owner.served.set()

    def do_HEAD(self) -> None:
        if self._allowed():
            self._send_headers()

    def do_OPTIONS(self) -> None:
        if not self._allowed():
            return
        self.send_response(HTTPStatus.NO_CONTENT)
        self._send_origin()
        self.send_header("Access-Control-Allow-Methods", "GET, HEAD")
        # Browsers ask this before a page of the internet may fetch from the user's own machine.
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def _allowed(self) -> bool:
        names = {f"{name}:{self.owner.port}" for name in (_ADDRESS, "localhost")}
        origin, wanted = self.headers.get("Origin"), self.owner.document.origin
        own = {f"http://{name}" for name in names}
        if self.headers.get("Host", "").lower() not in names:
            self.send_error(HTTPStatus.FORBIDDEN, "unknown host")
        elif origin != wanted if wanted is not None else origin not in {None, *own}:
            self.send_error(HTTPStatus.FORBIDDEN, "unknown origin")
        elif self.path != self.owner.document.path:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            return True
        return False

    def _send_headers(self) -> None:
        self.send_response(HTTPStatus.OK)
        self._send_origin()
        self.send_header("Content-Type", self.owner.document.content_type)
        self.send_header("Content-Length", str(self.owner.document.size))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()

    def _send_origin(self) -> None:
        self.send_header("Vary", "Origin")
        if self.owner.document.origin is not None:
            self.send_header("Access-Control-Allow-Origin", self.owner.document.origin)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing; stderr is for the user."""


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"owner": server})
