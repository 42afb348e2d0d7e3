"""Traces at an address (a URL): each is fetched into a temporary folder, since readers look at a file more than once.

`http` and `https` need nothing but Python. `s3` and `gs` need obstore (the extra `remote`), which takes its credentials from
the environment, as the tools of these stores do.
"""

from __future__ import annotations

import base64
import http.client
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib import error as web_errors
from urllib import request as web
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit
from urllib.request import url2pathname

from tracekit.errors import MissingDependencyError, UnreadableTraceError, UsageError
from tracekit.facts.capture_names import MANIFEST_FILE
from tracekit.facts.distribution import how_to_install
from tracekit.files import roomy_place
from tracekit.readers.format import Progress

__all__ = [
    "LARGEST_BYTES",
    "address_of",
    "fetch",
    "fetched",
    "forget",
    "masked",
    "traces_at",
    "with_addresses",
]

LARGEST_BYTES: Final = 32 << 30
"""What is larger is not fetched: the largest traces have some GB, and the disk is the user's."""

_TIMEOUT_S: Final = 30
"""For a connection, and for each piece of the answer."""

_BLOCK_BYTES: Final = 1 << 20
_LOOK_S: Final = 0.2
_ADDRESS: Final = re.compile(
    r"(https?|s3|gs|[a-z][a-z0-9+.-]+(?=:[/\\])):[/\\]*(.*)", re.DOTALL | re.IGNORECASE
)
_IN_ADDRESSES: Final = "/%:=&?~+!$,;'@()*[]"
"""Signs that stay in an address, besides letters and digits."""

_SUFFIXES: Final = (".json", ".json.gz", ".json.zst", ".sqlite", ".nsys-rep", ".qdrep")
"""Of objects that are traces by their names."""

_CREDENTIALS: Final = {
    "s3": "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION (of a public bucket AWS_SKIP_SIGNATURE=true)",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS (of a public bucket GOOGLE_SKIP_SIGNATURE=true)",
}
_FETCHED: Final[dict[str, str]] = {}
"""The files that this process has fetched, each with its masked address."""
_T = TypeVar("_T")


class _Folders(threading.local):
    """The temporary folders of a thread: those of another one may still be in use."""

    def __init__(self) -> None:
        self.made: list[tempfile.TemporaryDirectory[str]] = []


_FOLDERS: Final = _Folders()


def address_of(path: str | os.PathLike[str]) -> str | None:
    """The address that stands where a path is expected; None for a path. A `Path` has lost the second slash of `://`.

    >>> address_of(Path("s3://bucket/run/trace.json.gz")), address_of("C:/trace.json")
    ('s3://bucket/run/trace.json.gz', None)
    """
    text = os.fspath(path)
    match = _ADDRESS.fullmatch(text)
    if match is None or os.path.lexists(text):
        return None
    scheme, rest = match.groups()
    if os.sep == "\\":
        rest = rest.replace("\\", "/")
    return f"{scheme.lower()}://{'/' if scheme.lower() == 'file' else ''}{rest}"


def masked(address: str) -> str:
    """The address as it may be printed: without a user, a password, and the query, which may be a signature.

    >>> masked("https://me:secret@host/trace.json?X-Amz-Signature=abc"), masked("https://me:sec/ret@host/trace.json")
    ('https://host/trace.json', 'https://…')
    """
    scheme, _, rest = address.partition("://")
    try:
        urlsplit(address).port  # noqa: B018 - it raises for what may be a password with a slash in it
    except ValueError:
        return f"{scheme}://…"
    place, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"


def fetch(address: str, progress: Progress | None = None) -> Path:
    """The file at the address, in a temporary folder that stays until `forget` or the end of the process.

    Of `file://` it is the file itself. `progress` is called with (bytes fetched so far, bytes in all or 0). Raises
    UnreadableTraceError if it cannot be fetched or is too large, MissingDependencyError without obstore, and UsageError
    for an address of another kind.
    """
    scheme = address.partition(":")[0]
    form = f"write {scheme}://{'BUCKET/OBJECT' if scheme in _CREDENTIALS else 'HOST/PATH'}"
    try:
        parts = _parts_of(address)
        _ = parts.port
    except ValueError:  # whose text may be a part of a password
        raise UsageError("it is not a valid address", path=masked(address), remedy=form) from None
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    if parts.scheme in ("http", "https", *_CREDENTIALS) and not parts.hostname:
        raise UsageError("it is not complete", path=masked(address), remedy=form)
    if parts.scheme in ("http", "https"):
        blocks = _from_web(parts)
    elif parts.scheme in _CREDENTIALS:
        blocks = _from_store(parts)
    else:
        raise UsageError(
            f"tracekit cannot fetch {parts.scheme}://",
            path=masked(address),
            remedy="give a file, or an address with https://, s3:// or gs://",
        )
    folder = tempfile.TemporaryDirectory(prefix="tracekit-", dir=roomy_place())
    _FOLDERS.made.append(folder)
    file = _place_in(Path(folder.name), parts)
    _FETCHED[str(file)] = masked(address)
    done = 0
    with file.open("wb") as stream:
        for block, size in blocks:
            done += len(block)
            if max(done, size) > LARGEST_BYTES:
                fault = f"it is larger than {LARGEST_BYTES >> 30} GB"
                raise UnreadableTraceError(fault, path=masked(address), remedy="download it yourself")
            stream.write(block)
            if progress is not None:
                progress(done, size)
    return file


