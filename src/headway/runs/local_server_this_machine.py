"""What a server that is only for this machine asks of a request: that it was meant for this machine."""

from __future__ import annotations

import re

NAMES = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(rf"({'|'.join(map(re.escape, NAMES))})(:\d+)?", re.IGNORECASE)


def is_loopback(host: str) -> bool:
    """Can this address of a server be reached from this machine alone?"""
    return host in ("localhost", "127.0.0.1", "::1")


def is_of_this_machine(host: str) -> bool:
    """Does a Host header name this machine as those on it do, with any port (it may be forwarded)? A page elsewhere can
    have its own name lead here, and its script could then read the answer: but the browser says that name."""
    return _HOST.fullmatch(host) is not None
