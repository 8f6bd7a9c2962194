"""Learners of tiny models in shards, for processes: what they hold is compared where it is."""

from __future__ import annotations

import copy
import signal
from functools import partial
from typing import Any

import numpy as np
import torch
from waiting import wait_until

from headway.coordinator.state_files_saved_beside import SavedBeside, SavedSoon
from headway.core.types import Batch, LearnReport, Rollout
from headway.llm.model.adapters import add_adapters
from headway.llm.model.loading_models import load_model
from headway.llm.rollouts_episode import Episodes
from headway.llm.rollouts_group import Group
from headway.llm.train.grpo_learner_learner import GRPOLearner, GRPOSettings
from headway.llm.train.imitation_learner import ImitationLearner
from headway.llm.train.imitation_settings import ImitationSettings
from headway.llm.train.sharding import shard_model
from headway.llm.weights.source_offered_rows import OffersRows
from headway.llm.weights.source_weight_source import WeightSource
from headway.ranks.rank import ALONE, Rank
from headway.testing.tiny_models import tiny_model

CASES: dict[str, dict[str, Any]] = {
    "grpo": {"num_minibatches": 2, "num_epochs": 2},
    "reference": {"estimator": "rloo", "whiten_advantages": True, "kl_weight": 0.1, "entropy_weight": 0.01},
    "shared critic": {"estimator": "gae", "critic_learning_rate": 1e-2, "num_minibatches": 2},
    "own critic": {"estimator": "gae", "critic": "own", "critic_learning_rate": 1e-2, "critic_warmup_updates": 1},
    "lora": {"kl_weight": 0.1},
    "checkpointing": {},
    "untied": {},
    "windows": {},
    "imitation": {},
}


def model(case: str) -> Any:
    kinds = {"untied": "qwen3", "windows": "gemma3_text"}
    made = copy.deepcopy(tiny_model(kinds.get(case, "llama")))
    if case == "untied":
        made.config.tie_word_embeddings = False
        made.lm_head.weight = torch.nn.Parameter(made.lm_head.weight.detach().clone() * 1.1)
    if case == "lora":
        made = add_adapters(made, 3, 8.0, seed=1)
    if case == "checkpointing":
        made.gradient_checkpointing_enable({"use_reentrant": False})
    return made


def learner(case: str, rank: Rank, shard_ranks: int | None, **more: Any) -> Any:
    torch.set_num_threads(1)
    if case == "imitation":
        told = ImitationSettings(learning_rate=1e-2, microbatch_tokens=64, adam_eps=1e-3)
        return ImitationLearner(partial(model, case), told, seed=3, rank=rank, shard_ranks=shard_ranks)
    settings = GRPOSettings(
        **{
            "learning_rate": 1e-2,
            "microbatch_tokens": 64,
            "adam_eps": 1e-3,
            "max_grad_norm": 0.5,
            **CASES[case],
            **more,
        }
    )
    load = partial(model, case)
    return GRPOLearner(
        load, settings, load_reference=load, load_critic=load, seed=3, rank=rank, shard_ranks=shard_ranks
    )


def written(saved: SavedBeside) -> SavedBeside:
    """The same when the last rank has written its part."""
    assert isinstance(saved, SavedSoon)
    wait_until(lambda: not saved.unwritten(), what=f"files in {saved.folder}")
    found = saved.when_written()
    assert found is not None
    return found


def batch(version: int, groups: int = 5, *, lead: int = 0) -> Batch:
    rollouts = []
    for number in range(groups):
        random = np.random.default_rng([version, number])
        lengths = random.integers(1, 9, 2 + number % 3)
        tokens = random.integers(3, 200, lengths.sum()).astype(np.int32)
        payload = Group(
            prompt=random.integers(3, 200, random.integers(2, 9)).astype(np.int32),
            tokens=tokens,
            lengths=lengths,
            log_probs=(-5.5 + 0.1 * random.standard_normal(len(tokens))).astype(np.float32),
            versions=np.full(len(tokens), max(0, version - (lead or number % 2)), np.int32),
            rewards=random.random(len(lengths)).astype(np.float32),
        )
        rollouts.append(Rollout(payload))
    return Batch(version, tuple(rollouts))


def data_for(case: str, version: int) -> Batch:
    data = batch(version, lead=1)
    if case != "imitation":
        return data
    played = []
    for rollout in data.rollouts:
        group = rollout.payload
        trained = np.arange(len(group.tokens)) % 3 > 0
        trained[np.cumsum(group.lengths) - 1] = True
        played.append(
            Episodes(
                prompt=group.prompt,
                tokens=group.tokens,
                trained=trained,
                log_probs=group.log_probs * trained,
                versions=group.versions,
                turn=np.zeros(len(group.tokens), np.int16),
                rewards=group.rewards,
                lengths=group.lengths.astype(np.int64),
                turns=np.ones(len(group.lengths), np.int64),
                end=("done",) * len(group.lengths),
            )
        )
    return Batch(version, tuple(Rollout(record) for record in played))


