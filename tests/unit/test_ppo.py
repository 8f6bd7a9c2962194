"""The PPO update and its policy, against numbers computed another way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from headway.coordinator.roles import LearnerRole
from headway.core.types import Batch, Rollout, Span
from headway.envs.gymnasium_vector import Continuous, Discrete, MultiDiscrete, Spec
from headway.ppo.learner import PPOLearner, PPOSettings
from headway.ppo.policy import Actor, ActorCritic
from headway.ppo.segments_segment import Segment
from headway.runs.fingerprint import fingerprint

torch.set_num_threads(1)  # two tests on two cores would only wait for each other

SPECS = {
    "discrete": Spec((3,), Discrete(4)),
    "multi": Spec((3,), MultiDiscrete((2, 3))),
    "continuous": Spec((3,), Continuous((-1.0, -2.0), (1.0, 2.0))),
}


def network(kind: str, **more: Any) -> ActorCritic:
    return ActorCritic(SPECS[kind], (8, 8), seed=3, **more)


def segment(net: ActorCritic, seed: int = 0, steps: int = 6, width: int = 5, *, mask: bool = False) -> dict[str, Any]:
    """A segment drawn with the network itself."""
    rng = np.random.default_rng(seed)
    actor = Actor(net)
    obs = rng.normal(size=(steps + 1, width, 3)).astype(np.float32)
    noise = actor.noise(seed, steps, width)
    legal = np.array([True, True, False, True]) if mask else None
    pairs = [actor.act(obs[t], noise[t], None if legal is None else np.tile(legal, (width, 1))) for t in range(steps)]
    data = {
        "obs": obs,
        "actions": np.stack([pair[0] for pair in pairs]),
        "log_probs": np.stack([pair[1] for pair in pairs]),
        "rewards": rng.normal(size=(steps, width)).astype(np.float32),
        "terminated": rng.random((steps, width)) < 0.1,
        "truncated": np.zeros((steps, width), bool),
        "valid": rng.random((steps, width)) < 0.9,
    }
    if legal is not None:
        data["masks"] = np.tile(legal, (steps, width, 1))
    return data


def batch_of(data: dict[str, Any], version: int = 0) -> Batch:
    return Batch(version, (Rollout(Segment(**data), span=Span(0, 0), info={"episodes": [(7.0, 7)]}),))


@pytest.mark.parametrize("kind", SPECS)
def test_acting_and_learning_agree_on_log_probabilities(kind: str) -> None:
    net = network(kind)
    data = segment(net)
    rows = {
        name: torch.from_numpy(value.reshape(-1, *value.shape[2:])) for name, value in data.items() if name != "obs"
    }
    obs = torch.from_numpy(data["obs"][:-1].reshape(-1, 3))
    log_probs, entropy = net.log_probs_and_entropy(obs, rows["actions"], None)
    np.testing.assert_allclose(log_probs.detach().numpy(), rows["log_probs"].numpy(), atol=1e-5)
    outputs = net.outputs(obs)
    if kind == "continuous":
        law: Any = torch.distributions.Independent(torch.distributions.Normal(outputs, net.log_std.exp()), 1)
        expected, spread = law.log_prob(rows["actions"]), law.entropy()
    else:
        parts = [outputs] if kind == "discrete" else outputs.split([2, 3], -1)
        laws = [torch.distributions.Categorical(logits=part) for part in parts]
        chosen = [rows["actions"]] if kind == "discrete" else list(rows["actions"].unbind(-1))
        expected = sum(one.log_prob(action) for one, action in zip(laws, chosen, strict=True))
        spread = sum(one.entropy() for one in laws)
    torch.testing.assert_close(log_probs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, spread, atol=1e-5, rtol=1e-5)


def test_sampling_by_noise_follows_the_policy() -> None:
    net = network("discrete")
    with torch.no_grad():
        net.head.bias.copy_(torch.tensor([0.0, 1.0, -1.0, 0.5]))
    actor, obs = Actor(net), np.zeros((20_000, 3), np.float32)
    actions, _ = actor.act(obs, actor.noise(5, 1, 20_000)[0], None)
    expected = torch.softmax(net.outputs(torch.zeros(1, 3)), -1)[0].detach().numpy()
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / 20_000, expected, atol=0.015)
    assert set(actor.best(obs[:3], None).tolist()) == {int(expected.argmax())}


def test_masked_actions_are_never_taken_and_have_no_gradient_trouble() -> None:
    net = network("discrete")
    data = segment(net, mask=True, steps=50)
    assert 2 not in data["actions"]
    learner = PPOLearner(lambda: net, PPOSettings(num_epochs=2, minibatch_size=64))
    report = learner.learn(batch_of(data))
    assert all(np.isfinite(value) for value in report.metrics.values())
    assert report.metrics["ess"] == pytest.approx(1.0, abs=1e-4)


def surrogate(
    net: ActorCritic, data: dict[str, Any], settings: PPOSettings, anchor: np.ndarray, weight: np.ndarray
) -> float:
    """The clipped objective by loops over steps, with the learner's own advantages recomputed by hand."""
    steps, width = data["rewards"].shape
    with torch.no_grad():
        values = net.values(torch.from_numpy(data["obs"]).reshape(-1, 3)).numpy().reshape(steps + 1, width)
        log_probs, _ = net.log_probs_and_entropy(
            torch.from_numpy(data["obs"][:-1].reshape(-1, 3)), torch.from_numpy(data["actions"].reshape(-1)), None
        )
    now = log_probs.numpy().reshape(steps, width)
    advantages = np.zeros((steps, width))
    for i in range(width):
        following = 0.0
        for t in reversed(range(steps)):
            if not data["valid"][t, i]:
                following = 0.0
                continue
            after = 0.0 if data["terminated"][t, i] else values[t + 1, i]
            delta = data["rewards"][t, i] + settings.gamma * after - values[t, i]
            following = delta + (0.0 if data["terminated"][t, i] else settings.gamma * settings.lam * following)
            advantages[t, i] = following
    kept = [(t, i) for t in range(steps) for i in range(width) if data["valid"][t, i]]
    flat = np.array([advantages[key] for key in kept])
    scaled = (flat - flat.mean()) / (flat.std(ddof=1) + 1e-8)
    total = 0.0
    for value, key in zip(scaled, kept, strict=True):
        ratio = np.exp(now[key] - anchor[key])
        total += weight[key] * min(ratio * value, np.clip(ratio, 1 - settings.clip, 1 + settings.clip) * value)
    return -total / len(kept)


