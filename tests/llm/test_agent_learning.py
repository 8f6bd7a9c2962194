"""Learning from episodes of several turns: what was drawn is trained on, what was said is only read."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from headway.core.types import Batch, Rollout  # noqa: E402
from headway.llm.rollouts_episode import EpisodeBuilder, Episodes  # noqa: E402
from headway.llm.rollouts_group import Group  # noqa: E402
from headway.llm.train.corrections import CORRECTIONS  # noqa: E402
from headway.llm.train.grpo_learner_learner import GRPOLearner, GRPOSettings  # noqa: E402
from headway.llm.train.replies import Replies  # noqa: E402
from headway.ranks.rank import ALONE, Meeting, Rank  # noqa: E402
from headway.ranks.rank_torch_groups import find_store, open_store  # noqa: E402
from headway.testing.tiny_models import tiny_model  # noqa: E402

SAID = 150
"""Words from here on are said by the environment (and in prompts), those below are drawn by the policy."""
START = tiny_model()
pytestmark = pytest.mark.usefixtures("one_thread")


def log_probs_of(model: Any, prompt: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """One episode on its own, by the model's own forward pass: the log-probability of every token behind the prompt."""
    whole = torch.tensor([[*prompt.tolist(), *tokens.tolist()]])
    with torch.no_grad():
        logs = torch.log_softmax(model(whole).logits[0].float(), -1)[len(prompt) - 1 : -1]
    return logs.gather(1, torch.tensor(tokens)[:, None].long())[:, 0].numpy()


def episode(random: np.random.Generator, prompt: np.ndarray, turns: int, version: int, end: str) -> Episodes:
    builder = EpisodeBuilder(prompt, "games/1")
    for turn in range(turns):
        if turn % 2:
            builder.add_prefix(random.integers(SAID, 250, 1), version)
        size = random.integers(1, 5)
        reward = float(random.integers(0, 3)) / 2
        builder.add_reply(
            random.integers(3, SAID, size), -np.ones(size), version, reward, f"state {random.integers(2)}"
        )
        builder.add_observation(random.integers(SAID, 250, random.integers(1, 6)), version)
    return builder.finish(end)


def group(
    number: int, version: int = 0, ends: tuple[str, ...] = ("done",), model: Any = START, size: int = 3
) -> Rollout:
    """Episodes of one to four turns, with the log-probabilities that the model gives their tokens."""
    random = np.random.default_rng(number)
    prompt = random.integers(SAID, 250, random.integers(2, 7)).astype(np.int32)
    made = [
        episode(random, prompt, int(random.integers(1, 5)), version, ends[place % len(ends)]) for place in range(size)
    ]
    record = Episodes.join(made)
    logs = [log_probs_of(model, prompt, one.tokens) for one in made]
    logs_drawn = np.where(record.trained, np.concatenate(logs), 0).astype(np.float32)
    return Rollout(replace(record, log_probs=logs_drawn), steps=int(record.num_trained.sum()))


def batch(version: int = 0, groups: int = 4, **options: Any) -> Batch:
    return Batch(version, tuple(group(10 * version + number, version, **options) for number in range(groups)))


def learner(*, seed: int = 0, rank: Rank = ALONE, kind: str = "llama", **settings: Any) -> GRPOLearner:
    def load() -> Any:  # a copy: ranks load at the same time, and a new one would roll everybody's dice
        return copy.deepcopy(START) if kind == "llama" else tiny_model(kind)

    chosen = GRPOSettings(**{"learning_rate": 1e-2, **settings})
    return GRPOLearner(load, chosen, load_reference=load, load_critic=load, seed=seed, rank=rank)


def held(subject: GRPOLearner) -> dict[str, Any]:
    found = subject.held_alike()
    return {f"{part} {name}": t.clone() for part, some in found.items() if some for name, t in some.items()}


def largest_gap(first: dict[str, Any], second: dict[str, Any]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


# -- one pass ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "layout"), [("llama", "tree"), ("llama", "rows"), ("gpt2", "tree"), ("mistral", "tree")]
)
def test_one_pass_over_the_record_gives_the_log_probabilities_of_each_episode(kind: str, layout: str) -> None:
    subject = learner(kind=kind, layout=layout, microbatch_tokens=150)
    model = tiny_model(kind)
    records = [group(number, model=model).payload for number in range(4)]
    data = Replies.of(records)
    found = torch.zeros(data.num_tokens)
    parts = list(data.microbatches(np.arange(4), subject._training.sizes))
    assert len(parts) > 1
    for part in parts:
        assert part.trees.tokens.numel() <= 150  # every token that is read counts
        assert (part.trees.targets < SAID).all()  # and only what was drawn reaches the head
        with torch.no_grad():
            found[part.places] = subject._policy.read(part.trees)
    recorded = np.concatenate([record.log_probs[record.trained] for record in records])
    np.testing.assert_allclose(found.numpy(), recorded, atol=1e-5)


