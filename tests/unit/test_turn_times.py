"""When the turns of a group were: what is measured of it, drawn of it in a report, said in a status and advised."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from virtual_runs import story_of

from headway.agents.episodes_turn_times import EngineUse, EpisodeTrack, idle_share, timing, track
from headway.core.history_records import Evaluation
from headway.runs.console_episodes_in_words import in_words
from headway.tools.report.advice import Finding, advise
from headway.tools.report.agent_report import MAX_GROUPS, agents, group, newest_groups
from headway.tools.report.recorded_run_story_records import Story
from headway.tools.report.report import document, page
from headway.tools.report.report_texts import Seen
from headway.tools.report.time_report import account

TRACKS: list[EpisodeTrack] = [
    track(0, "done", [(10.0, 11.0, 11.5), (11.5, 12.0, 12.5)], 10.0),
    track(1, "turns", [(10.0, 11.0, 18.0)], 10.0),
    track(2, "abandoned", [(10.0, 12.0, 12.0)], 10.0),
]
OF_EPISODES = {
    **{"success": 0.25, "turns": 3.0, "turns_max": 5.0, "trained_tokens": 400.0, "read_tokens": 900.0},
    **{"end_done": 0.8, "end_turns": 0.2, "end_tokens": 0.0, "end_deadline": 0.0},
    **{"step_s": 0.5, "step_p95_s": 1.0, "step_max_s": 2.0, "env_share": 0.4, "engine_idle": 0.05},
    **{"last_episode_share": 0.1, "episodes_abandoned": 0.0, "environments_lost": 0.0, "episodes_failed": 0.0},
}


def reporting(story: Story, **metrics: float) -> Story:
    updates = [replace(one, metrics={**one.metrics, **OF_EPISODES, **metrics}) for one in story.updates]
    return replace(story, lines={**story.lines, "": replace(story.first, updates=updates)})


# -- measured ---------------------------------------------------------------------------------------


def test_times_are_those_since_the_group_began() -> None:
    assert TRACKS[0] == {"episode": 0, "end": "done", "times": [(0.0, 1.0, 1.5), (1.5, 2.0, 2.5)]}


def test_a_group_says_how_long_its_steps_took_and_how_long_it_waited_for_its_last_episode() -> None:
    said = timing(TRACKS)
    assert said["step_s"] == pytest.approx((0.5 + 0.5 + 7.0 + 0.0) / 4)
    assert said["step_max_s"] == 7.0
    assert said["step_s"] < said["step_p95_s"] < 7.0
    assert said["env_share"] == pytest.approx(8.0 / (8.0 + 1.0 + 0.5 + 1.0 + 2.0))
    assert said["last_episode_share"] == pytest.approx((8.0 - 2.5) / 8.0)
    assert timing([]) == {}
    assert timing([track(0, "abandoned", [], 0.0)]) == {}


def test_the_engine_is_kept_waiting_while_episodes_are_open_and_none_asks_for_a_reply() -> None:
    now = [0.0]
    use = EngineUse(lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    wait(5)  # nobody plays: nobody is kept waiting
    use.episodes(2)
    before = use.seconds()
    use.replies(1)
    wait(1)
    use.replies(1)
    use.replies(-2)
    wait(3)
    use.episodes(-2)
    wait(7)
    assert use.seconds() == (4.0, 3.0)
    assert idle_share(before, use.seconds()) == 0.75
    assert idle_share(use.seconds(), use.seconds()) == 0.0


# -- drawn ------------------------------------------------------------------------------------------


def as_sample(**more: Any) -> dict[str, Any]:
    line = {"split": "train", "update": 3, "version": 3, "uid": "lights#7", "versions": [3, 3], "group": TRACKS, **more}
    return dict(json.loads(json.dumps(line)))


def test_a_run_without_episodes_has_nothing_of_them() -> None:
    assert agents(story_of(1.0, 1.0, max_lead=1)) is None


def test_a_report_has_what_the_updates_and_evaluations_say_of_episodes() -> None:
    story = reporting(story_of(1.0, 1.0, max_lead=1), episodes_abandoned=2.0, redundancy_bias_turns=-0.07)
    story.evaluations.append(Evaluation(2, 1.0, 2.0, 0.5, {"success": 0.5}))
    told = agents(story, [as_sample()])
    assert told is not None
    facts = dict(told["facts"])
    assert facts["Success, training"] == "25.0 %"
    assert facts["Success, last evaluation"] == "50.0 %"
    assert facts["Tokens trained / read"] == "400 / 900"
    assert facts["Step, mean / p95 / largest"] == "0.50s / 1.00s / 2.00s"
    assert facts["Redundancy bias, turns"] == "-7.0 % or lower"
    assert told["ends"] == pytest.approx({"the game": 0.8, "max_turns": 0.2, "tokens": 0.0, "deadline": 0.0})
    assert [chart["id"] for chart in told["charts"]] == ["turns", "tokens", "steps", "waiting", "abandoned", "bias"]
    assert told["success"]["evaluation"]["y"] == [0.5]
    (drawn,) = told["groups"]
    assert drawn["title"] == "lights#7, update 3"
    assert [one["label"] for one in drawn["tracks"]] == ["0 done", "1 turns", "2 abandoned"]
    assert drawn["tracks"][1]["turns"] == [[0.0, 1.0, 8.0]]


def test_the_newest_groups_are_drawn_and_what_is_no_group_is_not() -> None:
    samples = [as_sample(update=number) for number in range(20)] + [{"split": "eval"}, as_sample(group="nothing")]
    assert [one["update"] for one in newest_groups(samples)] == list(range(19, 19 - MAX_GROUPS, -1))
    broken = [None, {"times": 3}, {"times": [[1, 2], "x", [0, None, 1]]}, {"episode": 4, "times": [[0, 1, 2]]}]
    drawn = group(as_sample(group=broken))
    assert drawn is not None
    assert drawn["tracks"] == [{"label": "4 ", "turns": [[0, 1, 2]]}]
    assert group(as_sample(group=[])) is None


def test_what_an_environment_is_called_cannot_become_part_of_the_page() -> None:
    evil = "</script><script>alert(1)</script>"
    story = reporting(story_of(1.0, 1.0, max_lead=1))
    text = page(document([Seen("run", story, account(story), groups=[as_sample(uid=evil)])]))
    assert "alert(1)" in text
    assert evil not in text


# -- in words ---------------------------------------------------------------------------------------


def test_a_status_has_a_few_words_about_episodes() -> None:
    assert in_words({"reward": 1.0}) == ""
    said = in_words({**OF_EPISODES, "engine_idle": 0.4, "environments_lost": 1.5})
    assert said.startswith("success 25 %, 3.0 turns, 20 % cut by max_turns, steps of 0.5 s (slowest of a group 2 s)")
    assert "environments keep the engine waiting 40 % of the time" in said
    assert said.endswith("1.5 environments lost in a group")


def found(story: Story, **config: Any) -> dict[str, Finding]:
    story.config.update(config)
    return {one.about: one for one in advise(story, account(story))}


def test_healthy_episodes_need_no_advice() -> None:
    assert found(reporting(story_of(1.0, 1.0, max_lead=1))) == {}


def test_a_limit_that_cuts_most_episodes_is_to_be_raised() -> None:
    story = reporting(story_of(1.0, 1.0, max_lead=1), end_tokens=0.7, end_done=0.3)
    one = found(story, max_episode_tokens=384, max_context_tokens=512)["episodes cut"]
    assert one.change == "--max_episode_tokens 768 --max_context_tokens 768"
    assert "70 %" in one.evidence
    story = reporting(story_of(1.0, 1.0, max_lead=1), end_turns=0.95, end_done=0.05, success=0.0)
    one = found(story, max_turns=5)["episodes cut"]
    assert (one.change, one.stops_learning) == ("--max_turns 10", True)
    assert "the environment's own limit" in found(story, max_turns=None)["episodes cut"].evidence


def test_slow_environments_are_to_step_side_by_side() -> None:
    slow = reporting(story_of(1.0, 1.0, max_lead=1), engine_idle=0.5)
    assert found(slow)["environments slow"].change == '--env_stepping "threads(16)"'
    assert found(slow, env_stepping="threads(8)")["environments slow"].change == "--lanes 2"


def test_a_group_that_waits_for_one_episode_is_advised_to_have_more_of_them_or_a_deadline() -> None:
    waiting = reporting(story_of(3.0, 1.0, max_lead=1), last_episode_share=0.6)
    assert found(waiting, dispatch="free")["slow episode"].change == "--redundancy 1  (or episode_deadline_s)"
    assert found(waiting, dispatch="pinned")["slow episode"].change.startswith("--episode_deadline_s ")
    idle = reporting(story_of(0.2, 1.0, max_lead=1), last_episode_share=0.6)
    assert "slow episode" not in found(idle, dispatch="free")  # nobody waits for it


def test_lost_environments_are_said() -> None:
    lost = found(reporting(story_of(1.0, 1.0, max_lead=1), environments_lost=2.0))["environments lost"]
    assert "2 environments of a group" in lost.evidence
    assert "processes" in lost.change
