"""A headless Chromium, driven by its DevTools protocol, and what is looked for in pages.

https://chromedevtools.github.io/devtools-protocol describes methods and events.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
    "--remote-debugging-pipe",
)
# Messages of the protocol pass through the descriptors 3 and 4, each with a zero byte at its end.
_SHELL = 'exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1'
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}


def program() -> str | None:
    """Path of the browser; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A process of the browser with one tab.

    Attributes:
      events: (method, parameters) of all events since the last `open`.
    """

    def __init__(self, path: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        words = ["sh", "-c", _SHELL, path, f"--user-data-dir={self._profile.name}", *_FLAGS]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._numbers = itertools.count(1)
        self._messages = self._read()
        self._session: dict[str, str] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        attached = self("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
        self._profile.cleanup()

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Result of a method of the protocol; a RuntimeError has the browser's message."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **self._session}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        self._process.stdin.flush()
        while (answer := next(self._messages)).get("id") != number:
            self.events.append((answer["method"], answer["params"]))
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        rest = b""
        while read := self._process.stdout.read1():
            *whole, rest = (rest + read).split(b"\0")
            yield from map(json.loads, whole)
        raise RuntimeError("the browser has ended")

    def open(self, url: str) -> None:
        """Loads a page on a light screen 1400 pixels wide."""
        self.show()
        self.events.clear()
        self("Page.navigate", url=url)
        while not self.happened("Page.loadEventFired"):
            found = next(self._messages)
            self.events.append((found["method"], found["params"]))

    def happened(self, *methods: str) -> list[dict[str, Any]]:
        """Parameters of the events of these methods."""
        return [parameters for method, parameters in self.events if method in methods]

    def show(self, width: int = 1400, scheme: str = "light", media: str = "") -> None:
        """Changes width, colours and medium of the page."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self("Emulation.setEmulatedMedia", media=media, features=features)

    def evaluate(self, script: str) -> Any:
        """Value of an expression in the page."""
        found = self("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"]["description"])
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Presses a key."""
        which = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        self("Input.dispatchKeyEvent", type="keyDown", **which, **text)
        self("Input.dispatchKeyEvent", type="keyUp", **which)

    def accessible(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Role, name and properties of what screen readers are told of."""
        nodes = self("Accessibility.getFullAXTree")["nodes"]
        return [
            (
                node["role"]["value"],
                node.get("name", {}).get("value", ""),
                {one["name"]: one["value"].get("value") for one in node.get("properties", ())},
            )
            for node in nodes
            if not node["ignored"]
        ]


class Served:
    """Serves HTML files with a Content-Security-Policy."""

    def __init__(self, policy: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = Path(self.path).read_bytes()
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Content-Security-Policy", policy)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def url(self, path: Path) -> str:
        """URL of a file, of an absolute path."""
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def close(self) -> None:
        """Ends the server."""
        self._server.shutdown()
        self._server.server_close()
