"""A real Chromium on a page of the webserver, with screenshots on demand. What is missing on the machine is named, never skipped over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.webserver import Webserver

if TYPE_CHECKING:
    from playwright.sync_api import Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def chromium() -> str:
    """Path of the browser."""
    found = os.environ.get("DFLASH_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail(f"no browser: none of {', '.join(NAMES)} is in PATH; `apt-get install chromium`, or name one in DFLASH_CHROMIUM")
    return found


@contextmanager
def page_of(server: Webserver, *, scale: int = 1) -> Iterator[Page]:
    """A page of 1440 x 900, `scale` device pixels each way for one of its own; the webserver's first-visit dialogue is dismissed, else it covers everything."""
    path = chromium()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        pytest.fail(f"no playwright ({error}); `pip install --no-deps -r requirements-dev.lock`")
    server.ask("mutation { setNuxSeen }")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            page = browser.new_page(viewport={"width": 1440, "height": 900}, device_scale_factor=scale)
            page.set_default_timeout(30_000)
            yield page
        finally:
            browser.close()


def screenshot(page: Page, name: str, *, height: int | None = None) -> None:
    """Saved as `<name>.png` in the folder DFLASH_SCREENSHOTS, if that is set; `height`: only so many pixels from the top."""
    folder = os.environ.get("DFLASH_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        size = page.viewport_size
        assert size is not None
        page.screenshot(
            path=Path(folder) / f"{name}.png", clip={"x": 0, "y": 0, "width": size["width"], "height": height or size["height"]}
        )
