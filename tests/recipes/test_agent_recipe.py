"""The agent recipe: its commands, its limits, its filters, its held-out games, and bad input in one line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from waiting import patient, wait_until

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from agent_runs import GAMES, collected, run_agent, tiny_agent, tiny_values  # noqa: E402
from log_totals import audit  # noqa: E402

from headway.agents.collector_agent_episodes import is_held_out  # noqa: E402
from headway.agents.collector_group_filters import GroupSummary  # noqa: E402
from headway.agents.config import AgentConfig  # noqa: E402
from headway.agents.episodes_episode_loop import EpisodeLimits  # noqa: E402
from headway.agents.episodes_episode_player import EpisodePlayer, GroupPlan, PausableClock  # noqa: E402
from headway.agents.loading import load_env  # noqa: E402
from headway.agents.recipe import stations  # noqa: E402
from headway.agents.stepping import build_stepping  # noqa: E402
from headway.cli import main  # noqa: E402
from headway.core.types import Snapshot, Ticket  # noqa: E402
from headway.llm.build_language_model import build_engine  # noqa: E402
from headway.llm.engine.protocol_engine import Sampling  # noqa: E402
from headway.llm.model.conversation import Conversation  # noqa: E402
from headway.llm.model.loading_models import load_tokenizer  # noqa: E402
from headway.llm.rollouts_episode import Episodes  # noqa: E402
from headway.runs.config import ConfigError, read_values  # noqa: E402
from headway.runs.event_log import MemoryRecorder, read_events  # noqa: E402
from headway.runs.folder import RunFolder  # noqa: E402
from headway.runs.launch_session import launch  # noqa: E402
from headway.testing.tiny_models import save_tiny_model  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
FIRST = Ticket(0, 100)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("agent") / "model")


def words(values: dict[str, Any]) -> list[str]:
    texts = {name: json.dumps(value) if isinstance(value, dict) else str(value) for name, value in values.items()}
    return [word for name, text in texts.items() for word in (f"--{name}", text)]


# -- commands ---------------------------------------------------------------------------------------


def test_a_run_leaves_conversations_a_score_and_a_player(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = tiny_values(model, updates=2, max_lead=1, evaluate_every=2, env_options={"turns": 2})
    options = ["--runs", str(tmp_path), "--quiet", "--tensorboard", "false", "--report", "false"]
    assert main(["run", "agent", *words(values), *options]) == 0
    (run,) = tmp_path.iterdir()
    capsys.readouterr()
    assert main(["samples", str(run), "--last", "1", "--split", "train"]) == 0
    said = capsys.readouterr().out
    assert "2 left" in said
    assert "Counting#3" in said
    assert said.count("tokens of version") == 2, "a line for every turn"
    assert "tokens read, not trained on" in said
    assert main(["evaluate", str(run)]) == 0
    assert "end_done" in capsys.readouterr().out
    assert main(["play", f"{GAMES}:Counting", "--run", str(run), "--seed", "3"]) == 0
    assert "in 3 turns, seed 3" in capsys.readouterr().out


def test_kill_nine_and_resume_loses_no_group_and_trains_none_twice(model: Path, tmp_path: Path) -> None:
    values = tiny_values(model, updates=10, max_lead=1, save_every=1, env_options={"uneven_s": 0.05}, report=False)
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**values, "env_stepping": "threads(8)", "tensorboard": False}))
    command = [sys.executable, "-m", "headway.cli"]
    start = [*command, "run", "agent", "--config", str(config), "--quiet", "--runs"]
    driver = subprocess.Popen([*start, str(tmp_path / "runs")], stdout=subprocess.DEVNULL)

    def is_saved() -> bool:
        assert driver.poll() is None
        return any((tmp_path / "runs").glob("*/checkpoints/*/manifest.json"))

    wait_until(is_saved, 120, "a checkpoint")
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    (run,) = (tmp_path / "runs").iterdir()
    subprocess.run([*command, "resume", str(run), "--quiet"], timeout=patient(120), check=True)
    seen = audit(read_events(run / "events.jsonl"))
    assert sorted(seen.learned) == list(range(20))
    assert set(seen.learned.values()) == {1}
    summary = json.loads((run / "summary.json").read_text())
    assert summary["complete"]
    assert main([*start[3:], str(tmp_path / "whole")]) == 0
    whole = json.loads(next((tmp_path / "whole").glob("*/summary.json")).read_text())
    assert summary["fingerprint"] == whole["fingerprint"]


# -- limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "end", "turns"),
    [
        ({}, "done", 3),
        ({"max_turns": 2}, "turns", 2),
        ({"max_episode_tokens": 24}, "tokens", 2),
        ({"max_context_tokens": 36, "max_episode_tokens": 36}, "tokens", 2),
    ],
)
def test_each_limit_has_its_name_and_its_end(model: Path, changes: dict[str, Any], end: str, turns: int) -> None:
    (rollout,) = collected(tiny_agent(model, **changes), FIRST)
    group: Episodes = rollout.payload
    assert set(group.end) == {end}
    assert set(group.turns.tolist()) == {turns}
    assert group.trained.sum() <= 4 * group.turns.sum()
    limits = tiny_agent(model, **changes)
    assert (group.lengths <= limits.max_episode_tokens).all()
    assert (group.lengths + len(group.prompt) <= limits.max_context_tokens).all()


class Ticking(PausableClock):
    """A second passes whenever somebody looks."""

    looks = 0

    def now(self) -> float:
        self.looks += 1
        return float(self.looks)


def test_an_episode_that_takes_too_long_ends_as_it_stands(model: Path) -> None:
    config = tiny_agent(model, episode_deadline_s=6, env_options={"turns": 9})
    sampling = Sampling(max_tokens=4)
    player = EpisodePlayer(
        build_engine(config, sampling),
        build_stepping("here", load_env(config.env, config.env_options)),
        Conversation(load_tokenizer(config.model)),
        clock=Ticking(),
    )
    try:
        played = player.play(GroupPlan("late", 1, 0, 1, 1, 1, sampling, config.limits(9)))
    finally:
        player.close()
    assert played.episodes[0].end == "deadline"
    assert 0 < len(played.episodes[0].turns) < 9
    assert all(turn["reward"] > 0 for turn in played.episodes[0].turns)


def test_what_the_policy_was_told_is_not_trained_on_and_never_encoded_again(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer of the tiny model knows one token a byte; whoever encoded a reply's text would be seen here."""
    encoded: list[str] = []
    kind = type(load_tokenizer(str(model)))
    encode = kind.encode

    def listening(self: Any, text: str, *args: Any, **options: Any) -> Any:
        encoded.append(text)
        return encode(self, text, *args, **options)

    monkeypatch.setattr(kind, "encode", listening)
    (rollout,) = collected(tiny_agent(model, log_samples=8), FIRST)
    group: Episodes = rollout.payload
    replies = [turn["reply"] for one in rollout.info["samples"] for turn in one["turns"]]
    assert len(replies) == 9
    tokenizer: Any = load_tokenizer(str(model))
    drawn = tokenizer.decode(group.tokens[group.trained].tolist(), skip_special_tokens=True)
    assert drawn == "".join(replies)
    said = [text for text in encoded if any(len(reply) > 2 and reply in text for reply in replies)]
    assert said == []
    assert (group.log_probs[~group.trained] == 0).all()


