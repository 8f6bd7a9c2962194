"""Advice on the time of a run: who waits for whom, and which option would change that."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from statistics import median

from headway.core.history_records import settings_of_line
from headway.core.rules import slots_for
from headway.tools.report.advice_signs import NEGLIGIBLE, NOTICEABLE, Finding, Signs, in_seconds, percent, rarer
from headway.tools.report.recorded_run_story_records import LineStory, Story


def other_line_too_slow(signs: Signs) -> Finding | None:
    """The first learner waits for rollouts although it has slots: another line has none, and nothing takes off that
    one of them has no slot for."""
    slots = {name: slots_for_line(signs.story, name) for name in signs.story.lines if name}
    full = {name: _share_full(signs.story.lines[name], count) for name, count in slots.items() if count is not None}
    name = max(full, key=full.__getitem__, default="")
    if not name or full[name] <= 0.5 or signs.idle <= NOTICEABLE or signs.blocked <= NEGLIGIBLE:
        return None
    if _share_full(signs.story.lines[""], _slots(signs)) > full[name]:
        return None
    updates = signs.story.lines[name].updates
    seconds = sum(update.end - update.begin for update in updates) / max(1, len(updates))
    return Finding(
        "another line",
        f"Line {name} holds collection back",
        f"Its slots were all occupied {percent(full[name])} of the time, the learner of the first line waited "
        f"{percent(signs.idle)} for rollouts and collectors {percent(signs.blocked)} for a slot. One update of line "
        f"{name} takes {in_seconds(seconds)}. Raise its max_lead, or let it take fewer of the rollouts (every).",
        "",
        min(signs.idle, signs.blocked),
    )


def slots_for_line(story: Story, name: str) -> int | None:
    """The tickets of another line that may be live at once, unless its lead moves."""
    told = settings_of_line(story.settings, name)
    if isinstance(told["max_lead"], str):
        return None
    return slots_for(told["max_lead"], told["tickets_per_batch"] * told["publish_every"])


def _share_full(line: LineStory, slots: int) -> float:
    """The share of the time in which every slot of a line was occupied."""
    whole = full = 0.0
    for before, after in pairwise(line.queue):
        whole += after[0] - before[0]
        full += (after[0] - before[0]) * (sum(before[1:]) >= slots)
    return full / whole if whole > 0 else 0.0


def lead_too_small(signs: Signs) -> Finding | None:
    if other_line_too_slow(signs) is not None:
        return None  # a larger lead of the first line would bring nothing
    idle = signs.idle - signs.out_of_turn
    if signs.is_auto or idle <= NEGLIGIBLE or signs.blocked <= NEGLIGIBLE or _ratio_binds(signs):
        return None
    lead = signs.recommended_lead
    if lead is None or lead <= signs.lead:
        if lead is not None and signs.lead > 0:
            return None  # simulated: more brings less than it is worth
        lead = max(signs.lead + 1, 2 * signs.lead, math.ceil(signs.seats / signs.tickets_per_version))
    return Finding(
        "lead too small",
        f"A lead of {signs.lead:g} is too small: both sides wait for each other",
        f"The learner waited {percent(idle)} of the time for rollouts while collectors stood before occupied slots "
        f"{percent(signs.blocked)} of theirs ({_slots(signs)} slots for {signs.seats} collecting at once).",
        f"--max_lead {lead:g}",
        min(idle, signs.blocked),
    )


def _ratio_binds(signs: Signs) -> bool:
    """In a replay run: is it the ratio that holds tickets back, rather than the lead?"""
    if signs.story.settings.get("replay") is None:
        return False
    full = sum(1 for moment in signs.story.queue if sum(moment[1:]) >= _slots(signs))
    return full < len(signs.story.queue) / 2


def ratio_too_low(signs: Signs) -> Finding | None:
    if signs.story.settings.get("replay") is None or not _ratio_binds(signs) or signs.blocked <= NOTICEABLE:
        return None
    ratio = signs.story.settings["replay"]["samples_per_insert"]
    if signs.idle <= NOTICEABLE:
        return None
    return Finding(
        "replay ratio",
        "The replay ratio holds both sides back in turn",
        f"Collectors stood {percent(signs.blocked)} of the time before a ratio of {ratio:g} samples per step, and the "
        f"learner waited {percent(signs.idle)} for steps to draw from; slots were free.",
        f"--samples_per_insert {2 * ratio:g}",
        min(signs.idle, signs.blocked),
    )


def collection_too_slow(signs: Signs) -> Finding | None:
    idle = signs.idle - signs.out_of_turn
    if idle <= 0.1 or signs.blocked > NEGLIGIBLE:
        return None
    settings = signs.story.settings
    has_lanes = settings.get("lanes", 1) > 1
    name = "lanes" if has_lanes else "collectors"
    now = settings["lanes"] if has_lanes else settings["collectors"]
    wanted = max(now + 1, math.ceil(now * min(8.0, 1 / max(1e-9, signs.learning)) - 0.2))
    cpus = signs.story.environment.get("cpus")
    cores = f" This machine has {cpus} cores." if cpus and not has_lanes else ""
    lead = math.ceil(wanted * settings["collectors"] / signs.tickets_per_version) if has_lanes else 0
    lead = lead or math.ceil(wanted * settings.get("lanes", 1) / signs.tickets_per_version)
    more = f" --max_lead {lead}" if lead > signs.lead and not signs.is_auto else ""
    return Finding(
        "collection too slow",
        "Collection is slower than learning, and no lead helps",
        f"The learner waited {percent(idle)} of the time for rollouts and collectors never for a slot "
        f"({percent(signs.blocked)}); one rollout takes {in_seconds(signs.accounts.collect_s.mean)}, one update "
        f"{in_seconds(signs.accounts.learn_s.mean)}.{cores}",
        f"--{name} {wanted}{more}",
        idle * (1 - now / wanted) if wanted > now else 0.0,
    )


def stragglers(signs: Signs) -> Finding | None:
    """The learner waits for one slow rollout although others are ready, or one collector is slower than the rest."""
    if signs.out_of_turn <= NOTICEABLE:
        return None
    settings = signs.story.settings
    slow = _slow_collector(signs.story)
    collect = signs.accounts.collect_s
    evidence = (
        f"{percent(signs.out_of_turn)} of the time the learner waited for a rollout whose turn it was while a whole "
        f"batch of others was ready. A rollout takes {in_seconds(collect.mean)} on average, one in twenty more than "
        f"{in_seconds(collect.p95)}, the longest {in_seconds(collect.max)}."
    )
    if slow is not None and settings["dispatch"] == "pinned":
        role, factor = slow
        return Finding(
            "slow collector",
            f"{role} holds the others up",
            f"{evidence} {role} takes {factor:.1f} times as long as the others.",
            f"--order 'window({2 * signs.seats})'",
            signs.out_of_turn,
        )
    return Finding(
        "stragglers",
        "Slow rollouts hold up those that are ready",
        evidence,
        f"--order 'window({2 * signs.tickets_per_version + signs.seats})'",
        signs.out_of_turn,
    )


def _slow_collector(story: Story) -> tuple[str, float] | None:
    """A collector whose typical rollout takes half as long again as that of the others, and nearly each of them longer
    than most."""
    seconds: dict[str, list[float]] = {}
    for ticket in story.tickets.values():
        if ticket.role is not None and ticket.began is not None and ticket.ended is not None:
            seconds.setdefault(ticket.role.partition("/")[0], []).append(ticket.ended - ticket.began)
    if len(seconds) < 2 or min(map(len, seconds.values())) < 4:
        return None
    typical = {role: median(values) for role, values in seconds.items()}
    slowest = max(typical, key=lambda role: typical[role])
    others = median(value for role, value in typical.items() if role != slowest)
    usual = median(value for values in seconds.values() for value in values)
    late = sum(value > usual for value in seconds[slowest]) / len(seconds[slowest])
    is_slow = others > 0 and typical[slowest] > 1.5 * others and late >= 0.85
    return (slowest, typical[slowest] / others) if is_slow else None


def evaluation_blocks(signs: Signs) -> Finding | None:
    if signs.paused <= NOTICEABLE:
        return None
    settings = signs.story.settings
    if not settings["evaluate_in_background"]:
        change = "--evaluate_in_background true"
    elif settings["dispatch"] == "pinned" and settings.get("target_score") is not None:
        change = "--dispatch free"  # a pinned run may not depend on when a score comes
    else:
        change = f"--evaluate_every {2 * (settings.get('evaluate_every') or 1)}"
    return Finding(
        "evaluation blocks",
        "Learning stands still for evaluations",
        f"The learner waited {percent(signs.paused)} of the time for {len(signs.story.evaluations)} evaluations of "
        f"{in_seconds(signs.accounts.evaluate_s.mean)} each.",
        change,
        signs.paused,
    )


def publish_exposed(signs: Signs) -> Finding | None:
    if signs.for_weights <= NOTICEABLE:
        return None
    every = signs.story.settings["publish_every"]
    drains = sum(i.seconds for i in signs.story.intervals if i.what == "drain")
    applies = sum(i.seconds for i in signs.story.intervals if i.what in ("apply", "applying", "weights"))
    lag = signs.accounts.publish_lag_s.mean
    partial = drains > applies and signs.story.settings.get("on_publish") == "drain"
    return Finding(
        "publish exposed",
        "Collectors stand still for new weights",
        f"{percent(signs.for_weights)} of their time collectors waited for weights or applied them "
        f"({in_seconds(drains)} until their lanes were empty, {in_seconds(applies)} for the weights themselves); a "
        f"version was first used {in_seconds(lag)} after its update.",
        "--on_publish partial" if partial else f"--publish_every {2 * every}",
        signs.for_weights if partial else signs.for_weights / 2,
    )


def failures(signs: Signs) -> Finding | None:
    flights = max(1, sum(ticket.flights for ticket in signs.story.tickets.values()))
    errors = signs.accounts.errors
    if errors / flights <= NEGLIGIBLE:
        return None
    whys = [why for _, _, why in signs.story.reissued + signs.story.lost]
    whys += [ticket.why for ticket in signs.story.tickets.values() if ticket.reason == "failed"]
    common = Counter(whys).most_common(1)[0][0] if whys else "unknown"
    return Finding(
        "failures",
        "Collections fail",
        f"{errors} of {flights} flights failed or were lost, with {signs.accounts.restarts} restarts; most often: "
        f"{common}.",
        "",
        errors / flights * signs.collecting,
    )


def saving_blocks(signs: Signs) -> Finding | None:
    every, every_s = (signs.story.settings.get(name, 0) for name in ("save_every", "save_every_s"))
    if signs.saving <= NOTICEABLE or not (every or every_s):
        return None
    return Finding(
        "checkpoints block",
        "Learning stands still for checkpoints",
        f"{percent(signs.saving)} of the learner's time went into {len(signs.story.saves)} checkpoints.",
        f"--save_every {4 * every}" if every else f"--save_every_s {4 * every_s:g}",
        0.75 * signs.saving,
    )


def saves_skipped(signs: Signs) -> Finding | None:
    done, skipped = len(signs.story.saves), len(signs.story.saves_skipped)
    every = rarer(signs.story.settings.get("save_every") or 1, done, skipped)
    if every is None:
        return None
    return Finding(
        "saves skipped",
        "Checkpoints take longer to write than they come due",
        f"{skipped} of {done + skipped} checkpoints were not made because the one before was still being written.",
        f"--save_every {every}",
        0.0,
    )


def tickets_too_small(signs: Signs) -> Finding | None:
    """What is left is the coordinator's, and the hand-over between roles."""
    if signs.between <= 0.1 or signs.accounts.learn_s.mean > 0.02:
        return None
    batch = signs.story.settings["tickets_per_batch"]
    return Finding(
        "tickets too small",
        "Tickets are so small that handing them over costs more than it should",
        f"{percent(signs.between)} of the learner's time lay between two calls; an update takes "
        f"{in_seconds(signs.accounts.learn_s.mean)}, a rollout {in_seconds(signs.accounts.collect_s.mean)}.",
        f"--tickets_per_batch {4 * batch}  (or longer rollouts)",
        signs.between,
    )


def paced(signs: Signs) -> Finding | None:
    pacing = signs.story.settings.get("pacing_s", 0.0)
    if not pacing or signs.pacing <= NOTICEABLE or signs.idle <= NOTICEABLE:
        return None
    return Finding(
        "pacing",
        "Collectors are paced while the learner waits",
        f"Collectors waited {percent(signs.pacing)} of the time for pacing_s={pacing:g}, the learner "
        f"{percent(signs.idle)} for rollouts.",
        f"--pacing_s {pacing / 2:g}",
        min(signs.pacing, signs.idle),
    )


def _slots(signs: Signs) -> int:
    return slots_for(signs.lead, signs.tickets_per_version)
