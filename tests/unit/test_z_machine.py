"""The Z-machine on files that Jericho does not know: keys, scores, states, valid actions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jericho", reason="a library of games is not installed: jericho")
pytest.importorskip("textworld", reason="a library of games is not installed: textworld")

import jericho
from story_files import small_story

from headway.text_games.story_interface import BadStory
from headway.text_games.valid_actions import ActionTemplates, fallback_actions, find_valid_actions
from headway.text_games.valid_actions_names_of_things import Vocabulary
from headway.text_games.z_machine import StoryMoment, ZMachine, check_story_file, told

SAFE = ("take", "drop", "open", "close")
"""Verbs that cannot make this story hang."""


@pytest.fixture(scope="module", params=[3, 5, 8], ids=lambda version: f"version{version}")
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ZMachine:
    return ZMachine(small_story(tmp_path_factory.mktemp("story"), request.param))


def played(machine: ZMachine, *commands: str) -> StoryMoment:
    moment = machine.moment(machine.restart(0))
    for command in commands:
        moment = machine.moment(machine.act(command))
    return moment


def test_a_moment_has_room_inventory_and_answer_without_prompt_and_status_line(machine: ZMachine) -> None:
    moment = played(machine, "take lamp")
    assert (moment.said, moment.room, moment.carried) == (
        "Taken.",
        "Hall\nStairs lead down.",
        "You are carrying:\na brass lamp",
    )


def test_different_states_have_different_keys_where_jericho_has_one_hash(machine: ZMachine) -> None:
    ways = [(), ("down",), ("take lamp",), ("take lamp", "down"), ("take lamp", "drop lamp"), ("down", "open box")]
    assert len({played(machine, *way).key for way in ways}) == len(ways)
    env = machine._frotz
    env.reset()
    first = env.get_world_state_hash()
    env.step("take lamp")
    assert env.get_world_state_hash() == first


def test_equal_states_have_equal_keys_however_many_turns_it_took(machine: ZMachine) -> None:
    again = ("down", "up", "take lamp", "wait", "look", "inventory", "down", "open box", "close box", "up")
    assert played(machine, *again).key == played(machine, "take lamp").key


def test_the_score_and_the_end_are_found(machine: ZMachine) -> None:
    assert [played(machine, *way).score for way in [(), ("take lamp",), ("take lamp", "drop lamp")]] == [0, 5, 5]
    assert played(machine).max_score == 15
    won = played(machine, "take lamp", "down", "open box", "take coin")
    assert (won.score, won.is_over, won.is_won) == (15, True, True)


def test_a_state_comes_back_whole(machine: ZMachine) -> None:
    moment = played(machine, "take lamp", "down")
    played(machine, "down", "open box", "take coin")
    machine.set_state(moment.state)
    again = machine.moment(moment.said)
    assert again == moment
    assert len(moment.state) < 2000


def test_a_state_of_another_file_is_refused(machine: ZMachine) -> None:
    with pytest.raises(ValueError, match="another story file"):
        machine.set_state(b"notthere" + played(machine).state[8:])


def test_valid_actions_are_those_that_change_something(machine: ZMachine) -> None:
    found = {}
    for way in [(), ("take lamp",), ("down",), ("down", "open box"), ("take lamp", "down")]:
        moment = played(machine, *way)
        before = machine.state()
        found[way] = find_valid_actions(machine, moment.room, moment.carried, moment.said, ActionTemplates(SAFE))
        assert machine.state() == before
    assert found == {
        (): ("down", "take lamp"),
        ("take lamp",): ("down", "drop lamp"),
        ("down",): ("open box", "up"),
        ("down", "open box"): ("close box", "take coin", "up"),
        ("take lamp", "down"): ("drop lamp", "open box", "up"),
    }


def test_the_fallback_list_has_what_the_dictionary_knows(machine: ZMachine) -> None:
    assert fallback_actions(machine.words) == ("down", "north", "south", "up", "wait")


def test_names_are_words_of_the_dictionary_that_stand_in_the_text() -> None:
    words = {word: frozenset({"noun"}) for word in ("small", "brass", "lanter", "mailbo", "north")}
    words["take"] = frozenset({"verb"})
    text = "There is a small brass lantern here. Take the mailbox north, or a sword."
    assert Vocabulary(words).names_in(text) == {
        "lantern": frozenset(),
        "mailbox": frozenset(),
        "small brass lantern": {"lantern"},
        "small": {"lantern"},
        "brass": {"lantern"},
    }


def test_where_two_rows_end_alike_their_other_words_are_needed() -> None:
    words = {word: frozenset({"noun"}) for word in ("iron", "brass", "key", "lamp")}
    assert Vocabulary(words).names_in("An iron key, a brass key and a brass lamp.") == {
        "key": frozenset(),
        "lamp": frozenset(),
        "iron key": frozenset(),
        "brass key": frozenset(),
        "brass lamp": {"lamp"},
        "iron": frozenset(),
        "brass": frozenset(),
    }


def test_what_was_moved_is_known_by_its_object(machine: ZMachine) -> None:
    played(machine, "take lamp")
    now = machine.objects()
    dropped = machine.moved(now, machine.outcome("drop lamp")[1])
    assert dropped is not None
    assert len(dropped.attributes) == (4 if machine.version <= 3 else 6)
    assert machine.moved(now, now) is None
    played(machine)
    taken = machine.moved(machine.objects(), machine.outcome("take lamp")[1])
    assert taken is not None
    assert taken.number == dropped.number


@pytest.mark.parametrize(
    ("rom", "why"),
    [
        (b"GLUL" + bytes(100), "begins with b'GLUL'"),
        (b"", "begins with b''"),
        (b"\6" + bytes(100), "version 6, which draws pictures"),
        (b"\5" + bytes(100), "is cut short"),
    ],
)
def test_what_is_no_story_file_is_refused_in_one_line(rom: bytes, why: str) -> None:
    with pytest.raises(BadStory, match=why) as refused:
        check_story_file(rom, "game.z5")
    assert str(refused.value).startswith("game.z5 ") and "\n" not in str(refused.value)


def test_status_lines_are_no_part_of_what_is_told() -> None:
    assert told("> Hall" + 40 * " " + "Score: 5   Moves: 1   \nTaken.\n\n") == "Taken."
    assert told("\nYou can't go that way.\n\n>" + 60 * " " + "-= Attic =-0/4") == "You can't go that way."


def test_spacy_is_not_needed(tmp_path: Path) -> None:
    story = small_story(tmp_path)
    program = f"""
import sys
sys.modules["spacy"] = None
from pathlib import Path
from headway.text_games.z_machine import ZMachine
from headway.text_games.valid_actions import ActionTemplates, find_valid_actions
machine = ZMachine(Path({str(story)!r}))
moment = machine.moment(machine.restart(0))
print(find_valid_actions(machine, moment.room, moment.carried, "", ActionTemplates(("take",), ())))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("('down', 'take lamp')\n", "")


def test_jericho_warns_of_unknown_files_and_we_do_not(machine: ZMachine, tmp_path: Path) -> None:
    story = small_story(tmp_path)
    with pytest.warns(jericho.UnsupportedGameWarning):
        jericho.FrotzEnv(str(story), 1)
    assert not ZMachine(story).is_known
