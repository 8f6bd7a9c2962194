"""Runs of agents that have their own loop: bits, the ledger, forks, faults, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import patient

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from agent_runs import GAMES, collected, run_agent, tiny_agent, tiny_values  # noqa: E402
from log_totals import audit  # noqa: E402

from headway.agents.episodes_episode_player import GroupFailed  # noqa: E402
from headway.agents.recipe import AgentConfig  # noqa: E402
from headway.core.protocols import CannotGoOn  # noqa: E402
from headway.core.types import MEASURES, Rollout, Ticket  # noqa: E402
from headway.llm.rollouts_episode import Episodes  # noqa: E402
from headway.runs.config import ConfigError, read_values  # noqa: E402
from headway.runs.event_log import MemoryRecorder  # noqa: E402
from headway.runs.fingerprint import fingerprint  # noqa: E402
from headway.testing.tiny_models import save_tiny_model  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
AGENTS = Path(__file__).parents[1] / "looping_agents.py"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("endpoint") / "model")


def tiny(model: Path, agent: str, **changes: Any) -> AgentConfig:
    return tiny_agent(model, env=None, agent=f"{AGENTS}:{agent}", **changes)


def first_of(config: AgentConfig) -> Rollout:
    (rollout,) = collected(config, Ticket(0, 7, 0, 0, 0))
    return rollout


@pytest.mark.parametrize("lead", [0, 1])
def test_an_agent_of_two_lines_is_trained_and_the_ledger_closes(model: Path, lead: int) -> None:
    config = tiny(model, "short", max_lead=lead, updates=2)
    log = MemoryRecorder()
    result = run_agent(config, log=log)
    found = audit(log.events)
    assert len(found.opened) == 4 and set(found.settled.values()) == {1} and len(found.learned) == 4
    assert result.ledger.live == 0


def test_the_game_in_an_agents_own_loop_gives_the_bits_of_the_game_as_an_environment(model: Path) -> None:
    as_env = tiny_agent(model, updates=2)
    weights = [run_agent(config).weights for config in (tiny(model, "count", updates=2), as_env)]
    assert fingerprint(weights[0]) == fingerprint(weights[1])
    assert fingerprint(run_agent(tiny(model, "count", updates=2), "inline").weights) == fingerprint(weights[0])


def test_an_asynchronous_agent_gives_the_bits_of_the_same_agent_that_is_not(model: Path) -> None:
    weights = [run_agent(tiny(model, agent, updates=2)).weights for agent in ("later", "short")]
    assert fingerprint(weights[0]) == fingerprint(weights[1])


def test_an_asynchronous_agent_that_is_abandoned_is_cancelled(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULTS", str(tmp_path))
    with pytest.raises(GroupFailed, match="did not return within 1 s"):
        first_of(tiny(model, "sleeping", episode_deadline_s=1.0))
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("agent", ["leaving", "interrupted"])
def test_an_agent_that_wants_to_end_the_process_is_lost_and_ends_nothing_else(model: Path, agent: str) -> None:
    with pytest.raises(GroupFailed, match=r"raised (RuntimeError: SystemExit: 3|KeyboardInterrupt)"):
        first_of(tiny(model, agent, env_attempts=2))


@pytest.mark.parametrize(("library", "turns"), [("openai", 1), ("pydantic_ai", 2)])
def test_agents_of_asynchronous_libraries_are_trained(model: Path, library: str, turns: int) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    config = tiny(model, f"with_{library}", updates=2, max_turns=4)
    log = MemoryRecorder()
    assert run_agent(config, log=log).version == 2
    group = first_of(config).payload
    assert group.turns.tolist() == [turns] * 3 and group.returns.min() >= 0


def test_held_out_seeds_are_played_by_the_agent_too(model: Path) -> None:
    config = tiny(model, "count", updates=1, evaluate_every=1)
    scores = run_agent(config).scores
    assert len(scores) == 1 and scores[0].metrics["turns"] == 3


def test_a_fork_is_an_episode_with_the_runs_return_whose_shared_part_is_untrained(model: Path) -> None:
    rollout = first_of(tiny(model, "fork"))
    group = rollout.payload
    assert isinstance(group, Episodes) and group.size == 6  # three runs of two branches
    np.testing.assert_allclose(group.returns, 1.5)
    assert group.turns.tolist() == [2, 1] * 3
    for number in range(0, 6, 2):
        root, fork = group.take([number]), group.take([number + 1])
        shared = int(np.argmax(fork.trained))  # untrained until its reply
        drawn = int(root.trained.argmin())
        np.testing.assert_array_equal(fork.tokens[:drawn], root.tokens[:drawn])
        assert not fork.trained[:shared].any() and fork.trained[shared:].all() and shared > drawn
    assert rollout.info[MEASURES]["forks"] == 1


def test_what_the_engine_drew_in_a_fork_is_what_the_learner_reads(model: Path) -> None:
    result = run_agent(tiny(model, "forking", updates=1, num_minibatches=1))
    assert result.metrics["mismatch_max"] < 1e-4 and result.metrics["grad_norm"] > 0


def test_rewards_by_calls_stand_at_their_replies_and_the_returned_one_at_the_last(model: Path) -> None:
    group = first_of(tiny(model, "paid")).payload
    np.testing.assert_allclose(group.rewards.reshape(3, 2), [[0.25, 2.0]] * 3)
    assert group.success.tolist() == [1.0] * 3 and group.part_names == ("calls",)


def test_runs_that_begin_differently_share_what_they_have_in_common(model: Path) -> None:
    group = first_of(tiny(model, "unlike")).payload
    assert len(group.prompt) >= 1 and group.size == 3


def test_an_agent_that_raises_is_tried_again_and_gets_no_reward_for_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        (tmp_path / f"fault{number}").touch()
    monkeypatch.setenv("FAULTS", str(tmp_path))
    rollout = first_of(tiny(model, "shaky"))
    assert rollout.payload.returns.tolist() == [1.0] * 3
    assert rollout.info[MEASURES]["environments_lost"] == 2


def test_an_agent_that_keeps_raising_fails_its_group(model: Path) -> None:
    with pytest.raises(GroupFailed, match="ConnectionError: the shop is closed for good"):
        first_of(tiny(model, "broken", env_attempts=2))


@pytest.mark.parametrize(("changes", "end"), [({"max_turns": 3}, "turns"), ({"max_episode_tokens": 30}, "tokens")])
def test_what_the_model_has_used_up_ends_a_run_with_its_rewards_so_far(
    model: Path, changes: dict[str, Any], end: str
) -> None:
    group = first_of(tiny(model, "endless", **changes)).payload
    assert group.end == (end,) * 3 and group.returns.tolist() == [0.0] * 3


def test_an_agent_that_hangs_ends_with_what_was_given_by_calls_or_is_lost(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GroupFailed, match="did not return within 1 s"):
        first_of(tiny(model, "hanging", episode_deadline_s=1.0))
    monkeypatch.setenv("PAID", "yes")
    group = first_of(tiny(model, "hanging", episode_deadline_s=patient(1.0))).payload
    assert group.end == ("deadline",) * 3 and group.returns.tolist() == [0.5] * 3


def test_a_run_that_is_not_needed_any_more_is_abandoned_and_its_session_closed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULTS", str(tmp_path))
    rollout = first_of(tiny(model, "loser", redundancy=1, max_lead=1, dispatch="free"))
    assert rollout.payload.size == 3 and rollout.info[MEASURES]["episodes_abandoned"] == 1


@pytest.mark.parametrize(
    ("agent", "line"),
    [
        ("silent", "without one reply of the model"),
        ("worthless", r"what it returned is nan \(float\); allowed: a finite number"),
        ("unpaid", "returned no reward and gave none by a call"),
    ],
)
def test_an_agent_that_must_be_mended_ends_the_run_in_one_line(model: Path, agent: str, line: str) -> None:
    with pytest.raises(CannotGoOn, match=line):
        first_of(tiny(model, agent))


def test_an_agent_and_an_environment_are_refused_together_in_one_line(model: Path) -> None:
    for name, value in (("env", "lights"), ("env", f"{GAMES}:Counting"), ("reply_prefix", "I say")):
        values = tiny_values(model, agent=f"{AGENTS}:short", env="")
        with pytest.raises(ConfigError, match=f"has its own loop: {name}="):
            read_values(AgentConfig, {**values, name: value})
    with pytest.raises(ConfigError, match=r"unknown function of .*'shrt'.*short"):
        tiny(model, "shrt")
    config = tiny(model, "short")
    assert read_values(AgentConfig, config.model_dump(mode="json")) == config  # as a resumed run reads it
