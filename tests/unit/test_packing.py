"""Packing: every sequence once, nothing over the budget, and the same gradient as a padded batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from headway.buffer.packing import Pack, assign, attention_mask, pack_sequences
from headway.learn.corrections import find_correction
from headway.learn.grpo.loss import LossSettings, policy_loss, token_scale
from headway.learn.ragged import Ragged

torch.set_num_threads(1)

lengths_and_budget = st.lists(st.integers(1, 60), max_size=40).flatmap(
    lambda lengths: st.tuples(st.just(lengths), st.integers(max(lengths, default=1), 200))
)
HOWS = ("first_fit", "balanced")


# -- who shares a pack ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOWS)
@settings(max_examples=200, deadline=None, derandomize=True)
@given(given_=lengths_and_budget)
def test_every_sequence_is_in_exactly_one_pack_and_no_pack_is_over_the_budget(
    how: str, given_: tuple[list[int], int]
) -> None:
    lengths, budget = given_
    packs = assign(lengths, budget=budget, how=how)
    assert sorted(index for pack in packs for index in pack) == list(range(len(lengths)))
    assert all(0 < sum(lengths[index] for index in pack) <= budget for pack in packs)
    assert packs == assign(list(lengths), budget=budget, how=how)
    assert len(packs) <= 2 * -(-sum(lengths) // budget)  # two packs side by side are never both half empty


@settings(max_examples=100, deadline=None, derandomize=True)
@given(lengths_and_budget)
def test_balancing_levels_the_packs(given_: tuple[list[int], int]) -> None:
    """The fullest is at most one sequence above the emptiest."""
    lengths, budget = given_
    loads = [sum(lengths[index] for index in pack) for pack in assign(lengths, budget=budget)]
    if loads:
        assert max(loads) - min(loads) <= max(lengths)


def test_first_fit_decreasing_and_balanced_by_hand() -> None:
    lengths = [5, 3, 2, 6, 1, 1]
    assert assign(lengths, budget=8, how="first_fit") == [[0, 1], [2, 3], [4, 5]]
    assert assign(lengths, budget=8, how="balanced") == [[0, 4], [1, 2, 5], [3]]


def test_where_levelling_does_not_fit_one_more_pack_is_taken() -> None:
    lengths = [3, 3, 2, 2, 2]  # first fit: 3 + 3 and 2 + 2 + 2; levelled: 3 + 2 + 2 would be over the budget
    assert assign(lengths, budget=6, how="first_fit") == [[0, 1], [2, 3, 4]]
    assert assign(lengths, budget=6, how="balanced") == [[0, 4], [1], [2, 3]]


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([3, 9, 2], {"budget": 8}, "sequence 1 has 9 tokens, the budget of a microbatch is 8: raise it"),
        ([3, 0], {"budget": 8}, "sequence 1 is empty"),
        ([3], {"budget": 0}, "the token budget of a microbatch must be >= 1, received 0"),
        ([3], {"budget": 8, "how": "balance"}, r"unknown packing 'balance'; did you mean 'balanced'\?"),
    ],
)
def test_what_cannot_be_packed_is_named(lengths: list[int], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assign(lengths, **options)


# -- what a pack holds ------------------------------------------------------------------------------


def random_batch(seed: int, num: int = 7, longest: int = 12, vocabulary: int = 11) -> tuple[list, list]:
    """Prompts and replies; some replies have holes, as where an environment speaks in the middle."""
    rng = np.random.default_rng(seed)
    tokens = [rng.integers(0, vocabulary, rng.integers(2, longest + 1)) for _ in range(num)]
    trained = []
    for ids in tokens:
        mask = rng.random(len(ids)) < 0.8
        mask[: rng.integers(1, len(ids))] = False
        trained.append(mask)
    return tokens, trained


def test_the_arrays_of_a_pack_by_hand() -> None:
    tokens = [np.array([5, 6, 7]), np.array([8, 9])]
    trained = [np.array([False, True, True]), np.array([False, True])]
    (pack,) = pack_sequences(tokens, trained, budget=5)
    assert pack.members == (0, 1)
    assert pack.tokens.tolist() == [[5, 6, 7, 8, 9]]
    assert pack.positions.tolist() == [[0, 1, 2, 0, 1]]
    assert pack.row.tolist() == [0, 0, 0, 1, 1]
    assert (pack.cumulative.tolist(), pack.cumulative.dtype, pack.longest) == ([0, 3, 5], np.int32, 3)
    assert pack.sources.tolist() == [0, 1, 3]
    assert pack.targets.tolist() == [6, 7, 9]
    assert pack.trained.tolist() == [2, 1]
    assert pack.gather([np.array([0.1, 0.2]), np.array([0.3])]).tolist() == [0.1, 0.2, 0.3]
    mask = attention_mask(pack.row)
    assert mask.shape == (1, 1, 5, 5)
    seen = [[0], [0, 1], [0, 1, 2], [3], [3, 4]]
    assert [np.flatnonzero(line).tolist() for line in mask[0, 0]] == seen


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(12, 60), st.sampled_from(HOWS))
def test_packs_hold_every_token_and_every_trained_token_once(seed: int, budget: int, how: str) -> None:
    tokens, trained = random_batch(seed)
    values = [np.arange(mask.sum()) + 100 * k for k, mask in enumerate(trained)]
    packs = pack_sequences(tokens, trained, budget=budget, how=how)
    seen: list[int] = []
    for pack in packs:
        for k, member in enumerate(pack.members):
            here = pack.row == k
            assert pack.tokens[0, here].tolist() == tokens[member].tolist()
            assert pack.positions[0, here].tolist() == list(range(len(tokens[member])))
            assert pack.trained[k] == trained[member].sum()
        assert (pack.targets == pack.tokens[0, pack.sources + 1]).all()
        assert (pack.row[pack.sources] == pack.row[pack.sources + 1]).all()
        seen += pack.gather(values).tolist()
    assert sorted(seen) == sorted(np.concatenate(values).tolist())


def test_masks_that_do_not_fit_are_named() -> None:
    ids, mask = [np.array([1, 2])], [np.array([False, True])]
    with pytest.raises(ValueError, match="received 1 sequences and 2 masks"):
        pack_sequences(ids, mask * 2, budget=8)
    with pytest.raises(ValueError, match="sequence 0 has 2 tokens and a mask of 1"):
        pack_sequences(ids, [np.array([False])], budget=8)
    with pytest.raises(ValueError, match="sequence 0 trains its first token, which nothing predicts"):
        pack_sequences(ids, [np.array([True, True])], budget=8)
    (pack,) = pack_sequences(ids, mask, budget=8)
    with pytest.raises(ValueError, match="sequence 0 has 1 trained tokens, received 3 values for them"):
        pack.gather([np.zeros(3)])


# -- the same gradient ------------------------------------------------------------------------------


class TinyLM(nn.Module):
    """One block of causal attention with learned positions: enough to notice a leak between sequences."""

    def __init__(self, vocabulary: int = 11, width: int = 8) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.embed, self.place = nn.Embedding(vocabulary, width), nn.Embedding(16, width)
        self.mix, self.head = nn.Linear(width, 3 * width), nn.Linear(width, vocabulary)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=random)
        self.double()

    def forward(self, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        hidden = self.embed(tokens) + self.place(positions)
        q, k, v = self.mix(hidden).chunk(3, dim=-1)
        seen = functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], attn_mask=mask)
        return self.head(hidden + seen[:, 0])


def logp_of(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]


def packed_logp(model: TinyLM, pack: Pack) -> Tensor:
    mask = torch.from_numpy(attention_mask(pack.row))
    logits = model(torch.from_numpy(pack.tokens), torch.from_numpy(pack.positions), mask)
    return logp_of(logits[0, torch.from_numpy(pack.sources)], torch.from_numpy(pack.targets))


def padded(tokens: list[np.ndarray], trained: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    width = max(map(len, tokens))
    ids = np.stack([np.pad(row, (0, width - len(row))) for row in tokens])
    masks = np.stack([np.pad(row, (0, width - len(row))) for row in trained])
    return torch.from_numpy(ids), torch.from_numpy(masks)


def padded_logp(model: TinyLM, ids: Tensor, masks: Tensor) -> Tensor:
    size, width = ids.shape
    causal = torch.ones(size, 1, width, width, dtype=torch.bool).tril()
    logits = model(ids, torch.arange(width).expand(size, -1), causal)
    return logp_of(logits[:, :-1], ids[:, 1:])[masks[:, 1:]]


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
@pytest.mark.parametrize(("correction", "budget"), [("decoupled", 12), ("sequence_is", 17), ("cispo", 30)])
@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_packed_microbatches_learn_exactly_what_the_padded_batch_learns(
    aggregation: Any, correction: str, budget: int, seed: int
) -> None:
    tokens, trained = random_batch(seed)
    rng = np.random.default_rng(seed)
    counts = [int(mask.sum()) for mask in trained]
    advantages = [np.repeat(rng.normal(), count) for count in counts]
    behaviour = [rng.normal(-2, 0.5, count) for count in counts]
    anchor = [old + rng.normal(0, 0.3, len(old)) for old in behaviour]
    rule, chosen = find_correction(correction), LossSettings(loss_aggregation=aggregation)
    totals = {"num_tokens": max(sum(counts), 1), "num_sequences": len(tokens)}
    model, twin = TinyLM(), TinyLM()

    def loss(logp: Tensor, pick: Any, lengths: Any) -> Tensor:
        sequences = Ragged.of(lengths)
        prox, old, good = (torch.from_numpy(pick(values)) for values in (anchor, behaviour, advantages))
        scale = token_scale(sequences, chosen, **totals)
        return policy_loss(logp, prox, good, rule.weigh(prox, old, sequences), scale, rule.surrogate, chosen).value

    whole = loss(padded_logp(model, *padded(tokens, trained)), np.concatenate, counts)
    whole.backward()
    total = 0.0
    for pack in pack_sequences(tokens, trained, budget=budget):
        part = loss(packed_logp(twin, pack), pack.gather, pack.trained)
        part.backward()
        total += part.item()
    assert total == pytest.approx(whole.item(), abs=1e-6)
    for mine, theirs in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-6, rtol=1e-6)


def test_a_mask_that_leaks_between_sequences_would_be_noticed() -> None:
    """The test above can fail: without the block structure the log-probabilities differ."""
    tokens, trained = random_batch(1)
    packs = pack_sequences(tokens, trained, budget=30)
    pack = next(pack for pack in packs if len(pack.members) > 1)
    model, size = TinyLM(), pack.tokens.shape[1]
    causal = torch.ones(1, 1, size, size, dtype=torch.bool).tril()
    logits = model(torch.from_numpy(pack.tokens), torch.from_numpy(pack.positions), causal)
    leaking = logp_of(logits[0, torch.from_numpy(pack.sources)], torch.from_numpy(pack.targets))
    assert (leaking - packed_logp(model, pack)).abs().max() > 1e-3


def test_a_language_model_of_transformers_reads_a_pack_as_it_reads_each_sequence_alone() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.LlamaConfig(
        vocab_size=11, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).double().eval()
    tokens, trained = random_batch(3)
    with torch.no_grad():
        for pack in pack_sequences(tokens, trained, budget=30):
            mask = torch.from_numpy(attention_mask(pack.row))
            ids, positions = torch.from_numpy(pack.tokens), torch.from_numpy(pack.positions)
            together = model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False).logits[0]
            for k, member in enumerate(pack.members):
                alone = model(input_ids=torch.from_numpy(tokens[member])[None], use_cache=False).logits[0]
                torch.testing.assert_close(together[torch.from_numpy(pack.row == k)], alone, atol=1e-9, rtol=1e-9)
