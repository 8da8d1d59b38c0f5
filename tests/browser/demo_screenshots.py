"""Pictures of the documentation, taken anew: run the demo, start `dflash-assets ui recipes/demo.yaml` on it, then

python -m tests.browser.demo_screenshots http://127.0.0.1:3000 docs/images
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.browser import page_of
from tests.support.webserver import Webserver

if TYPE_CHECKING:
    from playwright.sync_api import Page

SETTLE_MS = 3000
"""Pictures are of pages whose tables and layouts have arrived; the webserver has no event that says so."""


def take(server: Webserver, folder: Path) -> None:
    """graph.png, partitions.png and check.png, at sizes that stay readable in a README."""
    folder.mkdir(parents=True, exist_ok=True)
    with page_of(server, scale=2) as page:
        width, height = 1560, 850
        _open(page, server, "/asset-groups~key%3A%22demo%2F*%22/", width, height)
        page.get_by_text("Hide navigation").click()
        page.get_by_placeholder("Jump to").locator("xpath=following::button[1]").click()  # the list of groups, left of the graph
        page.keyboard.press("Alt+e")  # expands all groups
        page.wait_for_timeout(SETTLE_MS)
        # Without the webserver's frame: its menu, its search line and the buttons for zooming.
        page.screenshot(path=folder / "graph.png", clip={"x": 100, "y": 108, "width": width - 145, "height": height - 138})
    with page_of(server) as page:
        _open(page, server, "/assets/demo/completions?view=partitions&partition=shard-00003", 1440, 740)
        page.get_by_text("Hide navigation").click()
        page.wait_for_timeout(SETTLE_MS)
        page.screenshot(path=folder / "partitions.png")
        _open(page, server, "/assets/demo/report?view=checks&checkDetail=failures", 1440, 610)
        page.screenshot(path=folder / "check.png")


def _open(page: Page, server: Webserver, path: str, width: int, height: int) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.goto(server.url + path)
    page.wait_for_timeout(SETTLE_MS)


if __name__ == "__main__":
    take(Webserver(sys.argv[1].rstrip("/")), Path(sys.argv[2]))
