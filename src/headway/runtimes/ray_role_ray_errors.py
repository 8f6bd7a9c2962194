"""Why a Ray actor is gone, in one line."""

from __future__ import annotations

import re

from headway.core.text_one_line import first_line


def how_it_died(error: Exception) -> str:
    """Ray's reason, without its advice."""
    reason = re.search(r"The actor (is dead|died) because (.*?)(Some common causes|$)", str(error), re.DOTALL)
    if reason is None:
        return f"failed: {first_line(error)}"
    return f"died because {' '.join(reason[2].split()).rstrip('.')}"
