"""What a learner's rank needs: weights, gradients, AdamW, what a microbatch leaves behind, and what comes and goes.

    always       weights + gradients + optimizer + reference + critic        exact to the byte
    learning     bfloat16 copies of matrices + activations + logits of a chunk (+ gathered layers)
    adding up    gradients of all ranks in one message (replicas)
    publishing   the copy in the engine's precision, whole (replicas), or this rank's rows of it (sharded, kept)
    saving       a copy of everything that is saved (replicas)

Activations are those of transformers' layers, tensor by tensor as autograd keeps them: with attention over a mask, or
compiled and by flash kernels, as `trainer_attention` and `compile_trainer` choose it. Their formula is an estimate, see
docs/guides/large-models.md for how far it was off; everything always held is a count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from headway.core.text_naming import unknown
from headway.llm.memory.model_shape import FAMILY, ModelShape
from headway.llm.memory.roles_memory_items import RoleMemory, items_of

Sharding = Literal["replicas", "full", "hybrid"]
SHARDINGS = ("replicas", "full", "hybrid")
PARAMETER_DTYPES = {"float32": 4, "bfloat16": 2}
OPTIMIZER_STATES = ("full", "8bit", "host")
CRITICS = ("none", "shared", "own")
ATTENTIONS = ("auto", "dense", "flex", "flash")
COMPILINGS = ("auto", "on", "off")
QUANTIZED_BLOCK = 256
"""Numbers that share a scale in an optimizer state of 8 bit."""
SAVED_COPIES_ON_HOST = 3
"""A checkpoint of replicas is in the machine's memory this many times at its peak: as tensors, packed, and written."""
SAVED_AHEAD_BYTES = 1 << 30
"""Of a checkpoint in shards a rank copies so much at most, while it goes on learning
(llm/train/shard_files_shard_writer.py)."""
CHECKED_ON_DEVICE_BYTES = 2 << 30
"""The largest copy of trained weights that an engine is checked by and that stays on the GPU (grpo/engine_check.py)."""
STEP_BYTES = 4
"""AdamW counts its steps for each tensor."""