def test_a_prefix_begins_every_reply_and_is_not_trained_on(model: Path) -> None:
    plain, begun = (collected(tiny_agent(model, reply_prefix=prefix), FIRST)[0].payload for prefix in ("", "I say"))
    assert len(begun.prompt) == len(plain.prompt) + 5
    assert int((~begun.trained).sum()) == int((~plain.trained).sum()) + 3 * 2 * 5


# -- filters ----------------------------------------------------------------------------------------


def test_filtered_groups_are_counted_by_reason_and_others_come_in_their_place(model: Path, tmp_path: Path) -> None:
    code = "def odd(group):\n    return 'odd' if int(group.uid.rpartition('#')[2]) % 2 else None\n"
    (tmp_path / "filters.py").write_text(code)
    config = tiny_agent(model, filter=f"{tmp_path / 'filters.py'}:odd")
    log = MemoryRecorder()
    result = run_agent(config, log=log)
    dropped = [event for event in log.events if event["e"] == "drop"]
    assert {event["why"] for event in dropped} == {"odd"}
    assert all(event["k"] % 2 for event in dropped)
    assert result.ledger.learned == 6
    sink = Numbers()
    launch(stations(config), config.settings(), sinks=[sink])
    assert sink.last["drops/filtered_odd"] == sink.last["drops/filtered"] == len(dropped)


