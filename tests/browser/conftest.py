"""A browser for the report page: Chromium, by Playwright. Where there is none, the tests are skipped and say so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from chromium import NoChromium, launched


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        with launched() as chromium:
            yield chromium
    except NoChromium as error:
        pytest.skip(f"needs Chromium: make browser ({error})")
