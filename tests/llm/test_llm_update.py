"""What an update of a language model costs and what its settings do: memory, reference, optimizer, metrics."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from headway.core.types import Batch, Rollout  # noqa: E402
from headway.llm.model.adapters import add_adapters, without_adapters  # noqa: E402
from headway.llm.rollouts_group import Group  # noqa: E402
from headway.llm.train.grpo_learner_learner import GRPOLearner, GRPOSettings  # noqa: E402
from headway.testing.tiny_models import tiny_model  # noqa: E402

START = {kind: tiny_model(kind) for kind in ("llama", "gpt2")}
VOCABULARY = START["llama"].config.vocab_size

pytestmark = pytest.mark.usefixtures("one_thread")


def start(kind: str = "llama") -> Any:
    return copy.deepcopy(START[kind])


def adapted() -> Any:
    return add_adapters(start(), 4, 8.0, seed=1)


def checkpointed() -> Any:
    model = start()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def group(number: int, replies: int = 3, model: Any = None) -> Rollout:
    """Random replies to a long prompt; log-probabilities of the model, one sequence at a time."""
    random = np.random.default_rng(number)
    prompt = random.integers(3, 200, 30).astype(np.int32)
    lengths = random.integers(1, 9, replies)
    tokens = random.integers(3, 200, lengths.sum()).astype(np.int32)
    logs = []
    for reply in np.split(tokens, np.cumsum(lengths)[:-1]):
        whole = torch.tensor([[*prompt.tolist(), *reply.tolist()]])
        with torch.no_grad():
            out = torch.log_softmax((model or START["llama"])(whole).logits[0], -1)[len(prompt) - 1 : -1]
        logs.append(out.gather(1, torch.tensor(reply).long()[:, None])[:, 0].numpy())
    payload = Group(
        prompt=prompt,
        tokens=tokens,
        lengths=lengths,
        log_probs=np.concatenate(logs),
        versions=np.zeros(len(tokens), np.int32),
        rewards=random.random(replies).astype(np.float32),
    )
    return Rollout(payload, steps=len(tokens))


def batch(groups: int = 4, model: Any = None) -> Batch:
    return Batch(0, tuple(group(n, model=model) for n in range(groups)))


def learner(load: Any = start, **settings: Any) -> GRPOLearner:
    chosen = GRPOSettings(**{"learning_rate": 1e-2, "max_grad_norm": 1e9, **settings})
    return GRPOLearner(load, chosen, load_reference=start)


def gradients(subject: GRPOLearner, one: Batch) -> dict[str, Any]:
    subject.learn(one)
    return {name: parameter.grad.clone() for name, parameter in subject._training.trained.named.items()}


def largest_gap(first: dict[str, Any], second: dict[str, Any]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


# -- memory ---------------------------------------------------------------------------------------


class Rows(TorchDispatchMode):
    """The most rows of a matrix over the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        is_matrix = isinstance(out, torch.Tensor) and out.dim() > 1 and out.shape[-1] == VOCABULARY
        if is_matrix and func is not torch.ops.aten.t.default:  # the weights seen from the other side
            self.most = max(self.most, out.numel() // VOCABULARY)
        return out


@pytest.mark.parametrize("chunk", [4, 1024])
def test_logits_are_made_for_trained_tokens_alone_and_for_a_chunk_at_a_time(chunk: int) -> None:
    subject, one = learner(logit_chunk_tokens=chunk, num_minibatches=2, kl_weight=0.1), batch()
    num_tokens = sum(rollout.steps for rollout in one.rollouts)
    with Rows() as rows:
        subject.learn(one)
    assert 0 < rows.most <= min(chunk, num_tokens)


@pytest.mark.parametrize("entropy_weight", [0.0, 0.1])
def test_the_gradient_is_the_same_with_any_chunk(entropy_weight: float) -> None:
    loss = {"entropy_weight": entropy_weight}
    whole = gradients(learner(**loss, temperature=0.7), batch())
    assert largest_gap(whole, gradients(learner(**loss, temperature=0.7, logit_chunk_tokens=3), batch())) < 1e-5


def test_gradient_checkpointing_computes_layers_again_and_changes_nothing() -> None:
    found = []
    for load in (start, checkpointed):
        subject = learner(load)
        calls: list[int] = []
        for layer in subject._training.model.base_model.layers:
            layer.self_attn.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        found.append((gradients(subject, batch()), len(calls)))
    (plain, once), (again, twice) = found
    assert twice == 2 * once > 0
    assert largest_gap(plain, again) < 1e-6


def test_nothing_is_dropped_out_in_training() -> None:
    """GPT-2 comes with dropout of 0.1, which would put noise into every ratio."""
    metrics = learner(lambda: start("gpt2")).learn(batch(model=START["gpt2"])).metrics
    assert metrics["mismatch_max"] < 1e-4
    assert metrics["ess"] == pytest.approx(1, abs=1e-6)


# -- reference and entropy ------------------------------------------------------------------------


def test_with_adapters_the_reference_is_the_model_without_them_and_no_second_one_is_loaded() -> None:
    pytest.importorskip("peft")

    def no_second() -> Any:
        raise AssertionError("a second model was loaded")

    chosen = GRPOSettings(learning_rate=1e-2, kl_weight=0.1)
    subject = GRPOLearner(adapted, chosen, load_reference=no_second)
    separate = learner(start, kl_weight=0.1)
    for _ in range(3):
        metrics = subject.learn(batch()).metrics
    assert metrics["reference_kl"] > 1e-4
    assert subject._reference is not None
    assert separate._reference is not None
    data = subject._begin(batch()).data
    for part in subject._my_microbatches(data, np.arange(data.num_groups)):
        with torch.no_grad():
            torch.testing.assert_close(subject._reference(part.trees), separate._reference(part.trees))
            assert float((subject._policy.read(part.trees) - subject._reference(part.trees)).abs().max()) > 1e-3


def test_switching_adapters_off_and_on_leaves_no_trace() -> None:
    pytest.importorskip("peft")
    model = adapted()
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    tokens = torch.arange(3, 12)[None]
    with torch.no_grad():
        for module in model.modules():
            for layer in getattr(module, "lora_B", {}).values():
                layer.weight.add_(0.1)
        on = model(tokens).logits
        with without_adapters(model):
            torch.testing.assert_close(model(tokens).logits, START["llama"](tokens).logits)
        assert torch.equal(model(tokens).logits, on)
    assert not torch.allclose(on, START["llama"](tokens).logits, atol=1e-3)
    assert before == {name: parameter.requires_grad for name, parameter in model.named_parameters()}


def test_adapters_start_from_their_seed_whatever_was_random_before() -> None:
    pytest.importorskip("peft")
    first = adapted().state_dict()
    torch.rand(3)
    second, other = adapted().state_dict(), add_adapters(start(), 4, 8.0, seed=2).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("critic", [{}, {"gae_lambda": 0.9}], ids=["groups", "critic"])
def test_a_penalty_in_the_rewards_is_taken_where_it_arises(critic: dict[str, Any]) -> None:
    """log pi_b - log pi_ref of each token, times the weight: by hand."""
    one, weight = batch(2), 0.25
    estimator = "gae" if critic else "dr_grpo"
    subject = learner(estimator=estimator, **critic, kl_weight=weight, kl_in_reward=True)
    for rollout in one.rollouts:
        rollout.payload.log_probs[:] += np.linspace(-1, 1, rollout.steps, dtype=np.float32)  # the reference is START
    found = subject._begin(one).advantages.split([rollout.steps for rollout in one.rollouts])
    for rollout, advantages in zip(one.rollouts, found, strict=True):
        payload = rollout.payload
        ends = np.cumsum(payload.lengths)[:-1]
        gaps = np.split(np.linspace(-1, 1, rollout.steps), ends)
        expected = []
        if not critic:
            totals = payload.rewards - weight * np.array([gap.sum() for gap in gaps])
            expected = [np.full(len(gap), total - totals.mean()) for gap, total in zip(gaps, totals, strict=True)]
        else:
            for gap, reward in zip(gaps, payload.rewards, strict=True):
                rewards = -weight * gap
                rewards[-1] += reward
                line = [sum(0.9 ** (k - t) * rewards[k] for k in range(t, len(gap))) for t in range(len(gap))]
                expected.append(np.array(line))
        np.testing.assert_allclose(advantages.numpy(), np.concatenate(expected), atol=1e-5)
    free = learner(estimator=estimator, **critic, kl_weight=weight)
    assert largest_gap(gradients(subject, one), gradients(free, one)) > 1e-4
    with pytest.raises(ValueError, match="kl_in_reward=True needs kl_weight > 0"):
        learner(kl_in_reward=True)


def test_rewarded_entropy_rises() -> None:
    def entropy_after(weight: float) -> float:
        subject = learner(entropy_weight=weight, learning_rate=3e-3)
        for _ in range(5):
            metrics = subject.learn(batch()).metrics
        return metrics["entropy"]

    assert entropy_after(10.0) > entropy_after(0.0) + 1e-3


# -- optimizer ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "shares"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1, 1, 0.5 + 0.5 * math.sqrt(0.5), 0.5, 0.5 - 0.5 * math.sqrt(0.5)]),
    ],
)
def test_the_learning_rate_follows_its_schedule(kind: str, shares: list[float]) -> None:
    subject = learner(lr_schedule=kind, warmup_updates=2, updates=6)
    rates = [subject.learn(batch(1)).metrics["learning_rate"] for _ in shares]
    np.testing.assert_allclose(rates, np.array(shares) * 1e-2)