@pytest.mark.parametrize("correction", ["clip", "decoupled"])
def test_the_policy_loss_is_the_clipped_objective(correction: str) -> None:
    net = network("discrete")
    data = segment(net, steps=12)
    data["log_probs"] = data["log_probs"] + np.random.default_rng(1).normal(0, 0.4, data["log_probs"].shape).astype(
        np.float32
    )
    settings = PPOSettings(num_epochs=1, minibatch_size=1000, correction=correction, max_importance=1.5)  # type: ignore[arg-type]
    with torch.no_grad():
        obs = torch.from_numpy(data["obs"][:-1].reshape(-1, 3))
        proximal, _ = net.log_probs_and_entropy(obs, torch.from_numpy(data["actions"].reshape(-1)), None)
    proximal_array = proximal.numpy().reshape(data["log_probs"].shape)
    if correction == "clip":
        anchor, weight = data["log_probs"], np.ones_like(data["log_probs"])
    else:
        anchor, weight = proximal_array, np.minimum(np.exp(proximal_array - data["log_probs"]), 1.5)
    expected = surrogate(net, data, settings, anchor, weight)
    report = PPOLearner(lambda: net, settings).learn(batch_of(data))
    assert report.metrics["policy_loss"] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    ratios = np.exp(proximal_array - data["log_probs"])[data["valid"]]
    assert report.metrics["ess"] == pytest.approx(ratios.sum() ** 2 / (ratios.size * (ratios**2).sum()), rel=1e-4)


def test_on_fresh_data_clip_decoupled_and_vtrace_are_the_same_update() -> None:
    prints = set()
    for correction in ("clip", "decoupled", "vtrace"):
        net = network("discrete")
        learner = PPOLearner(lambda net=net: net, PPOSettings(correction=correction, minibatch_size=10))  # type: ignore[misc]
        learner.learn(batch_of(segment(net)))
        prints.add(tuple(np.round(torch.cat([p.flatten() for p in net.parameters()]).detach().numpy(), 4)))
    assert len(prints) == 1


@pytest.mark.parametrize("correction", ["none", "clip", "decoupled", "vtrace"])
def test_learning_from_a_saved_state_gives_the_same_bits(correction: str) -> None:
    settings = PPOSettings(correction=correction, minibatch_size=8, final_learning_rate=0.0, updates=10)  # type: ignore[arg-type]
    first = PPOLearner(lambda: network("discrete", normalise=True), settings)
    batches = [batch_of(segment(network("discrete"), seed)) for seed in range(4)]
    for batch in batches[:2]:
        first.learn(batch)
    second = PPOLearner(lambda: network("discrete", normalise=True), settings, seed=9)
    second.load_state_dict(first.state_dict())
    for learner in (first, second):
        for batch in batches[2:]:
            learner.learn(batch)
    assert fingerprint(first.snapshot()) == fingerprint(second.snapshot())
    assert fingerprint(first.snapshot()) != fingerprint(PPOLearner(lambda: network("discrete"), settings).snapshot())


def test_observations_are_scaled_by_their_running_moments() -> None:
    net = network("discrete", normalise=True)
    data = segment(net)
    data["obs"] = data["obs"] * np.array([1.0, 50.0, 0.01], np.float32) + 7.0
    PPOLearner(lambda: net, PPOSettings()).learn(batch_of(data))
    seen = data["obs"][:-1][data["valid"]]
    np.testing.assert_allclose(net.obs_mean.numpy(), seen.mean(0), rtol=1e-3)
    np.testing.assert_allclose(net.obs_scale.numpy(), seen.std(0), rtol=2e-2)