@contextmanager
def fetched(address: str, progress: Progress | None = None) -> Iterator[Path]:
    """The file at the address for as long as the block lasts; see `fetch`."""
    before = len(_FOLDERS.made)
    try:
        yield fetch(address, progress)
    finally:
        forget(before)


def forget(kept: int = 0) -> None:
    """Remove the temporary folders of this thread, except the first `kept`."""
    while len(_FOLDERS.made) > kept:
        folder = _FOLDERS.made.pop()
        with suppress(OSError):
            folder.cleanup()


def traces_at(address: str) -> list[str]:
    """The addresses of the traces in a folder of a store (`s3://bucket/run/`), and of those that `*` in the address stands for; else
    the address itself.

    Raises UnreadableTraceError if the store has none where `*` stands, or does not answer there.
    """
    try:
        parts = _parts_of(address)
    except ValueError:
        return [address]  # which is told when it is fetched
    key = parts.path.lstrip("/")
    some = "*" in key
    if parts.scheme not in _CREDENTIALS or not (some or not key.lower().endswith(_SUFFIXES)):
        return [address]
    wanted = re.compile(".*".join(map(re.escape, key.split("*"))) if some else ".*")
    prefix = key.partition("*")[0].rpartition("/")[0] if some else key.rstrip("/")
    try:
        there = [each for each in _objects_below(parts, prefix) if wanted.fullmatch(each)]
    except (UnreadableTraceError, UsageError):
        if some:
            raise
        there = []  # of a store that gives objects but no lists; what is wrong with it is said when the object is fetched
    traces = [
        f"{parts.scheme}://{parts.netloc}/{each}"
        for each in sorted(there)
        if each.lower().endswith(_SUFFIXES) and not each.endswith(f"/{MANIFEST_FILE}")
    ]
    if some and not traces:
        raise UnreadableTraceError("there is no such trace", path=masked(address), remedy="check the address")
    return traces or [address]


def with_addresses(text: str) -> str:
    """The text, in which fetched files are called by their addresses."""
    for file, address in _FETCHED.items():
        text = text.replace(file, address)
    return text


def _parts_of(address: str) -> SplitResult:
    """The parts of an address. Of a store, what follows the bucket is the object's name, sign by sign, as the stores' own tools take it."""
    parts = urlsplit(address)
    if parts.scheme not in _CREDENTIALS:
        return parts
    return parts._replace(path=address.partition("://")[2].removeprefix(parts.netloc), query="", fragment="")


def _place_in(folder: Path, parts: SplitResult) -> Path:
    """A path that keeps the last two names of the address: they say what the trace is, and may say its rank."""
    names = [re.sub(r"[\x00-\x1f/\\:]", "_", unquote(name))[-100:] for name in parts.path.split("/")]
    names = [name for name in names if name.strip(".")]
    parent, name = ["", "", *names][-2:]
    place = folder / (parent or parts.hostname or "remote")
    place.mkdir()
    return place / (name or "trace")


# -- http and https -----------------------------------------------------------------------------------