def test_an_episode_that_no_microbatch_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit into a microbatch of 12 tokens"):
        learner(microbatch_tokens=12).learn(batch())


# -- the mask ---------------------------------------------------------------------------------------


def slow_gradient(whole: Batch, per_token: Callable[[Any], list[np.ndarray]], kept: Callable[[str], bool]) -> Any:
    """Of the mean over drawn tokens of -A log pi, one episode and one plain forward pass at a time."""
    model = copy.deepcopy(START)
    records = [rollout.payload for rollout in whole.rollouts]
    count = sum(
        int(drawn)
        for record in records
        for drawn, word in zip(record.num_trained, record.end, strict=True)
        if kept(word)
    )
    total = torch.zeros(())
    for record in records:
        at = 0
        for length, word, advantages in zip(record.lengths, record.end, per_token(record), strict=True):
            tokens, trained = record.tokens[at : at + length], record.trained[at : at + length]
            at += length
            if not kept(word):
                continue
            ids = torch.tensor([[*record.prompt.tolist(), *tokens.tolist()]])
            logs = torch.log_softmax(model(ids).logits[0], -1)[len(record.prompt) - 1 : -1]
            chosen = logs.gather(1, torch.tensor(tokens)[:, None].long())[:, 0]
            total = total - (chosen[torch.tensor(trained)] * torch.tensor(advantages)).sum() / count
    total.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def of_episodes(record: Any) -> list[np.ndarray]:
    gaps = record.returns - record.returns.mean()
    return [np.full(int(n), gap, np.float32) for n, gap in zip(record.num_trained, gaps, strict=True)]


def of_turns(record: Any) -> list[np.ndarray]:
    """By hand: what was earned from a turn on, less the mean of those in the group that have the turn."""
    rewards = np.split(record.rewards, np.cumsum(record.turns)[:-1])
    to_go = [[sum(some[t:]) for t in range(len(some))] for some in rewards]
    lines = []
    for number, (length, end) in enumerate(zip(record.lengths, np.cumsum(record.lengths), strict=True)):
        turn = record.turn[end - length : end][record.trained[end - length : end]]
        line = [to_go[number][t] - np.mean([other[t] for other in to_go if len(other) > t]) for t in turn]
        lines.append(np.array(line, np.float32))
    return lines


@pytest.mark.parametrize(("credit", "per_token"), [("episode", of_episodes), ("turn", of_turns)])
@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_the_gradient_is_that_of_the_drawn_tokens_alone(credit: str, per_token: Any, layout: str) -> None:
    subject = learner(estimator="dr_grpo", credit=credit, layout=layout, max_grad_norm=1e9)
    whole = batch()
    subject.learn(whole)
    expected = slow_gradient(whole, per_token, lambda word: True)
    for name, parameter in subject._training.model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], atol=2e-6, rtol=1e-3, msg=name)


def test_nothing_flows_back_from_where_an_observation_would_be_predicted() -> None:
    options: dict[str, Any] = {"kl_weight": 0.1, "entropy_weight": 0.1, "estimator": "gae", "value_weight": 1.0}
    subject = learner(kind="gpt2", layout="rows", **options)  # which is read by its own pass, and can be watched
    subject.learn(batch())  # a critic says something from its second update on
    seen: list[tuple[Any, Any]] = []

    def watch(module: Any, args: Any, options: Any, output: Any) -> None:
        if output.last_hidden_state.requires_grad:
            output.last_hidden_state.retain_grad()
            seen.append((options["input_ids"], output.last_hidden_state))

    subject._training.model.base_model.register_forward_hook(watch, with_kwargs=True)
    subject.learn(batch(1))
    assert seen
    for ids, hidden in seen:
        following = torch.cat([ids[:, 1:], torch.zeros(len(ids), 1, dtype=ids.dtype)], 1)
        # The last token that is read predicts the last one that was drawn; behind it there is padding, which is 0.
        is_last = (ids > 0) & (following == 0)
        predicts_drawn = is_last | ((following > 0) & (following < SAID))
        sizes = hidden.grad.abs().sum(-1)
        assert (sizes[predicts_drawn] > 0).all()
        assert (sizes[~predicts_drawn] == 0).all()
        assert int((~predicts_drawn & (ids > 0)).sum()) > 10


