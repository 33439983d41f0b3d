"""One browser for all tests of the report: it takes a second to start."""

import pytest


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium."""
    from report_browser import Browser  # noqa: PLC0415 - the tests without a browser need no selenium

    started = Browser()
    yield started
    started.quit()
