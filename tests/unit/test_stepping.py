"""Where environments step: one contract for the caller's thread, worker threads and worker processes."""

from __future__ import annotations

import functools
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from running_processes import all_children, is_running, title, wait_until_gone
from talking_games import (
    LET_GO,
    Dice,
    GlobalDice,
    Interrupting,
    Mute,
    NotThere,
    SlowToMake,
    Tooled,
    Unmade,
    Unreachable,
)
from waiting import patient, wait_until

from headway.agents.checked_env_checked_game import CheckedGame
from headway.agents.checked_env_places import Places
from headway.agents.env import BadEnvironment, EnvFactory, EnvFacts, EnvironmentLost, Step
from headway.agents.stepping import RunningGame, StepDeadlines, Stepping, build_stepping, env_facts, parse_where
from headway.agents.stepping_in_processes import SteppingInProcesses

pytestmark = pytest.mark.timeout(60)

EVERYWHERE = ["here", "threads(3)", "processes(2)"]
INTERRUPTIBLE = ["threads(3)", "processes(2)"]
Build = Callable[..., Stepping]


@pytest.fixture
def build() -> Iterator[Build]:
    built: list[Stepping] = []

    def build(where: str, factory: EnvFactory = Dice, max_under_way: int | None = None, **limits: float) -> Stepping:
        deadlines = StepDeadlines(**{"begin_s": patient(60), **limits})
        built.append(build_stepping(where, factory, deadlines=deadlines, max_under_way=max_under_way))
        return built[-1]

    yield build
    for stepping in built:
        stepping.close()
    LET_GO.set()
    wait_until(lambda: not threads_of_environments(), what="the end of abandoned threads")
    LET_GO.clear()


def threads_of_environments() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("environments")]


def played(game: RunningGame, seed: int) -> list[Any]:
    said: list[Any] = [game.reset(seed), game.state_key()]
    for turn in range(4):
        said += [game.step(f"reply {turn}"), game.state_key()]
    return said


def alone(seed: int) -> list[Any]:
    """What the same environment says without any stepping."""
    env = Dice()
    said: list[Any] = [env.reset(seed), env.state_key()]
    for turn in range(4):
        said += [env.step(f"reply {turn}"), env.state_key()]
    said[-1] = None  # nothing follows the end
    return said


def our_children() -> list[int]:
    return [pid for pid in all_children(os.getpid()) if "headway games" in title(pid)]


# -- the contract -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", EVERYWHERE)
def test_one_seed_is_one_game_wherever_it_is_stepped(where: str, build: Build) -> None:
    stepping = build(where)
    game = stepping.begin()
    assert played(game, 5) == alone(5)
    assert played(game, 7) == alone(7), "the same environment plays another episode"
    assert isinstance(alone(5)[2], Step) and alone(5) != alone(7)
    game.close()


@pytest.mark.parametrize("where", EVERYWHERE)
def test_many_episodes_step_at_the_same_time_and_do_not_mix(where: str, build: Build) -> None:
    stepping = build(where)

    def play(seed: int) -> list[Any]:
        game = stepping.begin()
        said = played(game, seed)
        game.close()
        return said

    with ThreadPoolExecutor(8) as episodes:
        assert list(episodes.map(play, range(24))) == [alone(seed) for seed in range(24)]
    health = stepping.health()
    assert health["steps"] == 96 and health["games"] == health["lost"] == health["under_way"] == health["waiting"] == 0
    assert 0 < health["mean_step_s"] <= health["max_step_s"]
    assert stepping.doing() == []


@pytest.mark.parametrize("where", EVERYWHERE)
@pytest.mark.parametrize(
    ("reply", "line"),
    [
        ("raise", "environment Dice raised in step: KeyError: 'a key that is not there'"),
        ("leave", "environment Dice raised in step: SystemExit: 3"),
    ],
)
def test_what_an_environment_raises_is_a_lost_game_with_type_and_message(
    where: str, reply: str, line: str, build: Build
) -> None:
    stepping = build(where)
    game, other = stepping.begin(), stepping.begin()
    game.reset(1)
    other.reset(2)
    with pytest.raises(EnvironmentLost) as caught:
        game.step(reply)
    assert caught.value.what == str(caught.value) == line
    with pytest.raises(EnvironmentLost, match="raised in step"):
        game.reset(1)
    assert other.step("go on").text.startswith("go on"), "the others are not touched"
    assert stepping.health()["lost"] == 1
    game.close()