def test_no_measure_over_tokens_knows_of_observations() -> None:
    whole = batch()
    drawn = sum(rollout.steps for rollout in whole.rollouts)
    update = learner()._begin(whole)
    assert update.data.num_tokens == drawn == len(update.advantages) == len(update.logs)
    metrics = learner().learn(whole).metrics
    assert metrics["trained_tokens"] == drawn < metrics["read_tokens"]
    assert metrics["ess"] == pytest.approx(1, abs=1e-6) and metrics["mismatch_max"] < 1e-4


# -- one turn ---------------------------------------------------------------------------------------


def replies(number: int, version: int) -> Group:
    random = np.random.default_rng(number)
    lengths = random.integers(1, 9, 3)
    tokens = random.integers(3, 200, lengths.sum()).astype(np.int32)
    return Group(
        prompt=random.integers(3, 200, random.integers(2, 9)).astype(np.int32),
        tokens=tokens,
        lengths=lengths,
        log_probs=(-5 + 0.3 * random.standard_normal(len(tokens))).astype(np.float32),
        versions=np.full(len(tokens), version, np.int32),
        rewards=random.random(3).astype(np.float32),
        finish=("stop",) * 3,
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"num_minibatches": 2, "num_epochs": 2, "microbatch_tokens": 40},
        {"correction": "m2po", "loss_aggregation": "seq-mean-token-mean", "kl_weight": 0.1, "kl_in_reward": True},
        {"estimator": "gae", "gae_lambda": 1.0, "num_minibatches": 2},
        {"correction": "gspo", "mask_truncated": True},
    ],
)
def test_replies_and_the_same_as_episodes_of_one_turn_give_the_same_bits(settings: dict[str, Any]) -> None:
    ways = learner(**settings), learner(**settings)
    for version in range(2):
        groups = [replies(10 * version + number, version) for number in range(4)]
        reports = [
            way.learn(Batch(version, tuple(Rollout(shown(one)) for one in groups))).metrics
            for way, shown in zip(ways, (lambda one: one, Episodes.of_group), strict=True)
        ]
        both = reports[0].keys() & reports[1].keys()
        assert {name: reports[0][name] for name in both} == {name: reports[1][name] for name in both}
        assert reports[0].keys() - both == {"cut_off"}
    assert largest_gap(held(ways[0]), held(ways[1])) == 0


# -- credit, corrections, measures ------------------------------------------------------------------


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("credit", ["episode", "turn", "gigpo"])
def test_every_correction_learns_with_every_credit(credit: str, correction: str) -> None:
    subject = learner(credit=credit, correction=correction, num_minibatches=2)
    before = held(subject)
    metrics = subject.learn(batch()).metrics
    assert largest_gap(before, held(subject)) > 1e-4
    assert all(np.isfinite(value) for value in metrics.values())


def test_gigpo_is_the_weighed_sum_of_both_comparisons() -> None:
    whole = batch()
    settings: dict[str, Any] = {"estimator": "dr_grpo", "microbatch_tokens": 4096}
    update = learner(credit="gigpo", episode_reward_weight=0.5, step_reward_weight=2.0, **settings)._begin(whole)
    expected: list[float] = []
    for rollout in whole.rollouts:
        record = rollout.payload
        rewards = np.split(record.rewards, np.cumsum(record.turns)[:-1])
        to_go = [sum(0.95**k * r for k, r in enumerate(some[t:])) for some in rewards for t in range(len(some))]
        among = [value - np.mean([b for b, s in zip(to_go, record.states, strict=True) if s == state])
                 for value, state in zip(to_go, record.states, strict=True)]  # fmt: skip
        first = np.cumsum(record.turns) - record.turns
        for number, whole_gap in enumerate(of_episodes(record)):
            end = int(np.cumsum(record.lengths)[number])
            begin = end - int(record.lengths[number])
            turn = record.turn[begin:end][record.trained[begin:end]]
            expected += [0.5 * whole_gap[0] + 2.0 * among[first[number] + t] for t in turn]
    np.testing.assert_allclose(update.advantages.numpy(), expected, atol=1e-5)