def test_a_schedule_falls_to_its_floor() -> None:
    half, end = (GRPOSettings(lr_schedule="cosine", updates=8, lr_floor=0.2).policy_schedule().share(n) for n in (4, 8))
    assert (half, end) == (pytest.approx(0.6), pytest.approx(0.2))


def test_the_steps_are_those_of_adamw_with_the_given_numbers() -> None:
    """Two updates, against the formula: m, v, their corrections, eps and the decay."""
    beta1, beta2, eps, decay, rate = 0.5, 0.7, 1e-3, 0.1, 1e-2
    subject = learner(adam_beta1=beta1, adam_beta2=beta2, adam_eps=eps, weight_decay=decay, learning_rate=rate)
    name = "model.norm.weight"
    weight = subject._training.trained.named[name].detach().double().clone()
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in (1, 2):
        gradient = gradients(subject, batch())[name].double()
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient**2
        direction = mean / (1 - beta1**step) / ((square / (1 - beta2**step)).sqrt() + eps)
        weight = weight * (1 - rate * decay) - rate * direction
        torch.testing.assert_close(
            subject._training.trained.named[name].detach().double(), weight, atol=1e-7, rtol=1e-6
        )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"adam_beta2": 1.0}, r"adam_beta2\n  Input should be less than 1"),
        ({"adam_eps": 0.0}, r"adam_eps\n  Input should be greater than 0"),
        ({"lr_schedule": "cosin", "updates": 3}, r"lr_schedule\n  Input should be 'constant', 'linear' or 'cosine'"),
        ({"lr_floor": 0.1}, "lr_floor=0.1 goes with a learning rate that falls"),
        ({"lr_schedule": "linear"}, "a linear schedule needs the number of updates"),
        ({"warmup_updates": -1}, r"warmup_updates\n  Input should be greater than or equal to 0"),
        ({"logit_chunk_tokens": 0}, r"logit_chunk_tokens\n  Input should be greater than or equal to 1"),
        ({"estimator": "gropo"}, "did you mean 'grpo'"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GRPOSettings(**wrong)


# -- metrics --------------------------------------------------------------------------------------


def test_the_metrics_of_a_batch_are_these_numbers() -> None:
    """Rewards, lengths and mismatch by hand; the engine is made to disagree by 0.1 about one token."""
    first, second = group(0, 2), group(1, 3)
    first.payload.rewards[:] = [1.0, 1.0]
    second.payload.rewards[:] = [0.0, 0.5, 1.0]
    logs = first.payload.log_probs
    num_tokens = first.steps + second.steps
    logs[0] -= 0.1
    metrics = learner().learn(Batch(0, (first, second))).metrics
    lengths = np.concatenate([first.payload.lengths, second.payload.lengths])
    assert metrics["reward"] == pytest.approx(0.7)
    assert metrics["reward_std"] == pytest.approx(np.std([1, 1, 0, 0.5, 1]))
    assert (metrics["reward_min"], metrics["reward_max"]) == (0, 1)
    assert metrics["reply_tokens"] == pytest.approx(lengths.mean())
    assert metrics["reply_tokens_max"] == lengths.max()
    assert metrics["silent_groups"] == 0.5
    assert metrics["mismatch_max"] == pytest.approx(0.1, abs=1e-4)
    assert metrics["mismatch_mean"] == pytest.approx(0.1 / num_tokens, abs=1e-5)
    assert metrics["mismatch_kl"] == pytest.approx((math.exp(0.1) - 1.1) / num_tokens, abs=1e-5)
    ratios = np.ones(num_tokens)
    ratios[0] = math.exp(0.1)
    assert metrics["ess"] == pytest.approx(ratios.sum() ** 2 / (num_tokens * (ratios**2).sum()), abs=1e-5)
    assert metrics["behaviour_kl"] == pytest.approx(metrics["mismatch_kl"])
    assert metrics["kl"] == pytest.approx(0, abs=1e-7)
    assert metrics["clip_fraction"] == 0
    assert 0 < metrics["entropy"] <= math.log(VOCABULARY)


def test_the_clip_fraction_is_the_share_of_tokens_the_clip_holds_back() -> None:
    metrics = learner(correction="clip", num_epochs=3, learning_rate=3e-2).learn(batch()).metrics
    assert metrics["clip_fraction"] == pytest.approx(metrics["clip_fraction_high"] + metrics["clip_fraction_low"])
    assert 0 < metrics["clip_fraction"] < 1
    assert metrics["kl"] > 1e-3


def test_the_gradient_norm_is_that_before_it_is_cut() -> None:
    free = learner()
    found = gradients(free, batch())
    norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in found.values()))
    assert learner(max_grad_norm=norm / 10).learn(batch()).metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_the_page_on_metrics_lists_every_name_a_learner_reports() -> None:
    page = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    (section,) = [part for part in page.split("\n## ") if part.startswith("What a language model's learner reports")]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    subject = learner(estimator="gae", kl_weight=0.1)
    finish = ("length", "stop", "stop")
    groups = [replace(rollout.payload, finish=finish) for rollout in batch().rollouts]
    rollouts = tuple(map(Rollout, groups))
    found = subject.learn(Batch(0, rollouts)).metrics
    assert documented == set(found)
    assert 0 < found["cut_off"] < 1
