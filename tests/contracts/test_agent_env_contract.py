"""Environments for agents pass the contract suite, and each rule that one breaks is found and named."""

from __future__ import annotations

import os

import agent_envs
import pytest

from headway.agents import AgentEnv, load_env
from headway.testing.agent_env_checks import CHECKS, FAILED, PASSED, SKIPPED, CheckResult, EnvTrial, run_check
from headway.testing.agent_env_contract import AgentEnvContract, check_env

IN_PROCESSES = "one seed is one game in processes"
IN_THREADS = "one seed is one game in threads"
HERE_ONLY = [check for check in CHECKS if check != IN_PROCESSES]


class TestLights(AgentEnvContract):
    make_env = staticmethod(load_env("lights"))


class TestShop(AgentEnvContract):
    make_env = staticmethod(load_env("shop"))


class TestMethodOfItsOwn(AgentEnvContract):
    seeds = 2

    def make_env(self) -> AgentEnv:
        return agent_envs.Coin()


class TestOneThatSeedsGloballyAndSaysSo(AgentEnvContract):
    make_env = staticmethod(agent_envs.SaysSo)


@pytest.mark.parametrize("name", ["calculator", "climb", "corridor", "frozen_lake", "guess", "sokoban"])
def test_our_games_pass_every_check(name: str) -> None:
    trial = EnvTrial(load_env(name), name, range(3))
    assert [result for check in HERE_ONLY if (result := run_check(trial, check)).outcome != PASSED] == []


def failures(env: type[agent_envs.Coin]) -> dict[str, str]:
    """The checks that an environment does not pass, without those in processes."""
    trial = EnvTrial(env, env.__name__, range(2))
    results = [run_check(trial, check) for check in HERE_ONLY]
    return {result.name: result.detail for result in results if result.outcome == FAILED}


def one_failure(env: type[agent_envs.Coin], check: str) -> str:
    found = failures(env)
    assert list(found) == [check]
    assert "\n" not in found[check]
    return found[check]


def test_one_that_keeps_every_rule_passes_with_its_times() -> None:
    results = {result.name: result for result in check_env(agent_envs.Coin, seeds=2)}
    assert {result.outcome for result in results.values()} == {PASSED}
    assert list(results) == list(CHECKS)
    assert "ms, p95 " in results["how long reset and step take"].detail


def test_one_that_seeds_the_shared_generator_is_caught_by_name_and_sent_to_processes() -> None:
    detail = failures(agent_envs.GloballySeeded)["no global random generator is seeded"]
    assert "(random.seed)" in detail
    assert "use one of its own, random.Random(seed)" in detail
    assert "step it in processes" in detail


def test_one_that_seeds_the_shared_generator_gives_different_games_in_threads() -> None:
    trial = EnvTrial(agent_envs.GloballySeeded, "seeded", range(10))
    detail = run_check(trial, IN_THREADS).detail
    assert "is another game in one of 8 threads" in detail
    assert detail.endswith("; if it cannot be mended step it in processes")


def test_one_that_says_that_it_seeds_the_shared_generator_is_not_tried_in_threads() -> None:
    trial = EnvTrial(agent_envs.SaysSo, "says so", range(2))
    found = {check: run_check(trial, check) for check in CHECKS}
    assert found["no global random generator is seeded"].detail == "it seeds random.seed and says so: processes only"
    assert found[IN_THREADS].outcome == SKIPPED
    assert found[IN_PROCESSES].outcome == PASSED


def test_one_that_ignores_its_seed_is_caught() -> None:
    found = failures(agent_envs.Unseeded)
    assert set(found) == {"reset twice gives the same game", IN_THREADS}
    assert found["reset twice gives the same game"].startswith("seed 0 is another game in an environment that was used")


def test_one_that_remembers_the_game_before_is_caught() -> None:
    assert "seed 1 is another game" in one_failure(agent_envs.Remembering, "reset twice gives the same game")


def test_one_that_is_another_game_in_threads_is_caught() -> None:
    detail = failures(agent_envs.OfItsThread)[IN_THREADS]
    assert detail.startswith("seed 0 is another game in one of 8 threads: after 0 replies")


def test_one_that_is_another_game_in_another_process_is_caught() -> None:
    result = run_check(EnvTrial(agent_envs.OfItsProcess, "of its process", range(2)), IN_PROCESSES)
    assert result.outcome == FAILED
    assert result.detail.startswith("seed 0 is another game in another process: after 0 replies")


def test_one_that_dies_in_another_process_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_TEST_PID", str(os.getpid()))
    result = run_check(EnvTrial(agent_envs.Dying, "dying", range(2)), IN_PROCESSES)
    assert result == CheckResult(IN_PROCESSES, FAILED, "the process died")


def test_one_that_goes_on_after_the_end_gets_a_hint_because_its_player_refuses() -> None:
    results = list(check_env(agent_envs.GoesOn, seeds=2))
    assert not [result for result in results if result.outcome == FAILED]
    (end,) = [result for result in results if result.name == "a step after the end is refused"]
    assert end.outcome == PASSED and end.detail.startswith("by Headway, which plays it; a hint:")


def test_one_that_never_ends_is_cut_and_says_so() -> None:
    trial = EnvTrial(agent_envs.Unending, "unending", range(2))
    result = run_check(trial, "it ends within max_turns")
    assert result.detail == "2 of 2 games are cut after max_turns (2), as `turns`"
    assert run_check(trial, "a step after the end is refused").outcome == SKIPPED


def test_one_that_says_nothing_is_caught() -> None:
    line = (
        "BadEnvironment: environment Silent: step returned an empty text; only the last one of an episode may be empty"
    )
    assert failures(agent_envs.Silent)["texts are never empty and rewards are finite"] == line


def test_one_whose_reward_is_no_number_is_caught() -> None:
    line = "environment NotANumber: the reward of a step is nan (float); allowed: a finite number"
    assert line in failures(agent_envs.NotANumber)["texts are never empty and rewards are finite"]


def test_one_that_raises_for_a_malformed_reply_is_caught() -> None:
    detail = one_failure(agent_envs.Fragile, "strange replies are answered")
    assert detail.startswith("the reply '' raised ValueError: invalid literal for int()")
    assert detail.endswith("a policy can say anything, so answer it with text")


def test_one_that_cannot_be_pickled_is_caught() -> None:
    class Local(agent_envs.Coin):
        pass

    result = run_check(EnvTrial(Local, "local", range(1)), "the factory can be pickled")
    assert result.outcome == FAILED
    assert result.detail.endswith("; name it file.py:Class or module:Class")


def test_one_that_hangs_is_given_up() -> None:
    trial = EnvTrial(agent_envs.Hanging, "hanging", range(1))
    result = run_check(trial, "reset twice gives the same game", deadline_s=0.05)
    assert result == CheckResult("reset twice gives the same game", FAILED, "no answer within 0.05 s")


def test_one_that_hangs_keeps_no_other_from_being_checked() -> None:
    run_check(EnvTrial(agent_envs.Hanging, "hanging", range(1)), "it ends within max_turns", deadline_s=0.05)
    found = run_check(EnvTrial(agent_envs.Coin, "coin", range(1)), "it ends within max_turns", deadline_s=10.0)
    assert found.outcome == PASSED, found.detail


def test_a_result_is_one_line() -> None:
    assert str(CheckResult("it ends", PASSED, "at once")) == "passed: it ends: at once"
    assert str(CheckResult("it ends", PASSED)) == "passed: it ends"
