"""PPO with a memory, against a reference that goes step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from recall_games import Recall
from torch import Tensor

from headway.core.types import Batch, Rollout, Snapshot, Span, Ticket
from headway.envs.gymnasium_vector import Continuous, Discrete, Spec
from headway.ppo.learner import PPOSettings
from headway.ppo.mlp_kernels import advantage_moments
from headway.ppo.networks_memory_cells import CELLS
from headway.ppo.recurrent import RecurrentPPOLearner, SequenceStep
from headway.ppo.recurrent_policy import RecurrentActor, RecurrentActorCritic
from headway.ppo.segments import segment_collector
from headway.ppo.segments_segment import Segment, side_by_side

torch.set_num_threads(1)  # two tests on two cores would only wait for each other

SPECS = {"discrete": Spec((3,), Discrete(2)), "continuous": Spec((3,), Continuous((-1.0,), (1.0,)))}
MEMORIES = ["gru", "lstm"]


def network(memory: str, kind: str = "discrete", **more: Any) -> RecurrentActorCritic:
    return RecurrentActorCritic(SPECS[kind], (6,), memory=memory, memory_size=5, seed=3, **more)


def segment(net: RecurrentActorCritic, seed: int = 0, steps: int = 9, width: int = 4) -> Segment:
    """Acted by the network itself, with episodes that end here and there, from a state that is not zero."""
    rng = np.random.default_rng(seed)
    actor = RecurrentActor(net)
    obs = rng.normal(size=(steps + 1, width, 3)).astype(np.float32)
    ended = rng.random((steps, width)) < 0.2
    ended[1:] &= ~ended[:-1]  # a step that resets ends nothing
    valid = np.concatenate([np.ones((1, width), bool), ~ended[:-1]])
    is_cut = rng.random((steps, width)) < 0.5
    noise = actor.noise(seed, steps, width)
    state = first = rng.normal(size=(width, net.state_size)).astype(np.float32)
    actions, log_probs = [], []
    for t in range(steps):
        action, log_prob, state = actor.act_from(state, obs[t], noise[t], None)
        state = np.where(valid[t][:, None], state, np.float32(0))
        actions.append(action)
        log_probs.append(log_prob)
    return Segment(
        obs=obs,
        actions=np.stack(actions),
        log_probs=np.stack(log_probs),
        rewards=rng.normal(size=(steps, width)).astype(np.float32),
        terminated=ended & ~is_cut,
        truncated=ended & is_cut,
        valid=valid,
        state=first[None],
    )


def batch_of(*segments: Segment, version: int = 0) -> Batch:
    return Batch(version, tuple(Rollout(one, span=Span(0, 0)) for one in segments))


# -- a reference in double precision, one environment and one step at a time -----------------------------


def slow_cell(net: RecurrentActorCritic, memory: str, x: Tensor, state: Tensor) -> Tensor:
    """The next state of torch's own cell with the same weights."""
    size = net.memory.size
    kind: Any = torch.nn.GRUCell if memory == "gru" else torch.nn.LSTMCell
    cell = kind(x.shape[-1], size, dtype=torch.float64)
    weights = {
        "weight_ih": net.memory.project.weight,
        "weight_hh": net.memory.recall.weight,
        "bias_ih": net.memory.project.bias,
        "bias_hh": torch.zeros_like(net.memory.project.bias),
    }

    def call(given: Any) -> Any:
        return torch.func.functional_call(cell, weights, (x[None], given))

    if memory == "gru":
        return call(state[None])[0]
    units, cells = call((state[None, :size], state[None, size:]))
    return torch.cat([units[0], cells[0]])


