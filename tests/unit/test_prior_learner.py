"""The learner of a prior: its gradients are those of a slow reference, it imitates, it reinforces, it resumes."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from prior_segments import random_segment, text_segment

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from headway.coordinator.roles import LearnerRole  # noqa: E402
from headway.core.types import Batch, Rollout  # noqa: E402
from headway.llm.model.adapters import add_adapters, plain_weights  # noqa: E402
from headway.llm.train.ragged import Ragged  # noqa: E402
from headway.testing.tiny_models import tiny_model  # noqa: E402
from headway.text_games.prior_learner_learner import PriorLearner  # noqa: E402
from headway.text_games.prior_learner_loss import clamped_weights, imitation_loss  # noqa: E402
from headway.text_games.prior_learner_returns import step_advantages  # noqa: E402
from headway.text_games.prior_learner_settings import PriorSettings  # noqa: E402
from headway.text_games.segment import TextSegment  # noqa: E402
from headway.zero.segments import GameSegment  # noqa: E402

START = tiny_model()
pytestmark = pytest.mark.usefixtures("one_thread")


def start() -> Any:
    return copy.deepcopy(START)


def other_reference() -> Any:
    """A model near the one that is trained, so that the penalty has a gradient."""
    model = start()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    return model


def adapted() -> Any:
    return add_adapters(start(), 4, 8.0, seed=1)


def learner(load: Any = start, *, seed: int = 0, **settings: Any) -> PriorLearner:
    chosen = PriorSettings(**{"prior_learning_rate": 1e-2, "prior_max_grad_norm": 1e9, **settings})
    return PriorLearner(load, chosen, load_reference=other_reference, seed=seed)


def a_batch(*segments: TextSegment) -> Batch:
    return Batch(0, tuple(Rollout(segment) for segment in segments))


def gradients(subject: PriorLearner) -> dict[str, Any]:
    return {name: parameter.grad.clone() for name, parameter in subject._training.trained.named.items()}


def token_logs(model: Any, prompt: Sequence[int], action: Sequence[int]) -> Any:
    """Of one sequence, by the model's own forward pass."""
    whole = torch.tensor([[*map(int, prompt), *map(int, action)]])
    logs = torch.log_softmax(model(whole).logits[0].float(), -1)[len(prompt) - 1 : -1]
    return logs.gather(1, torch.tensor([int(token) for token in action])[:, None])[:, 0]


def stored_logs(prompt: Sequence[int], action: Sequence[int], noise: float = 0.0) -> list[float]:
    with torch.no_grad():
        found = token_logs(START, prompt, action).numpy()
    return (found + noise * np.random.default_rng(len(action)).standard_normal(len(found))).tolist()


def same_gradients(found: dict[str, Any], model: Any, atol: float = 2e-5) -> None:
    largest = 0.0
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=atol, rtol=1e-3)
        largest = max(largest, float(parameter.grad.abs().max()))
    assert largest > 100 * atol, "a gradient of nothing proves nothing"


@pytest.mark.parametrize("loss", ["imitation", "ppo"])
def test_an_update_of_the_prior_that_is_not_finite_is_refused(loss: str) -> None:
    role = LearnerRole(lambda: learner(prior_loss=loss, prior_learning_rate=1e38))
    with pytest.raises(FloatingPointError, match=r"weight_norm is (inf|nan)"):
        role.learn(a_batch(random_segment(0)), 1)


# -- imitation ------------------------------------------------------------------------------------


def test_the_imitation_loss_is_the_cross_entropy_worked_out_by_hand() -> None:
    logs = torch.log(torch.tensor([0.5, 0.125, 0.25, 0.2]))  # state 0: a a, b; state 1: c
    loss = imitation_loss(
        logs, Ragged.of([2, 1, 1]), Ragged.of([2, 1]), torch.tensor([0.75, 0.25, 1.0]), torch.tensor([3.0, 1.0]), 2.0
    )
    # mean of a: log 0.25 = that of b; whatever the temperature, one half each
    assert float(loss.value) == pytest.approx(3 * math.log(2))
    logs = torch.log(torch.tensor([0.81, 0.09]))
    loss = imitation_loss(logs, Ragged.of([1, 1]), Ragged.of([2]), torch.tensor([0.2, 0.8]), torch.tensor([1.0]), 2.0)
    # at temperature 2: square roots 0.9 and 0.3, so 0.75 and 0.25
    assert float(loss.value) == pytest.approx(-0.2 * math.log(0.75) - 0.8 * math.log(0.25))
    assert float(loss.sums["agreement"]) == 0
    assert float(loss.sums["prior_entropy"]) == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))