@pytest.mark.parametrize("where", EVERYWHERE)
@pytest.mark.parametrize("reply", ["interrupt", "riddle"])
def test_what_is_no_exception_is_a_lost_game_too(where: str, reply: str, build: Build) -> None:
    game = build(where, Interrupting).begin()
    game.reset(1)
    with pytest.raises(EnvironmentLost, match=r"environment Interrupting raised in step: (KeyboardInterrupt|Riddle)"):
        game.step(reply)
    game.close()


@pytest.mark.parametrize("where", EVERYWHERE)
def test_what_an_environment_says_of_itself_is_the_same_wherever_it_will_step(where: str) -> None:
    assert env_facts(where, Dice) == EnvFacts(max_turns=4)
    made = env_facts(where, Tooled)
    assert (made.system_prompt, made.reply_prefix, made.tools) == ("Play.", "I say", ({"name": "roll"},))


@pytest.mark.parametrize("where", EVERYWHERE)
def test_one_that_hangs_or_dies_before_the_run_is_one_line(where: str) -> None:
    limits = StepDeadlines(begin_s=0.3)
    with pytest.raises(BadEnvironment, match=r"environment SlowToMake cannot be used: .*(longer|start within)") as told:
        env_facts(where, SlowToMake, limits)
    assert "\n" not in str(told.value)
    assert env_facts(where, functools.partial(Dice, "hang"), StepDeadlines(close_s=0.2)).max_turns == 4
    if where != "threads(3)":  # where one that seeds globally is refused
        assert env_facts(where, GlobalDice).max_turns == 4
    LET_GO.set()
    wait_until(lambda: not threads_of_environments(), what="the end of abandoned threads")
    LET_GO.clear()


def test_one_that_ends_its_process_when_it_is_made_is_one_line_in_processes() -> None:
    with pytest.raises(BadEnvironment, match=r"environment partial cannot be used: worker 0 \(process \d+\) .*3"):
        env_facts("processes(2)", functools.partial(os._exit, 3))


@pytest.mark.parametrize("where", EVERYWHERE)
def test_what_the_author_must_mend_is_told_apart(where: str, build: Build) -> None:
    game = build(where).begin()
    game.reset(1)
    with pytest.raises(BadEnvironment, match=r"^environment Dice: the reward of a step is nan"):
        game.step("nan")
    game.close()
    game = build(where).begin()
    game.reset(1)
    with pytest.raises(BadEnvironment, match="empty text"):
        game.step("say nothing")
    with pytest.raises(BadEnvironment, match="reset returned an empty text"):
        build(where, Mute).begin().reset(0)


@pytest.mark.parametrize("where", EVERYWHERE)
def test_an_environment_that_cannot_be_made_is_one_line(where: str, build: Build) -> None:
    with pytest.raises(BadEnvironment, match=r"^environment Unmade cannot be made: ValueError: no board of this size$"):
        build(where, Unmade).begin()
    with pytest.raises(EnvironmentLost, match=r"^environment Unreachable cannot be made: ConnectionRefusedError"):
        build(where, Unreachable).begin()


@pytest.mark.parametrize("where", EVERYWHERE)
def test_closing_a_game_closes_its_environment_once(where: str, build: Build, tmp_path: Path) -> None:
    note = tmp_path / "note"
    stepping = build(where, functools.partial(Dice, str(note)))
    game = stepping.begin()
    assert stepping.health()["games"] == 1
    game.close()
    game.close()
    assert note.read_text() == "closed\n"
    assert stepping.health()["games"] == 0
    with pytest.raises(EnvironmentLost, match="game 0 is closed"):
        game.reset(1)


@pytest.mark.parametrize("where", EVERYWHERE)
def test_what_is_under_way_has_a_name_and_a_time(where: str, build: Build, tmp_path: Path) -> None:
    stepping = build(where)
    game = stepping.begin()
    game.reset(1)
    game.step("once")
    with ThreadPoolExecutor(1) as episodes:
        step = episodes.submit(game.step, f"wait for {tmp_path / 'go'}")
        wait_until(lambda: stepping.health()["under_way"] == 1)
        (line,) = stepping.doing()
        (tmp_path / "go").touch()
        step.result()
    worker = "" if where == "here" else r" \(worker \d\)"
    assert re.fullmatch(rf"game 0{worker}: step 2 since \d+\.\d s", line), line


