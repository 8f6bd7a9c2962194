"""Valid actions of a story in the manner of Zork, compiled by the Inform 7 that TextWorld brings."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("jericho", reason="a library of games is not installed: jericho")
pytest.importorskip("textworld", reason="a library of games is not installed: textworld")

from textworld.generator.inform7.world2inform7 import compile_inform7_game

from headway.text_games.valid_actions import MovedThing, find_valid_actions
from headway.text_games.z_machine import StoryMoment, ZMachine

STORIES = Path(__file__).parents[2] / "bench" / "stories"
SCRIPT = (STORIES / "manor.txt").read_text().splitlines()
MOST_TURNS = 70
"""That trying may take, on average: some 35 ms of a story that Inform made."""


@pytest.fixture(scope="module")
def manor(tmp_path_factory: pytest.TempPathFactory) -> ZMachine:
    path = tmp_path_factory.mktemp("manor") / "manor.z8"
    compile_inform7_game((STORIES / "manor.ni").read_text(), str(path))
    return ZMachine(path)


class Counting:
    """Notes the commands that are tried."""

    def __init__(self, machine: ZMachine) -> None:
        self.machine, self.words = machine, machine.words
        self.tried: list[str] = []

    def objects(self) -> bytes:
        return self.machine.objects()

    def outcome(self, command: str) -> tuple[str, bytes, bool]:
        self.tried.append(command)
        return self.machine.outcome(command)

    def moved(self, before: bytes, after: bytes) -> MovedThing | None:
        return self.machine.moved(before, after)


def before(manor: ZMachine, command: str) -> StoryMoment:
    """The moment in which the script has this command for the first time."""
    moment = manor.moment(manor.restart(0))
    for earlier in SCRIPT[: SCRIPT.index(command)]:
        moment = manor.moment(manor.act(earlier))
    return moment


def tried_at(manor: ZMachine, moment: StoryMoment) -> list[str]:
    counting = Counting(manor)
    find_valid_actions(counting, moment.room, moment.carried, moment.said)
    return counting.tried


def test_the_script_wins_and_every_state_of_it_has_a_key_of_its_own(manor: ZMachine) -> None:
    moments = [manor.moment(manor.restart(0))]
    moments += [manor.moment(manor.act(command)) for command in SCRIPT]
    assert moments[-1].is_won
    assert moments[-1].score == moments[-1].max_score == 40
    assert len({moment.key for moment in moments}) == len(SCRIPT) + 1


def test_valid_actions_cover_the_script_in_few_turns(manor: ZMachine) -> None:
    counting, missed = Counting(manor), []
    moment = manor.moment(manor.restart(0))
    for command in SCRIPT:
        valid = find_valid_actions(counting, moment.room, moment.carried, moment.said)
        if manor.outcome(command)[1] not in {manor.outcome(other)[1] for other in valid}:
            missed.append(command)
        moment = manor.moment(manor.act(command))
    assert len(missed) <= 0.05 * len(SCRIPT), missed
    assert len(counting.tried) / len(SCRIPT) <= MOST_TURNS


def test_of_carried_things_with_the_same_attributes_one_is_opened(manor: ZMachine) -> None:
    moment = before(manor, "move rug")
    assert len(moment.carried.splitlines()[1:]) == 6  # rope, key, sword, lantern, honey and note
    tried = tried_at(manor, moment)
    opened = [command.removeprefix("open ") for command in tried if command.startswith("open ")]
    assert set(opened) >= {"rug", "cabinet", "lantern"}  # what stays here, and what is a device
    assert len(opened) == 4  # and one that is nothing special


def test_what_can_be_opened_is_not_closed_and_nothing_is_put_into_it(manor: ZMachine) -> None:
    tried = tried_at(manor, before(manor, "open cabinet"))
    assert "open cabinet" in tried
    assert "close rug" in tried
    assert not [command for command in tried if command == "close cabinet" or command.endswith(" in cabinet")]


def test_what_is_carried_is_not_looked_for_in_the_room_again(manor: ZMachine) -> None:
    moment = before(manor, "tie rope to railing")
    assert "An iron railing" in moment.room
    assert "an iron key" in moment.carried
    tried = tried_at(manor, moment)
    assert "tie coil to railing" in tried
    assert not [command for command in tried if "iron" in command]  # the key; the railing has a name of its own


def test_where_a_carried_thing_gets_the_same_answer_not_all_of_them_are_tried(manor: ZMachine) -> None:
    tried = tried_at(manor, before(manor, "unlock chest with key"))
    assert sum(command.startswith("give ") for command in tried) == 2  # to the chest, and for comparison
    assert sum(command.startswith("unlock chest ") for command in tried) == 6  # "it does not fit" is no dull answer


def test_two_things_that_look_as_they_read_are_enough(manor: ZMachine) -> None:
    tried = tried_at(manor, before(manor, "move rug"))
    assert sum(command.startswith("read ") for command in tried) == 2