def _from_web(parts: SplitResult) -> Iterator[tuple[bytes, int]]:
    """The pieces of the answer, each with the size of all of it (0: unknown)."""
    user, _, place = parts.netloc.rpartition("@")
    bare = urlunsplit((parts.scheme, place, parts.path or "/", parts.query, ""))
    path = masked(urlunsplit(parts))
    try:
        request = web.Request(quote(bare, safe=_IN_ADDRESSES), headers={"User-Agent": "tracekit"})  # noqa: S310 - of http(s) only
        if user:  # which no other server gets when this one redirects
            secret = base64.b64encode(unquote(user).encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {secret}")
        with _opener().open(request, timeout=_TIMEOUT_S) as response:
            size = int(response.headers.get("Content-Length") or 0)
            done = 0
            while block := response.read(_BLOCK_BYTES):
                done += len(block)
                yield block, size
            if done < size:
                raise UnreadableTraceError(
                    f"the connection ended after {done:,} of {size:,} bytes", path=path, remedy="try again"
                )
    except web_errors.HTTPError as error:
        error.close()
        raise _refusal(error.code, path) from None
    except (web_errors.URLError, TimeoutError, http.client.HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        fault = (
            f"no answer for {_TIMEOUT_S} s" if isinstance(reason, TimeoutError) else _reason_of(reason, bare)
        )
        raise UnreadableTraceError(
            f"it cannot be fetched ({fault})", path=path, remedy="check the address and the connection"
        ) from None


def _opener() -> web.OpenerDirector:
    """Opens http and https, and follows redirects to these only; proxies come from the environment."""
    opener = web.OpenerDirector()
    for handler in (
        web.ProxyHandler(),
        web.HTTPHandler(),
        web.HTTPSHandler(),
        web.HTTPDefaultErrorHandler(),
        web.HTTPRedirectHandler(),
        web.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _refusal(code: int, path: str) -> UnreadableTraceError:
    if code in (401, 403, 407):
        return UnreadableTraceError(
            f"the server denies access (HTTP {code})",
            path=path,
            remedy="check the credentials in the address",
        )
    if 300 <= code < 400:
        return UnreadableTraceError(
            f"the server redirects to something that is not a web page (HTTP {code})",
            path=path,
            remedy="check the address",
        )
    reason = http.client.responses.get(code, "unknown")
    remedy = "try again later" if code >= 500 or code == 429 else "check the address"
    return UnreadableTraceError(f"the server answers HTTP {code} ({reason})", path=path, remedy=remedy)


def _reason_of(reason: object, address: str) -> str:
    """What went wrong, without the query of the address, which some errors repeat."""
    if isinstance(reason, http.client.InvalidURL):
        return "it is not a valid address"
    text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    query = urlsplit(address).query
    return str(text).replace(query, "…") if query else str(text)


# -- s3 and gs ----------------------------------------------------------------------------------------


def _from_store(parts: SplitResult) -> Iterator[tuple[bytes, int]]:
    """The pieces of the object, each with the size of all of it."""
    path, key = masked(urlunsplit(parts)), parts.path.lstrip("/")
    if not key or key.endswith("/"):
        form = f"write {parts.scheme}://BUCKET/OBJECT"
        raise UnreadableTraceError("it names no object", path=path, remedy=form)
    if find_spec("obstore") is None:
        raise _lacks_obstore(parts)
    store = _store_of(parts.scheme, parts.netloc)
    with _said_errors(parts):
        answer = _beside(lambda: import_module("obstore").get(store, key))
        pieces = iter(answer.stream(min_chunk_size=_BLOCK_BYTES))
        while (piece := _beside(lambda: next(pieces, None))) is not None:
            yield bytes(piece), answer.meta["size"]


def _objects_below(parts: SplitResult, prefix: str) -> list[str]:
    """The names of all objects below the prefix, which ends where a folder does."""
    if not parts.hostname:
        return []
    if find_spec("obstore") is None:
        raise _lacks_obstore(parts)
    with _said_errors(parts):
        pages = iter(import_module("obstore").list(_store_of(parts.scheme, parts.netloc), prefix or None))
        found: list[str] = []
        while page := _beside(lambda: next(pages, None)):
            found += [str(one["path"]) for one in page]
    return found


def _lacks_obstore(parts: SplitResult) -> MissingDependencyError:
    path = masked(urlunsplit(parts))
    return MissingDependencyError(
        f"{parts.scheme}:// needs obstore", path=path, remedy=how_to_install("remote")
    )


@contextmanager
def _said_errors(parts: SplitResult) -> Iterator[None]:
    """Errors of obstore as those of tracekit."""
    path = masked(urlunsplit(parts))
    try:
        yield
    except FileNotFoundError:
        raise UnreadableTraceError("there is no such object", path=path, remedy="check the address") from None
    except ValueError:  # of a name that no object can have
        raise UsageError(
            "it is not a valid address", path=path, remedy=f"write {parts.scheme}://BUCKET/OBJECT"
        ) from None
    except Exception as error:  # obstore's own errors have no base class outside of it
        if not type(error).__module__.startswith("obstore"):
            raise
        said = str(error).partition("\n")[0].rpartition(" - ")[2]
        unreached = "error sending request" in said
        remedy = "check the network and the endpoint" if unreached else _CREDENTIALS[parts.scheme]
        raise UnreadableTraceError(f"it cannot be fetched ({said})", path=path, remedy=remedy) from None


def _store_of(scheme: str, bucket: str) -> Any:
    stores = import_module("obstore.store")
    # An object may take longer than the 30 s that the library gives a request; an endpoint of one's own may have no TLS.
    client = {
        "timeout": "12h",
        "connect_timeout": "10s",
        "read_timeout": f"{_TIMEOUT_S}s",
        "allow_http": True,
    }
    settings: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": 2}}
    if scheme == "gs":
        return stores.GCSStore(bucket, **settings)
    if "AWS_ACCESS_KEY_ID" not in os.environ and find_spec("boto3") is not None:
        with suppress(Exception):  # whatever boto3 lacks, obstore's own way to credentials remains
            provider = import_module("obstore.auth.boto3").Boto3CredentialProvider()
            return stores.S3Store(bucket, credential_provider=provider, **settings)
    return stores.S3Store(bucket, **settings)


def _beside(call: Callable[[], _T]) -> _T:
    """What the call returns or raises. Ctrl-C ends the wait for it, but would not end a call of obstore itself.

    The wait is one of short ones, because a signal may reach another thread and wake none.
    """
    outcome: Future[_T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is waited for
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while not wait([outcome], _LOOK_S).done:
        pass
    return outcome.result()
