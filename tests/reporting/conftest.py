"""A headless Chromium without a network, and what pages did in it."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field

import pytest

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip


@dataclass
class Opened:
    """A page and everything it did."""

    page: object
    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")  # Playwright keeps an event loop running: it must end before other files' tests
def chromium():
    """The browser; skips where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium")
    with playwright.sync_playwright() as p:
        found = p.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture
def visit(chromium):
    """Open a file from disk without a network and wait until its charts are drawn."""
    with contextlib.ExitStack() as stack:

        def visit(path, width=1200, height=900, wait=True):
            context = chromium.new_context(viewport={"width": width, "height": height})
            stack.callback(context.close)
            context.set_offline(True)
            opened = Opened(context.new_page())

            def dialog(d):
                opened.dialogs.append(d.message)
                d.dismiss()

            opened.page.on("request", lambda r: opened.requests.append(r.url))
            opened.page.on("console", lambda m: opened.messages.append(m.text))
            opened.page.on("pageerror", lambda e: opened.messages.append(str(e)))
            opened.page.on("dialog", dialog)
            opened.page.goto(path.resolve().as_uri())
            if wait:
                opened.page.wait_for_selector("html[data-drawn]", timeout=60_000)
            return opened

        yield visit