def slow_imitation(model: Any, segments: Sequence[TextSegment], temperature: float) -> float:
    """The mean over steps, one sequence at a time."""
    losses = []
    for segment in segments:
        prompts, actions, slots = segment.prompt_tokens.rows(), segment.action_tokens.rows(), segment.num_slots
        for step in range(len(prompts)):
            some = actions[step * slots : (step + 1) * slots]
            scores = torch.stack([token_logs(model, prompts[step], action).mean() for action in some if len(action)])
            visits = torch.tensor(segment.policies.reshape(-1, slots)[step, : len(scores)])
            losses.append(-(visits * torch.log_softmax(scores / temperature, 0)).sum())
    total = torch.stack(losses).mean()
    total.backward()
    return float(total.detach())


@pytest.mark.parametrize(("layout", "tokens"), [("tree", 4096), ("tree", 40), ("rows", 4096), ("rows", 40)])
def test_imitation_has_the_gradient_of_one_sequence_at_a_time(layout: str, tokens: int) -> None:
    segments = [random_segment(0), random_segment(1), random_segment(0)]  # the third says the same once more
    subject = learner(layout=layout, microbatch_tokens=tokens, prior_batch_size=99)
    report = subject.learn(a_batch(*segments)).metrics
    reference = start()
    expected = slow_imitation(reference, segments, 2.0)
    assert report["imitation_loss"] == pytest.approx(expected, abs=1e-5)
    assert report["rows"] == 18 and report["states"] == 12 and report["skipped_rows"] == 0
    same_gradients(gradients(subject), reference)


def test_equal_states_are_read_once_whatever_the_order_of_their_candidates() -> None:
    prompt, left, right = [5, 6, 7], [11, 12], [13]
    twice = text_segment([prompt, prompt], [[left, right], [right, left]], [[0.9, 0.1], [0.5, 0.5]])
    subject = learner()
    report = subject.learn(a_batch(twice)).metrics
    assert report["states"] == 1 and report["read_tokens"] == 6
    reference = start()
    assert report["imitation_loss"] == pytest.approx(slow_imitation(reference, [twice], 2.0), abs=1e-6)
    same_gradients(gradients(subject), reference)


def test_steps_that_tell_nothing_are_skipped_and_counted() -> None:
    prompts = [[5, 6], [7, 8], [9, 9], [], [4, 4]]
    actions = [[[1], [2]], [[1], [2]], [[3]], [], []]
    spreads = np.array([0.5, 0.001, 0.5, 0.5, 0.5], np.float32)[:, None]
    valid = np.array([True, True, True, True, False])[:, None]
    segment = text_segment([*prompts[:4], []], actions, [[0.5, 0.5]] * 3 + [[0.0]] * 2, spreads=spreads, valid=valid)
    report = learner().learn(a_batch(segment)).metrics
    assert report["rows"] == 4 and report["states"] == 1
    shares = {name: report[f"skipped_{name}"] for name in ("flat", "forced", "unread", "rows")}
    assert shares == {"flat": 0.25, "forced": 0.25, "unread": 0.25, "rows": 0.75}


@pytest.mark.parametrize("prior_loss", ["imitation", "ppo"])
def test_a_batch_without_anything_to_learn_changes_nothing(prior_loss: str) -> None:
    segment = text_segment([[5, 6]], [[[1], [2]]], [[0.5, 0.5]], spreads=np.zeros((1, 1), np.float32))
    subject = learner(prior_loss=prior_loss)
    report = subject.learn(a_batch(segment)).metrics
    assert report["skipped_rows"] == 1 and report["grad_norm"] == 0
    assert all(tensor.equal(START.state_dict()[name]) for name, tensor in subject.snapshot().items())


def test_a_limit_on_states_leaves_some_out_and_says_so() -> None:
    report = learner(prior_max_states=4).learn(a_batch(random_segment(0), random_segment(1))).metrics
    assert report["states"] == 4 and report["left_out_rows"] == 8


def test_states_that_came_often_are_learned_from_rather_than_those_that_came_once() -> None:
    prompts = [[200 + state, 17, 18] for state in (*range(12), *[0] * 500, *[1] * 500)]
    words = [[30, 31], [40], [50, 51, 52]]
    often = text_segment(prompts, [words] * len(prompts), [[0.8, 0.1, 0.1]] * len(prompts))
    report = learner(prior_max_states=3).learn(a_batch(often)).metrics
    assert report["states"] == 3 and report["left_out_rows"] == 9


