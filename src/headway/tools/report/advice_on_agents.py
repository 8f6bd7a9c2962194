"""Advice on runs with episodes: which limit cuts them, whom they wait for, and what their environments lose."""

from __future__ import annotations

from headway.tools.report.advice_signs import NOTICEABLE, RECENT, Finding, Signs, in_seconds, percent

MOST = 0.5
LIMITS = {"end_tokens": "max_episode_tokens", "end_turns": "max_turns"}


def episodes_cut(signs: Signs) -> Finding | None:
    """Most episodes end by a limit; a game that is over says so itself."""
    ends = {end: share for end in LIMITS if (share := signs.lately(end)) is not None and share > MOST}
    if not ends:
        return None
    end = max(ends, key=lambda one: ends[one])
    limit, share = LIMITS[end], ends[end]
    longest = signs.lately("turns_max") if end == "end_turns" else None
    now = signs.story.config.get(limit) or (longest and round(longest))
    success = signs.lately("success") or 0.0
    if end == "end_turns" and signs.story.config.get(limit) is None:
        change, whose = "", " It is the environment's own limit: its options, or a larger max_turns there, raise it."
    else:
        change, whose = f"--{limit} {2 * int(now)}" if now else f"--{limit}", ""
        if limit == "max_episode_tokens" and now and 2 * now > signs.story.config.get("max_context_tokens", 2 * now):
            change += f" --max_context_tokens {2 * int(now)}"
    return Finding(
        "episodes cut",
        f"Most episodes are cut by {limit} before their game is over",
        f"In the last {min(RECENT, len(signs.story.updates))} updates {percent(share)} of the episodes ended so, "
        f"after {signs.lately('turns') or 0.0:.1f} turns on average; {percent(success)} of all succeeded.{whose}",
        change,
        share,
        "of the data",
        stops_learning=share >= 0.9 and success == 0.0,
    )


def environments_slow(signs: Signs) -> Finding | None:
    """The engine has nothing to do while environments step."""
    idle, step = signs.lately("engine_idle"), signs.lately("step_s")
    if idle is None or step is None or idle <= 0.1:
        return None
    lanes, where = signs.story.settings.get("lanes", 1), signs.story.config.get("env_stepping", "here")
    if where == "here":
        change, more = '--env_stepping "threads(16)"', " They step one at a time (env_stepping=here)."
    else:
        change, more = f"--lanes {2 * lanes}", f" More groups at once (lanes={lanes} now) give the engine more to do."
    return Finding(
        "environments slow",
        "Environments keep the engine waiting",
        f"{percent(idle)} of the time no episode asked for a reply; a step takes {in_seconds(step)} on average, "
        f"{in_seconds(signs.lately('step_max_s') or step)} the slowest of a group.{more}",
        change,
        idle * signs.collecting,
    )


def slow_episode(signs: Signs) -> Finding | None:
    """Groups wait for their last episode."""
    share = signs.lately("last_episode_share")
    if share is None or share <= 0.25 or signs.idle <= NOTICEABLE:
        return None
    settings = signs.story.config
    is_pinned = signs.lead == 0 or settings.get("dispatch") == "pinned" or settings.get("dispatch") is None
    redundancy = settings.get("redundancy", 0)
    if is_pinned:
        change = f"--episode_deadline_s {max(1.0, 2 * signs.accounts.collect_s.mean * (1 - share)):.0f}"
        change += f"  (or --redundancy {redundancy + 1} --dispatch free)"
    else:
        change = f"--redundancy {redundancy + 1}  (or episode_deadline_s)"
    return Finding(
        "slow episode",
        "Groups wait for one slow episode",
        f"In the last {min(RECENT, len(signs.story.updates))} updates all but one episode of a group were over in "
        f"{percent(share)} of its time, and the learner waited {percent(signs.idle)} for rollouts.",
        change,
        min(share, signs.idle),
    )


def environments_lost(signs: Signs) -> Finding | None:
    lost, failed = signs.lately("environments_lost"), signs.lately("episodes_failed") or 0.0
    if not lost:
        return None
    where = signs.story.config.get("env_stepping", "here")
    return Finding(
        "environments lost",
        "Environments are lost, and their episodes played again",
        f"In the last {min(RECENT, len(signs.story.updates))} updates {lost:.2g} environments of a group crashed, hung "
        f"or raised, and {failed:.2g} of its episodes were given up; run.log says why. What is lost is never a reward.",
        "" if where.startswith("processes") else '--env_stepping "processes(4)"  (for those that crash or hang)',
        0.0,
    )
