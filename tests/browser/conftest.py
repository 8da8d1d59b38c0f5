"""A webserver and a browser page for each module's `project`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import page_of
from tests.support.project import Project
from tests.support.webserver import Webserver, webserver

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def server(project: Project) -> Iterator[Webserver]:
    with webserver(project) as found:
        yield found


@pytest.fixture(scope="module")
def page(server: Webserver) -> Iterator[Page]:
    with page_of(server) as found:
        yield found