def a_little_game(random: np.random.Generator, states: int = 12) -> TextSegment:
    """In each state three words can be said, and the search has found out which one is right."""
    prompts = [[200 + state, 17, 18] for state in range(states)]
    right = random.integers(3, size=states)
    visits = np.full((states, 3), 0.05)
    visits[np.arange(states), right] = 0.9
    return text_segment(prompts, [[[30, 31], [40], [50, 51, 52]]] * states, visits.tolist())


def test_a_tiny_model_learns_to_say_what_the_search_visited() -> None:
    game = a_little_game(np.random.default_rng(3))
    subject = learner(prior_learning_rate=5e-3, prior_batch_size=12, prior_max_grad_norm=1.0)
    reports = [subject.learn(a_batch(game)).metrics for _ in range(40)]
    assert reports[0]["agreement"] < 0.6
    assert reports[-1]["agreement"] > 0.9
    assert reports[-1]["imitation_loss"] < 1.3 * reports[-1]["visits_entropy"]


# -- ppo ------------------------------------------------------------------------------------------


def test_weights_stay_within_their_bounds_and_are_1_where_nobody_was_asked() -> None:
    proximal = torch.log(torch.tensor([0.5, 0.01, 0.9, 0.3]))
    behaviour = torch.tensor([math.log(0.4), math.log(0.5), math.log(0.01), math.nan])
    assert clamped_weights(proximal, behaviour).weights.tolist() == pytest.approx([1.25, 0.5, 5.0, 1.0])


def slow_ppo(model: Any, segments: Sequence[TextSegment], *, kl: float, td_steps: int, gamma: float) -> None:
    """The gradient of the first step, one sequence at a time: ratios are 1, and the clip does nothing."""
    reference, rows = other_reference(), []
    for segment in segments:
        prompts, actions, slots = segment.prompt_tokens.rows(), segment.action_tokens.rows(), segment.num_slots
        advantages = step_advantages(segment, td_steps, gamma).reshape(-1)
        for step in np.flatnonzero(~np.isnan(advantages)):
            action = actions[step * slots + int(segment.actions.reshape(-1)[step])]
            rows.append((prompts[step], action, segment.action_log_probs.row(step), float(advantages[step])))
    known = np.array([advantage for *_, advantage in rows])
    scaled = (known - known.mean()) / (known.std(ddof=1) + 1e-6)
    losses = []
    for (prompt, action, stored, _), advantage in zip(rows, scaled, strict=True):
        logp = token_logs(model, prompt, action)
        weights = torch.ones(len(action))
        if len(stored):
            weights = (logp.detach() - torch.tensor(stored)).exp().clamp(0.5, 5.0)
        with torch.no_grad():
            away = token_logs(reference, prompt, action)
        ratio = (logp - logp.detach()).exp()
        penalty = (away - logp).exp() - 1 - (away - logp)
        losses.append(-weights * ratio * advantage + kl * penalty)
    torch.cat(losses).mean().backward()


@pytest.mark.parametrize("tokens", [4096, 40])
def test_ppo_has_the_gradient_of_one_sequence_at_a_time(tokens: int) -> None:
    noisy = random_segment(0, logs_of=lambda prompt, action: stored_logs(prompt, action, 2.0))
    segments = [noisy, random_segment(1), replace(noisy, values=noisy.values - 1)]  # the same actions, valued lower
    subject = learner(prior_loss="ppo", prior_kl=0.5, prior_td_steps=2, gamma=0.9, microbatch_tokens=tokens)
    report = subject.learn(a_batch(*segments)).metrics
    reference = start()
    slow_ppo(reference, segments, kl=0.5, td_steps=2, gamma=0.9)
    same_gradients(gradients(subject), reference)
    assert report["skipped_open"] == 3 / 18 and report["states"] == 10
    assert report["ratio"] == pytest.approx(1) and report["clip_fraction"] == 0 and report["reference_kl"] > 0
    assert 0 < report["asked_tokens"] < 1


def test_later_steps_of_an_update_see_how_far_the_policy_moved() -> None:
    segments = [random_segment(0, logs_of=stored_logs), random_segment(1, logs_of=stored_logs)]
    subject = learner(prior_loss="ppo", prior_batch_size=4, prior_epochs=3)
    report = subject.learn(a_batch(*segments)).metrics
    assert report["clip_fraction"] > 0 and report["kl"] > 0 and report["ratio"] != 1