class Numbers:
    """A sink that keeps the newest value of each metric."""

    def __init__(self) -> None:
        self.last: dict[str, float] = {}

    def write(self, moment: Any, values: Any) -> None:
        self.last |= values

    def close(self) -> None:
        pass


def test_a_silent_group_is_filtered_as_such(model: Path) -> None:
    silent = {"filter_silent": True, "max_turns": 1, "max_turn_tokens": 1, "stop_token_ids": ()}
    rollouts = collected(tiny_agent(model, temperature=0.01, **silent), FIRST)
    assert rollouts[0].filtered == "silent"


def test_a_summary_tells_a_filter_what_became_of_each_episode() -> None:
    assert set(GroupSummary.__dataclass_fields__) == {"uid", "returns", "turns", "tokens", "success", "ends"}


# -- held-out games ---------------------------------------------------------------------------------


def test_no_game_that_begins_like_a_held_out_one_is_trained_on(model: Path) -> None:
    config = tiny_agent(model, held_out="texts", held_out_share=0.4, evaluate_every=1, log_samples=8, eval_games=4)
    trained = {
        rollout.info["samples"][0]["prompt"]
        for rollout in collected(config, *(Ticket(index, 100 + index) for index in range(6)))
    }
    made = stations(config).evaluator
    assert made is not None
    evaluator: Any = made()
    try:
        score = evaluator.evaluate(Snapshot(0, None), 5)
    finally:
        evaluator.close()
    measured = {sample["prompt"] for sample in score.samples}
    assert not trained & measured
    assert not any(is_held_out(0.4, text) for text in trained)
    assert all(is_held_out(0.4, text) for text in measured)


@pytest.mark.parametrize(
    ("game", "options", "line"),
    [
        ("climb", {"first": 1}, "begin in only one way, and games that begin alike are trained on\n"),
        ("climb", {"first": 2}, "begin in only 2 ways, and games that begin alike are trained on (held_out=texts"),
        ("climb", {"first": 900_000, "bound": 999_999}, ""),
    ],
)
def test_held_out_games_that_are_trained_on_too_are_said_once(
    model: Path, capsys: pytest.CaptureFixture[str], game: str, options: dict[str, int], line: str
) -> None:
    config = tiny_agent(model, env=game, env_options=options, evaluate_every=1, eval_games=16, max_turns=1)
    made = stations(config).evaluator
    assert made is not None
    evaluator: Any = made()
    try:
        for seed in (5, 6):
            evaluator.evaluate(Snapshot(0, None), seed)
    finally:
        evaluator.close()
    said = capsys.readouterr().err
    assert said.count("held-out games") == bool(line)
    assert line in said


