"""A headless Chromium, spoken to through a pipe by its DevTools protocol: no driver and no library are needed."""

import contextlib
import itertools
import json
import os
import shutil
import subprocess

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium():
    """Return the path of the browser, or None."""
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


class Tab:
    """A page of a browser."""

    def __init__(self, browser, session):
        self._browser = browser
        self._session = session
        self.messages = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        return self._browser.call(method, self._session, self._note, **parameters)

    def _note(self, event):
        """Keep what the page says, throws, is refused or asks the network for."""
        method, values = event["method"], event.get("params", {})
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.messages.append(values)
        elif method == "Network.requestWillBeSent" and not values["request"]["url"].startswith(("file:", "data:")):
            self.messages.append(values["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.messages.append(values)

    def open(self, path, width=1280, height=900, dark=False, mobile=False):
        """Open a file, or a URL; return when it is loaded and drawn."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path if "://" in str(path) else f"file://{path}")
        self.evaluate(
            "new Promise(done => document.readyState === 'complete' ? done(1) : addEventListener('load', done))"
            ".then(() => 1)"
        )
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def evaluate(self, expression):
        """Return the value of an expression of JavaScript, as JSON has it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")


class Browser:
    """Chromium, with one page at a time."""

    def __init__(self, process, asking, answering):
        self._process = process
        self._asking = asking
        self._answering = answering
        self._numbers = itertools.count(1)

    def call(self, method, session=None, note=None, **parameters):
        """Call a method, and return its result; events that come before it go to `note`."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        self._asking.write(json.dumps(message).encode() + b"\0")
        self._asking.flush()
        while True:
            answer = json.loads(self._read())
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            if note is not None and "method" in answer:
                note(answer)

    def _read(self):
        data = bytearray()
        while (byte := self._answering.read(1)) != b"\0":
            assert byte, "the browser ended"
            data += byte
        return bytes(data)

    def tab(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        return Tab(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])


@contextlib.contextmanager
def open_browser(folder):
    """Start a browser, whose profile is in a folder."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run")
    command = [chromium(), *options, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "bash", *command],
        pass_fds=(to_read, from_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    with os.fdopen(to_write, "wb") as asking, os.fdopen(from_read, "rb") as answering:
        browser = Browser(process, asking, answering)
        try:
            yield browser
        finally:
            with contextlib.suppress(AssertionError, OSError):
                browser.call("Browser.close")
            process.wait(30)
