"""What tests of pages share: one Chromium a module."""

import pytest

from tests.browser.driver import browser


@pytest.fixture(scope="module")
def chromium():
    with browser() as tab:
        yield tab
