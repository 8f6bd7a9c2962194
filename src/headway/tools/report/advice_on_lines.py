"""Advice on the other lines of a run than the first: what they throw away, and what their learners do all day."""

from __future__ import annotations

from headway.core.text_naming import learner_name
from headway.tools.report.advice_signs import NOTICEABLE, Finding, Signs, percent
from headway.tools.report.recorded_run_story_records import Story
from headway.tools.report.time_report import Accounts


def other_line_drops(signs: Signs) -> Finding | None:
    """Another line throws much of what it is offered away as too old."""
    shares: dict[str, float] = {}
    for name, line in signs.story.other_lines.items():
        offered = sum(ticket.ended is not None for ticket in line.tickets.values())
        shares[name] = (line.drops["stale"] + line.drops["expired"]) / max(1, offered)
    name = max(shares, key=shares.__getitem__, default="")
    if not name or shares[name] <= NOTICEABLE:
        return None
    line = signs.story.lines[name]
    return Finding(
        "drops of another line",
        f"Line {name} throws rollouts away for their age",
        f"{percent(shares[name])} of what line {name} was offered was too old when its turn came "
        f"({line.drops['stale']} by versions, {line.drops['expired']} by seconds). Lower its max_lead, let it take "
        "fewer of the rollouts (every), or raise its limit.",
        "",
        0.0,
    )


def other_learners(story: Story, accounts: Accounts) -> str:
    """`; prior/learner worked 20 % and waited 70 % for rollouts`, for each."""
    told = ""
    for name in story.other_lines:
        role = accounts.roles.get(learner_name(name))
        if role is not None:
            active_s = role.wall_s - role.blocked.get("starting", 0.0) - role.blocked.get("ending", 0.0)
            worked, waited = role.busy.get("learn", 0.0), role.blocked.get("data", 0.0)
            shares = [percent(part / active_s) if active_s > 0 else "-" for part in (worked, waited)]
            told += f"; {role.role} worked {shares[0]} and waited {shares[1]} for rollouts"
    return told
