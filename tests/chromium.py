"""A Chromium that can be driven: the one that HEADWAY_CHROMIUM names, that of the system, or Playwright's own.

python tests/chromium.py    says which there is; without one it says so, and exits with 1
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


class NoChromium(Exception):
    """None can be started; the text says why, in one line."""


@contextmanager
def launched() -> Iterator[Any]:
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        raise NoChromium(f"Playwright is not installed ({error})") from None
    path = os.environ.get("HEADWAY_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except Error as error:
            raise NoChromium(str(error).splitlines()[0]) from None
        yield chromium
        chromium.close()


if __name__ == "__main__":
    try:
        with launched() as browser:
            print(f"Chromium {browser.version} is there")
    except NoChromium as error:
        sys.exit(f"no Chromium yet: {error}")