def slow_pass(net: RecurrentActorCritic, memory: str, data: Segment, index: int) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and values of one environment, for all T + 1 observations."""
    assert data.state is not None
    state, outputs, values = torch.from_numpy(data.state[0, index]).double(), [], []
    for t in range(len(data.obs)):
        if t > 0 and not data.valid[t - 1, index]:
            state = torch.zeros_like(state)
        x = torch.tanh(net.layers[1](torch.from_numpy(data.obs[t, index]).double()))
        state = slow_cell(net, memory, x, state)
        shown = state[: net.memory.size]
        outputs.append(net.head(shown))
        values.append(net.value_head(shown)[0])
    return outputs, values


def slow_loss(net: RecurrentActorCritic, memory: str, data: Segment, settings: PPOSettings) -> Tensor:
    """The loss of the first minibatch, which holds everything, on fresh data."""
    steps, width = data.valid.shape
    passes = [slow_pass(net, memory, data, index) for index in range(width)]
    advantages = np.zeros((steps, width))
    targets = np.zeros((steps, width))
    for i, (_, values) in enumerate(passes):
        following = 0.0
        for t in reversed(range(steps)):
            if not data.valid[t, i]:
                following = 0.0
                continue
            after = 0.0 if data.terminated[t, i] else values[t + 1].item()
            is_over = data.terminated[t, i] or data.truncated[t, i]
            delta = float(data.rewards[t, i]) + settings.gamma * after - values[t].item()
            following = delta + (0.0 if is_over else settings.gamma * settings.lam * following)
            advantages[t, i], targets[t, i] = following, following + values[t].item()
    rows = [(t, i) for t in range(steps) for i in range(width) if data.valid[t, i]]
    chosen = np.array([advantages[t, i] for t, i in rows])
    scale = chosen.std(ddof=1) + 1e-8
    policy = value = entropy = torch.zeros((), dtype=torch.float64)
    for t, i in rows:
        outputs, values = passes[i]
        law: Any
        if isinstance(net.action, Discrete):
            law = torch.distributions.Categorical(logits=outputs[t])
            log_prob, spread = law.log_prob(torch.tensor(int(data.actions[t, i]))), law.entropy()
        else:
            assert net.log_std is not None
            law = torch.distributions.Normal(outputs[t], net.log_std.exp())
            log_prob, spread = law.log_prob(torch.from_numpy(data.actions[t, i]).double()).sum(), law.entropy().sum()
        ratio = (log_prob - log_prob.detach()).exp()
        policy = policy - ratio * (advantages[t, i] - chosen.mean()) / scale
        value = value + (values[t] - targets[t, i]) ** 2
        entropy = entropy + spread
    return (policy + settings.value_weight * value - settings.entropy_weight * entropy) / len(rows)


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("memory", MEMORIES)
def test_the_gradient_of_sequences_is_that_of_a_reference_that_goes_step_by_step(memory: str, kind: str) -> None:
    net = network(memory, kind)
    data = segment(net)
    assert (~data.valid).sum() > 2 and data.truncated.any() and data.terminated.any()
    settings = PPOSettings(num_epochs=1, minibatch_size=10_000, entropy_weight=0.03)
    learner = RecurrentPPOLearner(lambda: net, settings)
    rows, columns, _ = learner._prepare(data)
    part = np.arange(data.valid.shape[1])
    moments = advantage_moments(columns, rows.rows_in(part))
    learner._step.gradient_of(rows, columns, part, moments, settings.loss(0.0))

    exact = network(memory, kind).double()
    slow_loss(exact, memory, data, settings).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in exact.parameters() if p.grad is not None])
    assert expected.abs().max() > 1e-2
    np.testing.assert_allclose(learner._step.gradient, expected.numpy(), atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("memory", MEMORIES)
def test_on_fresh_data_the_learner_computes_what_the_policy_did(memory: str) -> None:
    net = network(memory)
    learner = RecurrentPPOLearner(lambda: net, PPOSettings(num_epochs=1))
    _, columns, metrics = learner._prepare(segment(net))
    assert metrics["ess"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["behaviour_kl"] == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_allclose(columns[:, 4], 1.0, atol=1e-5)


def test_stale_sequences_are_computed_again_from_the_stored_state() -> None:
    """By the policy as it is now, from what that one remembered: the newer actor, step by step, says the same."""
    old, new = network("gru"), RecurrentActorCritic(SPECS["discrete"], (6,), memory="gru", memory_size=5, seed=9)
    data = segment(old)
    learner = RecurrentPPOLearner(lambda: new, PPOSettings(correction="decoupled"))
    _, columns, metrics = learner._prepare(data)
    assert data.state is not None
    state, expected = torch.from_numpy(data.state[0]), np.zeros(data.valid.shape)
    for t in range(len(data.actions)):
        with torch.no_grad():
            outputs, state = new.step(torch.from_numpy(data.obs[t]), state)
        logs = torch.log_softmax(outputs, -1).numpy()
        expected[t] = logs[np.arange(len(logs)), data.actions[t]]
        state = state * torch.from_numpy(data.valid[t])[:, None]
    np.testing.assert_allclose(columns[:, 0], expected[data.valid], atol=1e-5)
    assert metrics["ess"] < 1


def test_nothing_before_the_beginning_of_an_episode_changes_what_comes_after_it() -> None:
    net = network("lstm")
    data = segment(net)
    step = SequenceStep(net)
    start, index = np.argwhere(~data.valid)[0]
    other = data.obs.copy()
    other[: start + 1, index] += 5.0
    assert data.state is not None
    changed = replace(data, obs=other, state=data.state + 7.0)
    every = slice(0, data.valid.shape[1])
    before, after = (step.look(step.sequences(one), every)[index, : len(data.obs)] for one in (data, changed))
    np.testing.assert_array_equal(before[start + 1 :], after[start + 1 :])
    assert (before[: start + 1] != after[: start + 1]).all()


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_collector_carries_the_state_over_segments_and_begins_episodes_with_none(memory: str) -> None:
    net = network(memory)

    def copies() -> SyncVectorEnv:
        return SyncVectorEnv([lambda: Recall(uneven=True)] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)

    collector = segment_collector(copies, lambda _: RecurrentActor(net), steps=4, seed=5)
    snapshot = Snapshot(0, {name: tensor.clone() for name, tensor in net.state_dict().items()})
    parts = [collector.collect(Ticket(k, k, 0), snapshot).payload for k in range(6)]
    state = np.zeros((3, net.state_size), np.float32)
    begun = 0
    for part in parts:
        np.testing.assert_allclose(part.state[0], state, atol=1e-6)
        for t in range(4):
            with torch.no_grad():
                _, after = net.step(torch.from_numpy(part.obs[t]), torch.from_numpy(state))
            state = np.where(part.valid[t][:, None], after.numpy(), 0)
            begun += int((~part.valid[t]).sum())
    assert begun > 3


def test_segments_side_by_side_keep_their_states() -> None:
    net = network("gru")
    first, second = segment(net, 1), segment(net, 2, width=3)
    both = side_by_side([first, second])
    assert both.state is not None and first.state is not None and second.state is not None
    np.testing.assert_array_equal(both.state, np.concatenate([first.state, second.state], axis=1))
    learner = RecurrentPPOLearner(lambda: net, PPOSettings(minibatch_size=18))
    report = learner.learn(batch_of(first, second))
    assert all(np.isfinite(value) for value in report.metrics.values())


def test_a_minibatch_is_made_of_whole_sequences() -> None:
    net = network("gru")
    data = segment(net, steps=9, width=5)
    learner = RecurrentPPOLearner(lambda: net, PPOSettings(minibatch_size=18))
    rows, columns, _ = learner._prepare(data)
    order, size = learner._minibatches(rows, columns)
    assert (sorted(order), size) == ([0, 1, 2, 3, 4], 2)
    np.testing.assert_array_equal(
        np.sort(np.concatenate([rows.rows_in(order[i : i + 2]) for i in (0, 2, 4)])), np.arange(len(columns))
    )
    lonely = RecurrentPPOLearner(lambda: network("gru"), PPOSettings(minibatch_size=1))
    assert lonely._minibatches(rows, columns)[1] == 1


def test_a_sequence_without_experience_is_left_out() -> None:
    net = network("gru")
    data = segment(net, steps=1, width=3)
    data = replace(data, valid=np.array([[True, False, True]]), terminated=np.zeros((1, 3), bool))
    report = RecurrentPPOLearner(lambda: net, PPOSettings(minibatch_size=1)).learn(batch_of(data))
    assert all(np.isfinite(value) for value in report.metrics.values())
    assert report.samples == 2


def test_a_segment_without_a_state_is_refused() -> None:
    net = network("gru")
    with pytest.raises(ValueError, match="learns from segments with a state, received one without"):
        RecurrentPPOLearner(lambda: net, PPOSettings()).learn(batch_of(replace(segment(net), state=None)))


def test_an_unknown_memory_is_answered_with_what_there_is() -> None:
    with pytest.raises(ValueError, match="gru") as caught:
        network("grru")
    assert all(name in str(caught.value) for name in CELLS)