@pytest.mark.parametrize(("where", "most"), [("here", 1), ("threads(2)", 2), ("processes(2)", 1)])
def test_no_more_steps_are_under_way_than_allowed(where: str, most: int, build: Build, tmp_path: Path) -> None:
    stepping = build(where, max_under_way=most)
    games = [stepping.begin() for _ in range(5)]
    for game in games:
        game.reset(1)
    with ThreadPoolExecutor(5) as episodes:
        steps = [episodes.submit(game.step, f"wait for {tmp_path / 'go'}") for game in games]
        wait_until(lambda: (stepping.health()["under_way"], stepping.health()["waiting"]) == (most, 5 - most))
        assert sum("waits for its turn" in line for line in stepping.doing()) == 5 - most
        (tmp_path / "go").touch()
        assert all(step.result().text for step in steps)


@pytest.mark.parametrize("where", EVERYWHERE)
def test_a_game_that_gets_no_turn_says_who_has_it(where: str, build: Build, tmp_path: Path) -> None:
    stepping = build(where.replace("3", "1").replace("2", "1"), begin_s=3.0 if where == "processes(2)" else 0.3)
    game = stepping.begin()
    game.reset(1)
    with ThreadPoolExecutor(1) as episodes:
        step = episodes.submit(game.step, f"wait for {tmp_path / 'go'}")
        wait_until(lambda: stepping.health()["under_way"] == 1)
        with pytest.raises(EnvironmentLost, match=r"^no game could begin within [\d.]+ s; game 0.*: step 1 since"):
            stepping.begin()
        (tmp_path / "go").touch()
        step.result()


@pytest.mark.parametrize("where", EVERYWHERE)
def test_after_closing_nothing_is_stepped_and_nothing_is_left(where: str, build: Build) -> None:
    threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    stepping = build(where)
    games = [stepping.begin() for _ in range(3)]
    for game in games:
        game.reset(1)
    stepping.close()
    stepping.close()
    for game in games:
        with pytest.raises(EnvironmentLost, match="no longer stepped"):
            game.step("x")
        game.close()
    with pytest.raises(EnvironmentLost, match="no longer stepped"):
        stepping.begin()
    assert set(threading.enumerate()) <= threads
    assert len(os.listdir("/proc/self/fd")) == files
    assert not our_children()


@pytest.mark.parametrize("where", INTERRUPTIBLE)
def test_closing_wakes_whoever_waits_for_a_step_or_for_a_turn(where: str, build: Build) -> None:
    stepping = build(where)
    games = [stepping.begin() for _ in range(6)]
    for game in games:
        game.reset(1)
    with ThreadPoolExecutor(6) as episodes:
        steps = [episodes.submit(game.step, "hang") for game in games]
        wait_until(lambda: stepping.health()["under_way"] + stepping.health()["waiting"] == 6)
        stepping.close()
        for step in steps:
            with pytest.raises(EnvironmentLost, match="no longer stepped"):
                step.result()
    assert not our_children()


@pytest.mark.parametrize("where", EVERYWHERE)
def test_a_step_after_the_end_does_not_reach_the_environment(where: str, build: Build) -> None:
    """A die is thrown for as long as it is asked to."""
    game = build(where).begin()
    played(game, 3)
    with pytest.raises(EnvironmentLost, match="environment Dice is over, or was never begun: only reset may follow"):
        game.step("once more")
    game.close()
    with pytest.raises(EnvironmentLost, match="was never begun"):
        build(where).begin().step("before reset")


# -- deadlines --------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", INTERRUPTIBLE)
def test_a_step_that_hangs_is_a_lost_game_and_its_place_is_free_again(where: str, build: Build) -> None:
    stepping = build("threads(1)" if where == "threads(3)" else "processes(1)", step_s=0.4)
    for _ in range(2):
        game = stepping.begin()
        game.reset(1)
        with pytest.raises(
            EnvironmentLost, match=r"^game \d( \(worker 0\))?: step 1 took longer than 0.4 s; its"
        ) as told:
            game.step("hang")
        assert "\n" not in told.value.what
        game.close()
    health = stepping.health()
    assert health["lost"] == 2 and health["games"] == 0 and health["not_closed"] == 0
    game = stepping.begin()
    assert game.reset(5) == alone(5)[0]
    game.close()
    assert stepping.health()["restarted"] == 2


@pytest.mark.parametrize("where", INTERRUPTIBLE)
def test_reset_close_and_making_have_deadlines_too(where: str, build: Build) -> None:
    stepping = build(where, reset_s=0.3)
    with pytest.raises(EnvironmentLost, match=r"reset took longer than 0\.3 s"):
        stepping.begin().reset(666)
    stepping = build(where, functools.partial(Dice, "hang"), close_s=0.3)
    game = stepping.begin()
    game.reset(1)
    game.close()
    assert stepping.health()["not_closed"] == 1 and stepping.health()["lost"] == 0
    with pytest.raises(EnvironmentLost, match=r"begin took longer than|did not start within"):
        build(where, SlowToMake, begin_s=1.0).begin()


