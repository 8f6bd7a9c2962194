"""Runs of agents: the bits of a plain script, races, faults of environments, weights within episodes, both postures."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import patient, wait_until

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from agent_runs import GAMES, run_agent, tiny_agent  # noqa: E402
from log_totals import audit  # noqa: E402

from headway.agents.collector_agent_episodes import EpisodeCollector  # noqa: E402
from headway.agents.episodes_episode_player import PausableClock  # noqa: E402
from headway.agents.loading import load_env  # noqa: E402
from headway.agents.recipe import AgentConfig, stations  # noqa: E402
from headway.coordinator.coordinator import Coordinator  # noqa: E402
from headway.coordinator.role_calls import RunFailed  # noqa: E402
from headway.core.types import Batch, Rollout, Snapshot, Ticket, derive_seed  # noqa: E402
from headway.llm.build_language_model import build_engine  # noqa: E402
from headway.llm.engine.protocol_engine import Sampling  # noqa: E402
from headway.llm.model.conversation import Conversation  # noqa: E402
from headway.llm.model.loading_models import load_tokenizer  # noqa: E402
from headway.llm.rollouts_episode import EpisodeBuilder, Episodes  # noqa: E402
from headway.runs.event_log import MemoryRecorder  # noqa: E402
from headway.runs.fingerprint import fingerprint  # noqa: E402
from headway.runtimes.build import build_runtime  # noqa: E402
from headway.runtimes.loop_threads_daemon_thread import in_daemon_thread  # noqa: E402
from headway.testing.auditor import audit as audit_log  # noqa: E402
from headway.testing.tiny_models import save_tiny_model  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("agent") / "model")


def plain_script(config: AgentConfig) -> Any:
    """Play, train, play: one episode after the other, without a coordinator, a collector or a thread."""
    sampling = Sampling(config.temperature, max_tokens=config.max_turn_tokens)
    engine, learner = build_engine(config, sampling), stations(config).learner()
    conversation = Conversation(load_tokenizer(config.model))
    weights, index = learner.snapshot(), 0
    for version in range(config.updates or 0):
        engine.apply(version, {name: tensor.clone() for name, tensor in weights.items()})
        rollouts = []
        for _ in range(config.tickets_per_batch):
            seed = derive_seed(config.seed, "ticket", index)
            episodes = []
            for number in range(config.group_size):
                env = load_env(config.env, config.env_options)()
                text = env.reset(derive_seed(seed, "game"))
                prompt = conversation.first(text)
                (session,) = engine.open(f"{index} {number}", prompt)
                record, said, is_over = EpisodeBuilder(prompt), tuple[int, ...](), False
                while not is_over:
                    turn_seed = derive_seed(seed, "episode", number, "turn", record.num_turns)
                    state = env.state_key()  # type: ignore[attr-defined]
                    reply = session.reply(sampling, seed=turn_seed)
                    if said:
                        record.add_observation(said, reply.read_by)
                    step = env.step(reply.text)
                    record.add_reply(reply.tokens, reply.log_probs, reply.versions, step.reward, state)
                    is_over = step.done
                    if not is_over:
                        said = conversation.following(step.text, ended=False)
                        session.say(said)
                session.close()
                episodes.append(record.finish("done", parts=step.info))
            group = Episodes.join(episodes)
            rollouts.append(Rollout(group, span=group.span, ticket=index))
            index += 1
        learner.learn(Batch(version, tuple(rollouts)))
        weights = learner.snapshot()
    engine.close()
    return weights


class Kept(EpisodeCollector):
    """Remembers what it collected. For runs in one process."""

    rollouts: list[Rollout]

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        rollout = super().collect(ticket, snapshot)
        type(self).rollouts.append(rollout)
        return rollout


def run_and_keep(config: AgentConfig, log: MemoryRecorder | None = None) -> list[Rollout]:
    class Here(Kept):
        rollouts: list[Rollout] = []  # noqa: RUF012 - of this run

    place = build_runtime("threads")
    place.run(Coordinator(stations(config, collector=Here), config.settings(), place, recorder=log).run())
    return Here.rollouts


def groups(rollouts: Sequence[Rollout]) -> list[Episodes]:
    return [rollout.payload for rollout in rollouts]


# -- the same bits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["inline", "threads", "processes"])
def test_without_a_lead_a_run_is_the_plain_script_bit_for_bit(model: Path, runtime: str) -> None:
    config = tiny_agent(model, num_minibatches=2)
    assert fingerprint(run_agent(config, runtime).weights) == fingerprint(plain_script(config))


@pytest.mark.parametrize("stepping", ["threads(2)", "processes(1)"])
def test_where_environments_step_changes_no_bit(model: Path, stepping: str) -> None:
    config = tiny_agent(model, updates=2)
    elsewhere = tiny_agent(model, updates=2, env_stepping=stepping)
    assert fingerprint(run_agent(elsewhere).weights) == fingerprint(run_agent(config).weights)


@pytest.mark.parametrize("lead", [1, 2])
def test_pinned_runs_with_a_lead_repeat(model: Path, lead: int) -> None:
    config = tiny_agent(
        model, max_lead=lead, updates=4, env_options={"uneven_s": 0.004}, env_stepping="threads(4)", collectors=2
    )
    first, second = run_agent(config), run_agent(config, "inline")
    assert fingerprint(first.weights) == fingerprint(second.weights)
    assert max(first.ledger.staleness) == lead


def test_a_ticket_that_is_collected_again_asks_the_same(model: Path) -> None:
    collector: Any = stations(tiny_agent(model)).collector(0)
    try:
        rollouts = [collector.collect(Ticket(7, 99, 0, 0, attempt), Snapshot(0, None)) for attempt in range(2)]
    finally:
        collector.close()
    assert fingerprint(rollouts[0].payload.tokens) == fingerprint(rollouts[1].payload.tokens)


@pytest.mark.parametrize(("ratio", "slots"), [(0.5, 6), (0.25, 5), (1.0, 8)])
def test_a_fractional_ratio_bounds_the_live_groups_exactly(model: Path, ratio: float, slots: int) -> None:
    """Live groups are at most floor((1 + ratio) T), and that many there are."""
    log = MemoryRecorder()
    config = tiny_agent(
        model,
        rollout_batch_size=12,
        tickets_per_batch=4,
        async_generation_ratio=ratio,
        max_lead=ratio,
        updates=4,
        lanes=8,
    )
    assert config.tickets_per_batch == 4
    run_agent(config, log=log)
    assert audit(log.events).max_live == slots


# -- races ------------------------------------------------------------------------------------------


def test_the_first_to_end_win_and_the_ledger_closes(model: Path) -> None:
    config = tiny_agent(
        model,
        group_size=2,
        redundancy=2,
        max_lead=1,
        dispatch="free",
        env_options={"uneven_s": 0.03},
        env_stepping="threads(16)",
        tickets_per_batch=1,
        updates=4,
    )
    log = MemoryRecorder()
    rollouts = run_and_keep(config, log)
    assert all(group.size == 2 for group in groups(rollouts))
    measures = [rollout.info["measures"] for rollout in rollouts]
    assert all(one["episodes_abandoned"] == 2 for one in measures)
    assert all("redundancy_bias_turns" in one for one in measures)
    assert not audit_log(log.events)


def test_the_threads_of_episodes_end_with_their_collector(model: Path) -> None:
    before = set(threading.enumerate())
    collector: Any = stations(tiny_agent(model, redundancy=2, max_lead=1, dispatch="free")).collector(0)
    collector.collect(Ticket(0, 5), Snapshot(0, None))
    wait_until(lambda: not collector.health()["env_games"], what="abandoned games to close")
    collector.close()
    wait_until(lambda: set(threading.enumerate()) <= before, what="the threads to end")


# -- environments that are lost ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "stepping"),
    [
        ("raise", "here"),
        ("raise", "processes(1)"),
        ("hang", "threads(3)"),
        ("hang", "processes(1)"),
        ("kill", "processes(1)"),
    ],
)
def test_what_happens_to_an_environment_is_replayed_and_changes_no_bit(
    model: Path, tmp_path: Path, fault: str, stepping: str
) -> None:
    undisturbed = tiny_agent(model, updates=2)
    disturbed = tiny_agent(
        model,
        updates=2,
        env_stepping=stepping,
        step_deadline_s=None if stepping == "here" else patient(0.3),
        env_options={"fault": fault, "folder": str(tmp_path)},
    )
    log = MemoryRecorder()
    result = run_agent(disturbed, log=log)
    assert (tmp_path / "hit0").exists()
    assert fingerprint(result.weights) == fingerprint(run_agent(undisturbed).weights)
    assert result.restarts == 0
    assert not [event for event in log.events if event["e"] in ("reissue", "drop")]


def test_a_game_that_cannot_be_brought_back_begins_anew(model: Path, tmp_path: Path) -> None:
    config = tiny_agent(model, updates=1, env_options={"fault": "differ", "folder": str(tmp_path)})
    rollouts = run_and_keep(config)
    assert sum(rollout.info["measures"]["episodes_anew"] for rollout in rollouts) == 1
    assert all((group.turns == 3).all() for group in groups(rollouts))


def test_an_episode_without_an_environment_is_left_out_and_never_rewarded(model: Path, tmp_path: Path) -> None:
    config = tiny_agent(
        model,
        updates=1,
        max_lead=1,
        dispatch="free",
        min_group=2,
        env_attempts=1,
        lanes=2,
        env_options={"fault": "raise", "folder": str(tmp_path)},
    )
    rollouts = run_and_keep(config)
    assert sorted(group.size for group in groups(rollouts))[0] == 2
    assert sum(rollout.info["measures"]["episodes_failed"] for rollout in rollouts) == 1
    assert all((group.turns == 3).all() and (group.rewards > 0).all() for group in groups(rollouts))


def test_a_group_that_lost_too_much_fails_and_loses_no_slot(model: Path, tmp_path: Path) -> None:
    options = {"fault": "raise", "folder": str(tmp_path)}
    config = tiny_agent(model, env_attempts=1, env_options=options, attempts_on_error=2)
    log = MemoryRecorder()
    result = run_agent(config, log=log)
    (failed,) = (event for event in log.events if event["e"] == "reissue")
    assert "episodes lost their environment 1 times" in failed["why"]
    assert "the server is gone" in failed["why"]
    assert result.ledger.learned == 6
    with pytest.raises(RunFailed, match="the server is gone"):
        run_agent(tiny_agent(model, env_attempts=1, env_options={**options, "times": 9}))


@pytest.mark.parametrize(
    ("game", "line"),
    [
        ("Wordless", "step returned an empty text"),
        ("Priceless", "the reward of a step is nan"),
        ("Moody", "one seed began two games: 'game "),
    ],
)
def test_an_environment_that_must_be_mended_ends_the_run_in_one_line(model: Path, game: str, line: str) -> None:
    config = tiny_agent(model, env=f"{GAMES}:{game}", attempts_on_error=3)
    with pytest.raises(RunFailed, match="cannot go on") as caught:
        run_agent(config)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_step_that_hangs_is_named_when_the_collector_is_late(model: Path, tmp_path: Path) -> None:
    limit_s = patient(2)
    config = tiny_agent(
        model,
        env_stepping="threads(4)",
        env_options={"fault": "hang", "times": 99, "folder": str(tmp_path)},
        step_deadline_s=0.99 * limit_s,
        reset_deadline_s=0.99 * limit_s,
        collect_deadline_s=limit_s,
        env_attempts=99,
        attempts_on_loss=1,
    )
    with pytest.raises(RunFailed, match=r"no answer within [\d.]+ s \(game \d+.*: step 2 since"):
        run_agent(config)


# -- weights that change within an episode ----------------------------------------------------------


def test_weights_that_change_within_an_episode_are_stamped_token_by_token(model: Path) -> None:
    config = tiny_agent(
        model,
        max_lead=2,
        on_publish="partial",
        updates=8,
        tickets_per_batch=1,
        env_options={"turns": 5, "uneven_s": 0.02},
        env_stepping="threads(16)",
    )
    rollouts = run_and_keep(config)
    mixed = [group for group in groups(rollouts) if group.span.oldest < group.span.newest]
    assert mixed
    for rollout in rollouts:
        group: Episodes = rollout.payload
        assert rollout.span == group.span
        for versions in np.split(group.versions, np.cumsum(group.lengths)[:-1]):
            assert (np.diff(versions) >= 0).all(), "weights only become newer"


# -- validation -------------------------------------------------------------------------------------


def test_a_paused_collector_stands_still_and_goes_on_as_if_nothing_had_been(model: Path) -> None:
    collector: Any = stations(tiny_agent(model, episode_deadline_s=500)).collector(0)
    try:
        undisturbed = collector.collect(Ticket(7, 99), Snapshot(0, None))
        collector.pause()
        collector.pause()
        tokens = collector.health()["tokens"]
        collecting = in_daemon_thread(lambda: collector.collect(Ticket(7, 99), Snapshot(0, None)), "collects")
        wait_until(lambda: collector.health()["waiting"], what="episodes that wait for the engine")
        assert collector.health()["tokens"] == tokens
        collector.resume()
        rollout = collecting.result(patient(60))
    finally:
        collector.close()
    assert fingerprint(rollout.payload.tokens) == fingerprint(undisturbed.payload.tokens)
    assert set(rollout.payload.end) == {"done"}


def test_a_stopped_clock_stands_still() -> None:
    clock = PausableClock()
    clock.stop()
    began = clock.now()
    clock.stop()
    assert clock.now() == began
    clock.go_on()
    clock.go_on()
    assert began <= clock.now() < began + patient(10)


@pytest.mark.parametrize(
    ("posture", "runtime"),
    [
        *((one, where) for one in ("landed", "parked", "background") for where in ("inline", "threads")),
        ("parked", "processes"),
    ],
)
def test_every_posture_of_validation_finds_the_same_scores(model: Path, posture: str, runtime: str) -> None:
    how = {"evaluate_in_background": True} if posture == "background" else {"evaluation_waits_for": posture}
    config = tiny_agent(
        model, max_lead=1, updates=2, evaluate_every=1, env_options={"uneven_s": 0.01}, env_stepping="threads(8)", **how
    )
    result = run_agent(config, runtime)
    assert [score.version for score in result.scores] == [1, 2]
    assert [score.value for score in result.scores] == SCORES.setdefault("", [score.value for score in result.scores])
    assert {"success", "turns", "tokens", "end_done", "letters"} <= set(result.scores[0].metrics)


SCORES: dict[str, list[Any]] = {}
