"""Weights under training, with their optimizer: the one place where gradients become a step.

    gradients --> added up over ranks --> clipped to a norm --> AdamW --> weights

What belongs to it goes into a checkpoint and comes back bit for bit.

Of a model that is cut into shards (sharding.py) it holds this rank's rows of each weight, and AdamW for those: their
gradients come summed, so only the norm has to be told between ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from headway.core.types import State
from headway.llm.train.optimizer_lean_adamw import LeanAdamW, OptimizerState
from headway.llm.train.shard_files import Rows, SavedShards
from headway.llm.train.sharding_published_rows import first_row
from headway.ranks.rank import ALONE, Rank


class OptimizerSettings(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False):
    """Optimizer: AdamW and its learning rate."""

    learning_rate: float = Field(default=1e-6, gt=0)
    """Step size of AdamW."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After its warmup the learning rate stays, or falls to lr_floor at the end of `updates`."""
    lr_floor: float = Field(default=0.0, ge=0, le=1)
    """Where such a fall ends, as a share of the learning rate."""
    warmup_updates: int = Field(default=0, ge=0)
    """The learning rate rises over this many updates."""
    updates: int | None = Field(default=None, ge=1)
    """Stop after this many learn calls."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """How long AdamW remembers the direction. Raising it makes smoother steps."""
    adam_beta2: float = Field(default=0.95, ge=0, lt=1)
    """How long AdamW remembers the size of gradients. Raising it makes it slower to notice that they have changed."""
    adam_eps: float = Field(default=1e-8, gt=0)
    """Added to the size of gradients. Raising it makes the steps of weights with tiny gradients smaller."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Of AdamW."""
    optimizer_state: OptimizerState = "full"
    """How AdamW keeps its two moments. 8bit: a quarter of the memory, rounded by chance. host: in the memory of the
    machine, for a slower step."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Largest gradient norm."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over a batch."""
    num_minibatches: int = Field(default=1, ge=1)
    """Gradient steps per pass. More learn faster from a batch and move further from its data."""


