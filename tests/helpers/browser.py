"""A real Chromium that tests drive: its pipe takes commands of the DevTools protocol."""

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
"""Seconds after which something that was waited for counts as missing."""
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
        self._left = b""

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """A command's answer; what happens meanwhile is not kept."""
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": parameters}
        if session:
            command["sessionId"] = session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            while b"\0" not in self._left:
                data = os.read(self._read, 1 << 20)
                assert data, "the browser has gone"
                self._left += data
            message, _, self._left = self._left.partition(b"\0")
            answer = json.loads(message)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                found: dict[str, Any] = answer["result"]
                return found

    def open(self, address: str, *, width: int = 1000) -> "Tab":
        """A new tab, as wide as is asked."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        tab.resize(width)
        tab.go(address)
        return tab


class Tab:
    """One page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int = 844) -> None:
        """A screen of so many pixels, as a phone has it where it is narrow."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1}
        self._call("Emulation.setDeviceMetricsOverride", mobile=width < 600, **metrics)

    def dark(self, on: bool) -> None:
        """Prefer dark colours, as a user's system does."""
        wanted = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self._call("Emulation.setEmulatedMedia", features=[wanted])

    def before(self, script: str) -> None:
        """Run a script in every later page, before its own."""
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
        """As the button does."""
        self.go(self.run("location.href"))

    def run(self, script: str) -> Any:
        """What an expression comes to in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"].get("value")

    def wait(self, script: str) -> Any:
        """Ask until an expression is true; its value."""
        end = time.monotonic() + LONGEST
        while time.monotonic() < end:
            if found := self.run(script):
                return found
            time.sleep(0.03)
        raise AssertionError(f"never {script}: {self.text()}")

    def drag(self, selector: str, begin: float, end: float) -> None:
        """Press the mouse in an element, move and release it; places as fractions of its width."""
        self.run(f"document.querySelector({selector!r}).scrollIntoView()")
        box = self.run(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")
        steps = (("mouseMoved", begin), ("mousePressed", begin), ("mouseMoved", end))
        for kind, at in (*steps, ("mouseReleased", end)):
            place = {"x": box["x"] + at * box["width"], "y": box["y"] + box["height"] / 2}
            button = {"button": "left", "buttons": 1, "clickCount": 1}
            self._call("Input.dispatchMouseEvent", type=kind, **place, **button)

    def text(self) -> str:
        """What a person reads."""
        return str(self.run("document.body.innerText"))

    def picture(self, path: Path) -> None:
        """A screenshot of the whole page."""
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(b64decode(shot["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser that ends with the context."""
    for_it, write = os.pipe()
    read, from_it = os.pipe()

    def pass_on() -> None:
        # It reads from 3 and writes to 4, whatever the pipes are called here.
        spare = [os.dup(for_it), os.dup(from_it)]
        os.dup2(spare[0], 3)
        os.dup2(spare[1], 4)

    process = subprocess.Popen(
        ["chromium", *FLAGS, f"--user-data-dir={profile}"],
        preexec_fn=pass_on,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(for_it)
    os.close(from_it)
    made = Browser(write, read)
    try:
        yield made
    finally:
        with suppress(AssertionError, OSError):
            made.call("Browser.close")
        process.wait(LONGEST)
        os.close(write)
        os.close(read)