@dataclass(frozen=True, slots=True)
class Training:
    """Says how a model is trained, in the words of the recipes' settings."""

    microbatch_tokens: int = 2048
    row_tokens: int = 2048
    """The longest row in a microbatch: a prompt with its replies. The mask of attention grows with its square."""
    logit_chunk_tokens: int = 1024
    learner_ranks: int = 1
    ranks_per_node: int = 8
    sharding: Sharding = "replicas"
    parameter_dtype: str = "float32"
    optimizer_state: str = "full"
    gradient_checkpointing: bool = False
    lora_rank: int = 0
    has_reference: bool = False
    critic: str = "none"
    device: str = "cuda"
    trainer_attention: str = "auto"
    compile_trainer: str = "auto"
    max_lead: float = 1.0
    check_engine_every: int = 4
    saves: bool = True

    def __post_init__(self) -> None:
        choices: Mapping[str, Collection[str]] = {
            "sharding": SHARDINGS,
            "parameter_dtype": PARAMETER_DTYPES,
            "critic": CRITICS,
            "optimizer_state": OPTIMIZER_STATES,
            "device": ("cpu", "cuda"),
            "trainer_attention": ATTENTIONS,
            "compile_trainer": COMPILINGS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(unknown(name, str(getattr(self, name)), allowed))
        for name in ("microbatch_tokens", "row_tokens", "logit_chunk_tokens", "learner_ranks", "ranks_per_node"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, received {getattr(self, name)!r}")
        if self.lora_rank < 0:
            raise ValueError(f"lora_rank must be at least 0, received {self.lora_rank!r}")

    @property
    def shards(self) -> int:
        """Into how many parts weights, gradients and optimizer are cut: over all ranks, or over those of a node."""
        if self.sharding == "replicas":
            return 1
        return self.learner_ranks if self.sharding == "full" else min(self.learner_ranks, self.ranks_per_node)

    @property
    def is_cut(self) -> bool:
        """Whether a rank has less than the whole model. One rank alone has all of it, and saves its state in files."""
        return self.shards > 1

    @property
    def weight_bytes(self) -> int:
        """Of one parameter."""
        return PARAMETER_DTYPES[self.parameter_dtype]

    @property
    def compute_bytes(self) -> int:
        """Of one number in matrix products: bfloat16 on a GPU, else what the weights are."""
        return 2 if self.device == "cuda" else self.weight_bytes


# -- what is counted --------------------------------------------------------------------------------


def shard_parameters(model: ModelShape, shards: int) -> int:
    """Parameters of the largest shard: each weight is cut by its first dimension, and the first shard gets no less."""
    return sum(math.ceil(shape[0] / shards) * math.prod(shape[1:]) for shape in model.weights.values())


def adapter_parameters(model: ModelShape, rank: int, shards: int = 1) -> int:
    """Trained numbers of adapters of this rank beside every matrix, in the largest shard."""
    return sum(
        math.ceil(rank / shards) * columns + math.ceil(rows / shards) * rank
        for rows, columns in model.matrices.values()
    )


def trained_parameters(model: ModelShape, training: Training) -> int:
    """In one rank's shard."""
    if training.lora_rank:
        return adapter_parameters(model, training.lora_rank, training.shards)
    return shard_parameters(model, training.shards)


def optimizer_bytes(num_parameters: int, num_tensors: int, training: Training) -> int:
    """On the device that computes."""
    if training.optimizer_state == "host":
        return 0
    if training.optimizer_state == "8bit":
        return 2 * num_parameters + 2 * 4 * math.ceil(num_parameters / QUANTIZED_BLOCK) + STEP_BYTES * num_tensors
    return 2 * training.weight_bytes * num_parameters + STEP_BYTES * num_tensors


def _num_trained_tensors(model: ModelShape, training: Training) -> int:
    return 2 * len(model.matrices) if training.lora_rank else model.num_tensors


# -- what is estimated ------------------------------------------------------------------------------


def has_mask(model: ModelShape, training: Training) -> bool:
    """Whether attention goes over a mask of every pair of places: on CPUs, and for kinds of models of which nobody
    knows here whether flash kernels fit them."""
    if training.trainer_attention == "auto":
        return training.device != "cuda" or model.kind not in FAMILY
    return training.trainer_attention == "dense"


def is_compiled(model: ModelShape, training: Training) -> bool:
    """Whether layers, and what follows the logits, are programs of a compiler, which keeps less."""
    if training.compile_trainer == "auto":
        return training.device == "cuda" and not has_mask(model, training)
    return training.compile_trainer == "on"


def layer_activation_bytes(model: ModelShape, training: Training) -> int:
    """What one layer keeps of one token for its backward pass.

    Two norms keep their input in float32, what they made of it, and what goes into the matrices (a copy for each where
    the precision changes); attention keeps queries, keys and values as many heads as there are of queries, its output
    and a row of the mask; the MLP keeps gate, its activation, up and their product. A compiler keeps what came in, both
    norms, what attention read and found, projected too, gate, up and their product, and makes the rest again.
    """
    hidden, inner, wide = model.hidden, model.inner, model.query_width
    stream, compute = training.weight_bytes, training.compute_bytes
    copies = 1 if stream == compute else 3, 1 if stream == compute else 2
    norms = sum((4 + stream + count * compute) * hidden for count in copies)
    attention = 4 * compute * wide + 4 * model.heads
    mask = compute * min(training.row_tokens, training.microbatch_tokens) if has_mask(model, training) else 0
    adapters = 7 * compute * training.lora_rank
    if is_compiled(model, training):
        norms = (stream + 3 * compute) * hidden + 2 * 4
        attention = 2 * compute * (wide + model.key_width) + 4 * model.heads
        if model.kind == "qwen3":  # queries and keys before their norms
            attention += compute * (wide + model.key_width) + 4 * (model.heads + model.kv_heads)
        return norms + attention + mask + 3 * compute * inner + adapters
    return norms + attention + mask + 4 * compute * inner + adapters


def activation_bytes(model: ModelShape, training: Training) -> int:
    """What a microbatch leaves behind for its backward pass."""
    layer = layer_activation_bytes(model, training)
    # gradients of one layer's MLP; what is uncompiled lets go of as much by then
    on_the_way = 3 * training.compute_bytes * model.inner if is_compiled(model, training) else 0
    if not training.gradient_checkpointing:
        return training.microbatch_tokens * (model.layers * layer + on_the_way)
    kept = training.weight_bytes * model.hidden
    return training.microbatch_tokens * (model.layers * kept + layer + on_the_way)


def logit_bytes(model: ModelShape, training: Training) -> int:
    """Logits and probabilities of a chunk, the head in the precision it computes in, and its gradient on the way."""
    compute, rows = training.compute_bytes, min(training.logit_chunk_tokens, training.microbatch_tokens)
    each = 2 * compute if is_compiled(model, training) else 8 + (compute if compute != 4 else 0)
    chunk = rows * model.vocab * each
    cast = 0 if compute == training.weight_bytes else compute * model.head
    gradient = 0 if training.lora_rank else training.weight_bytes * model.head
    return chunk + cast + gradient


def copied_matrices_bytes(model: ModelShape, training: Training) -> int:
    """Autocast keeps a bfloat16 copy of every float32 matrix while a microbatch is read."""
    if training.compute_bytes == training.weight_bytes or training.is_cut:
        return 0  # shards are gathered in the precision that computes
    return training.compute_bytes * sum(map(math.prod, model.matrices.values()))


def gathered_bytes(model: ModelShape, training: Training) -> int:
    """Of shards: two layers whole (one computes, one comes), what stands outside of the layers, and its gradient."""
    if not training.is_cut:
        return 0
    return (2 * training.compute_bytes + training.weight_bytes) * model.largest_layer()


def offered_bytes(model: ModelShape, training: Training) -> int:
    """Of shards: the rows of a version that this rank keeps for engines, until none needs it any more."""
    if not training.is_cut:
        return 0
    if training.lora_rank:
        parts = sum(math.ceil(rows / training.shards) * columns for rows, columns in model.matrices.values())
        return training.compute_bytes * parts
    return training.compute_bytes * shard_parameters(model, training.shards)


def publishing_bytes(model: ModelShape, training: Training) -> int:
    """The copy that engines get. Adapters are folded in float32 first; shards are frozen layer by layer, while those of
    the version before are still there."""
    each = training.compute_bytes + (training.weight_bytes if training.lora_rank else 0)
    if training.is_cut:
        return offered_bytes(model, training) + each * math.ceil(model.largest_layer() / training.shards)
    if training.lora_rank:
        return each * sum(map(math.prod, model.matrices.values()))
    return 0 if training.compute_bytes == training.weight_bytes else each * model.num_parameters


def checked_bytes(model: ModelShape, training: Training, *, is_small: bool) -> int:
    """The copy of what is trained that the engine is checked by with a lead: on the GPU if it is small, else on the
    host."""
    needed = training.weight_bytes * trained_parameters(model, training)
    is_there = training.max_lead and training.check_engine_every and training.device != "cpu"
    return needed if is_there and (needed <= CHECKED_ON_DEVICE_BYTES) == is_small else 0


# -- the roles --------------------------------------------------------------------------------------


def learner_memory(model: ModelShape, training: Training) -> RoleMemory:
    """What one rank needs on the device that it computes on."""
    base, trained = shard_parameters(model, training.shards), trained_parameters(model, training)
    tensors, each = _num_trained_tensors(model, training), training.weight_bytes
    optimizer = optimizer_bytes(trained, tensors, training)
    reference = base * each if training.has_reference and not training.lora_rank else 0
    critic = _critic_bytes(model, training)
    saved = ahead = 0
    if training.saves and training.sharding != "replicas" and training.device == "cpu":
        ahead = min(trained * each + optimizer, SAVED_AHEAD_BYTES)
    if training.saves and training.sharding == "replicas":
        copies = SAVED_COPIES_ON_HOST if training.device == "cpu" else 1
        saved = copies * (trained * each + optimizer + (critic - critic // 4 if critic else 0))
    held = items_of(
        ("weights", base * each + (trained * each if training.lora_rank else 0)),
        ("gradients", trained * each),
        ("optimizer", optimizer),
        ("reference", reference),
        ("critic", critic),
        ("published version", offered_bytes(model, training)),
        ("weights of a version to check the engine by", checked_bytes(model, training, is_small=True)),
    )
    message = trained * each if training.learner_ranks > 1 and training.sharding == "replicas" else 0
    return RoleMemory(
        "learner",
        held,
        {
            "learning": items_of(
                ("copies of matrices", copied_matrices_bytes(model, training)),
                ("gathered layers", gathered_bytes(model, training)),
                ("activations", activation_bytes(model, training)),
                ("logits chunk", logit_bytes(model, training)),
                ("checkpoint", ahead),
            ),
            "adding up": items_of(("gradient message", message)),
            "publishing": items_of(("publishing", publishing_bytes(model, training))),
            "saving": items_of(("checkpoint", saved)),
        },
    )


def _critic_bytes(model: ModelShape, training: Training) -> int:
    """Weights, gradients and optimizer of a critic: a head on the policy, or a model without a head over words."""
    if training.critic == "none":
        return 0
    head, each = model.hidden + 1, training.weight_bytes
    if training.critic == "shared":
        return 2 * head * each + optimizer_bytes(head, 2, training)
    alone = 0 if model.is_tied else math.ceil(model.vocab / training.shards) * model.hidden
    base = shard_parameters(model, training.shards) - alone
    trained = (trained_parameters(model, training) if training.lora_rank else base) + head
    tensors = _num_trained_tensors(model, training) + 2 - (not model.is_tied and not training.lora_rank)
    weights = base * each + (trained * each if training.lora_rank else head * each)
    return weights + trained * each + optimizer_bytes(trained, tensors, training)


def learner_host_memory(model: ModelShape, training: Training) -> RoleMemory:
    """What one rank on a GPU needs of the machine's own memory besides. Rank 0 needs most: it saves and checks."""
    trained = trained_parameters(model, training)
    optimizer = 2 * 4 * trained if training.optimizer_state == "host" else 0
    checked = checked_bytes(model, training, is_small=False)
    state = trained * training.weight_bytes + optimizer_bytes(trained, 0, training) + optimizer
    saved = SAVED_COPIES_ON_HOST * state if training.sharding == "replicas" else min(state, SAVED_AHEAD_BYTES)
    whole = model.num_parameters
    return RoleMemory(
        "learner on the host",
        items_of(("optimizer", optimizer), ("weights of a version to check the engine by", checked)),
        {
            "loading": items_of(("weights", 4 * whole // training.shards)),
            "publishing": items_of(("published version", 0 if training.is_cut else 2 * whole)),
            "saving": items_of(("checkpoint", saved if training.saves else 0)),
        },
    )