def test_a_group_without_differences_between_episodes_may_still_tell_turns_apart() -> None:
    builders = [EpisodeBuilder([5, 6], "games/1") for _ in range(2)]
    for builder, earned in zip(builders, [(1.0, 0.0), (0.0, 1.0)], strict=True):
        for reward in earned:
            builder.add_reply([7, 8], [-5.0, -5.0], 0, reward)
            builder.add_observation([200], 0)
    whole = Batch(0, (Rollout(Episodes.join([builder.finish("done") for builder in builders])),))
    found = learner(credit="turn").learn(whole).metrics
    assert (found["silent_groups"], found["without_signal"]) == (1, 0)
    found = learner(credit="episode").learn(whole).metrics
    assert (found["silent_groups"], found["without_signal"]) == (1, 1)


def test_what_is_reported_of_episodes() -> None:
    one = EpisodeBuilder([5, 6], "games/1")
    one.add_reply([7, 8, 9], [-5.0] * 3, 0, 0.5)
    one.add_observation([200, 201], 0)
    one.add_reply([9], [-5.0], 0, 1.0)
    two = EpisodeBuilder([5, 6], "games/1")
    two.add_reply([7, 8], [-5.0] * 2, 0, 0.0)
    ended = [one.finish("done", success=True, parts={"moves": 4}), two.finish("turns", parts={"moves": 2})]
    found = learner().learn(Batch(0, (Rollout(Episodes.join(ended)),))).metrics
    expected = {
        **{"reward": 0.75, "reward_max": 1.5, "silent_groups": 0, "success": 0.5, "turns": 1.5, "turns_max": 2},
        **{"turn_reward": 0.5, "reply_tokens": 2, "reply_tokens_max": 3, "episode_tokens": 3, "episode_tokens_max": 4},
        **{"trained_tokens": 6, "read_tokens": 2 + 6 + 2, "game_moves": 3},
        **{"end_done": 0.5, "end_turns": 0.5, "end_tokens": 0, "end_deadline": 0},
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_the_page_on_metrics_lists_every_name_that_is_reported_of_episodes() -> None:
    sections = (Path(__file__).parents[2] / "docs/metrics.md").read_text().split("\n## ")

    def names_in(title: str) -> set[str]:
        (section,) = [part for part in sections if part.startswith(title)]
        rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
        return {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    common = names_in("What a language model's learner reports")
    found = learner(estimator="gae", kl_weight=0.1, mask_truncated=True).learn(batch(ends=("done", "turns"))).metrics
    assert names_in("What is reported of episodes") == set(found) - common
    assert common - set(found) == {"cut_off"}


# -- a critic ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["shared", "own"])
def test_the_critic_looks_over_turns_and_beyond_what_was_cut(kind: str) -> None:
    gamma, lam = 0.9, 0.5
    knobs: dict[str, Any] = {"estimator": "gae", "critic": kind, "critic_learning_rate": 1e-2, "microbatch_tokens": 200}
    subject = learner(gae_gamma=gamma, gae_lambda=lam, num_minibatches=2, **knobs)
    subject.learn(batch())  # until here every value is 0
    whole = batch(1, ends=("done", "turns", "tokens"))
    update = subject._begin(whole)
    critic = subject._critic
    assert critic is not None and update.values is not None and update.targets is not None
    body = subject._training.model.base_model if kind == "shared" else critic._body
    expected: list[float] = []
    for record in (rollout.payload for rollout in whole.rollouts):
        rewards = iter(record.rewards.tolist())
        ends = np.cumsum(record.lengths)
        for length, end, word in zip(record.lengths, ends, record.end, strict=True):
            here = slice(end - length, end)
            ids = torch.tensor([[*record.prompt.tolist(), *record.tokens[here].tolist()]])
            with torch.no_grad():
                every = critic._head(body(ids).last_hidden_state)[0, :, 0].tolist()[len(record.prompt) - 1 :]
            places, turn = np.flatnonzero(record.trained[here]), record.turn[here]
            earned = [next(rewards) for _ in range(int(turn.max()) + 1)]
            following, line = 0.0, []
            for number in reversed(range(len(places))):
                place = places[number]
                is_over = number + 1 == len(places)
                is_end = is_over or turn[places[number + 1]] != turn[place]
                beyond = every[-1] if word != "done" else 0.0
                ahead = beyond if is_over else every[places[number + 1]]
                gain = earned[turn[place]] if is_end else 0.0
                following = (
                    gain + (gamma if is_end else 1) * ahead - every[place] + (gamma * lam if is_end else 1) * following
                )
                line.append(following)
            expected += line[::-1]
    np.testing.assert_allclose(update.advantages.numpy(), expected, atol=1e-5)
    np.testing.assert_allclose((update.targets - update.values).numpy(), expected, atol=1e-5)
    assert np.isfinite(subject.learn(whole).metrics["explained_variance"])


# -- what a limit has cut ---------------------------------------------------------------------------


def test_what_was_cut_is_compared_with_and_not_learned_from() -> None:
    subject = learner(estimator="dr_grpo", mask_truncated=True, max_grad_norm=1e9)
    whole = batch(ends=("done", "turns", "done"))
    metrics = subject.learn(whole).metrics
    expected = slow_gradient(whole, of_episodes, lambda word: word == "done")
    for name, parameter in subject._training.model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], atol=2e-6, rtol=1e-3, msg=name)
    assert metrics["left_out"] == pytest.approx(1 / 3)
    assert metrics["reward"] == pytest.approx(float(np.mean([r.payload.returns for r in whole.rollouts])))


