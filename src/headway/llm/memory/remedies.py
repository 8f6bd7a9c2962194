"""What would make a run fit that does not: every setting that takes memory less, tried by itself and together.

A change is a dictionary of settings under the names that recipes have for them. Each is tried by asking for the places
again with it; nothing here knows what a setting does to memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from headway.llm.memory.planned_run_fit_report import Place
from headway.llm.memory.roles_memory_items import in_gb

WORTH_A_WORD = 4
"""How many times as many tokens as a pass has now make it so much quicker on a GPU that it should be said."""
Settings = Mapping[str, object]
PlacesFor = Callable[[Settings], Sequence[Place]]
"""The places of the run with some settings changed."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """Settings to change, and what the fullest place would hold then."""

    settings: Settings
    place: str
    peak_bytes: int
    room_bytes: int
    fits: bool

    def __str__(self) -> str:
        said = " ".join(f"--{name} {_shown(value)}" for name, value in self.settings.items())
        ending = "fits" if self.fits else "not enough by itself"
        return f"{said}: {self.place} {in_gb(self.peak_bytes)} of {in_gb(self.room_bytes)}, {ending}"


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """What a run would need in every place, and what would help where that is too much."""

    places: Sequence[Place]
    remedies: Sequence[Remedy] = ()
    why: str = ""
    """A line about what takes most, where one thing does."""
    quicker: str = ""
    """A line about memory that could be used and is not."""

    @property
    def is_refused(self) -> bool:
        return is_refused(self.places)

    @property
    def fits_easily(self) -> bool:
        return all(place.verdict in ("fits", "unknown") for place in self.places)

    def lines(self) -> list[str]:
        """A line for each place, and what would be quicker."""
        needs = [f"needs at the peak: {place.in_a_line()}" for place in self.places]
        return [*needs, *([self.quicker] if self.quicker else [])]

    def refusal(self) -> str:
        """What does not fit, with the numbers, and what would help."""
        lacking = [place.in_a_line() for place in self.places if place.verdict == "does not fit"]
        helps = [f"\n  {remedy}" for remedy in self.remedies]
        why = f"\n{self.why}" if self.why else ""
        return f"does not fit: {'; '.join(lacking)}{why}" + ("\nwhat would help:" if helps else "") + "".join(helps)


def roomier_microbatch(places_for: PlacesFor, tokens: int, most_tokens: int) -> int | None:
    """The most tokens, twice as many again and again, that a learner on a GPU may read at once while everything fits
    well, up to what there is to read; None where they are not worth a word."""
    found = tokens
    while 2 * found <= most_tokens and MemoryReport(places_for({"microbatch_tokens": 2 * found})).fits_easily:
        found *= 2
    return found if found >= WORTH_A_WORD * tokens else None


def is_refused(places: Sequence[Place]) -> bool:
    return any(place.verdict == "does not fit" for place in places)


def fullest(places: Sequence[Place]) -> Place | None:
    """The place that lacks most; None where no room is known."""
    known = [place for place in places if place.room_bytes is not None]
    return max(known, key=lambda place: place.peak_bytes - (place.room_bytes or 0), default=None)


def find_remedies(
    places_for: PlacesFor, candidates: Sequence[Sequence[Settings]], known: Collection[str] | None = None
) -> list[Remedy]:
    """Tries each family of changes: of one family the mildest that fits, or else the strongest.

    `known` are the settings that can be changed at all. Where no change is enough alone, the last remedy is a sum of
    changes that is.
    """
    now = fullest(places_for({}))
    if now is None:
        return []
    families = [[change for change in family if known is None or set(change) <= set(known)] for family in candidates]
    found: list[Remedy] = []
    for family in families:
        tried = [remedy for change in family if (remedy := _try(places_for, change)) is not None]
        helping = [remedy for remedy in tried if remedy.peak_bytes < now.peak_bytes]
        chosen = next((remedy for remedy in helping if remedy.fits), helping[-1] if helping else None)
        if chosen is not None and not any(_is_enough(other, chosen) for other in found):
            found.append(chosen)
    if any(remedy.fits for remedy in found):
        return sorted(found, key=lambda remedy: not remedy.fits)
    together = _sum_that_fits(places_for, families)
    return found if together is None else [*found, together]


def _is_enough(less: Remedy, more: Remedy) -> bool:
    """Whether what `more` changes besides is there already, and helps nothing."""
    return less.settings.items() <= more.settings.items() and less.peak_bytes == more.peak_bytes


def _sum_that_fits(places_for: PlacesFor, families: Sequence[Sequence[Settings]]) -> Remedy | None:
    """One change of each family until everything fits, without those that are not needed for it."""
    together: dict[str, object] = {}
    for family in families:
        tried = [remedy for change in family if (remedy := _try(places_for, {**together, **change})) is not None]
        if not tried:
            continue
        chosen = next((remedy for remedy in tried if remedy.fits), tried[-1])
        together = dict(chosen.settings)
        if chosen.fits:
            break
    for name in list(together):
        less = {other: value for other, value in together.items() if other != name}
        tried_less = _try(places_for, less)
        if tried_less is not None and tried_less.fits:
            together = less
    whole = _try(places_for, together)
    return whole if whole is not None and whole.fits else None


def _try(places_for: PlacesFor, change: Settings) -> Remedy | None:
    try:
        places = places_for(change)
    except ValueError:  # settings that cannot be together
        return None
    worst = fullest(places)
    if worst is None or worst.room_bytes is None:
        return None
    fits = all(place.room_bytes is None or place.peak_bytes <= place.room_bytes for place in places)
    return Remedy(change, worst.name, worst.peak_bytes, worst.room_bytes, fits)


def learner_changes(
    *,
    microbatch_tokens: int,
    least_tokens: int,
    learner_ranks: int,
    max_ranks: int,
    is_sharded: bool = False,
    lora_rank: int = 16,
) -> list[list[Settings]]:
    """What takes less memory in a learner, the mildest first. Shorter microbatches change nothing that is learned.

    Shards help one rank too: nothing is copied on the device when they are saved.
    """
    halves: list[Settings] = []
    tokens = microbatch_tokens // 2
    while tokens > least_tokens:
        halves.append({"microbatch_tokens": tokens})
        tokens //= 2
    if least_tokens < microbatch_tokens:
        halves.append({"microbatch_tokens": least_tokens})
    ranks = [count for count in (2, 4, 8, 16, 32, 64) if learner_ranks < count <= max_ranks]
    if max_ranks > learner_ranks and max_ranks not in ranks:
        ranks.append(max_ranks)
    sharded: list[Settings] = [{"sharding": "full", "learner_ranks": count} for count in ranks]
    if not is_sharded:
        sharded.insert(0, {"sharding": "full"})
    both: list[Settings] = [{"gradient_checkpointing": True, **change} for change in sharded]
    return [
        [{"gradient_checkpointing": True}],
        halves,
        sharded,
        both,
        [{"optimizer_state": "8bit"}, {"optimizer_state": "host"}],
        [{"parameter_dtype": "bfloat16"}],
        [{"lora_rank": lora_rank}],
    ]


def engine_changes(
    *,
    engine_rows: int,
    is_vllm: bool,
    share: float,
    part_sizes: Sequence[int] = (),
    wants_vllm: bool = False,
    may_share: bool = False,
) -> list[list[Settings]]:
    """What takes less memory in engines: fewer rows, vLLM (`wants_vllm`: rows, or the model on one GPU, are what does
    not fit) over one GPU or over one of `part_sizes`, none for the evaluator (`may_share`), a smaller share."""
    rows: list[Settings] = []
    count = engine_rows // 2
    while count >= 1:
        rows.append({"engine_rows": count})
        count //= 2
    changes: list[list[Settings]] = [rows]
    spread: list[Settings] = [{"tensor_parallel_size": size} for size in part_sizes]
    if wants_vllm and not is_vllm:
        changes.insert(0, [{"engine": "vllm", **change} for change in ({}, *spread)])
    if may_share:
        changes.append([{"evaluator": "engine"}])
    if is_vllm:
        changes.append(spread)
        changes.append([{"gpu_memory_utilization": part} for part in (0.5, 0.7, 0.9) if part > share])
        changes.append([{"gpu_memory_utilization": part} for part in (0.4, 0.3, 0.2, 0.1) if part < share])
    return changes
