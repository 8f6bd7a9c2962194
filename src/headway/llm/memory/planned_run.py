"""A run that somebody plans, or is about to start: its roles, the places they would have, and how full those are.

together    one machine, no Ray: engines and evaluator on the first GPU, rank r of the learner on GPU r, r + n, ...
apart       GPUs of their own for every engine and every rank; the evaluator on its own ones, or with an engine
on a CPU    everything in the memory of the machine
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol

from headway.llm.memory.model_shape import ModelShape
from headway.llm.memory.planned_run_fit_report import Place, Tenant
from headway.llm.memory.roles_generation_memory import (
    Generation,
    engine_memory,
    rows_bytes,
    spare_bytes,
    vllm_share_bytes,
)
from headway.llm.memory.roles_memory_items import RoleMemory, in_gb, items_of
from headway.llm.memory.roles_training_memory import Training, learner_host_memory, learner_memory

EvaluatorPlace = Literal["own", "engine", "none"]
PAIR_SLOWNESS = 1.5
"""How much slower a pair of tokens in attention is than the same work in a matrix, as trees are cut
(llm/train/trees.py)."""


class Room(Protocol):
    """The memory of a GPU or of a machine, and what others leave of it."""

    @property
    def total_bytes(self) -> int: ...

    @property
    def left_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A model, how it is trained, how it generates, and how many there are of what."""

    model: ModelShape
    training: Training
    generation: Generation | None = None
    engines: int = 1
    evaluator: EvaluatorPlace = "own"
    beside: Sequence[RoleMemory] = ()
    """What else computes where the engines do, or would."""

    def changed(self, settings: Mapping[str, object]) -> PlannedRun:
        """The same run with some settings, under their names in recipes, changed."""
        training = _replaced(self.training, settings)
        generation = None if self.generation is None else _replaced(self.generation, settings)
        evaluator: Any = settings.get("evaluator", self.evaluator)
        return replace(self, training=training, generation=generation, evaluator=evaluator)


def _replaced(part: Any, settings: Mapping[str, object]) -> Any:
    own = {one.name for one in fields(part)}
    return replace(part, **{name: value for name, value in settings.items() if name in own})


def tree_tokens(model: ModelShape, prompt: int, reply: int, group: int) -> int:
    """The longest row that the learner reads of a group: trees are cut where that is less work."""
    total = group * max(1, reply - 1)
    matrices = sum(map(math.prod, model.matrices.values()))
    price = PAIR_SLOWNESS * 2 * model.query_width * model.layers / max(1, matrices)
    count = min(group, max(1, round(total / (prompt / price + prompt**2) ** 0.5)))
    return prompt + math.ceil(group / count) * max(1, reply - 1)


def places_together(run: PlannedRun, gpus: Sequence[Room], host: Room | None) -> list[Place]:
    """Where everybody is on one machine without Ray. Without GPUs everything is in the machine's memory."""
    others: list[Tenant] = []
    share = gpus[0].total_bytes if gpus else 0
    if run.generation is not None:
        others.append(_engine_tenant(run, "engine", run.engines, share))
        if run.evaluator == "own":
            others.append(_engine_tenant(run, "evaluator", 1, share))
    others += [Tenant(memory) for memory in run.beside]
    learner = learner_memory(run.model, run.training)
    if not gpus:
        return [_in_memory([Tenant(learner, run.training.learner_ranks), *others], host)]
    places = []
    for index, room in enumerate(gpus):
        ranks = len(range(index, run.training.learner_ranks, len(gpus)))
        here = ([Tenant(learner, ranks)] if ranks else []) + (others if index == 0 else [])
        if here:
            places.append(Place(f"GPU {index}", here, room.total_bytes, left_bytes=room.left_bytes))
    return [*places, _host(run, host, run.training.learner_ranks, run.engines)]


def places_apart(run: PlannedRun, gpu_room: int | None, host: Room | None, nodes: int = 1) -> list[Place]:
    """Where every rank and every engine has GPUs of its own. One place stands for all that are alike."""
    ranks = run.training.learner_ranks
    places = [Place(_each("a rank's GPU", ranks), [Tenant(learner_memory(run.model, run.training))], gpu_room)]
    if run.generation is not None:
        parts, share = run.generation.tensor_parallel_size, gpu_room or 0
        engine = _engine_tenant(run, "engine", 1, share)
        places.append(Place(_each("an engine's GPU", run.engines * parts), [engine], gpu_room))
        if run.evaluator == "own":
            evaluator = _engine_tenant(run, "evaluator", 1, share)
            places.append(Place(_each("the evaluator's GPU", parts), [evaluator], gpu_room))
    places += [Place(f"the {memory.role}'s GPU", [Tenant(memory)], gpu_room) for memory in run.beside]
    places.append(_host(run, host, math.ceil(ranks / nodes), math.ceil(run.engines / nodes)))
    return places


def _each(name: str, count: int) -> str:
    return name if count == 1 else f"{name} ({count} of them)"


def _engine_tenant(run: PlannedRun, role: str, count: int, gpu_room: int) -> Tenant:
    assert run.generation is not None
    is_on_gpu = run.generation.device == "cuda"
    reserved = vllm_share_bytes(run.generation, gpu_room) if is_on_gpu else 0
    spare = spare_bytes(run.model, run.generation) if reserved or not is_on_gpu else 0
    return Tenant(engine_memory(run.model, run.generation, role), count, reserved, spare)


def line_about_pages(run: PlannedRun, places: Sequence[Place]) -> str:
    """One line where a place does not fit because an engine has a place for every token of every row; else nothing."""
    generation = run.generation
    if generation is None or generation.engine == "vllm":
        return ""
    rows = rows_bytes(run.model, generation)
    for place in places:
        engines = sum(tenant.count for tenant in place.tenants if tenant.memory.bytes_of("cache"))
        is_why = place.room_bytes is not None and place.peak_bytes - engines * rows <= place.room_bytes
        if engines and is_why and place.verdict == "does not fit":
            whole = engine_memory(run.model, generation).bytes_of("cache")
            return (
                f"the engine in this process keeps room for {generation.engine_rows} rows of "
                f"{generation.context_tokens:,} tokens, used or not ({in_gb(whole)}): --engine vllm has pages for the "
                "tokens in use"
            )
    return ""


def _in_memory(tenants: Sequence[Tenant], room: Room | None) -> Place:
    total, left = (None, None) if room is None else (room.total_bytes, room.left_bytes)
    return Place("host memory", tenants, total, is_gpu=False, left_bytes=left)


def _host(run: PlannedRun, room: Room | None, ranks: int, engines: int) -> Place:
    """The memory of the fullest machine: ranks save and load there, engines load, versions pass through."""
    learner = learner_host_memory(run.model, run.training)
    loaded = items_of(("weights", 2 * run.model.num_parameters))
    tenants = [Tenant(replace(learner, role="learner"))]
    others = replace(
        learner, held=learner.held[:1] if run.training.optimizer_state == "host" else (), role="further rank"
    )
    if ranks > 1:
        moments = {name: items for name, items in others.moments.items() if name == "loading" or _is_sharded(run)}
        tenants.append(Tenant(replace(others, moments=moments), ranks - 1))
    if run.generation is not None:
        tenants.append(Tenant(RoleMemory("engine", (), {"loading": loaded}), max(1, engines)))
    return _in_memory(tenants, room)


def _is_sharded(run: PlannedRun) -> bool:
    return run.training.sharding != "replicas"
