"""A Chromium browser that tests control with DevTools commands through a pipe."""

import json
import os
import subprocess
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

LONGEST = 60.0
"""Longest time in seconds to wait for an expression, or for the end of the browser."""
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


class Browser:
    """A browser with as many tabs as a test opens."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._numbers = count(1)
        self._unread = b""

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Run a command and return its result. Events that arrive before the result are dropped."""
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": parameters}
        if session:
            command["sessionId"] = session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            while b"\0" not in self._unread:
                data = os.read(self._read, 1 << 20)
                assert data, "the browser has ended"
                self._unread += data
            message, _, self._unread = self._unread.partition(b"\0")
            answer = json.loads(message)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                found: dict[str, Any] = answer["result"]
                return found

    def open(self, address: str, *, width: int = 1000) -> "Tab":
        """Open an address in a new tab of this width."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        tab.resize(width)
        tab.go(address)
        return tab


class Tab:
    """A tab of the browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int = 844) -> None:
        """Set the size of the screen in pixels. A width below 600 counts as a phone."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1}
        self._call("Emulation.setDeviceMetricsOverride", mobile=width < 600, **metrics)

    def dark(self, on: bool) -> None:
        """Report a preference for dark or for light colours to the page."""
        wanted = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self._call("Emulation.setEmulatedMedia", features=[wanted])

    def before(self, script: str) -> None:
        """Run a script in every page that is opened later, before the page's own scripts."""
        self._call("Page.enable")
        self._call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def press(self, key: str) -> None:
        """Press and release a key, such as "Tab", "Enter", "ArrowLeft" or "j"."""
        codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39}
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        about = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        self._call("Input.dispatchKeyEvent", type="keyUp", **about)

    def go(self, address: str) -> None:
        """Open an address, and wait for its page."""
        self.run("window.left = true")
        self._call("Page.navigate", url=address)
        self.wait("!window.left && document.readyState === 'complete'")

    def reload(self) -> None:
        """Open the address of the page again."""
        self.go(self.run("location.href"))

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page and return its value."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"].get("value")

    def wait(self, script: str) -> Any:
        """Evaluate an expression until its value is true, and return the value."""
        end = time.monotonic() + LONGEST
        while time.monotonic() < end:
            if found := self.run(script):
                return found
            time.sleep(0.03)
        raise AssertionError(f"{script} did not become true: {self.text()}")

    def drag(self, selector: str, begin: float, end: float) -> None:
        """Drag the mouse in an element. `begin` and `end` are fractions of the element's width."""
        self.run(f"document.querySelector({selector!r}).scrollIntoView()")
        box = self.run(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")
        steps = (("mouseMoved", begin), ("mousePressed", begin), ("mouseMoved", end))
        for kind, at in (*steps, ("mouseReleased", end)):
            place = {"x": box["x"] + at * box["width"], "y": box["y"] + box["height"] / 2}
            button = {"button": "left", "buttons": 1, "clickCount": 1}
            self._call("Input.dispatchMouseEvent", type=kind, **place, **button)

    def text(self) -> str:
        """Return the text that a person reads on the page."""
        return str(self.run("document.body.innerText"))

    def picture(self, path: Path) -> None:
        """Write a screenshot of the whole page to a file."""
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(b64decode(shot["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Yield a browser that ends with the context."""
    browser_read, write = os.pipe()
    read, browser_write = os.pipe()

    def move_pipes() -> None:
        # Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
        spare = [os.dup(browser_read), os.dup(browser_write)]
        os.dup2(spare[0], 3)
        os.dup2(spare[1], 4)

    process = subprocess.Popen(
        ["chromium", *FLAGS, f"--user-data-dir={profile}"],
        preexec_fn=move_pipes,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(browser_read)
    os.close(browser_write)
    made = Browser(write, read)
    try:
        yield made
    finally:
        with suppress(AssertionError, OSError):
            made.call("Browser.close")
        process.wait(LONGEST)
        os.close(write)
        os.close(read)
