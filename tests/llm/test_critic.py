"""PPO with a critic on a language model: what its values are, what they lead to, and that nothing is lost."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from headway.core.types import Batch, Rollout  # noqa: E402
from headway.llm.model.adapters import add_adapters  # noqa: E402
from headway.llm.rollouts_group import Group  # noqa: E402
from headway.llm.train.corrections import CORRECTIONS  # noqa: E402
from headway.llm.train.critic import CriticSettings  # noqa: E402
from headway.llm.train.grpo_learner_learner import GRPOLearner, GRPOSettings  # noqa: E402
from headway.testing.tiny_models import tiny_model  # noqa: E402

START = tiny_model()
KINDS = ("shared", "own")

pytestmark = pytest.mark.usefixtures("one_thread")


def start(adapters: int = 0, checkpointing: bool = False) -> Any:
    model = copy.deepcopy(START)
    if adapters:
        model = add_adapters(model, adapters, 8.0)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def learner(kind: Any = "shared", *, seed: int = 0, model: Any = start, **settings: Any) -> GRPOLearner:
    standard = {"estimator": "gae", "learning_rate": 1e-2, "critic": kind, "critic_learning_rate": 1e-2}
    chosen = GRPOSettings(**{**standard, **settings})
    return GRPOLearner(model, chosen, load_reference=start, load_critic=model, seed=seed)


def group(number: int, replies: int = 3, version: int = 0) -> Rollout:
    random = np.random.default_rng(number)
    prompt = random.integers(3, 200, random.integers(2, 9)).astype(np.int32)
    lengths = random.integers(1, 9, replies)
    tokens = random.integers(3, 200, lengths.sum()).astype(np.int32)
    payload = Group(
        prompt=prompt,
        tokens=tokens,
        lengths=lengths,
        log_probs=(-5 + 0.3 * random.standard_normal(len(tokens))).astype(np.float32),
        versions=np.full(len(tokens), version, np.int32),
        rewards=random.random(replies).astype(np.float32),
    )
    return Rollout(payload, steps=len(tokens))


def batch(version: int = 0, groups: int = 5, replies: int = 3) -> Batch:
    return Batch(version, tuple(group(10 * version + n, replies, version) for n in range(groups)))


def weights_after(subject: GRPOLearner, *batches: Batch) -> dict[str, Any]:
    for one in batches:
        subject.learn(one)
    held = subject.held_alike()
    found = {**held["policy"], **{f"critic {name}": tensor for name, tensor in held["critic"].items()}}
    return {name: tensor.clone() for name, tensor in found.items()}


def largest_gap(first: dict[str, Any], second: dict[str, Any]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


# -- values and advantages ------------------------------------------------------------------------


def slow_values(subject: GRPOLearner, kind: str, prompt: np.ndarray, reply: np.ndarray) -> list[float]:
    """One sequence on its own, without a tree."""
    critic = subject._critic
    assert critic is not None
    body = subject._training.model.base_model if kind == "shared" else critic._body
    whole = torch.tensor([[*prompt.tolist(), *reply.tolist()]])
    with torch.no_grad():
        hidden = body(whole).last_hidden_state[0, len(prompt) - 1 : -1]
        values: list[float] = critic._head(hidden)[:, 0].tolist()
    return values


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0)])
def test_advantages_are_the_obvious_loop_over_values_from_before_the_update(
    kind: str, gamma: float, lam: float
) -> None:
    subject = learner(kind, gae_gamma=gamma, gae_lambda=lam, microbatch_tokens=40, num_minibatches=2)
    subject.learn(batch(0))  # until here every value is 0
    one = batch(1)
    update = subject._begin(one)
    assert update.targets is not None
    advantages, targets = [], []
    for rollout in one.rollouts:
        g = rollout.payload
        for reply, reward in zip(g.replies, g.rewards, strict=True):
            values = slow_values(subject, kind, g.prompt, reply)
            assert max(map(abs, values)) > 1e-3
            following, found = 0.0, []
            for t in reversed(range(len(values))):
                after = values[t + 1] if t + 1 < len(values) else 0.0
                now = float(reward) if t + 1 == len(values) else 0.0
                following = now + gamma * after - values[t] + gamma * lam * following
                found.append(following)
            advantages += found[::-1]
            targets += [a + v for a, v in zip(found[::-1], values, strict=True)]
            if lam == gamma == 1:
                np.testing.assert_allclose(found[::-1], float(reward) - np.array(values), atol=1e-5)
    np.testing.assert_allclose(update.advantages.numpy(), advantages, atol=1e-5)
    np.testing.assert_allclose(update.targets.numpy(), targets, atol=1e-5)


def test_whitened_advantages_have_mean_0_and_deviation_1_over_the_tokens_of_the_batch() -> None:
    found = learner(whiten_advantages=True)._begin(batch()).advantages
    assert float(found.mean()) == pytest.approx(0, abs=1e-6)
    assert float(found.std()) == pytest.approx(1, abs=1e-4)


# -- learning -------------------------------------------------------------------------------------


def two_kinds_of_texts(version: int) -> Batch:
    """A few tokens occur in good texts, others in bad ones, and so the text says what will come of it."""
    rollouts = []
    for number in range(8):
        rollout = group(100 * version + number, 2, version)
        is_good = number % 2
        for name in ("prompt", "tokens"):
            array = getattr(rollout.payload, name)
            array[:] = 10 + 10 * is_good + array % 5
        rollout.payload.rewards[:] = is_good
        rollouts.append(rollout)
    return Batch(version, tuple(rollouts))


@pytest.mark.parametrize("kind", KINDS)
def test_the_critic_learns_what_replies_are_worth_while_the_policy_waits(kind: str) -> None:
    rate = 0.03 if kind == "shared" else 3e-3  # of a head alone, or of a model
    subject = learner(kind, critic_learning_rate=rate, critic_warmup_updates=60, value_clip=None)
    first = weights_after(subject)
    reports = [subject.learn(two_kinds_of_texts(v)).metrics for v in range(60)]
    assert reports[0]["explained_variance"] == pytest.approx(0, abs=1e-6)
    assert np.mean([report["explained_variance"] for report in reports[-5:]]) > 0.8
    assert reports[-1]["value_loss"] < 0.2 * reports[0]["value_loss"]
    assert reports[-1]["learning_rate"] == reports[-1]["grad_norm"] == 0 < reports[-1]["critic_grad_norm"]
    second = weights_after(subject)
    policy = subject.snapshot().keys()
    assert all(torch.equal(first[name], second[name]) for name in policy)
    third = weights_after(subject, two_kinds_of_texts(60))
    assert not all(torch.equal(second[name], third[name]) for name in policy)


def test_a_shared_critic_shapes_the_backbone_by_its_weight_and_an_own_one_does_not() -> None:
    found = {}
    for kind in KINDS:
        for weight in (1e-6, 1.0):
            subject = learner(kind, value_weight=weight, value_clip=None, critic_warmup_updates=1, max_grad_norm=1e9)
            subject.learn(batch(0))  # the head is no longer 0, the policy is what it was
            found[kind, weight] = _gradients(subject, batch(1))
    assert largest_gap(found["shared", 1e-6], found["shared", 1.0]) > 1e-3
    assert largest_gap(found["own", 1e-6], found["own", 1.0]) < 1e-3


def _gradients(subject: GRPOLearner, one: Batch) -> dict[str, Any]:
    subject.learn(one)
    return {name: parameter.grad.clone() for name, parameter in subject._training.trained.named.items()}


# -- how, not what --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_microbatches_and_chunks_do_not_change_the_gradient(kind: str) -> None:
    options: dict[str, Any] = {"max_grad_norm": 1e9, "kl_weight": 0.1, "entropy_weight": 0.01}
    found = []
    for cut in ({"microbatch_tokens": 4096}, {"microbatch_tokens": 24}, {"logit_chunk_tokens": 5}):
        subject = learner(kind, **cut, **options)
        policy = _gradients(subject, batch())
        assert subject._critic is not None
        values = {str(n): parameter.grad.clone() for n, parameter in enumerate(subject._critic.trained.parameters)}
        found.append(policy | values)
    assert largest_gap(found[0], found[1]) < 1e-5
    assert largest_gap(found[0], found[2]) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_every_correction_goes_with_a_critic(kind: str, correction: str) -> None:
    subject = learner(kind, correction=correction)
    before = weights_after(subject)
    report = subject.learn(batch(version=2, groups=3)).metrics
    for name in ("value_loss", "value_clip_fraction", "explained_variance", "value_mean", "critic_grad_norm", "ess"):
        assert np.isfinite(report[name]), name
    assert largest_gap(before, weights_after(subject)) > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_a_critic_goes_with_adapters_checkpointing_a_temperature_and_single_replies(kind: str) -> None:
    pytest.importorskip("peft")
    subject = learner(kind, model=lambda: start(adapters=4), temperature=0.7, microbatch_tokens=40)
    checked = learner(kind, model=lambda: start(adapters=4, checkpointing=True), temperature=0.7, microbatch_tokens=40)
    batches = [batch(v, replies=1) for v in range(2)]
    found = weights_after(subject, *batches)
    assert largest_gap(found, weights_after(checked, *batches)) < 1e-5
    assert largest_gap(found, weights_after(learner(kind, model=lambda: start(adapters=4)))) > 1e-3
    assert subject.snapshot().keys() <= dict(START.named_parameters()).keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_learner_with_a_critic_goes_on_bit_for_bit_from_its_state(kind: str) -> None:
    options: dict[str, Any] = {"num_minibatches": 3, "critic_warmup_updates": 1}
    straight = weights_after(learner(kind, **options), *[batch(v) for v in range(4)])
    first = learner(kind, **options)
    weights_after(first, batch(0), batch(1))
    state = copy.deepcopy(first.state_dict())
    weights_after(first, batch(9))
    second = learner(kind, seed=5, **options)
    second.load_state_dict(state)
    assert largest_gap(straight, weights_after(second, batch(2), batch(3))) == 0.0


def test_a_state_of_another_estimator_is_refused_in_one_line() -> None:
    with_critic, without = learner(), GRPOLearner(start, GRPOSettings())
    with pytest.raises(ValueError, match="the saved state has no critic"):
        with_critic.load_state_dict(without.state_dict())
    with pytest.raises(ValueError, match="the saved state has a critic"):
        without.load_state_dict(with_critic.state_dict())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"critic": "shard"}, r"critic\n  Input should be 'shared' or 'own'"),
        ({"gae_lambda": 1.1}, r"gae_lambda\n  Input should be less than or equal to 1"),
        ({"value_clip": 0.0}, r"value_clip\n  Input should be greater than 0"),
        ({"critic_learning_rate": 0.0}, r"critic_learning_rate\n  Input should be greater than 0"),
        ({"critic_warmup_updates": -1}, r"critic_warmup_updates\n  Input should be greater than or equal to 0"),
    ],
)
def test_settings_of_a_critic_that_cannot_work_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CriticSettings(**wrong)


def test_gae_has_a_critic_and_nothing_else_has_use_for_one() -> None:
    assert GRPOSettings(estimator="gae").has_critic
    assert not GRPOSettings(estimator="rloo").has_critic
    with pytest.raises(ValueError, match="critic='own' goes with estimator='gae', received estimator='rloo'"):
        GRPOSettings(estimator="rloo", critic="own")
