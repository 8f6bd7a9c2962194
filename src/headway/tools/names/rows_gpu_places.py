"""Names of other systems that say how many GPUs a role has, and how a model is spread over them.

    verl    trainer.{n_gpus_per_node, nnodes}  -->  learner_ranks
            rollout.{n_gpus_per_node, nnodes}  -->  collectors
            rollout.tensor_model_parallel_size -->  vllm_options, engine_gpus
            actor.strategy: fsdp, fsdp2        -->  sharding=full, where there are several ranks
            actor.fsdp_config.fsdp_size        -->  sharding=hybrid and shard_ranks, where it is fewer than all
            actor.fsdp_config.optimizer_offload, offload_policy, model_dtype
                                               -->  optimizer_state=host, parameter_dtype
    ROLL    actor_train.device_mapping         -->  learner_ranks
            actor_infer.device_mapping         -->  collectors, engine_gpus
            (on Ray, where roles have GPUs of their own; elsewhere it decides how a batch is cut)

What cannot be here is refused: an engine over two nodes, one GPU for two roles at a time, a layer cut over GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from headway.tools.names.rows import Meaning, Theirs, whole

RUNTIME = "runtime"
"""Our own word: on Ray roles have GPUs of their own."""
SHARDED = ("fsdp", "fsdp2")
SHARDED_IN_ROLL = ("fsdp2_train", "fsdp_train", "deepspeed_train", "megatron_train")
RANGE = re.compile(r"list\(range\(\s*(\d+)\s*,\s*(\d+)\s*\)\)")


def devices_of(mapping: object) -> list[int]:
    """The GPUs that a device_mapping names: a list, or `list(range(0,4))`."""
    if isinstance(mapping, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in mapping):
        return list(mapping)
    ranges = RANGE.findall(str(mapping))
    if isinstance(mapping, list) or not ranges or RANGE.sub("", str(mapping)).strip(" +"):
        raise ValueError("a device_mapping is a list of numbers, or list(range(FIRST, END))")
    return [number for first, end in ranges for number in range(int(first), int(end))]


def num_engines(gpus: int, parts: int, per_node: int, name: str) -> int:
    """Engines of `parts` GPUs each in so many GPUs: none over two nodes, and no GPU left over."""
    if parts > per_node:
        raise ValueError(f"an engine of {parts} GPUs ({name}) does not fit a node of {per_node}")
    if gpus % parts:
        raise ValueError(f"{gpus} GPUs cannot be divided into engines of {parts} ({name})")
    return gpus // parts


# -- verl -------------------------------------------------------------------------------------------

ROLLOUT_GPUS, ROLLOUT_NODES = "rollout.n_gpus_per_node", "rollout.nnodes"
TRAINER_GPUS, TRAINER_NODES = "trainer.n_gpus_per_node", "trainer.nnodes"
FSDP = "actor_rollout_ref.actor.fsdp_config"
FSDP_SIZE = f"{FSDP}.fsdp_size"
ALL_RANKS = -1
OFFLOADS = (f"{FSDP}.optimizer_offload", f"{FSDP}.offload_policy")
DTYPES = {"fp32": "float32", "float32": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16"}


def total(theirs: Theirs, per_node: str, nodes: str) -> tuple[int, int]:
    """GPUs in all, and on a node."""
    each, count = (whole(path, theirs.get(path, 1)) for path in (per_node, nodes))
    return each * count, each


def places(group: str, ours: str, parts_path: str = "", engine: str = "") -> Callable[..., Meaning]:
    """GPUs in all: per node, times nodes; for engines over the GPUs that vLLM spreads one of them over."""

    def translate(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
        gpus, per_node = total(theirs, f"{group}.n_gpus_per_node", f"{group}.nnodes")
        if ours not in fields:
            if gpus > 1:
                raise ValueError(f"{gpus} GPUs, but this recipe uses one there")
            return "there is one of it"
        is_vllm = theirs.get("engine", theirs.get(engine)) == "vllm"
        parts = whole(parts_path, theirs.get(parts_path, 1)) if parts_path and is_vllm else 1
        return {ours: num_engines(gpus, parts, per_node, parts_path)}

    return translate


def strategy(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """Over several ranks weights, gradients and optimizer are cut, as FSDP does."""
    if str(value) not in SHARDED:
        raise ValueError(f"only {' or '.join(SHARDED)} is possible here: a layer is not cut over GPUs")
    return fsdp_size(theirs.get(FSDP_SIZE, ALL_RANKS), theirs, fields)


def fsdp_size(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """The ranks that hold one model together: all, or so many, which are replicas of each other."""
    return _sharded(total(theirs, TRAINER_GPUS, TRAINER_NODES)[0], fields, value)


def _sharded(ranks: int, fields: Collection[str], size: object = -1) -> Meaning:
    part = ranks if size == ALL_RANKS else whole("fsdp_size", size)
    if ranks == 1:
        return "one rank has everything"
    if "sharding" not in fields:
        return "learner_ranks says over how many processes the learner is spread; each has all weights"
    if part >= ranks:
        return {"sharding": "full"}
    if ranks % part:
        raise ValueError(f"{ranks} ranks cannot be divided into models of {part} (fsdp_size)")
    return {"sharding": "replicas"} if part == 1 else {"sharding": "hybrid", "shard_ranks": part}


def on_host(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """Of what verl can keep in the machine's memory, the optimizer's moments are there."""
    if not any(theirs.get(path) for path in OFFLOADS):
        return "weights, gradients and moments are where the learner computes"
    if "optimizer_state" not in fields:
        return "this recipe's learner keeps its moments where it computes"
    return {"optimizer_state": "host"}


def parameter_dtype(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if str(value) not in DTYPES:
        raise ValueError(f"only {' or '.join(DTYPES)} is possible here")
    ours = DTYPES[str(value)]
    return {"parameter_dtype": ours} if "parameter_dtype" in fields else f"weights here are in {ours}"


def compiling(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if "compile_trainer" not in fields:
        return "this recipe's update is not compiled"
    return {"compile_trainer": "auto" if value else "off"}


# -- ROLL -------------------------------------------------------------------------------------------

TRAIN_DEVICES, INFER_DEVICES = "actor_train.device_mapping", "actor_infer.device_mapping"
PER_NODE = "num_gpus_per_node"
TRAIN_STRATEGY = "actor_train.strategy_args.strategy_name"
_TRAIN_CONFIG = "actor_train.strategy_args.strategy_config"
ROLL_FSDP_SIZE = f"{_TRAIN_CONFIG}.fsdp_size"
CUTS = tuple(f"{_TRAIN_CONFIG}.{size}_parallel_size" for size in ("tensor_model", "pipeline_model", "context"))
INFER_PARTS = "actor_infer.strategy_args.strategy_config.tensor_parallel_size"
NOT_ON_RAY = (
    "with runtime=ray it is learner_ranks, over how many processes the learner is spread; here it only decides how a "
    "batch is cut"
)
ENGINES_NOT_ON_RAY = (
    "engine, learner and evaluations are roles of their own, placed by the runtime (headway run --runtime ray)"
)


def train_devices(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    devices = devices_of(value)
    if theirs.get(RUNTIME) != "ray":
        return NOT_ON_RAY
    shared = sorted(set(devices) & set(devices_of(theirs.get(INFER_DEVICES, []))))
    if shared:
        raise ValueError(
            f"actor_infer has GPU {', '.join(map(str, shared))} too: here both work at the same time, on GPUs of their "
            "own (or on shares of one: learner_gpus and engine_gpus below 1)"
        )
    for path in CUTS:
        if whole(path, theirs.get(path, 1)) > 1:
            raise ValueError(f"{path}={theirs[path]!r}: a layer is not cut over GPUs here; more ranks hold less each")
    return {"learner_ranks": max(1, len(devices))}


def infer_devices(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    devices = devices_of(value)
    if theirs.get(RUNTIME) != "ray":
        return ENGINES_NOT_ON_RAY
    parts = whole(INFER_PARTS, theirs.get(INFER_PARTS, 1))
    per_node = whole(PER_NODE, theirs.get(PER_NODE, max(parts, len(devices), 1)))
    return {
        "collectors": num_engines(max(1, len(devices)), parts, per_node, INFER_PARTS),
        "engine_gpus": float(parts),
    }


def train_strategy(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if str(value) not in SHARDED_IN_ROLL:
        raise ValueError(f"only {', '.join(SHARDED_IN_ROLL)} are understood")
    return train_fsdp_size(theirs.get(ROLL_FSDP_SIZE, ALL_RANKS), theirs, fields)


def train_fsdp_size(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if theirs.get(RUNTIME) != "ray":
        return "the learner is one process, or learner_ranks of them"
    return _sharded(len(devices_of(theirs.get(TRAIN_DEVICES, [0]))), fields, value)
