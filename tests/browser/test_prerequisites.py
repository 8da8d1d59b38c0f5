"""A machine without a browser is told what to install; a browser test is never skipped in silence."""

import pytest

from tests.support.browser import chromium

pytestmark = pytest.mark.browser


def test_a_missing_browser_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("DFLASH_CHROMIUM", raising=False)
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        chromium()
