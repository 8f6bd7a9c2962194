"""What the adapters of other libraries share: the end is the end, unknown names are one line, seeds fit."""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Callable, Iterable, Mapping

from headway.agents.checked_env_checked_game import OwnGlobalRandom
from headway.agents.env import BadEnvironment
from headway.core.text_naming import unknown

DEFAULT_TURNS = 50
"""For environments that do not say how long an episode may be."""

NOTHING = "(nothing)"


def require_known(library: str, name: str, known: Iterable[str]) -> None:
    """Refuses a name that a library does not have, in one line with those that come near."""
    names = list(known)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=8, cutoff=0.4) or sorted(names)[:8]
        raise BadEnvironment(f"{unknown(f'environment of {library}', name, near)} and {len(names) - len(near)} others")


def no_word_list(name: str, error: LookupError) -> BadEnvironment:
    """One line instead of NLTK's fifteen about data that is not on this machine."""
    resource = re.search(r"nltk\.download\('(\w+)'\)", str(error))
    command = f": python -m nltk.downloader {resource[1]}" if resource else ""
    return BadEnvironment(f"{name} needs data of NLTK that is not on this machine{command}")


def require_begun(is_over: bool, name: str) -> None:
    """Refuses a step after the end, or before the first reset."""
    if is_over:
        raise BadEnvironment(f"{name} is over, or was never begun: call reset before the next step")


def something(text: str) -> str:
    """The text, or words for one that is empty: a policy must be told something."""
    return text if text.strip() else NOTHING


def small_seed(seed: int) -> int:
    """A seed that libraries take which keep it in 32 bits."""
    return seed % (1 << 32)


def numbers_of(info: Mapping[str, object]) -> dict[str, float]:
    """What can be measured among what a library says besides."""
    return {name: float(value) for name, value in info.items() if isinstance(value, (bool, int, float))}


def drawn_apart(draw: Callable[[], str], rng: random.Random) -> str:
    """What `draw` returns, which draws from the global generator: seeded by `rng`, and left as it was before."""
    with OwnGlobalRandom().put_in_place():
        random.seed(rng.getrandbits(32))
        return draw()
