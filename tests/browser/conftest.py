"""A browser for pages: Chromium, by Playwright. Where there is none, the tests are skipped and say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import NoChromium, launched
from waiting import patient

WIDE = {"width": 1200, "height": 900}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        with launched() as chromium:
            yield chromium
    except NoChromium as error:
        pytest.skip(f"needs Chromium: make browser ({error})")


@pytest.fixture
def show(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page; at the end nothing may have gone wrong on any, and nothing may have been asked of a network."""
    contexts, wrong = [], []

    def opened(address: Path | str, *, viewport: dict[str, int] = WIDE, **options: Any) -> Any:
        context = browser.new_context(viewport=viewport, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * patient(30))
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: None if is_ours(request.url) else wrong.append(f"asked for {request.url}"))
        page.goto(address.as_uri() if isinstance(address, Path) else address)
        return page

    def is_ours(url: str) -> bool:
        return url.startswith(("file://", "data:", "http://127.0.0.1:"))

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []
