"""How much memory a learner of a language model really needs, beside what `headway plan` says.

python bench/learner_memory.py --shapes 135M --layers 4 --microbatch_tokens 512                      (on a CPU)
python bench/learner_memory.py --shapes 135M,0.5B,1.5B,7B --microbatch_tokens 8192 --device cuda     (on a GPU)

Random weights in real shapes; two updates of the learner on groups of 8 replies. On a GPU the peak is torch's own count
of allocated bytes; on a CPU what is held is counted tensor by tensor, and what a microbatch leaves behind is what
autograd saves.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from headway.llm.memory.model_shape import NAMED_CONFIGS, shape_of
from headway.llm.memory.roles_memory_items import in_gb
from headway.llm.memory.roles_training_memory import Training, activation_bytes, learner_memory
from headway.llm.train.grpo_learner_learner import GRPOLearner
from headway.llm.train.grpo_settings import GRPOSettings
from headway.tools.plan.rate_probe import made_up_batch

GROUP = 8


@contextmanager
def saved_by_autograd(model: Any) -> Iterator[list[int]]:
    """Counts the bytes that backward passes wait for, without weights and logits: the most at any moment."""
    vocab = model.config.vocab_size
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    alive: dict[int, list[int]] = {}
    most = [0]

    class Kept:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor
            storage = tensor.untyped_storage()
            is_logits = tensor.dim() == 2 and tensor.shape[-1] == vocab  # of a single chunk; counted by themselves
            self.key = 0 if is_logits or storage.data_ptr() in own else storage.data_ptr()
            if self.key:
                entry = alive.setdefault(self.key, [0, storage.nbytes()])
                entry[0] += 1
                most[0] = max(most[0], sum(size for _, size in alive.values()))

        def __del__(self) -> None:
            if self.key:
                alive[self.key][0] -= 1
                if not alive[self.key][0]:
                    del alive[self.key]

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        yield most


def measure(name: str, args: argparse.Namespace) -> None:
    config = {**NAMED_CONFIGS[name], **({"num_hidden_layers": args.layers} if args.layers else {})}
    shape = shape_of(config, name)
    training = Training(
        microbatch_tokens=args.microbatch_tokens,
        row_tokens=args.prompt + GROUP * (args.reply - 1),
        gradient_checkpointing=args.gradient_checkpointing,
        device=args.device,
        saves=False,
    )
    said = learner_memory(shape, training)
    with torch.device(args.device):
        model: Any = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**config, max_position_embeddings=4096), dtype=torch.float32
        )
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    settings = GRPOSettings(microbatch_tokens=args.microbatch_tokens, learning_rate=1e-6)
    learner = GRPOLearner(lambda: model, settings, publish_dtype=torch.bfloat16 if args.device == "cuda" else None)
    batch = made_up_batch(args.groups, GROUP, args.prompt, args.reply, shape.vocab)
    if args.device == "cuda":
        learner.learn(batch)
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        learner.learn(batch)
        peak = torch.cuda.max_memory_allocated()
        more, more_said = peak - held, said.peak_bytes - said.held_bytes
    else:
        with saved_by_autograd(model) as most:
            learner.learn(batch)
        state = learner._training.trained.state_dict()["optimizer"]["state"].values()
        held = sum(p.nbytes + (p.grad.nbytes if p.grad is not None else 0) for p in model.parameters())
        held += sum(value.nbytes for one in state for value in one.values())
        more, more_said = most[0], activation_bytes(shape, training)
    print(
        f"{name} ({shape.num_parameters:,} parameters, microbatch of {args.microbatch_tokens}, "
        f"{'with' if args.gradient_checkpointing else 'without'} checkpointing): held {held:,}, "
        f"said {said.held_bytes:,} ({held / said.held_bytes:.4f}); "
        f"more for an update {in_gb(more)}, said {in_gb(more_said)} ({more / more_said:.2f})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="135M")
    parser.add_argument("--layers", type=int, default=0, help="fewer layers than the shape has")
    parser.add_argument("--microbatch_tokens", type=int, default=512)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--reply", type=int, default=256)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    for name in args.shapes.split(","):
        measure(name, args)
        gc.collect()
        if args.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