def test_ppo_makes_the_action_with_a_positive_advantage_likelier() -> None:
    prompt, good, bad = [5, 6, 7], [11, 12], [13, 14]
    segment = text_segment(
        [prompt] * 5,
        [[good, bad]] * 5,
        [[0.5, 0.5]] * 5,
        taken=[0, 1, 0, 1, 0],
        log_probs=[stored_logs(prompt, good if step % 2 == 0 else bad) for step in range(5)],
        rewards=np.array([1, 0, 1, 0, 0], np.float32)[:, None],
        values=np.full((5, 1), 0.5, np.float32),
    )
    subject = learner(prior_loss="ppo", prior_learning_rate=1e-3, prior_td_steps=1, gamma=1.0, prior_kl=0.0)
    before = [float(token_logs(START, prompt, action).detach().mean()) for action in (good, bad)]
    for _ in range(3):
        subject.learn(a_batch(segment))
    after = [float(token_logs(subject._training.model, prompt, action).detach().mean()) for action in (good, bad)]
    assert after[0] > before[0] + 0.05 and after[1] < before[1]


# -- the learner's face ---------------------------------------------------------------------------


def test_imitation_comes_before_ppo_for_as_long_as_was_said() -> None:
    subject = learner(prior_loss="imitation_then_ppo", imitation_updates=2)
    phases = [subject.learn(a_batch(random_segment(0))).metrics["is_imitation"] for _ in range(4)]
    assert phases == [1, 1, 0, 0]


@pytest.mark.parametrize("load", [start, adapted])
def test_a_learner_goes_on_from_a_saved_state_bit_for_bit(load: Any) -> None:
    options: dict[str, Any] = {"prior_loss": "imitation_then_ppo", "imitation_updates": 2, "prior_batch_size": 3}
    batches = [a_batch(random_segment(n), random_segment(n + 9)) for n in range(5)]
    whole, first = (learner(load, prior_max_states=8, **options) for _ in range(2))
    for one in batches:
        whole.learn(one)
    for one in batches[:2]:
        first.learn(one)
    second = learner(load, seed=7, prior_max_states=8, **options)
    second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    reports = [second.learn(one) for one in batches[2:]]
    assert reports[-1].metrics["is_imitation"] == 0
    expected = whole.snapshot()
    assert all(tensor.equal(expected[name]) for name, tensor in second.snapshot().items())


def test_a_snapshot_is_plain_weights_with_adapters_folded_in() -> None:
    subject = learner(adapted)
    subject.learn(a_batch(random_segment(0)))
    names = {name for name, _ in START.named_parameters()}
    assert subject.snapshot().keys() <= names and subject.snapshot().keys() == plain_weights(adapted()).keys()
    with_all = learner()
    with_all.learn(a_batch(random_segment(0)))
    assert with_all.snapshot().keys() == names


def test_with_adapters_the_reference_is_the_model_as_it_came() -> None:
    settings = PriorSettings(prior_loss="ppo", prior_learning_rate=1e-2)
    subject = PriorLearner(adapted, settings)
    reports = [subject.learn(a_batch(random_segment(0))).metrics for _ in range(2)]
    assert reports[0]["reference_kl"] == pytest.approx(0, abs=1e-9) and reports[1]["reference_kl"] > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prior_loss": "sft"}, "Input should be 'imitation', 'ppo' or 'imitation_then_ppo'"),
        ({"imitation_updates": 5}, "imitation_updates=5 goes with prior_loss='imitation_then_ppo', received prior_los"),
        ({"prior_temperature": 0}, "greater than 0"),
        ({"min_spred": 0.1}, "min_spred"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PriorSettings(**settings)


def test_what_cannot_be_learned_from_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"prior_kl=0\.01 needs a reference model"):
        PriorLearner(start, PriorSettings(prior_loss="ppo"))
    segment = random_segment(0)
    bare = {name: getattr(segment, name) for name in GameSegment.__dataclass_fields__}
    with pytest.raises(TypeError, match="expected a TextSegment, received a GameSegment"):
        learner().learn(Batch(0, (Rollout(GameSegment(**bare)),)))
    broken = replace(segment, values=np.full((6, 1), np.nan, np.float32))
    with pytest.raises(ValueError, match="segment 0 of stream 0 has values that are no finite numbers"):
        learner().learn(a_batch(broken))
    with pytest.raises(ValueError, match="does not fit into a microbatch of 4 tokens"):
        learner(microbatch_tokens=4).learn(a_batch(segment))