class TrainedWeights:
    """Holds named parameters and AdamW for them. Weights of a sharded model are this rank's rows of them."""

    def __init__(
        self, named: Mapping[str, Tensor], settings: OptimizerSettings, learning_rate: float, rank: Rank = ALONE
    ) -> None:
        self._sharded: dict[str, Any] = {name: p for name, p in named.items() if hasattr(p, "to_local")}
        self.named = {name: _own_rows(p) if name in self._sharded else p for name, p in named.items()}
        self.before_change: Callable[[], None] = _nothing
        """Called before the weights and what the optimizer keeps of them change: somebody may be writing them."""
        self._rank = rank
        self._max_grad_norm = settings.max_grad_norm
        chosen: dict[str, Any] = {
            "lr": learning_rate,
            "betas": (settings.adam_beta1, settings.adam_beta2),
            "eps": settings.adam_eps,
            "weight_decay": settings.weight_decay,
        }
        is_plain = settings.optimizer_state == "full" and not any(p.dtype == torch.bfloat16 for p in self.parameters)
        self._optimizer: torch.optim.AdamW | LeanAdamW
        if is_plain:
            self._optimizer = torch.optim.AdamW(self.parameters, fused=True, **chosen)
        else:
            self._optimizer = LeanAdamW(self.parameters, state=settings.optimizer_state, salt=rank.index, **chosen)

    @property
    def parameters(self) -> list[Tensor]:
        return list(self.named.values())

    @property
    def learning_rate(self) -> float:
        rate: float = self._optimizer.param_groups[0]["lr"]
        return rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def forget_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        for parameter in self._sharded.values():
            parameter.grad = None

    def add_up_gradients(self) -> None:
        """Puts the sums over all ranks in place of the gradients. Those of shards are sums already."""
        self._rank.add_up_gradients([p for name, p in self.named.items() if name not in self._sharded])
        for name, parameter in self._sharded.items():
            gradient = parameter.grad
            self.named[name].grad = None if gradient is None else gradient.to_local()

    def clip(self) -> Tensor:
        """Scales the gradients down where they are too long; returns how long they were."""
        if not self._sharded:
            return torch.nn.utils.clip_grad_norm_(self.parameters, self._max_grad_norm, foreach=True)
        norm = self._norm({name: p.grad for name, p in self.named.items() if p.grad is not None})
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        torch._foreach_mul_(gradients, torch.clamp(self._max_grad_norm / (norm + 1e-6), max=1.0))
        return norm

    def _norm(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Returns the norm of all of them, wherever their rows are. Replicas of a shard count once."""
        own = torch.zeros((), dtype=torch.float64, device=self.parameters[0].device)
        alike = own.clone()
        for name, rows in tensors.items():
            square = rows.double().square().sum()
            if name in self._sharded:
                own += square * self._sharded[name].device_mesh.size(-1) / self._rank.size
            else:
                alike += square
        self._rank.add_up(own)
        return (own + alike).sqrt().float()

    def norms(self, of_gradients: Sequence[Tensor]) -> dict[str, float]:
        """Returns the mean norm of the gradients of an update and that of the weights after it, in one read from the
        device. A gradient or a weight that is not finite shows in them."""
        if self._sharded:
            weights = self._norm(self.values())
        else:
            weights = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(self.values().values()))).float())
        gradients = torch.stack(list(of_gradients)).mean() if of_gradients else torch.zeros_like(weights)
        grad_norm, weight_norm = torch.stack([gradients, weights]).tolist()
        return {"grad_norm": grad_norm, "weight_norm": weight_norm}

    def step(self) -> None:
        self.before_change()
        self._optimizer.step()

    def values(self) -> dict[str, Tensor]:
        """Returns the weights themselves, without a gradient."""
        return {name: parameter.detach() for name, parameter in self.named.items()}

    def alike(self) -> dict[str, Tensor]:
        """Returns the weights that every rank has in full."""
        return {name: value for name, value in self.values().items() if name not in self._sharded}

    def state_dict(self) -> State:
        return {"weights": self.values(), "optimizer": self._optimizer.state_dict()}

    # -- in files (llm/train/shard_files.py) ----------------------------------------------------------------------

    def parts(self, prefix: str) -> dict[str, Rows]:
        """Returns what this rank has to write: its rows of every weight and of what the optimizer keeps of it. What all
        ranks have is written by the first one."""
        found: dict[str, Rows] = {}
        state = self._optimizer.state_dict()["state"]
        for number, (name, rows) in enumerate(self.named.items()):
            if not self._writes(name):
                continue
            moments = {kind: part for kind, part in state.get(number, {}).items() if kind != "step"}
            for kind, part in {"weights": rows.detach(), **moments}.items():
                first, total = self._place(name)
                found[f"{prefix}/{kind}/{name}"] = Rows(part, first, (total, *part.shape[1:]) if part.dim() else ())
        return found

    def rest(self) -> State:
        """Returns what is small, and the same on every rank."""
        state = self._optimizer.state_dict()
        steps = {number: float(parts["step"]) for number, parts in state["state"].items()}
        return {"steps": max(steps.values(), default=0.0), "param_groups": state["param_groups"]}

    def load_parts(self, prefix: str, saved: SavedShards, rest: State) -> None:
        """Reads this rank's rows back, however many ranks have written them."""
        self.before_change()
        state: dict[int, dict[str, Tensor]] = {}
        with torch.no_grad():
            for number, (name, rows) in enumerate(self.named.items()):
                first = self._place(name)[0]
                count = rows.shape[0] if rows.dim() else None
                kinds = [
                    key.split("/")[1] for key in saved.shapes if key.startswith(f"{prefix}/") and _is_of(key, name)
                ]
                for kind in {"weights", *kinds}:
                    part = saved.read(f"{prefix}/{kind}/{name}", first, count)
                    if kind == "weights":
                        rows.copy_(part)
                    else:
                        state.setdefault(number, {})[kind] = part.to(rows.device)
                if number in state:
                    state[number]["step"] = torch.tensor(rest["steps"], dtype=torch.float32)
        self._optimizer.load_state_dict({"state": state, "param_groups": rest["param_groups"]})

    def _place(self, name: str) -> tuple[int, int]:
        """Says which row of the whole this rank's first one is, and how many there are in all."""
        rows = self.named[name]
        if name not in self._sharded:
            return 0, rows.shape[0] if rows.dim() else 1
        return first_row(self._sharded[name]), self._sharded[name].shape[0]

    def _writes(self, name: str) -> bool:
        if name not in self._sharded:
            return self._rank.index == 0
        mesh = self._sharded[name].device_mesh
        return mesh.ndim == 1 or mesh.get_local_rank(0) == 0

    # -- in memory --------------------------------------------------------------------------------------

    def load_state_dict(self, state: State) -> None:
        self.before_change()
        with torch.no_grad():
            for name, parameter in self.named.items():
                parameter.copy_(torch.as_tensor(state["weights"][name]))
        self._optimizer.load_state_dict(state["optimizer"])


def _nothing() -> None:
    pass


def _is_of(key: str, name: str) -> bool:
    return key.split("/", 2)[2] == name


def _own_rows(parameter: Any) -> Tensor:
    """Returns this rank's rows of a sharded parameter: the same memory, as a leaf of its own."""
    rows: Tensor = parameter.to_local().detach()
    return rows.requires_grad_()
