"""PPO on draws from a replay: each move by its own weight, everything recomputed, surprise reported."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headway.core.types import Batch, Rollout, Span
from headway.envs.gymnasium_vector import Discrete, Spec
from headway.ppo.colorlines.replayed import ReplayedPPOLearner
from headway.ppo.learner import PPOLearner, PPOSettings
from headway.ppo.learner_advantages import gae
from headway.ppo.mlp_kernels import advantage_moments
from headway.ppo.networks_network import PPONetwork
from headway.ppo.policy import ActorCritic
from headway.ppo.segments_segment import DrawnSegments, Segment

STATES, ACTIONS, STEPS = 5, 3, 4


class Table(PPONetwork):
    """One row of logits and one value per state: everything can be computed by hand."""

    normalise = False

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(3)
        self.logits = nn.Parameter(torch.randn(STATES, ACTIONS, generator=random))
        self.value = nn.Parameter(torch.randn(STATES, generator=random))

    def values(self, obs: Tensor) -> Tensor:
        return self.value[obs[:, 0].long()]

    def log_probs_and_entropy(self, obs: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        logs = torch.log_softmax(self.logits[obs[:, 0].long()], 1)
        return logs.gather(1, actions[:, None]).squeeze(1), -(logs.exp() * logs).sum(1)

    def evaluate(self, obs: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        return *self.log_probs_and_entropy(obs, actions, mask), self.values(obs)


def draw(num: int = 2, *, weights: Any = None, version: int = 0, stale: float = 0.3, seed: int = 0) -> Rollout:
    """Segments that another policy made: its log-probabilities are off by up to `stale`."""
    random = np.random.default_rng(seed)
    obs = random.integers(STATES, size=(STEPS + 1, num, 1)).astype(np.float32)
    actions = random.integers(ACTIONS, size=(STEPS, num))
    with torch.no_grad():
        flat = torch.from_numpy(obs[:-1].reshape(-1, 1)), torch.from_numpy(actions.reshape(-1))
        here = Table().log_probs_and_entropy(*flat, None)[0].numpy().reshape(STEPS, num)
    terminated, valid = np.zeros((STEPS, num), bool), np.ones((STEPS, num), bool)
    terminated[1, 0], valid[2, 0] = True, False
    segments = DrawnSegments(
        obs=obs,
        actions=actions,
        log_probs=(here + stale * random.normal(size=here.shape)).astype(np.float32),
        rewards=random.normal(size=(STEPS, num)).astype(np.float32),
        terminated=terminated,
        truncated=np.zeros((STEPS, num), bool),
        valid=valid,
        ids=np.arange(num),
        weights=np.ones(num, np.float32) if weights is None else np.asarray(weights, np.float32),
        versions=np.full(num, version),
    )
    return Rollout(segments, steps=int(valid.sum()), span=Span(version, version))


def learner(**more: Any) -> ReplayedPPOLearner:
    return ReplayedPPOLearner(Table, PPOSettings(**{"num_epochs": 1, "minibatch_size": 1000, **more}))


def reference_loss(table: Table, data: DrawnSegments, settings: PPOSettings) -> Tensor:
    """Move by move, in plain Python: mean of w (rho clipped + c_v error^2 - c_e entropy)."""
    with torch.no_grad():
        values = np.array([[float(table.value[int(s[0])]) for s in row] for row in data.obs])
    ends = (data.rewards, values, data.terminated, data.truncated, data.valid)
    advantages, targets = gae(*ends, gamma=settings.gamma, lam=settings.lam)
    moves = [(t, n) for t in range(STEPS) for n in range(data.valid.shape[1]) if data.valid[t, n]]
    scale = np.array([advantages[move] for move in moves])
    terms = []
    for t, n in moves:
        logs = torch.log_softmax(table.logits[int(data.obs[t, n, 0])], 0)
        now = logs[data.actions[t, n]]
        rho = min(float(torch.exp(now.detach() - float(data.log_probs[t, n]))), settings.max_importance)
        ratio = torch.exp(now - now.detach())
        advantage = (advantages[t, n] - scale.mean()) / (scale.std(ddof=1) + 1e-8)
        clipped = torch.clamp(ratio, 1 - settings.clip, 1 + settings.clip)
        surrogate = -rho * torch.minimum(ratio * advantage, clipped * advantage)
        error = (table.value[int(data.obs[t, n, 0])] - float(targets[t, n])) ** 2
        entropy = -(logs.exp() * logs).sum()
        each = surrogate + settings.value_weight * error - settings.entropy_weight * entropy
        terms.append(float(data.weights[n]) * each)
    return torch.stack(terms).mean()


def gradient_of(trained: ReplayedPPOLearner, data: DrawnSegments) -> tuple[Tensor, float]:
    """The gradient of the loss of a whole draw, by parameter after parameter, and the loss."""
    rows, columns, _ = trained._prepare(data)
    every, loss = np.arange(len(columns)), trained._settings.loss(0.0)
    measures = trained._step.gradient_of(rows, columns, every, advantage_moments(columns, every), loss)
    policy_loss, value_loss, *_ = measures
    entropies = trained._network.evaluate(rows.obs, rows.actions, None)[1].detach().numpy()
    bonus = (columns[:, 5] * entropies).mean()
    return (
        torch.from_numpy(trained._step.gradient.copy()),
        policy_loss + loss.value_weight * value_loss - loss.entropy_weight * bonus,
    )


def gradient(weights: list[float]) -> Tensor:
    return gradient_of(learner(), draw(weights=weights).payload)[0]


def test_the_loss_is_what_a_slow_reference_says() -> None:
    settings = PPOSettings(num_epochs=1, minibatch_size=1000, max_importance=1.2)
    trained, data = ReplayedPPOLearner(Table, settings), draw(3, weights=[1.0, 0.25, 0.6]).payload
    ours, loss = gradient_of(trained, data)
    table = Table()
    expected = reference_loss(table, data, settings)
    expected.backward()  # type: ignore[no-untyped-call]
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    theirs = torch.cat([p.grad.reshape(-1) for p in table.parameters() if p.grad is not None])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_importance_weights_act_on_each_sample_and_are_not_averaged() -> None:
    """The loss is linear in each weight. Averaged to a scalar, the two halves would have the same gradient."""
    first, second, both = gradient([1.0, 0.0]), gradient([0.0, 1.0]), gradient([1.0, 1.0])
    torch.testing.assert_close(first + second, both)
    assert not torch.allclose(first, second)
    torch.testing.assert_close(gradient([0.5, 0.25]), 0.5 * first + 0.25 * second)


@pytest.mark.parametrize("correction", ["clip", "vtrace"])
def test_the_sample_size_of_other_corrections_is_that_of_their_ratios(correction: Any) -> None:
    sizes = [
        learner(correction=each, max_importance=1.5).learn(Batch(0, (draw(4),))).effective_sample_size
        for each in ("decoupled", correction)
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-5)


@pytest.mark.parametrize("correction", ["clip", "decoupled", "vtrace"])
def test_with_weights_of_one_it_is_ppo(correction: Any) -> None:
    drawn = draw(4)
    plainly = {field.name: getattr(drawn.payload, field.name) for field in fields(Segment)}
    settings = PPOSettings(num_epochs=3, minibatch_size=1000, correction=correction)
    replayed, plain = ReplayedPPOLearner(Table, settings), PPOLearner(Table, settings)  # type: ignore[arg-type]
    replayed.learn(Batch(0, (drawn,)))
    plain.learn(Batch(0, (Rollout(Segment(**plainly), steps=drawn.steps, span=drawn.span),)))
    for name, values in plain.snapshot().items():
        torch.testing.assert_close(replayed.snapshot()[name], values)


def test_the_effective_sample_size_is_that_of_both_weights_together() -> None:
    trained, data = learner(max_importance=1.5), draw(2, weights=[1.0, 0.2]).payload
    report = trained.learn(Batch(0, (Rollout(data, steps=7),)))
    with torch.no_grad():
        flat = torch.from_numpy(data.obs[:-1].reshape(-1, 1)), torch.from_numpy(data.actions.reshape(-1))
        here = Table().log_probs_and_entropy(*flat, None)[0].numpy().reshape(STEPS, 2)
    product = (np.minimum(np.exp(here - data.log_probs), 1.5) * data.weights)[data.valid]
    assert report.effective_sample_size == pytest.approx(product.sum() ** 2 / (7 * (product**2).sum()), rel=1e-5)
    assert report.samples == 7


def test_priorities_are_the_mean_td_error_of_each_segment_after_the_update() -> None:
    trained, data = learner(learning_rate=0.1, num_epochs=2), draw(3).payload
    report = trained.learn(Batch(0, (Rollout(data),)))
    value = trained.snapshot()["value"].numpy()
    assert np.abs(value - Table().value.detach().numpy()).max() > 0.05
    for segment in range(3):
        errors = []
        for t in range(STEPS):
            if data.valid[t, segment]:
                here, after = (int(data.obs[at, segment, 0]) for at in (t, t + 1))
                future = 0.0 if data.terminated[t, segment] else 0.99 * value[after]
                errors.append(abs(data.rewards[t, segment] + future - value[here]))
        assert report.feedback.priorities[segment] == pytest.approx(np.mean(errors), rel=1e-5)
    np.testing.assert_array_equal(report.feedback.ids, [0, 1, 2])


def test_values_and_advantages_of_a_segment_are_those_of_the_policy_that_is_trained() -> None:
    trained, batch = learner(learning_rate=0.1), Batch(0, (draw(),))
    _, before, _ = trained._prepare(draw().payload)
    trained.learn(batch)
    _, after, _ = trained._prepare(draw().payload)
    anchor, advantages, targets, values, of_staleness, of_replay = range(6)
    for column in (anchor, advantages, targets, values, of_staleness):
        assert not np.allclose(before[:, column], after[:, column])
    np.testing.assert_array_equal(before[:, of_replay], after[:, of_replay])


def test_the_age_of_what_was_drawn_is_reported() -> None:
    metrics = learner().learn(Batch(9, (draw(version=4),))).metrics
    assert (metrics["staleness"], metrics["staleness_max"]) == (5.0, 5.0)


def test_a_restored_learner_goes_on_with_the_same_bits() -> None:
    first, second = (learner(minibatch_size=2, final_learning_rate=0.0, updates=4) for _ in range(2))
    first.learn(Batch(0, (draw(),)))
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        for each in (first, second):
            each.learn(Batch(0, (draw(seed=1),)))
    for name, values in first.snapshot().items():
        assert torch.equal(values, second.snapshot()[name])


def test_the_passes_end_early_when_the_policy_has_moved_far_enough() -> None:
    one, many = learner(), learner(num_epochs=50, target_kl=1e-9, learning_rate=0.05)
    one.learn(Batch(0, (draw(),)))
    many.learn(Batch(0, (draw(),)))
    assert many.state_dict()["optimizer"]["steps"] == 2 > one.state_dict()["optimizer"]["steps"]


def test_the_step_size_decays_over_the_run() -> None:
    trained = learner(final_learning_rate=0.0, updates=2)
    moved = []
    for _ in range(3):
        before = trained.snapshot()["value"]
        trained.learn(Batch(0, (draw(),)))
        moved.append(float((trained.snapshot()["value"] - before).abs().max()))
    assert moved[0] > moved[1] > moved[2] == 0.0


def test_clipping_the_value_is_part_of_the_weighted_loss() -> None:
    free, tight = learner(learning_rate=0.5, num_epochs=4), learner(learning_rate=0.5, num_epochs=4, value_clip=1e-3)
    for each in (free, tight):
        each.learn(Batch(0, (draw(),)))
    assert not torch.equal(free.snapshot()["value"], tight.snapshot()["value"])


def normalising() -> ActorCritic:
    return ActorCritic(Spec((3,), Discrete(4)), (8,), normalise=True)


def test_what_cannot_learn_from_a_replay_is_refused() -> None:
    with pytest.raises(ValueError, match="correction='none' trains on replayed data as if they were fresh"):
        learner(correction="none")
    with pytest.raises(ValueError, match="normalises its observations cannot learn from a replay"):
        ReplayedPPOLearner(normalising, PPOSettings())