# -- bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"max_turn_tokens": 80}, "limits must be 1 <= max_turn_tokens <= max_episode_tokens <= max_context_tokens"),
        ({"max_episode_tokens": 200}, "received 4, 200, 96"),
        ({"microbatch_tokens": 64}, "microbatch_tokens=64 cannot hold an episode: max_context_tokens=96"),
        ({"redundancy": 1}, "redundancy=1 lets timing decide which episodes are learned from"),
        ({"max_lead": 1, "min_group": 2}, "min_group=2 lets faults decide what is trained on"),
        ({"min_group": 4, "max_lead": 1, "dispatch": "free"}, "min_group=4 must not exceed group_size=3"),
        ({"rollout_batch_size": 7, "tickets_per_batch": None}, "must be a multiple of group_size=3"),
        ({"rollout_batch_size": 9}, "tickets_per_batch"),
        ({"env_stepping": "thread(2)"}, "did you mean 'threads'?"),
        ({"env_options": "[3]"}, "env_options"),
        ({"episode_deadline_s": 700}, "episode_deadline_s=700 must be below collect_deadline_s=600"),
        ({"step_deadline_s": 5}, "step_deadline_s=5 has no effect with env_stepping=here, where nothing interrupts"),
        (
            {"reset_deadline_s": 5.5, "env_stepping": "here"},
            "reset_deadline_s=5.5 has no effect with env_stepping=here",
        ),
        ({"held_out_share": 0.2}, "held_out_share=0.2 has no effect with held_out=seeds: it goes with held_out=texts"),
        ({"step_deadline_s": 700}, "step_deadline_s=700 must be below collect_deadline_s=600"),
        ({"eval_samples": 2}, "eval_samples > 1 needs eval_temperature > 0"),
        ({"group_size": 1}, "compares episodes of one game: group_size must be >= 2"),
        ({"filter": "nowhere.py:f"}, "filter file nowhere.py does not exist"),
        ({"lanes": 1, "evaluate_every": 1}, "evaluation_waits_for='parked' needs lanes > 1"),
        ({"redundancies": 1}, "redundancy"),
    ],
)
def test_settings_that_cannot_be_are_one_line(model: Path, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny_agent(model, **changes)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_that_was_begun_with_what_does_nothing_goes_on_with_it_and_with_nothing_else(
    model: Path, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path)
    run.write_config("agent", {**tiny_agent(model).model_dump(mode="json"), "step_deadline_s": 5.0})
    values = run.read_config()[1]
    assert tiny_agent(model, step_deadline_s=5, env_stepping="threads(2)").step_deadline_s == 5
    assert read_values(AgentConfig, values).step_deadline_s == 5
    with pytest.raises(ConfigError, match=r"held_out_share=0.3 has no effect"):
        read_values(AgentConfig, values, {"held_out_share": 0.3})
    assert tiny_agent(model, collect_deadline_s=40).collect_deadline_s == 40, "deadlines that do nothing need not fit"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"env": "light"}, "did you mean 'lights'?"),
        ({"env": f"{GAMES}:Count"}, "did you mean 'Counting'?"),
        ({"env_options": {"turn": 3}}, "did you mean 'turns'?"),
        ({"env_options": {"turns": 0}}, "max_turns must be a whole number >= 1, received 0"),
    ],
)
def test_environments_that_cannot_be_are_one_line_before_anything_starts(
    model: Path, changes: dict[str, Any], line: str
) -> None:
    with pytest.raises(ValueError) as caught:
        stations(tiny_agent(model, **changes))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_signal_is_answered_while_an_environment_is_made(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "asking.py").write_text(
        "import os, signal\n"
        "class Asking:\n"
        "    def __init__(self):\n"
        "        os.kill(os.getpid(), signal.SIGUSR1)\n"
        "        raise ValueError('that was all')\n"
    )
    settings = words({**tiny_values(model), "env": f"{tmp_path}/asking.py:Asking"})
    assert main(["run", "agent", *settings, "--runs", str(tmp_path / "runs")]) == 2
    told = capsys.readouterr().err
    assert "no role of the run is running" in told and "that was all" in told


def test_a_first_message_that_leaves_no_room_is_one_line(model: Path) -> None:
    with pytest.raises(ValueError, match=r"the first message of .* tokens: max_context_tokens=9 leaves no room"):
        collected(tiny_agent(model, max_context_tokens=9, max_episode_tokens=9), FIRST)


@pytest.mark.parametrize("limits", [(0, 1, 1, 1), (1, 2, 1, 3), (1, 1, 4, 3)])
def test_limits_out_of_order_are_refused(limits: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="max_turn"):
        EpisodeLimits(*limits)
