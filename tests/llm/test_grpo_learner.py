"""The learner for language models: what an update does to the weights, however the batch is cut."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from headway.coordinator.roles import LearnerRole  # noqa: E402
from headway.core.types import Batch, Rollout  # noqa: E402
from headway.llm.model.adapters import add_adapters, plain_weights  # noqa: E402
from headway.llm.rollouts_group import Group  # noqa: E402
from headway.llm.train.advantages import ALL_ESTIMATORS, ESTIMATORS  # noqa: E402
from headway.llm.train.corrections import CORRECTIONS  # noqa: E402
from headway.llm.train.grpo_learner_engine_check import overwrite  # noqa: E402
from headway.llm.train.grpo_learner_learner import GRPOLearner, GRPOSettings  # noqa: E402
from headway.llm.train.heads import chosen_log_probs  # noqa: E402
from headway.llm.train.trees import ReplyTree, hidden_states, lay_out, lay_out_joined, pack_trees, pays_to_join  # noqa: E402
from headway.testing.tiny_models import PLAIN_KINDS, tiny_model  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def group(number: int, replies: int = 4, version: int = 0, noise: float = 0.0) -> Rollout:
    """Random replies to a random prompt, with the log-probabilities of the tiny model (and noise on top)."""
    random = np.random.default_rng(number)
    prompt = random.integers(3, 200, random.integers(2, 9)).astype(np.int32)
    lengths = random.integers(1, 9, replies)
    tokens = random.integers(3, 200, lengths.sum()).astype(np.int32)
    parts = np.split(tokens, np.cumsum(lengths)[:-1])
    logs = np.concatenate([_sequence_log_probs(_START, prompt, part) for part in parts])
    payload = Group(
        prompt=prompt,
        tokens=tokens,
        lengths=lengths,
        log_probs=(logs + noise * random.standard_normal(len(logs))).astype(np.float32),
        versions=np.full(len(tokens), version, np.int32),
        rewards=random.integers(0, 2, replies).astype(np.float32) + 0.1 * random.random(replies).astype(np.float32),
    )
    return Rollout(payload, steps=len(tokens))


_START = tiny_model()


def _sequence_log_probs(model: Any, prompt: np.ndarray, reply: np.ndarray) -> np.ndarray:
    whole = torch.tensor([[*prompt.tolist(), *reply.tolist()]])
    with torch.no_grad():
        logs = torch.log_softmax(model(whole).logits[0].float(), -1)[len(prompt) - 1 : -1]
    return logs.gather(1, torch.tensor(reply)[:, None].long())[:, 0].numpy()


def learner(kind: str = "llama", *, seed: int = 0, **settings: Any) -> GRPOLearner:
    return GRPOLearner(
        lambda: tiny_model(kind),
        GRPOSettings(**{"learning_rate": 1e-2, **settings}),
        load_reference=lambda: tiny_model(kind),
        seed=seed,
    )


def batch(version: int = 0, groups: int = 5, **options: Any) -> Batch:
    return Batch(version, tuple(group(n, 2 + n % 3, **options) for n in range(groups)))


def weights_after(subject: GRPOLearner, *batches: Batch) -> dict[str, Any]:
    for one in batches:
        subject.learn(one)
    return {name: tensor.clone() for name, tensor in subject.snapshot().items()}


def largest_gap(first: dict[str, Any], second: dict[str, Any]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).detach().abs().max()) for name in first)


# -- updates that are not finite ------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ALL_ESTIMATORS)
def test_an_update_from_an_infinite_reward_is_refused_in_one_line_that_names_its_tickets(estimator: str) -> None:
    role = LearnerRole(lambda: learner(estimator=estimator))
    healthy, broken = batch(), batch(1)
    role.learn(healthy, None)
    broken.rollouts[1].payload.rewards[0] = np.inf
    broken = replace(broken, rollouts=tuple(replace(one, ticket=10 + n) for n, one in enumerate(broken.rollouts)))
    expected = r"^the update on tickets 10, 11, 12, 13, 14 at version 1 is not finite: .*weight_norm is nan"
    with pytest.raises(FloatingPointError, match=expected) as caught:
        role.learn(broken, 2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("optimizer_state", ["full", "8bit", "host"])
def test_weights_that_a_step_made_infinite_are_refused(optimizer_state: str) -> None:
    role = LearnerRole(lambda: learner(learning_rate=1e37, optimizer_state=optimizer_state))
    with pytest.raises(FloatingPointError, match=r"weight_norm is (inf|nan)"):
        role.learn(batch(), 1)


def test_the_norm_of_the_weights_is_measured_after_the_update() -> None:
    subject = learner()
    report = subject.learn(batch())
    squares = sum(float((tensor.double() ** 2).sum()) for tensor in subject._training.trained.values().values())
    assert report.metrics["weight_norm"] == pytest.approx(squares**0.5, rel=1e-6)


# -- prompts that cannot be read -------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["tree", "rows"])
@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "the group of games/7: the prompt is empty, so nothing predicts the first token of a reply"),
        (
            127,
            "the group of games/7: a prompt of 127 tokens with 3 behind it goes beyond the 128 positions of the model",
        ),
    ],
)
def test_a_prompt_that_cannot_be_read_is_named_in_one_line(layout: str, size: int, message: str) -> None:
    prompt, tokens = np.full(size, 5, np.int32), np.full(5, 7, np.int32)
    logs, rewards = np.full(5, -1, np.float32), np.array([0, 1], np.float32)
    record = Group(prompt, tokens, np.array([2, 3]), logs, np.zeros(5, np.int32), rewards, ("stop",) * 2, uid="games/7")
    with pytest.raises(ValueError) as refused:
        learner("gpt2", layout=layout).learn(Batch(0, (Rollout(record),)))
    assert str(refused.value) == message


@pytest.mark.parametrize("kind", ["gpt2", "opt"])
def test_a_conversation_may_fill_all_positions(kind: str) -> None:
    prompt, tokens = np.full(126, 5, np.int32), np.full(4, 7, np.int32)
    logs, rewards = np.full(4, -1, np.float32), np.array([0, 1], np.float32)
    record = Group(prompt, tokens, np.array([1, 3]), logs, np.zeros(4, np.int32), rewards, ("stop",) * 2)
    assert np.isfinite(learner(kind).learn(Batch(0, (Rollout(record),))).metrics["policy_loss"])


# -- layout ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_a_tree_gives_every_reply_what_a_sequence_of_its_own_would(kind: str) -> None:
    model = tiny_model(kind)
    groups = [group(n, 3).payload for n in range(4)]
    replies = [g.replies for g in groups]
    found: dict[int, np.ndarray] = {}
    for trees in pack_trees([g.prompt for g in groups], replies, 40):
        laid = lay_out(trees)
        with torch.no_grad():
            logs, _ = chosen_log_probs(model.get_output_embeddings(), hidden_states(model, laid), laid.targets)
        lengths = [len(replies[r // 3][r % 3]) for r in laid.replies]
        found |= dict(zip(laid.replies, np.split(logs.numpy(), np.cumsum(lengths)[:-1]), strict=True))
    for number in range(12):
        expected = _sequence_log_probs(model, groups[number // 3].prompt, replies[number // 3][number % 3])
        np.testing.assert_allclose(found[number], expected, atol=2e-5)


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_joined_trees_read_what_their_prompts_begin_with_once_and_give_what_each_gives_alone(kind: str) -> None:
    model = tiny_model(kind)
    random = np.random.default_rng(0)
    beginning = random.integers(3, 200, 20)
    replies = [[random.integers(3, 200, size) for size in (3, 1, 4)] for _ in range(4)]
    prompts = [np.concatenate([beginning, random.integers(3, 200, own)]) for own in (9, 4, 1, 6)]
    trees = [
        ReplyTree(prompt, tuple(some), 3 * n) for n, (prompt, some) in enumerate(zip(prompts, replies, strict=True))
    ]
    laid = lay_out_joined(trees)
    assert laid.tokens.shape == (1, 20 + (9 + 4 + 1 + 6) + 4 * 5)
    with torch.no_grad():
        logs, _ = chosen_log_probs(model.get_output_embeddings(), hidden_states(model, laid), laid.targets)
    found = np.split(logs.numpy(), np.cumsum([len(replies[r // 3][r % 3]) for r in laid.replies])[:-1])
    for number, one in zip(laid.replies, found, strict=True):
        expected = _sequence_log_probs(model, prompts[number // 3], replies[number // 3][number % 3])
        np.testing.assert_allclose(one, expected, atol=2e-5)


def test_trees_are_joined_where_their_prompts_have_more_in_common_than_the_pairs_between_them_cost() -> None:
    alike = [ReplyTree(np.concatenate([np.zeros(100), np.full(40, n)]), (np.zeros(4),), n) for n in range(8)]
    assert pays_to_join(alike, 5e-4)
    assert not pays_to_join(alike, 5e-2), "pairs are dear"
    assert not pays_to_join([ReplyTree(np.full(100, n), (np.zeros(4),), n) for n in range(8)], 5e-4), "nothing is alike"
    assert not pays_to_join(alike[:1], 5e-4)


def test_microbatches_keep_to_their_budget_and_hold_every_reply_once() -> None:
    random = np.random.default_rng(0)
    prompts = [np.arange(random.integers(1, 20)) for _ in range(30)]
    replies = [[np.arange(random.integers(1, 12)) for _ in range(random.integers(1, 9))] for _ in prompts]
    batches = pack_trees(prompts, replies, 48)
    numbers = [
        number for trees in batches for tree in trees for number in range(tree.first, tree.first + len(tree.replies))
    ]
    assert sorted(numbers) == list(range(sum(map(len, replies))))
    for trees in batches:
        assert lay_out(trees).tokens.numel() <= 48
    with pytest.raises(ValueError, match="does not fit into a microbatch of 8 tokens"):
        pack_trees([np.arange(6)], [[np.arange(4)]], 8)


@pytest.mark.parametrize("price", [1e-4, 1e-3, 0.05])
@pytest.mark.parametrize(("prompt", "reply", "count"), [(8, 30, 8), (100, 10, 8), (20, 60, 5), (40, 40, 1)])
def test_a_group_is_cut_into_trees_where_that_is_less_work(price: float, prompt: int, reply: int, count: int) -> None:
    group = [[np.arange(reply + 1) for _ in range(count)]]
    (trees,) = pack_trees([np.arange(prompt)], group, 100_000, price)
    numbers = [number for tree in trees for number in range(tree.first, tree.first + len(tree.replies))]
    assert sorted(numbers) == list(range(count))

    def work(sizes: list[int]) -> float:
        return sum(size + price * size**2 for size in sizes)

    every_cut = []
    for parts in range(1, count + 1):
        counts = [len(part) for part in np.array_split(np.arange(count), parts)]
        every_cut.append(work([prompt + number * reply for number in counts]))
    found = work([tree.num_tokens for tree in trees])
    assert found <= 1.05 * min(every_cut), "by the formula, which knows no whole replies"


# -- updates --------------------------------------------------------------------------------------


def test_how_a_batch_is_cut_into_microbatches_does_not_change_what_is_learned() -> None:
    whole = weights_after(learner(microbatch_tokens=4096), batch())
    assert largest_gap(whole, weights_after(learner(microbatch_tokens=24), batch())) < 2e-5
    assert largest_gap(whole, weights_after(learner(), Batch(0, batch().rollouts[:3]))) > 1e-3


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_and_correction_learns_and_reports(estimator: str, correction: str) -> None:
    subject = learner(estimator=estimator, correction=correction)
    before = weights_after(subject)
    report = subject.learn(batch(version=2, noise=0.01 if correction == "sequence_mask" else 0.3))
    assert largest_gap(before, weights_after(subject)) > 1e-4
    for name in ("ess", "reward", "entropy", "grad_norm", "token_staleness", "behaviour_kl", "silent_groups"):
        assert np.isfinite(report.metrics[name]), name
    assert report.metrics["token_staleness"] == 2
    assert report.effective_sample_size == pytest.approx(report.metrics["ess"]) and report.metrics["ess"] < 1


def test_fresh_data_have_weight_one_and_the_mismatch_is_rounding() -> None:
    metrics = learner().learn(batch()).metrics
    assert metrics["ess"] == pytest.approx(1, abs=1e-6)
    assert metrics["weight_mean"] == pytest.approx(1, abs=1e-5)
    assert 0 <= metrics["mismatch_max"] < 1e-4


def test_what_was_made_by_others_is_not_taken_for_mismatch() -> None:
    assert "mismatch_max" not in learner().learn(batch(version=3, noise=0.5)).metrics


def test_tokens_that_a_stale_cache_had_a_part_in_are_not_taken_for_a_mismatch() -> None:
    """A reply that got new weights under way: what comes after them was made with the cache of the old ones."""
    whole = batch()
    for rollout in whole.rollouts:
        first = np.repeat(np.cumsum(rollout.payload.lengths) - rollout.payload.lengths, rollout.payload.lengths)
        late = np.arange(rollout.steps) > first  # all but the first token of each reply
        rollout.payload.versions[late] = 1
        rollout.payload.log_probs[late] -= 3.0
    assert learner().learn(Batch(0, whole.rollouts)).metrics["mismatch_max"] < 1e-4
    assert "mismatch_max" not in learner().learn(Batch(1, whole.rollouts)).metrics


@pytest.mark.parametrize("settings", [{}, {"num_minibatches": 3}, {"correction": "clip", "num_minibatches": 3}])
def test_tokens_of_older_weights_are_compared_with_those_weights(settings: dict[str, Any]) -> None:
    """At a lead of 1: the batch of version 1 has tokens of version 0, that of version 2 those of version 1."""
    subject = learner(check_engine_every=1, **settings)
    assert subject.learn(batch(version=0)).metrics["mismatch_max"] < 1e-4
    assert "mismatch_max" not in subject.learn(Batch(1, batch().rollouts)).metrics  # 0's weights are gone, 1's are kept
    made_by_1 = copy.deepcopy(subject._check._copied)
    assert made_by_1 is not None and made_by_1[0] == 1
    model = tiny_model()
    model.load_state_dict({**model.state_dict(), **made_by_1[1]})
    model.tie_weights()
    rollouts = tuple(_retold(rollout, model, version=1) for rollout in batch().rollouts)
    before = {name: tensor.clone() for name, tensor in subject.snapshot().items()}
    plain = learner(check_engine_every=0, **settings)
    plain.load_state_dict(copy.deepcopy(subject.state_dict()))
    found = subject.learn(Batch(2, rollouts)).metrics
    assert found["mismatch_max"] < 1e-4
    assert found["behaviour_kl"] > 1e-4  # by now the weights are others
    assert "mismatch_max" not in plain.learn(Batch(2, rollouts)).metrics
    assert largest_gap(subject.snapshot(), plain.snapshot()) == 0 < largest_gap(before, subject.snapshot())


def test_weights_elsewhere_are_exchanged_in_place_and_come_back_bit_for_bit() -> None:
    live, other = torch.nn.Parameter(torch.randn(5)), torch.randn(5)
    own, place = live.detach().clone(), live.data_ptr()
    kept = overwrite(live, other)
    assert torch.equal(live, other) and torch.equal(kept, own)
    assert torch.equal(overwrite(live, kept), other)
    assert torch.equal(live, own) and live.data_ptr() == place


def _retold(rollout: Rollout, model: Any, version: int) -> Rollout:
    """The same tokens, as if this model had written them."""
    payload = rollout.payload
    logs = np.concatenate([_sequence_log_probs(model, payload.prompt, part) for part in payload.replies])
    versions = np.full(len(logs), version, np.int32)
    return Rollout(replace(payload, log_probs=logs.astype(np.float32), versions=versions), steps=rollout.steps)


def test_within_a_version_the_weights_move_on_and_its_tokens_are_no_longer_compared_with_them() -> None:
    """`publish_every` 2: two updates with the same version, the second from other weights than it was made by."""
    subject = learner()
    assert "mismatch_max" in subject.learn(batch()).metrics
    again = learner()
    again.load_state_dict(copy.deepcopy(subject.state_dict()))
    for one in (subject, again):
        assert "mismatch_max" not in one.learn(batch()).metrics


def test_a_reply_without_tokens_is_refused_by_its_place() -> None:
    payload = group(0).payload
    lengths = payload.lengths.copy()
    lengths[1] += lengths[2]
    lengths[2] = 0
    with pytest.raises(ValueError, match=r"^reply 2 to prompts/7 has no tokens: a reply needs at least one"):
        replace(payload, lengths=lengths, uid="prompts/7")


def test_rollouts_that_an_older_version_has_saved_are_learned_from_as_well() -> None:
    """They hold dictionaries; the weights come out bit for bit."""
    names = ("prompt", "tokens", "lengths", "log_probs", "versions", "rewards")
    new = batch()
    old = Batch(0, tuple(replace(r, payload={name: r.payload[name] for name in names}) for r in new.rollouts))
    ways = learner(), learner()
    reports = [way.learn(pickle.loads(pickle.dumps(one))) for way, one in zip(ways, (new, old), strict=True)]
    assert reports[0].metrics == reports[1].metrics
    first, second = (way.snapshot() for way in ways)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_what_nothing_can_be_learned_from_is_measured_as_the_estimator_sees_it() -> None:
    def told(estimator: str, rewards: list[list[float]]) -> float:
        groups = [group(number, len(some)) for number, some in enumerate(rewards)]
        for one, some in zip(groups, rewards, strict=True):
            one.payload.rewards[:] = some
        return learner(estimator=estimator).learn(Batch(0, tuple(groups))).metrics["without_signal"]

    assert told("grpo", [[1.0, 1.0], [0.0, 0.0], [0.0, 1.0], [0.5, 0.5]]) == 0.75
    assert told("reinforce_plus_plus", [[1.0], [0.0]]) == 0.0  # groups of one are compared with each other
    assert told("reinforce_plus_plus", [[1.0], [1.0]]) == 1.0


def test_several_minibatches_anchor_at_the_policy_before_the_update() -> None:
    one = learner(num_minibatches=1).learn(batch()).metrics
    many = learner(num_minibatches=4, num_epochs=2).learn(batch()).metrics
    assert one["ratio"] == pytest.approx(1, abs=1e-6)
    assert many["ratio"] != pytest.approx(1, abs=1e-4)


def test_the_update_follows_the_advantage() -> None:
    """The rewarded reply becomes more likely, the other one less."""
    random = np.random.default_rng(1)
    prompt = random.integers(3, 200, 5).astype(np.int32)
    good, bad = random.integers(3, 200, (2, 6)).astype(np.int32)
    logs = [_sequence_log_probs(tiny_model(), prompt, reply) for reply in (good, bad)]
    payload = Group(
        prompt=prompt,
        tokens=np.concatenate([good, bad]),
        lengths=np.array([6, 6]),
        log_probs=np.concatenate(logs).astype(np.float32),
        versions=np.zeros(12, np.int32),
        rewards=np.array([1, 0], np.float32),
    )
    subject = learner()
    subject.learn(Batch(0, (Rollout(payload),)))
    after = [_sequence_log_probs(subject._training.model, prompt, reply).sum() for reply in (good, bad)]
    assert after[0] > logs[0].sum() + 0.1 and after[1] < logs[1].sum() - 0.1


def test_the_reference_holds_the_policy_back() -> None:
    free = weights_after(learner(), *[batch()] * 6)
    held = weights_after(learner(kl_weight=3.0), *[batch()] * 6)
    start = weights_after(learner())
    assert largest_gap(start, held) < largest_gap(start, free)
    with pytest.raises(ValueError, match="needs a reference"):
        GRPOLearner(tiny_model, GRPOSettings(kl_weight=0.1))


def test_the_learning_rate_rises_to_its_place() -> None:
    subject = learner(warmup_updates=4)
    rates = [subject.learn(batch()).metrics["learning_rate"] for _ in range(5)]
    np.testing.assert_allclose(rates, np.array([0.25, 0.5, 0.75, 1, 1]) * 1e-2)


def test_a_learner_goes_on_bit_for_bit_from_its_state() -> None:
    options: dict[str, Any] = {"num_minibatches": 3, "warmup_updates": 5}
    straight = weights_after(learner(**options), *[batch(v) for v in range(4)])
    first = learner(**options)
    weights_after(first, *[batch(v) for v in range(2)])
    state = copy.deepcopy(first.state_dict())
    weights_after(first, batch(9))  # what happens later must not reach into the state
    second = learner(seed=5, **options)
    second.load_state_dict(state)
    assert largest_gap(straight, weights_after(second, batch(2), batch(3))) == 0.0


def test_settings_that_cannot_work_are_refused() -> None:
    for wrong in ({"num_epochs": 0}, {"learning_rate": 0.0}, {"temperature": 0.0}, {"microbatch_tokens": 0}):
        with pytest.raises(ValueError, match="Input should be greater than"):
            GRPOSettings(**wrong)
    with pytest.raises(ValueError, match="did you mean 'token_is'"):
        learner(correction="tokenis")


# -- adapters -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_adapters_train_little_and_are_folded_into_what_is_published(kind: str) -> None:
    pytest.importorskip("peft")
    subject = GRPOLearner(lambda: add_adapters(tiny_model(kind), 4, 8.0), GRPOSettings(learning_rate=1e-2))
    trained = sum(tensor.numel() for tensor in subject.state_dict()["weights"].values())
    assert trained < 0.5 * sum(p.numel() for p in tiny_model(kind).parameters())
    for version in range(3):
        subject.learn(batch(version))
    plain = tiny_model(kind)
    missing = plain.load_state_dict({name: t.clone() for name, t in subject.snapshot().items()}, strict=False)
    assert not missing.unexpected_keys
    assert largest_gap(dict(plain.named_parameters()), dict(tiny_model(kind).named_parameters())) > 1e-4
    tokens = torch.randint(3, 200, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(
            plain(tokens).logits, subject._training.model.eval()(tokens).logits, atol=1e-5, rtol=1e-4
        )


def test_a_model_without_adapters_publishes_itself() -> None:
    model = tiny_model()
    assert plain_weights(model).keys() == dict(model.named_parameters()).keys()
