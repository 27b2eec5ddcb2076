"""Servers and a browser for the tests of the page."""

import atexit
import contextlib
import functools
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request

from playwright.sync_api import expect

# Nothing takes so long unless it hangs.
TIMEOUT = 120
expect.set_options(timeout=TIMEOUT * 1000)
# Ends of turn and thought in the tiny model's vocabulary, made impossible.
GO_ON = {str(token): -100 for token in (499, 500, 501, 502, 503, 509, 510, 511)}


@functools.cache
def tiny(program):
    """A random model of a few megabytes, made once."""
    folder = os.path.join(tempfile.mkdtemp(), "tiny")
    atexit.register(shutil.rmtree, os.path.dirname(folder))
    subprocess.run([program, "synth", "--preset", "tiny", "--out", folder], check=True, capture_output=True)
    return folder


class Server:
    """`lily serve` on a free port, or on the port of one that is gone."""

    def __init__(self, program, *arguments, script=None, port=0, model=None):
        self.folder = tempfile.TemporaryDirectory()
        command = [program, "serve", "-m", model or tiny(program), "--port", str(port), *arguments]
        if script:
            path = os.path.join(self.folder.name, "script")
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(json.dumps({"pieces": pieces}) + "\n" for pieces in script)
            command += ["--scripted", path]
        self.log = os.path.join(self.folder.name, "log")
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log)
        self.base = self.wait_for(lambda: self.logged("listening on "), "did not start")
        self.port = int(self.base.rsplit(":", 1)[1])

    def logged(self, prefix):
        with open(self.log, encoding="utf-8") as log:
            lines = [line for line in log if line.endswith("\n")]
        found = [line[len(prefix) :].strip() for line in lines if line.startswith(prefix)]
        return found[0] if found else None

    def wait_for(self, look, failure):
        start = time.monotonic()
        while time.monotonic() - start < TIMEOUT and self.process.poll() is None:
            if found := look():
                return found
            time.sleep(0.05)
        with open(self.log, encoding="utf-8") as log:
            raise AssertionError(f"lily serve {failure}:\n{log.read()}")

    def health(self):
        with urllib.request.urlopen(self.base + "/health", timeout=TIMEOUT) as reply:
            return json.load(reply)

    def wait_until(self, running, waiting=0):
        wanted = {"running": running, "waiting": waiting}
        self.wait_for(lambda: wanted.items() <= self.health().items(), f"has not {wanted}")

    @contextlib.contextmanager
    def occupied(self):
        """Another client whose answer does not end by itself."""
        body = {"messages": [{"role": "user", "content": "Hi"}], "logit_bias": GO_ON, "n": 32, "stream": True}
        request = urllib.request.Request(
            self.base + "/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            self.wait_for(lambda: self.health()["running"] > 0, "does not run")
            yield reply

    def stop(self):
        self.process.terminate()
        self.process.wait(TIMEOUT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self.folder.cleanup()


def browser(playwright):
    """The system's Chromium, without a window."""
    names = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    assert program, "Chromium is not installed"
    # As root, in containers, it has no sandbox of its own.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    return playwright.chromium.launch(executable_path=program, args=options)


class Tab:
    """A tab with the page, and what it asked for and complained of."""

    def __init__(self, chromium, base, **options):
        self.base = base
        self.context = chromium.new_context(**options)
        self.context.set_default_timeout(TIMEOUT * 1000)
        self.page = self.context.new_page()
        self.requests, self.complaints = [], []
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self.heard)
        self.page.goto(base + "/")

    def heard(self, message):
        # A refused request is told on the console by the browser itself.
        if message.type in ("error", "warning") and "the server responded with a status" not in message.text:
            self.complaints.append(message.text)

    def ready(self):
        """Waits until the page knows the model."""
        expect(self.page.locator("#model")).not_to_be_empty()
        return self

    def told(self, text):
        """Waits until the line below the field says so."""
        expect(self.page.locator("#status")).to_contain_text(text)

    def ask(self, text):
        self.page.fill("#question", text)
        self.page.press("#question", "Enter")

    def answer(self, number=0):
        """The whole answer, once it is there."""
        node = self.page.locator("article.answer:not(.busy)").nth(number)
        node.wait_for()
        return node

    def text(self, number=0):
        return self.answer(number).locator("> .markdown").inner_text()

    def set(self, **settings):
        self.page.click("#open-settings")
        for name, value in settings.items():
            field = self.page.locator(f"#settings [name={name}]")
            if field.evaluate("node => node.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)
        self.page.click("#settings .main")

    def close(self):
        """Ends the tab. It has asked its own server only, and nothing went wrong in it."""
        elsewhere = [url for url in self.requests if not url.startswith(self.base + "/")]
        assert not elsewhere, elsewhere
        assert not self.complaints, self.complaints
        self.context.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.close()
