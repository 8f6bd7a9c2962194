"""JSON from a file or a line that anyone may have written."""

from __future__ import annotations

import json

from headway.core.types_opaque import SettingValue


def parsed(text: str | bytes) -> SettingValue:
    """Return what the text says. ValueError: it is not JSON, or nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