def test_in_threads_the_environment_that_came_back_late_is_closed_by_its_thread(build: Build, tmp_path: Path) -> None:
    note, go = tmp_path / "note", tmp_path / "go"
    stepping = build("threads(1)", functools.partial(Dice, str(note)), step_s=0.2)
    game = stepping.begin()
    game.reset(1)
    with pytest.raises(EnvironmentLost, match="its thread was abandoned"):
        game.step(f"wait for {go}")
    game.close()
    assert not note.exists(), "nobody calls it while its step is under way"
    go.touch()
    wait_until(note.exists)
    wait_until(lambda: "environments worker 0" not in threads_of_environments())


# -- processes --------------------------------------------------------------------------------------


def test_a_hang_takes_the_games_of_its_worker_and_no_others(build: Build) -> None:
    stepping = build("processes(2)", step_s=0.4)
    games = [stepping.begin() for _ in range(4)]  # they go round the workers
    for game in games:
        game.reset(1)
    with pytest.raises(EnvironmentLost, match=r"^game 0 \(worker 0\): step 1 took longer"):
        games[0].step("hang")
    with pytest.raises(EnvironmentLost, match=r"^game 0 \(worker 0\): step 1 took longer than 0.4 s; its worker was"):
        games[2].step("x")
    assert games[1].step("x").text and games[3].step("x").text
    assert stepping.health()["lost"] == 2
    fresh = stepping.begin()
    assert fresh.reset(5) == alone(5)[0]


def test_the_death_of_a_worker_is_noticed_at_once_and_named(build: Build) -> None:
    stepping = build("processes(1)")
    assert isinstance(stepping, SteppingInProcesses)
    game, other = stepping.begin(), stepping.begin()
    game.reset(1)
    other.reset(1)
    (pid,) = stepping.pids
    with ThreadPoolExecutor(1) as episodes:
        step = episodes.submit(game.step, "hang")
        wait_until(lambda: stepping.health()["under_way"] == 1)
        os.kill(pid, signal.SIGKILL)
        line = rf"^worker 0 \(process {pid}\) was killed by SIGKILL$"
        with pytest.raises(EnvironmentLost, match=line):
            step.result(patient(20))
    with pytest.raises(EnvironmentLost, match=line):
        other.step("x")
    fresh = stepping.begin()
    assert fresh.reset(5) == alone(5)[0] and stepping.health()["restarted"] == 1
    assert stepping.pids != [pid]


def test_a_worker_that_was_stopped_is_killed_by_its_deadline_and_replaced(build: Build) -> None:
    stepping = build("processes(1)", step_s=patient(0.3), close_s=0.3)
    for _ in range(2):  # the second one is stopped when everything is closed
        game = stepping.begin()
        game.reset(1)
        (pid,) = our_children()
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(EnvironmentLost, match=r"step 1 took longer than [\d.]+ s; its worker was killed"):
            game.step("on")
        game.close()
        assert not is_running(pid)
    stepping.begin()
    os.kill(our_children()[0], signal.SIGSTOP)
    stepping.close()
    assert not our_children()


def test_an_idle_worker_that_was_killed_is_replaced_before_the_next_game(build: Build) -> None:
    stepping = build("processes(1)")
    assert isinstance(stepping, SteppingInProcesses)
    game = stepping.begin()
    game.close()
    os.kill(stepping.pids[0], signal.SIGKILL)
    wait_until_gone(stepping.pids)
    assert stepping.begin().reset(5) == alone(5)[0]


def test_an_environment_that_kills_its_process_is_lost_and_nobody_hangs(build: Build) -> None:
    stepping = build("processes(1)")
    for _ in range(3):
        game = stepping.begin()
        game.reset(1)
        with pytest.raises(EnvironmentLost, match="was killed by SIGKILL"):
            game.step("crash")
        game.close()
    assert stepping.health()["restarted"] == 2


def test_many_deaths_leave_nothing_behind(build: Build) -> None:
    threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    stepping = build("processes(2)")
    for _ in range(4):
        game = stepping.begin()
        game.reset(1)
        with pytest.raises(EnvironmentLost):
            game.step("crash")
    stepping.close()
    assert set(threading.enumerate()) <= threads and not our_children()
    assert len(os.listdir("/proc/self/fd")) == files


