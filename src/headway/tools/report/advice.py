"""What to change about a run, from its story: `headway doctor`.

    story, accounts ---> signs (shares of the time) ---> one function a problem ---> findings: first what keeps the run
                                                                                   from learning, then the largest gain

A finding has its evidence in numbers and the exact option to change. Its gain is the share of the wall clock (or of the
data) that is lost to it now: the most that the change can bring. Nothing here knows the clock or the disk.
"""

from __future__ import annotations

from collections.abc import Callable

from headway.tools.report import advice_on_agents, advice_on_data, advice_on_lines, advice_on_time
from headway.tools.report.advice_signs import NEGLIGIBLE, NOTICEABLE, Signs, percent, read_signs
from headway.tools.report.advice_signs import Finding as Finding
from headway.tools.report.recorded_run_story_records import LEARNER, Story
from headway.tools.report.time_report import Accounts

MIN_UPDATES = 5


def advise(story: Story, accounts: Accounts, *, recommended_lead: float | None = None) -> list[Finding]:
    """What to change: first what keeps the run from learning, then the largest gain; nothing if all is well or if there
    is too little to tell.

    `recommended_lead` is what a simulation of this run recommends, where there is one.
    """
    if len(story.updates) < MIN_UPDATES or LEARNER not in accounts.roles:
        return []
    signs = read_signs(story, accounts, recommended_lead)
    findings = [found for look in RULES if (found := look(signs)) is not None]
    return sorted(findings, key=lambda found: (not found.stops_learning, -found.gain))


def bottleneck(story: Story, accounts: Accounts) -> str:
    """Which side decides how fast the run is, in one sentence."""
    if LEARNER not in accounts.roles or not story.updates:
        return "too early to tell: 0 updates so far"
    signs = read_signs(story, accounts, None)
    if len(story.updates) < MIN_UPDATES:
        waited = f", and the learner waited {percent(signs.idle)} of the time" if signs.idle > NOTICEABLE else ""
        return f"too early to tell: {len(story.updates)} updates so far{waited}"
    shares = (
        f"the learner worked {percent(signs.learning)} of the time and waited {percent(signs.idle)} for rollouts; "
        f"collectors worked {percent(signs.collecting)} and stood before occupied slots {percent(signs.blocked)}"
        f"{advice_on_lines.other_learners(story, accounts)}"
    )
    if signs.paused > max(signs.learning, 0.5):
        return f"evaluations are the bottleneck: {percent(signs.paused)} of the time everything waits for one; {shares}"
    if signs.idle <= NOTICEABLE or signs.learning >= 0.9:
        return f"the learner is the bottleneck: {shares}"
    if signs.blocked <= NEGLIGIBLE:
        return f"collection is the bottleneck: {shares}"
    return f"neither side: they wait for each other; {shares}"


def without_findings(story: Story, accounts: Accounts) -> tuple[str, str]:
    """What stands where there is no finding: a title and its evidence. That nothing need be changed is one answer."""
    if len(story.updates) < MIN_UPDATES or LEARNER not in accounts.roles:
        return "Too early to tell", f"Advice begins with {MIN_UPDATES} updates; {len(story.updates)} so far."
    if read_signs(story, accounts, None).idle > NOTICEABLE:
        why = bottleneck(story, accounts)
        return "No option is known to help", f"{why[0].upper()}{why[1:]}."
    return "Nothing to change", "No side waits long enough, and nothing is lost."


RULES: tuple[Callable[[Signs], Finding | None], ...] = (
    advice_on_data.nothing_to_learn,
    advice_on_data.filtered,
    advice_on_data.replies_cut_off,
    advice_on_data.engine_disagrees,
    advice_on_time.other_line_too_slow,
    advice_on_agents.episodes_cut,
    advice_on_agents.environments_slow,
    advice_on_agents.slow_episode,
    advice_on_agents.environments_lost,
    advice_on_time.lead_too_small,
    advice_on_time.ratio_too_low,
    advice_on_time.collection_too_slow,
    advice_on_time.stragglers,
    advice_on_time.evaluation_blocks,
    advice_on_data.staleness_hurts,
    advice_on_time.publish_exposed,
    advice_on_data.stale_drops,
    advice_on_lines.other_line_drops,
    advice_on_time.failures,
    advice_on_time.saving_blocks,
    advice_on_time.saves_skipped,
    advice_on_time.tickets_too_small,
    advice_on_time.paced,
    advice_on_data.lead_too_large,
    advice_on_data.evaluations_skipped,
    advice_on_data.evaluations_failed,
    advice_on_data.engine_not_compared,
)