def whole(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.detach()


def trained_of(subject: Any) -> dict[str, Any]:
    if subject._training.shards is not None:
        subject._training.shards.forget_gathered()
    named = dict(subject._training.model.named_parameters())
    found = {name: named[name] for name in subject._training.trained.named}
    if getattr(subject, "_critic", None) is not None:
        body = {} if subject._critic._body is None else dict(subject._critic._body.named_parameters())
        body |= {f"head.{name}": p for name, p in subject._critic._head.named_parameters()}
        found |= {f"critic.{name}": body[name] for name in subject._critic.trained.named}
    return found


class Compared:
    """Learns every case in shards and alone, on every rank, and reports how far they are apart."""

    def __init__(self, shard_ranks: int, rank: Rank) -> None:
        self._rank = rank
        self._shard_ranks = shard_ranks

    def learn(self, data: Batch) -> LearnReport:
        found: dict[str, float] = {}
        for case in data.rollouts[0].info["cases"]:
            cut, alone = learner(case, self._rank, self._shard_ranks), learner(case, ALONE, None)
            for version in range(3):
                there, here = (subject.learn(data_for(case, version)).metrics for subject in (cut, alone))
                if not version:
                    found[f"gradients of {case}"] = self._gap(cut, alone, lambda p: p.grad)
            found[f"weights of {case}"] = self._gap(cut, alone, lambda p: p)
            found[f"metrics of {case}"] = max(abs(there[name] - here[name]) / (abs(here[name]) + 1e-2) for name in here)
            held = sum(p.numel() for p in cut._training.trained.named.values())
            found[f"share of {case}"] = held / sum(p.numel() for p in alone._training.trained.named.values())
        return LearnReport(found)

    def _gap(self, cut: Any, alone: Any, part: Any) -> float:
        """Of all of a kind together, relative to what one rank has."""
        mine, theirs = trained_of(cut), trained_of(alone)
        assert mine.keys() == theirs.keys()
        pairs = [
            (whole(part(mine[name])), whole(part(theirs[name]))) for name in mine if part(theirs[name]) is not None
        ]
        apart = sum(float((ours - one).square().sum()) for ours, one in pairs)
        return (apart / sum(float(one.square().sum()) for _, one in pairs)) ** 0.5

    def snapshot(self) -> dict[str, Any]:
        return {}

    def state_dict(self) -> None: ...

    def load_state_dict(self, state: object) -> None: ...


def compared(shard_ranks: int, rank: Rank) -> Compared:
    torch.set_num_threads(1)
    return Compared(shard_ranks, rank)


class Mortal(GRPOLearner):
    """Can be told to die or to hang in the middle of a pass, when other ranks wait for its rows."""

    def learn(self, data: Batch) -> LearnReport:
        deed = data.rollouts[0].info.get("deed")
        if deed is not None and self._rank.index == 1:
            layer = self._training.model.model.layers[1]  # type: ignore[attr-defined]
            layer.register_forward_pre_hook(lambda *_: signal.raise_signal(deed))
        return super().learn(data)


def mortal(rank: Rank, **more: Any) -> Mortal:
    torch.set_num_threads(1)
    case = {"learning_rate": 1e-2, "microbatch_tokens": 64, "estimator": "gae", "critic": "own", **more}
    load = partial(model, "grpo")
    return Mortal(load, GRPOSettings(**case), load_critic=load, seed=3, rank=rank, shard_ranks=rank.size)


def offering(case: str, dtype: Any, rank: Rank) -> Any:
    """One rank that publishes; alone it is the learner itself."""
    torch.set_num_threads(1)
    settings = GRPOSettings(learning_rate=1e-2, microbatch_tokens=64)
    load = partial(model, case)
    subject = GRPOLearner(load, settings, seed=3, rank=rank, shard_ranks=rank.size, publish_dtype=dtype)
    return subject if rank.size == 1 else OffersRows(subject, partial(WeightSource, rank.here, deadline_s=20.0))


def publishing(folder: str, rank: Rank) -> OffersRows:
    """One rank that trains the model in a folder and publishes its rows."""
    torch.set_num_threads(1)
    settings = GRPOSettings(learning_rate=1e-2, microbatch_tokens=64)
    load = partial(load_model, folder, dtype=torch.float32, device="cpu")
    subject = GRPOLearner(load, settings, seed=3, rank=rank, shard_ranks=rank.size)
    return OffersRows(subject, partial(WeightSource, rank.here, deadline_s=120.0))


class InBfloat16(Compared):
    """What ranks on GPUs do, on CPUs: layers are gathered and computed in bfloat16, over shards in float32."""

    def learn(self, data: Batch) -> LearnReport:
        torch.set_num_threads(1)
        rows = torch.randint(3, 200, (4, 12), generator=torch.Generator().manual_seed(1))
        subjects = {"cut": model("grpo"), "alone": model("grpo"), "exact": model("grpo")}
        shard_model(subjects["cut"], self._rank, self._shard_ranks, in_bfloat16=True)
        for name, subject in subjects.items():
            with torch.autocast("cpu", torch.bfloat16, enabled=name != "exact"):
                mine = rows[self._rank.share(len(rows))] if name == "cut" else rows
                logs = torch.log_softmax(subject(mine).logits[:, :-1].float(), -1)
                loss = -logs.gather(2, mine[:, 1:, None]).sum() / rows.numel()
            loss.backward()
        cut = dict(subjects["cut"].named_parameters())
        kinds = {str(part.dtype) for p in cut.values() for part in (p.to_local(), p.grad.to_local())}
        parts = {name: dict(subject.named_parameters()) for name, subject in subjects.items()}
        found = {"kinds": float(kinds == {"torch.float32"})}
        for name in ("cut", "alone"):
            apart = sum(
                float((whole(p.grad) - parts["exact"][key].grad).square().sum()) for key, p in parts[name].items()
            )
            found[name] = (apart / sum(float(p.grad.square().sum()) for p in parts["exact"].values())) ** 0.5
        return LearnReport(found)


def in_bfloat16(shard_ranks: int, rank: Rank) -> InBfloat16:
    return InBfloat16(shard_ranks, rank)
