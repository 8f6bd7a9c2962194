"""Flat names of other libraries, one table a library: what each of them is here.

    headway explain --from sb3                                 the whole table of a library
    headway run ppo --n_steps 256 --n_envs 8 --ent_coef 0.01   one library says so, or all mean the same by it
    headway run ppo --batch_size 64 --names sb3                whose names they are, where libraries differ

A name may set nothing here: then the run says why as it begins. One whose meaning depends on others (a number of
minibatches, on the size of a batch) finds them in whoever's words they are said.
"""

from __future__ import annotations

from collections.abc import Mapping

from headway.tools.names import cleanrl, color_gomoku, prime_rl, rllib, sample_factory, sb3, trl
from headway.tools.names.flat import SYSTEMS
from headway.tools.names.rows import Meaning
from headway.tools.names.rows_peer_rows import Beside, PeerName

TABLES: dict[str, Mapping[str, PeerName]] = {
    "cleanrl": cleanrl.NAMES,
    "color_gomoku": color_gomoku.NAMES,
    "prime_rl": prime_rl.NAMES,
    "rllib": rllib.NAMES,
    "sample_factory": sample_factory.NAMES,
    "sb3": sb3.NAMES,
    "trl": trl.NAMES,
}


def meaning_in(
    system: str | None, name: str, value: object, together: Mapping[str, object], defaults: Mapping[str, object]
) -> Meaning | None:
    """What a name sets that is a name of this library; None: it has no such name."""
    known = TABLES.get(system or "", {}).get(name)
    return None if known is None else known.translate(value, Beside(together, defaults))


def meaning_of(
    name: str, value: object, together: Mapping[str, object], defaults: Mapping[str, object]
) -> Meaning | None:
    """What a name sets that one library has, or that all mean alike in this recipe; None: nobody has it.

    Where libraries differ it is refused with every meaning.
    """
    found: dict[str, Meaning] = {}
    refused: list[ValueError] = []
    for system, names in TABLES.items():
        if name in names:
            try:
                found[system] = names[name].translate(value, Beside(together, defaults))
            except ValueError as error:
                refused.append(error)
    possible = {system: meaning for system, meaning in found.items() if _fits(meaning, defaults)}
    chosen = possible or found
    if not chosen:
        if refused:
            raise refused[0]
        return None
    first, *others = chosen.values()
    if all(meaning == first for meaning in others):
        return first
    said = "; or ".join(f"{_in_words(meaning)}, as in {SYSTEMS[system]}" for system, meaning in chosen.items())
    raise ValueError(f"{name}={value!r} can mean: {said}. Choose with --names {' or '.join(chosen)} (names: in a file)")


def _fits(meaning: Meaning, defaults: Mapping[str, object]) -> bool:
    """Whether the recipe has all that it sets."""
    return isinstance(meaning, str) or meaning.keys() <= defaults.keys()


def _in_words(meaning: Meaning) -> str:
    if isinstance(meaning, str):
        return f"nothing ({meaning})"
    return ", ".join(f"{name}={value!r}" for name, value in meaning.items()) or "the default"
