"""What a report says of episodes: turns, ends, success, environments, and when the turns of some groups were.

    metrics of the updates -------> lines and means over the last updates
    metrics of the evaluations ---> success, turns
    samples with a `group` -------> one track an episode, a turn is a reply and a step

Runs without episodes have none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headway.core.text_one_line import visible
from headway.core.text_statistics import seconds
from headway.core.types_opaque import JsonObject
from headway.runs.samples import Sample
from headway.tools.report import series
from headway.tools.report.recorded_run_story_records import Story

RECENT = 10  # updates
ENDS = {"done": "the game", "turns": "max_turns", "tokens": "tokens", "deadline": "deadline"}
MAX_GROUPS = 8
MAX_TRACKS = 32
CHARTS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "turns": ("Turns of an episode", (("turns", "mean"), ("turns_max", "largest"))),
    "tokens": ("Tokens of a batch", (("trained_tokens", "trained on"), ("read_tokens", "read"))),
    "steps": (
        "Seconds of an environment's step",
        (("step_s", "mean"), ("step_p95_s", "95th percentile of a group"), ("step_max_s", "largest of a group")),
    ),
    "waiting": (
        "Shares of the time",
        (
            ("env_share", "episodes in their environments"),
            ("engine_idle", "engine kept waiting by environments"),
            ("last_episode_share", "group waits for its last episode"),
        ),
    ),
    "abandoned": (
        "Episodes of a group that were not learned from",
        (("episodes_abandoned", "abandoned"), ("episodes_failed", "lost their environments")),
    ),
    "bias": (
        "How much longer what was kept is than all that began",
        (("redundancy_bias_turns", "turns"), ("redundancy_bias_tokens", "tokens")),
    ),
}
"""What is drawn: a title, and for each line its metric and its name."""


def has_episodes(story: Story) -> bool:
    return any("end_done" in update.metrics for update in story.updates[-RECENT:])


def agents(story: Story, groups: Sequence[Sample] = ()) -> JsonObject | None:
    """Everything that is drawn of episodes; None for a run that has none."""
    if not has_episodes(story):
        return None
    return {
        "facts": facts(story),
        "ends": {name: lately(story, f"end_{end}") or 0.0 for end, name in ENDS.items()},
        "success": {"training": series.reported(story.first, "success"), "evaluation": evaluated(story, "success")},
        "charts": [chart for name in CHARTS if (chart := _chart(story, name)) is not None],
        "groups": [drawn for one in groups[:MAX_GROUPS] if (drawn := group(one)) is not None],
    }


def lately(story: Story, name: str) -> float | None:
    """The mean over the last updates that have it."""
    said = [value for one in story.updates[-RECENT:] if (value := series.finite(one.metrics.get(name))) is not None]
    return sum(said) / len(said) if said else None


def evaluated(story: Story, name: str) -> series.Line | None:
    """A number of the evaluations, over time."""
    made_by = {version.number: version.update or 0 for version in story.versions}
    done = [e for e in story.evaluations if e.end is not None and series.finite(e.metrics.get(name)) is not None]
    if not done:
        return None
    columns = (
        [e.end for e in done],
        [float(made_by.get(e.version, e.version)) for e in done],
        [float(e.metrics[name]) for e in done],
    )
    return dict(zip(("t", "u", "y"), series.thin(*columns), strict=True))


def facts(story: Story) -> list[list[str]]:
    """The numbers that are looked for first, over the last updates."""
    mean = {name: lately(story, name) for name in MEASURED}
    held_out = evaluated(story, "success")
    told = [
        ["Success, training", _share(mean["success"])],
        ["Success, last evaluation", "-" if held_out is None else _share(held_out["y"][-1])],
        ["Turns", _number(mean["turns"])],
        ["Tokens trained / read", f"{_number(mean['trained_tokens'])} / {_number(mean['read_tokens'])}"],
    ]
    if mean["step_s"] is not None:
        step = " / ".join(_seconds(mean[name]) for name in ("step_s", "step_p95_s", "step_max_s"))
        told += [["Step, mean / p95 / largest", step], ["Engine kept waiting", _share(mean["engine_idle"])]]
    if mean["episodes_abandoned"]:
        bias = f"{100 * (mean['redundancy_bias_turns'] or 0.0):+.1f} % or lower"
        told += [["Abandoned in a group", _number(mean["episodes_abandoned"])], ["Redundancy bias, turns", bias]]
    if mean["environments_lost"]:
        told.append(["Environments lost in a group", _number(mean["environments_lost"])])
    return told


MEASURED = (
    *("success", "turns", "trained_tokens", "read_tokens", "step_s", "step_p95_s", "step_max_s", "engine_idle"),
    *("episodes_abandoned", "redundancy_bias_turns", "environments_lost"),
)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def _chart(story: Story, name: str) -> JsonObject | None:
    title, parts = CHARTS[name]
    lines = [
        {"name": told, **line} for metric, told in parts if (line := series.reported(story.first, metric)) is not None
    ]
    is_worth_it = any(value for line in lines for value in line["y"])
    return {"id": name, "title": title, "lines": lines} if is_worth_it else None


# -- one group --------------------------------------------------------------------------------------


def newest_groups(samples: Iterable[Sample]) -> list[Sample]:
    """The newest samples that hold the times of a whole group, the newest first."""
    return [one for one in samples if isinstance(one.get("group"), list)][: -MAX_GROUPS - 1 : -1]


def group(sample: Sample) -> JsonObject | None:
    """A group to draw: [reply begins, step begins, step ends] in seconds, an episode a track."""
    tracks = [track for one in sample["group"][:MAX_TRACKS] if (track := _track(one)) is not None]
    if not tracks:
        return None
    when = f"update {sample['update']}" if "update" in sample else f"version {sample.get('version', '?')}"
    return {"title": visible(f"{sample.get('uid', 'a group')}, {when}"), "tracks": tracks}


def _track(one: object) -> JsonObject | None:
    if not isinstance(one, dict) or not isinstance(one.get("times"), list):
        return None
    turns = [[series.finite(moment) for moment in turn] for turn in one["times"] if isinstance(turn, list)]
    whole = [turn for turn in turns if len(turn) == 3 and None not in turn]
    label = visible(f"{one.get('episode', '?')} {one.get('end', '')}")
    return {"label": label[:40], "turns": whole} if whole else None
