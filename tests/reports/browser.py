"""A real browser for tests: Chromium, driven by Playwright, with every request on record."""

import os
import shutil
import subprocess
from contextlib import contextmanager
from functools import cache

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-gpu",
    "--disable-quic",
]


@cache
def chromium():
    """Path of a browser; as root on Debian one is installed where there is none, else the test is skipped."""
    found = os.environ.get("FCAL_CHROMIUM") or _on_path()
    if not found and os.geteuid() == 0 and shutil.which("apt-get"):
        found = _installed()
    if not found:
        pytest.skip("no Chromium: set FCAL_CHROMIUM, or put chromium or google-chrome on the PATH")
    return found


def _on_path():
    return next(filter(None, map(shutil.which, _NAMES)), None)


def _installed():
    install = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (install, ["apt-get", "update"], install):
        done = subprocess.run(command, env=environment, capture_output=True, timeout=240, check=False)
        if command is install and done.returncode == 0:
            break
    return _on_path()


class Visit:
    """A page that was opened, and everything it said or asked for."""

    def __init__(self, page):
        self.page, self.requests, self.complaints, self.dialogs = page, [], [], []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._dismiss)

    def _dismiss(self, dialog):
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def open(self, path):
        """Open a file from disk and wait until its script is done."""
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]", state="attached")
        return self.page


def place_of(area, mark, point):
    """Where on the screen a point of a figure is: of the ``mark``-th that shows its values, from the bottom."""
    return area.evaluate(
        """(drawing, [mark, point]) => {
            const script = drawing.closest("figure").querySelector("script[type='application/json']");
            const {at, x, y, columns, marks} = JSON.parse(script.textContent), chosen = marks.at(mark);
            const share = ([low, high, , log], value) => ((log ? Math.log10(value) : value) - low) / (high - low);
            const a = columns[chosen.x][point], b = columns[chosen.y][point];
            const place = new DOMPoint(at[0] + x[2] * share(x, a), at[1] + y[2] * (1 - share(y, b)));
            const {x: left, y: top} = place.matrixTransform(drawing.getScreenCTM());
            return {left, top, x: a, y: b};
        }""",
        [mark, point],
    )


@contextmanager
def browser():
    """A running browser that is closed whatever happens."""
    sync_api = pytest.importorskip("playwright.sync_api")
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=_ARGUMENTS + root)
        try:
            yield running
        finally:
            running.close()


@contextmanager
def visit(running, **context):
    """A fresh profile, such as ``viewport={"width": 390, "height": 844}`` or ``color_scheme="dark"``."""
    opened = running.new_context(**({"viewport": {"width": 1280, "height": 900}} | context))
    opened.set_default_timeout(30_000)
    try:
        yield Visit(opened.new_page())
    finally:
        opened.close()