def test_a_clear_reward_is_learned_under_every_correction() -> None:
    for correction in ("none", "clip", "decoupled", "vtrace"):
        net = network("discrete")
        settings = PPOSettings(correction=correction, learning_rate=0.02, entropy_weight=0.0)  # type: ignore[arg-type]
        learner = PPOLearner(lambda net=net: net, settings)  # type: ignore[misc]
        for seed in range(25):
            data = segment(net, seed, steps=8, width=16)
            data["rewards"] = (data["actions"] == 3).astype(np.float32)
            data["terminated"][:] = True
            data["valid"][:] = True
            learner.learn(batch_of(data))
        chance = torch.softmax(net.outputs(torch.zeros(1, 3)), -1)[0, 3]
        assert chance > 0.9, correction


def test_step_size_and_clip_range_decay_over_the_run() -> None:
    settings = PPOSettings(learning_rate=0.02, final_learning_rate=0.0, clip=0.4, final_clip=0.0, updates=4)
    assert [settings.rate(settings.progress(updates)) for updates in (0, 1, 4, 9)] == pytest.approx([0.02, 0.015, 0, 0])
    assert [settings.loss(settings.progress(u)).clip for u in (0, 1, 4, 9)] == pytest.approx([0.4, 0.3, 0, 0])
    net = network("discrete")
    learner = PPOLearner(lambda: net, PPOSettings(learning_rate=0.01, clip=0.4, final_clip=0.0, updates=2))
    clipped = [learner.learn(batch_of(segment(net, seed, steps=30))).metrics["clip_fraction"] for seed in range(3)]
    assert clipped[0] < 0.2
    assert clipped[2] > 0.7  # no move is small enough any more; only before the first step there is none
    learner = PPOLearner(lambda: net, PPOSettings(final_learning_rate=0.0, updates=1))
    prints = []
    for _ in range(2):
        learner.learn(batch_of(segment(net)))
        prints.append(fingerprint(learner.snapshot()))
    assert prints[0] == prints[1]  # the run is over: a step size of 0


def test_a_decay_needs_the_length_of_the_run() -> None:
    with pytest.raises(ValueError, match=r"final_clip=0.1 needs updates"):
        PPOSettings(final_clip=0.1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("correction", "v-trace"), ("clip", 0), ("num_epochs", 0), ("learning_rate", -1.0), ("final_clip", -0.1)],
)
def test_settings_that_cannot_work_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name}\n  Input should be .*input_value={value!r}"):
        PPOSettings(**{name: value})


@pytest.mark.parametrize(
    ("field", "number"), [("rewards", math.nan), ("rewards", 1e30), ("log_probs", math.nan), ("obs", math.nan)]
)
def test_an_update_that_is_not_finite_is_refused(field: str, number: float) -> None:
    net = network("discrete")
    role = LearnerRole(lambda: PPOLearner(lambda: net, PPOSettings()))
    role.learn(batch_of(segment(net)), None)
    data = segment(net, 1)
    data["valid"][:] = True
    data[field][-2, 2] = number
    with pytest.raises(FloatingPointError, match=r"is not finite: .*_loss is") as caught:
        role.learn(batch_of(data), 2)
    assert "\n" not in str(caught.value)


def test_weights_that_a_step_made_infinite_are_refused() -> None:
    net = network("discrete")
    role = LearnerRole(lambda: PPOLearner(lambda: net, PPOSettings(learning_rate=1e38, num_epochs=1)))
    with pytest.raises(FloatingPointError, match="weight_norm is"):
        role.learn(batch_of(segment(net)), 1)


def test_the_norm_of_the_weights_is_measured_after_the_update() -> None:
    net = network("discrete")
    report = PPOLearner(lambda: net, PPOSettings(learning_rate=1e-2)).learn(batch_of(segment(net)))
    squares = sum(float((parameter.detach().double() ** 2).sum()) for parameter in net.parameters())
    assert report.metrics["weight_norm"] == pytest.approx(math.sqrt(squares), rel=1e-6)


@pytest.mark.parametrize("hidden", [(0,), (8, 0), (-1,)])
def test_a_layer_without_units_is_refused(hidden: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"a layer needs at least 1 unit, received \[.*\]"):
        ActorCritic(SPECS["discrete"], hidden)


def test_a_network_without_layers_learns_too() -> None:
    net = ActorCritic(SPECS["discrete"], ())
    learner = PPOLearner(lambda: net, PPOSettings(learning_rate=0.05, entropy_weight=0.0))
    for seed in range(25):
        data = segment(net, seed, steps=8, width=16)
        data["rewards"] = (data["actions"] == 3).astype(np.float32)
        data["terminated"][:] = data["valid"][:] = True
        learner.learn(batch_of(data))
    assert torch.softmax(net.outputs(torch.zeros(1, 3)), -1)[0, 3] > 0.9


def test_pictures_are_taken_in_either_layout() -> None:
    for shape in ((1, 9, 9), (9, 9, 1)):
        net = ActorCritic(Spec(shape, Discrete(2)), (16,))
        assert net.values(torch.zeros(5, *shape)).shape == (5,)