def test_an_environment_that_a_worker_cannot_load_is_one_line(build: Build) -> None:
    with pytest.raises(BadEnvironment, match=r"^the environment cannot be loaded in a worker process: ModuleNotFound"):
        build("processes(1)", NotThere()).begin()


def test_what_cannot_be_sent_is_refused_before_any_process_starts() -> None:
    with pytest.raises(BadEnvironment, match=r"cannot be sent to worker processes.*top level of a module"):
        build_stepping("processes(1)", lambda: Dice())
    assert not our_children()


def test_no_worker_outlives_a_killed_parent(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        f"sys.path[:] = {sys.path!r}\n"
        "from talking_games import Dice\n"
        "from headway.agents.stepping import build_stepping\n"
        "stepping = build_stepping('processes(1)', Dice)\n"
        "game = stepping.begin()\n"
        "game.reset(1)\n"
        "print(*stepping.pids, flush=True)\n"
        "game.step('hang')\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert pids and all(map(is_running, pids))
        parent.kill()
        wait_until_gone(pids)


# -- the global random generator --------------------------------------------------------------------


def global_dice(game: RunningGame, seed: int) -> list[str]:
    return [game.reset(seed), *(game.step("x").text for _ in range(3))]


@pytest.mark.parametrize("where", ["here", "processes(1)"])
def test_games_that_seed_globally_do_not_disturb_each_other(where: str, build: Build) -> None:
    stepping = build(where, GlobalDice)
    expected = [global_dice(build(where, GlobalDice).begin(), seed) for seed in (3, 4)]
    first, second = stepping.begin(), stepping.begin()
    said: list[list[str]] = [[first.reset(3)], [second.reset(4)]]
    for _ in range(3):
        said[0].append(first.step("x").text)
        said[1].append(second.step("x").text)
    assert said == expected


def test_games_that_seed_globally_are_refused_in_threads(build: Build) -> None:
    line = r"^environment GlobalDice cannot be stepped in threads: it seeds .* step it in processes\(N\)$"
    with pytest.raises(BadEnvironment, match=line):
        build("threads(2)", GlobalDice).begin()


def test_whoever_draws_between_two_calls_is_not_disturbed() -> None:
    random.seed(1)
    expected = [random.random() for _ in range(3)]
    random.seed(1)
    game = CheckedGame(GlobalDice)
    drawn = [random.random()]
    game.reset(9)
    drawn.append(random.random())
    game.step("x")
    drawn.append(random.random())
    assert drawn == expected


# -- settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("thread(3)", r"unknown place to step environments 'thread'; did you mean 'threads'\?.*threads\(N\)"),
        ("threads(0)", r"threads\(N\) needs a whole number of at least 1, received 'threads\(0\)'"),
        ("processes(x)", r"processes\(N\) needs a whole number of at least 1"),
        ("processes(-1)", r"processes\(N\) needs a whole number of at least 1"),
        ("here(2)", r"here takes no number"),
        ("", r"must be one of here, threads\(N\), processes\(N\), received ''"),
        ("threads 3", r"must be one of here, threads\(N\), processes\(N\), received 'threads 3'"),
    ],
)
def test_a_place_that_does_not_exist_is_one_line_with_what_is_allowed(where: str, line: str) -> None:
    with pytest.raises(ValueError, match=line) as caught:
        build_stepping(where, Dice)
    assert "\n" not in str(caught.value)


def test_places_have_numbers_and_defaults() -> None:
    assert parse_where("here") == ("here", 1)
    assert parse_where("threads(8)") == ("threads", 8) and parse_where(" processes( 2 ) ") == ("processes", 2)
    assert parse_where("threads") == ("threads", 16) and parse_where("processes")[1] == os.cpu_count()


def test_limits_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="step_s must be above 0 seconds, received 0"):
        StepDeadlines(step_s=0)
    with pytest.raises(ValueError, match="max_under_way must be at least 1, received 0"):
        build_stepping("here", Dice, max_under_way=0)


def test_whoever_waited_longest_gets_the_next_place() -> None:
    places, order = Places(1), list[int]()
    assert places.take() and not places.take(0.0)

    def queue(number: int) -> None:
        places.take()
        order.append(number)
        places.give_back()

    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=queue, args=(number,)))
        threads[-1].start()
        wait_until(lambda: len(places._queue) == len(threads))
    places.give_back()
    for thread in threads:
        thread.join()
    assert order == list(range(5)) and places.take(0.0)
    places.close(EnvironmentLost("over"))
    with pytest.raises(EnvironmentLost, match="over"):
        places.take()
