"""Advice on the data of a run: is there anything to learn from it, is it too old, is it thrown away?"""

from __future__ import annotations

import math
from collections import Counter

from headway.runs.monitor_alarms import DEFAULT_ALARMS
from headway.tools.report.advice_signs import NOTICEABLE, RECENT, Finding, Signs, in_seconds, percent, rarer
from headway.tools.report.recorded_run_story_records import Story

MOST = 0.9


def nothing_to_learn(signs: Signs) -> Finding | None:
    share, spread = signs.lately("without_signal"), signs.lately("reward_std")
    if share is None or share < MOST:
        return None
    reward = signs.lately("reward") or 0.0
    title = "Nothing to learn from: the replies to a prompt are all worth the same"
    if not spread:
        title = "Nothing to learn from: every reply is worth the same"
    return Finding(
        "nothing to learn",
        title,
        f"In the last {min(RECENT, len(signs.story.updates))} updates {percent(share)} of the replies had only equals "
        f"to be compared with (mean reward {reward:.3g}, deviation {spread or 0.0:.3g}). What helps is a task that is "
        "neither too hard nor too easy, a reward with steps in between, or more replies per prompt; `headway samples` "
        "shows what is rewarded.",
        "",
        share,
        "of the data",
        stops_learning=True,
    )


def filtered(signs: Signs) -> Finding | None:
    filtered, landed = signs.accounts.drops["filtered"], signs.accounts.collect_s.count
    if filtered < MOST * max(1, landed):
        return None
    return Finding(
        "filtered",
        "Nearly everything is filtered before it is learned from",
        f"{filtered} of {landed} rollouts were filtered: groups whose rewards are all equal, or prompts that are too "
        "long.",
        "",
        filtered / landed,
        "of the data",
        stops_learning=True,
    )


def replies_cut_off(signs: Signs) -> Finding | None:
    share, longest = signs.lately("cut_off"), signs.lately("reply_tokens_max")
    if share is None or share < 0.99 or longest is None:
        return None
    return Finding(
        "replies cut off",
        "Replies are cut off before they end",
        f"In the last {min(RECENT, len(signs.story.updates))} updates {percent(share)} of the replies had no end of "
        f"their own: they were cut off after at most {longest:.0f} tokens.",
        f"--max_tokens {2 * round(longest)}",
        share,
        "of the data",
        stops_learning=(signs.lately("without_signal") or 0.0) >= 0.5,  # what is cut off may be worth something too
    )


def engine_disagrees(signs: Signs) -> Finding | None:
    gap, limit = signs.lately("mismatch_mean"), DEFAULT_ALARMS["engine_mismatch"]
    if gap is None or gap <= limit:
        return None
    return Finding(
        "engine mismatch",
        "Engine and trainer compute different policies",
        f"For the same weights their log-probabilities are {gap:.2g} apart on average, which is more than rounding "
        f"({limit:g}): the engine has other weights, another precision or another template.",
        "",
        min(1.0, 1 - math.exp(-gap)),
        "of the data",
        stops_learning=True,
    )


def engine_not_compared(signs: Signs) -> Finding | None:
    """Only where there is an engine: its tokens have an age."""
    if signs.learner_says("token_staleness") is None or signs.learner_says("mismatch_mean") is not None:
        return None
    return Finding(
        "engine not compared",
        "Engine and trainer were not compared, so the alarm engine_mismatch could not ring",
        f"In the last {min(100, len(signs.story.updates))} updates no tokens came whose weights the trainer still had.",
        "--check_engine_every 4",
        0.0,
    )


def lead_too_large(signs: Signs) -> Finding | None:
    waits, age = signs.accounts.stale_in_queue, signs.accounts.staleness.mean
    if signs.is_auto or signs.idle > NOTICEABLE or signs.lead <= 1:
        return None
    if signs.recommended_lead is None:
        lead, simulated = max(1.0, signs.lead - math.floor(waits)), ""
    else:
        lead = signs.recommended_lead
        simulated = f" Simulated with a lead of {lead:g} the run is as fast."
    if lead >= signs.lead or age < lead + 1:
        return None
    ess = signs.learner_says("ess")
    lost = 0.0 if ess is None else (1 - ess) * (1 - lead / signs.lead)
    return Finding(
        "lead too large",
        f"A lead of {signs.lead:g} is larger than it needs to be: the data are older for nothing",
        f"The learner waited {percent(signs.idle)} of the time for rollouts, which were {age:.1f} versions old "
        f"({signs.accounts.stale_in_flight:.1f} came up on the way, {waits:.1f} while they waited "
        f"{in_seconds(signs.accounts.queue_s.mean)} for the learner).{simulated}",
        f"--max_lead {lead:g}",
        max(0.0, lost),
        "of the data",
    )


