"""A headless Chromium that a test drives by DevTools' protocol, over a pipe: that needs no package."""

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
SECONDS = 180  # for an answer: to start a page takes minutes where memory is short
WIDTH, HEIGHT = 1600, 1000


def browser_path():
    """None where there is no browser."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class PageError(Exception):
    """An exception in a page."""


class Page:
    """One page: what a user does to it, and what it says of itself."""

    def __init__(self, commands, answers):
        self._commands, self._answers = commands, answers
        self._numbers, self._session, self._received = itertools.count(1), None, b""
        self.errors = []  # of which nobody asked
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._send(f"{domain}.enable")
        self.resize(WIDTH, HEIGHT)

    def resize(self, width, height, mobile=False):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self._send("Emulation.setDeviceMetricsOverride", **size)

    def open(self, place, fragment=""):
        """Load a file or an address, whatever was loaded before; the seconds until it is drawn."""
        self._go("about:blank")
        start = time.perf_counter()
        self._go(f"{place if isinstance(place, str) else place.as_uri()}{fragment}")
        self.drawn()
        return time.perf_counter() - start

    def drawn(self):
        """Wait until what was asked for is on the screen."""
        self.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))"
        )

    def evaluate(self, expression):
        """The value of an expression of JavaScript."""
        answer = self._send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise PageError(answer["exceptionDetails"].get("exception", {}).get("description", answer))
        return answer["result"].get("value")

    def click(self, x, y):
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._mouse(kind, x, y, button="left", clickCount=1)
        self.drawn()

    def drag(self, x, y, dx, dy):
        self._mouse("mousePressed", x, y, button="left", clickCount=1)
        self._mouse("mouseMoved", x + dx, y + dy, button="left", buttons=1)
        self._mouse("mouseReleased", x + dx, y + dy, button="left", clickCount=1)
        self.drawn()

    def wheel(self, x, y, amount):
        self._mouse("mouseWheel", x, y, deltaX=0, deltaY=amount)
        self.drawn()

    def click_on(self, selector):
        """The middle of an element."""
        box = self.evaluate(
            f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()"
        )
        self.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def type(self, text):
        self._send("Input.insertText", text=text)
        self.drawn()

    def press(self, key):
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        for kind in ("keyDown", "keyUp"):
            self._send("Input.dispatchKeyEvent", type=kind, key=key, text=text if kind == "keyDown" else "")
        self.drawn()

    def drop(self, path, x, y):
        """A file, as from the desktop."""
        data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self._send("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def choose(self, selector, path):
        """A file in an input of files."""
        root = self._send("DOM.getDocument")["root"]["nodeId"]
        node = self._send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self._send("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def wait_for(self, expression):
        """Until an expression of JavaScript is true."""
        end = time.monotonic() + SECONDS
        while not self.evaluate(expression):
            if time.monotonic() > end:
                raise PageError(f"{expression} does not become true")
            self.drawn()

    def screenshot(self):
        """As the bytes of a PNG."""
        return base64.b64decode(self._send("Page.captureScreenshot", format="png")["data"])

    def _go(self, url):
        self._is_loaded = False
        self._send("Page.navigate", url=url)
        while not self._is_loaded:
            self._note(self._receive())

    def _mouse(self, kind, x, y, **options):
        self._send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **options)

    def _send(self, method, **parameters):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise PageError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)

    def _receive(self):
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._answers], [], [], SECONDS)
            part = os.read(self._answers, 1 << 20) if ready else b""
            if not part:
                raise PageError("the browser does not answer")
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        parameters = event.get("params", {})
        if event.get("method") == "Page.loadEventFired":
            self._is_loaded = True
        elif event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"].get("exception", {}).get("description", ""))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])


@contextlib.contextmanager
def opened_browser():
    """A page of a browser with a profile of its own, which ends with the context."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        ends = []  # the browser reads from its descriptor 3 and writes to 4
        for end in (*os.pipe(), *os.pipe()):
            ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10))
            os.close(end)
            stack.callback(os.close, ends[-1])
        its_input, commands, answers, its_output = ends

        def give_descriptors():
            os.dup2(its_input, 3)
            os.dup2(its_output, 4)

        process = subprocess.Popen(
            [browser_path(), *FLAGS, f"--user-data-dir={folder}", f"--window-size={WIDTH},{HEIGHT}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(3, 4),
            preexec_fn=give_descriptors,
        )
        try:
            yield Page(commands, answers)
        finally:
            process.terminate()
            process.wait(30)
