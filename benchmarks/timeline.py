"""How quickly the timeline of a report opens and moves: `python benchmarks/timeline.py`.

A generated step of about 200,000 shapes becomes a report, which headless Chromium opens three times. The page
measures itself when its address ends in `#timeline&bench`: from the start of navigation to the end of the first
frame, and, while it zooms and moves, how long each frame takes to draw. Nothing is installed for it: Chromium is
spoken to through its pipe.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tracekit
from tracekit.report import html
from tracekit.report.build import build_report
from tracekit.report.html.timeline import timeline

ROOT = Path(__file__).resolve().parent.parent
LAYERS = 11_500
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
SIZE = {"width": 1280, "height": 1600, "deviceScaleFactor": 1, "mobile": False}


class Browser:
    """A page of a headless Chromium; requests and answers are JSON with a zero byte behind each."""

    def __init__(self, program: str, folder: Path) -> None:
        asked, self._ask = os.pipe()
        self._answer, answered = os.pipe()

        def hand_over() -> None:
            a, b = os.dup(asked), os.dup(answered)
            os.dup2(a, 3)
            os.dup2(b, 4)

        command = [program, *FLAGS, f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            command,
            close_fds=False,
            preexec_fn=hand_over,  # noqa: PLW1509 - no other thread runs yet
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._number, self._rest, self._session = 0, b"", ""
        pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        attached = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
        self._session = attached["sessionId"]
        self.call("Emulation.setDeviceMetricsOverride", **SIZE)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._ask, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                self._rest += os.read(self._answer, 1 << 20)
            one, self._rest = self._rest.split(b"\0", 1)
            answer = json.loads(one)
            if answer.get("id") == self._number:
                return answer["result"]

    def text_of(self, address: str, element: str) -> str:
        """Open a page and wait for the text of an element that it makes."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        script = f"(document.getElementById('{element}') || {{}}).textContent || ''"
        until = time.monotonic() + 120
        while time.monotonic() < until:
            found = self.call("Runtime.evaluate", expression=script)["result"].get("value")
            if found:
                return str(found)
            time.sleep(0.1)
        raise TimeoutError(address)

    def close(self) -> None:
        self.call("Browser.close")
        self._process.wait(20)


def page_of(folder: Path, layers: int) -> tuple[Path, dict[str, float]]:
    """A report on a generated trace of one step, and what it took."""
    sys.path.insert(0, str(ROOT / "tests"))
    from synthetic import generate, write  # noqa: PLC0415 - it lies beside the package

    source = write(generate(seed=1, steps=1, layers=layers), folder / "trace.json.gz")
    trace = tracekit.read(source)
    report = build_report(trace)
    began = time.perf_counter()
    shapes = timeline(trace, report)
    took = time.perf_counter() - began
    if shapes is None:
        raise SystemExit("the trace has nothing to draw")
    page = folder / "report.html"
    page.write_text(html.render(report, trace), encoding="utf-8")
    print(shapes["note"])
    return page, {"MB": page.stat().st_size / 1e6, "data MB": len(shapes["data"]) / 1e6, "made in s": took}


def main() -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("there is no Chromium")
    layers = int(sys.argv[1]) if len(sys.argv) > 1 else LAYERS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        page, made = page_of(folder, layers)
        print({key: round(value, 2) for key, value in made.items()})
        browser = Browser(program, folder / "profile")
        for _ in range(3):
            found = json.loads(browser.text_of(f"{page.as_uri()}#timeline&bench", "bench"))
            draws = sorted(found["draws"])
            told = {
                "shapes": found["shapes"],
                "first frame ms": found["first"],
                "unpack ms": found["unpack"],
                "draw median ms": statistics.median(draws),
                "draw p95 ms": draws[int(0.95 * len(draws))],
                "draw longest ms": draws[-1],
                "between frames, median ms": statistics.median(found["gaps"]),
            }
            print({key: round(value, 1) for key, value in told.items()})
        browser.close()


if __name__ == "__main__":
    main()