def test_replies_that_were_cut_are_left_out_too() -> None:
    groups = [replace(replies(number, 0), finish=("stop", "length", "stop")) for number in range(4)]
    whole = Batch(0, tuple(Rollout(one) for one in groups))
    subject = learner(mask_truncated=True, loss_aggregation="seq-mean-token-mean")
    update = subject._begin(whole)
    everything = learner()._begin(whole)
    is_kept = torch.from_numpy(~everything.data.cut)[everything.data.sequences.row]
    assert torch.equal(update.advantages, everything.advantages[is_kept])
    assert len(update.data.starts) == 8
    assert subject.learn(whole).metrics["left_out"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_where_everything_was_cut_the_weights_stay(estimator: str) -> None:
    subject = learner(mask_truncated=True, estimator=estimator)
    before = held(subject)
    metrics = subject.learn(batch(ends=("tokens",))).metrics
    assert largest_gap(before, held(subject)) == 0
    assert (metrics["left_out"], metrics["without_signal"], metrics["grad_norm"]) == (1, 1, 0)
    subject.learn(batch(1))
    assert largest_gap(before, held(subject)) > 1e-4


# -- ranks and the engine ---------------------------------------------------------------------------


def on_two_ranks(work: Callable[[Rank], Any]) -> list[Any]:
    ranks, here = [Rank(index, 2) for index in range(2)], "127.0.0.1"
    store, port = open_store(here, 2, 20.0)
    meeting = Meeting(here, port, "gloo", 20.0, 20.0)

    def on_one(rank: Rank) -> Any:
        rank.connect(meeting, store if rank.index == 0 else find_store(here, port, 2, 20.0), here)
        return work(rank)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(on_one, ranks))


@pytest.mark.parametrize(
    "settings",
    [
        {"credit": "gigpo", "num_minibatches": 2, "mask_truncated": True},
        {"estimator": "gae", "critic_learning_rate": 1e-2, "kl_weight": 0.1},
        {"estimator": "gae", "critic": "own", "critic_learning_rate": 1e-2, "mask_truncated": True},
    ],
)
def test_two_ranks_learn_what_one_learns(settings: dict[str, Any]) -> None:
    def work(rank: Rank) -> tuple[dict[str, Any], dict[str, float]]:
        subject = learner(rank=rank, adam_eps=1e-3, microbatch_tokens=200, **settings)
        for version in range(2):
            metrics = subject.learn(batch(version, ends=("done", "turns"))).metrics
        subject.learn(batch(2, ends=("tokens",)))
        return held(subject), dict(metrics)

    alone, expected = work(ALONE)
    (first, found), (second, _) = on_two_ranks(work)
    assert largest_gap(first, second) == 0
    assert largest_gap(alone, first) < 2e-5
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_with_a_lead_the_tokens_of_episodes_are_compared_with_the_weights_that_drew_them() -> None:
    subject = learner(check_engine_every=1)
    assert subject.learn(batch(0)).metrics["mismatch_max"] < 1e-4
    assert "mismatch_max" not in subject.learn(Batch(1, batch(0).rollouts)).metrics
    copied = subject._check._copied
    assert copied is not None and copied[0] == 1
    model = tiny_model()
    model.load_state_dict({**model.state_dict(), **copied[1]})
    model.tie_weights()
    drawn_by_1 = tuple(group(number, 1, model=model) for number in range(4))
    found = subject.learn(Batch(2, drawn_by_1)).metrics
    assert found["mismatch_max"] < 1e-4 < found["behaviour_kl"]