def staleness_hurts(signs: Signs) -> Finding | None:
    age = signs.accounts.staleness.mean
    if age <= 0 or signs.lead <= 0:
        return None
    target = signs.story.settings.get("target_effective_sample_size", 0.7)
    ess, clipped = signs.learner_says("ess"), signs.learner_says("clip_fraction")
    parts = []
    if ess is not None and ess < target:
        parts.append(f"the effective sample size is {ess:.2f} over the last updates, under {target:g}")
    if clipped is not None and clipped > 0.3:
        parts.append(f"{percent(clipped)} of the ratios are clipped")
    falls = _trend(signs.story, "ess")
    if ess is not None and falls < -0.1:
        parts.append(f"the effective sample size fell by {-falls:.2f} from the first quarter of the run to the last")
    if not parts:
        return None
    smaller = math.floor(signs.lead / 2)
    if signs.recommended_lead is not None and signs.recommended_lead < signs.lead:
        smaller = math.floor(signs.recommended_lead)  # it knows the sample size that was aimed at
    change = f"--max_lead {smaller}" if not signs.is_auto else f"--lead_limit {max(1, smaller)}"
    return Finding(
        "staleness hurts",
        "The data are too old for the learner",
        f"With a mean age of {age:.1f} versions, {' and '.join(parts)}.",
        change,
        max(0.0, 1 - ess if ess is not None else clipped or 0.0),
        "of the data",
    )


def stale_drops(signs: Signs) -> Finding | None:
    too_old = signs.accounts.drops["stale"] + signs.accounts.drops["expired"] + len(signs.story.requeued)
    landed = max(1, signs.accounts.collect_s.count + len(signs.story.requeued))
    if too_old / landed <= NOTICEABLE:
        return None
    limit, age_s = signs.story.settings["max_staleness"], signs.story.settings.get("max_age_s")
    if limit is not None:
        change, under = f"--max_staleness {2 * limit + 1}", f"max_staleness={limit}"
    else:
        change, under = f"--max_age_s {2 * (age_s or 0):g}", f"max_age_s={age_s}"
    lead = math.floor(signs.lead / 2)
    return Finding(
        "drops",
        "Much of what is collected is thrown away as too old",
        f"{too_old} of {landed} rollouts were over the limit ({under}, lead {signs.lead:g}) when their turn came; "
        f"length bias {100 * signs.accounts.length_bias:+.1f} %.",
        f"--max_lead {lead}  (or {change})" if lead >= 1 and not signs.is_auto else change,
        too_old / landed * signs.collecting,
    )


def _trend(story: Story, name: str) -> float:
    """The mean over the last quarter of the updates minus that over the first."""
    values = [u.metrics[name] for u in story.updates if isinstance(u.metrics.get(name), int | float)]
    quarter = len(values) // 4
    return sum(values[-quarter:]) / quarter - sum(values[:quarter]) / quarter if quarter else 0.0


def evaluations_skipped(signs: Signs) -> Finding | None:
    done, skipped = len(signs.story.evaluations), len(signs.story.skipped)
    every = rarer(signs.story.settings.get("evaluate_every") or 1, done, skipped)
    if every is None:
        return None
    return Finding(
        "evaluations skipped",
        "Evaluations are slower than they come due",
        f"{skipped} of {done + skipped} evaluations were skipped because the one before still ran "
        f"({in_seconds(signs.accounts.evaluate_s.mean)} each).",
        f"--evaluate_every {every}",
        0.0,
    )


def evaluations_failed(signs: Signs) -> Finding | None:
    whys = [evaluation.error for evaluation in signs.story.evaluations if evaluation.error]
    if not whys:
        return None
    return Finding(
        "evaluations failed",
        "Evaluations end without a score",
        f"{len(whys)} of {len(signs.story.evaluations)} evaluations failed; most often: "
        f"{Counter(whys).most_common(1)[0][0]}.",
        "",
        0.0,
    )
