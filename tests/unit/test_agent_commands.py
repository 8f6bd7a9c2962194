"""`headway play GAME` and `headway check-env ENV`: what they print, how they end, and what they refuse."""

from __future__ import annotations

import io
import re
from pathlib import Path

import agent_envs
import pytest
from command_runs import refused
from rich.console import Console

from headway.agents import load_env
from headway.cli import main
from headway.cli.play import show_episode

ENVS = Path(agent_envs.__file__)
Output = pytest.CaptureFixture[str]


def printed(capsys: Output, *words: str, code: int = 0) -> list[str]:
    capsys.readouterr()
    assert main(list(words)) == code
    return capsys.readouterr().out.splitlines()


# -- play -----------------------------------------------------------------------------------------------------------


def test_an_expert_is_watched_to_its_success(capsys: Output) -> None:
    lines = printed(capsys, "play", "corridor", "--expert", "--seed", "2")
    assert lines[:2] == ["You stand at 0. The door is at 3. Reply with only left or right.", "> I go right"]
    assert lines[-3:] == ["  reward 1", "You are at the door.", "success: 1 in 3 turns, seed 2"]


def test_chance_plays_the_same_game_of_the_same_seed(capsys: Output) -> None:
    words = ["play", "guess", "--seed", "3", "--env_options", '{"high": 7}']
    first = printed(capsys, *words, "--random")
    assert first[0].startswith("I think of a number from 1 to 7.")
    assert printed(capsys, "play", "--random", *words[1:]) == first


@pytest.mark.parametrize("me", [[], ["--me"]])
def test_a_person_types_replies(capsys: Output, monkeypatch: pytest.MonkeyPatch, me: list[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("right\nup\n"))
    lines = printed(capsys, "play", "corridor", "--seed", "2", *me)
    assert lines[1] == "> I go You stand at 1. The door is at 3. Reply with only left or right."
    assert lines[2].startswith("> I go I read neither left nor right. You stand at 1.")
    assert lines[-1] == "no success: 0 in 2 turns, seed 2"


def test_any_function_of_the_text_can_be_shown() -> None:
    out = io.StringIO()
    console = Console(file=out, soft_wrap=True)
    episode = show_episode(load_env("lights")(), lambda text: "[red]", 0, console)
    assert episode.replies == ("[red]",) * 3
    assert "> [red]\n  reward 0.333333\n" in out.getvalue()


def test_colour_lines_is_still_played_by_hand(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba", reason="needs headway[games]")
    boards = []
    for words in ([], ["colorlines"]):
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        boards.append(printed(capsys, "play", *words, "--seed", "1"))
    assert boards[0] == boards[1]
    assert boards[0]


def test_what_play_does_not_understand_is_refused_in_a_line(capsys: Output) -> None:
    assert refused(capsys, "play", "ligths").startswith("unknown game 'ligths'; did you mean 'lights'?")
    assert refused(capsys, "play", "guess", "--me", "--expert") == "one player plays, received --me, --expert"
    allowed = "allowed: env_options, expert, me, random, run, seed, temperature"
    assert refused(capsys, "play", "guess", "--sed", "1") == f"unknown option 'sed'; did you mean 'seed'? {allowed}"
    assert refused(capsys, "play", "--expert").startswith("Colour Lines is played by you alone, received --expert")
    assert refused(capsys, "play", "guess", "--seed", "x") == "--seed must be a whole number, received 'x'"
    spec = f"{ENVS}:Coin"
    assert refused(capsys, "play", spec, "--expert") == "Coin has no expert player: it has no method expert_reply"
    assert refused(capsys, "play", "guess", "--env_options", "[1]").startswith("env_options must be a JSON object")


# -- check-env ------------------------------------------------------------------------------------------------------


def test_an_environment_that_keeps_the_rules_passes_with_a_line_for_each(capsys: Output) -> None:
    lines = printed(capsys, "check-env", "lights", "--seeds", "2")
    assert [line.split()[0] for line in lines[:-1]] == ["passed"] * 10
    times = (
        r"passed   how long reset and step take: reset median \S+ m?s, p95 \S+ m?s; step median \S+ m?s, p95 \S+ m?s"
    )
    assert re.fullmatch(times, lines[-2])
    assert lines[-1] == "lights can be collected from"


def test_an_environment_that_breaks_a_rule_ends_with_1(capsys: Output) -> None:
    lines = printed(capsys, "check-env", f"{ENVS}:Fragile", "--seeds", "1", code=1)
    failed = [line for line in lines if line.startswith("FAILED")]
    assert len(failed) == 1
    assert failed[0].startswith("FAILED   strange replies are answered: the reply '' raised ValueError")
    assert lines[-1] == f"{ENVS}:Fragile must be mended: 1 failed"


def test_what_check_env_does_not_understand_is_refused_in_a_line(capsys: Output) -> None:
    assert refused(capsys, "check-env") == "check-env needs an environment: headway check-env ENV"
    assert refused(capsys, "check-env", "lights", "--seeds", "0") == "--seeds must be a whole number >= 1, received 0"
    assert refused(capsys, "check-env", "lights", "--env_options", '{"lights": 99}') == (
        "environment lights cannot be made: ValueError: lights must be at most 8, received 99"
    )
    assert refused(capsys, "check-env", "nowhere.py:A") == "environment file nowhere.py does not exist"


def test_the_help_of_both_says_what_they_take(capsys: Output) -> None:
    assert printed(capsys, "check-env", "--help")[0].startswith("headway check-env ENV [--env_options JSON]")
    usage = "headway play [GAME] [--me | --random | --expert | --run RUN]"
    assert printed(capsys, "play", "--help")[0].startswith(usage)
