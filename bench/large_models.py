"""Models that hardly fit on one GPU: a whole update, adapters beside their engine, long replies.

    python bench/large_models.py full --shape 7B --weights bfloat16 --optimizer 8bit     an update of all weights
    python bench/large_models.py lora --shape 7B                                         adapters, and their engine
    python bench/large_models.py long --shape 1.5B --reply 8192                          long replies, made and learned
    python bench/large_models.py long --shape tiny --device cpu --reply 96 --rows 8      the same on a CPU, to try it

Random weights in real shapes, made on the device. `full` learns from made-up groups. The others are what a run without
a lead does: the engine makes replies (no token ends one), the learner learns from them, the engine takes its weights.
Every line is printed as it is known. Memory is torch's own count of allocated bytes on a GPU; on a CPU it is not
counted. Seconds of the first round have compilers and graphs in them. "worst" is how far the learner's
log-probabilities are from the engine's, over all tokens of the last round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from headway.core.types import Batch, Rollout, Span
from headway.llm.engine.protocol_engine import Request, Sampling
from headway.llm.engine.transformers_engine import TransformersEngine, build_decoder
from headway.llm.memory.model_shape import NAMED_CONFIGS, shape_of
from headway.llm.memory.roles_memory_items import in_gb
from headway.llm.rollouts_group import Group
from headway.llm.train.grpo_learner_learner import GRPOLearner, GRPOSettings
from headway.tools.plan.rate_probe import made_up_batch

TINY = {
    "model_type": "qwen2",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
    "tie_word_embeddings": True,
}


class NoWords:
    """Stands in for a tokenizer: nobody reads what random weights say."""

    def decode(self, token_ids: list[int]) -> str:
        return ""


class Measures:
    """Prints what a part took: seconds, tokens a second, the most memory meanwhile and what is held behind it."""

    def __init__(self, device: str) -> None:
        self._is_cuda = device == "cuda"
        self._began = time.perf_counter()

    @contextmanager
    def of(self, name: str, tokens: int = 0) -> Iterator[None]:
        self._wait()
        if self._is_cuda:
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        yield
        self._wait()
        took = time.perf_counter() - began
        rate = f", {tokens / took:,.0f} reply tokens/s" if tokens else ""
        memory = ""
        if self._is_cuda:
            peak, held = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
            memory = f"; peak {in_gb(peak)}, held {in_gb(held)}"
        print(f"{name}: {took:.2f} s{rate}{memory}  [{time.perf_counter() - self._began:.0f} s in all]", flush=True)

    def _wait(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize()


def random_weights(shape: str, dtype: torch.dtype, device: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    known = dict(TINY if shape == "tiny" else NAMED_CONFIGS[shape])
    config = AutoConfig.for_model(str(known.pop("model_type")), **known, max_position_embeddings=65536)
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def trained(given: argparse.Namespace) -> Any:
    model = random_weights(given.shape, getattr(torch, given.weights), given.device)
    if given.what == "lora":
        from headway.llm.model.adapters import add_adapters

        model = add_adapters(model, given.lora_rank, 2.0 * given.lora_rank)
    if not given.no_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def learner_of(given: argparse.Namespace) -> GRPOLearner:
    settings = GRPOSettings(
        learning_rate=1e-6,
        microbatch_tokens=given.microbatch,
        logit_chunk_tokens=given.chunk,
        optimizer_state=given.optimizer,
        trainer_attention=given.attention,
        compile_trainer=given.compile,
        check_engine_every=0,
    )
    return GRPOLearner(
        lambda: trained(given), settings, publish_dtype=torch.bfloat16 if given.device == "cuda" else None
    )


def tell(learner: GRPOLearner) -> None:
    kernels = learner._training.kernels
    print(f"kernels: {kernels}", flush=True)


def full(given: argparse.Namespace, measures: Measures) -> None:
    """Updates of a learner alone."""
    with measures.of("learner built"):
        learner = learner_of(given)
    tell(learner)
    words = shape_of(TINY if given.shape == "tiny" else NAMED_CONFIGS[given.shape]).vocab
    batch = made_up_batch(given.groups, given.group, given.prompt, given.reply, words)
    tokens = given.groups * given.group * given.reply
    for number in range(given.rounds):
        with measures.of(f"update {number + 1}", tokens):
            metrics = learner.learn(batch).metrics
        print(f"  gradient norm {metrics['grad_norm']:.5g}", flush=True)
    with measures.of("what would be published, made and let go"):
        learner.snapshot()


def in_turns(given: argparse.Namespace, measures: Measures) -> None:
    """Replies of an engine beside the learner, which learns from them and publishes to it."""
    with measures.of("learner built"):
        learner = learner_of(given)
    tell(learner)
    dtype = torch.bfloat16 if given.device == "cuda" else torch.float32
    with measures.of("engine built"):
        model = random_weights(given.shape, dtype, given.device)
        decoder = build_decoder(model, rows=given.rows, context=given.prompt + given.reply)
        engine = TransformersEngine(decoder, NoWords(), ())
        words = model.config.vocab_size
        del model
    dice = np.random.default_rng(0)
    groups = max(1, given.rows // given.group)
    tokens = groups * given.group * given.reply
    for number in range(given.rounds):
        asked = [
            Request(
                f"{number}-{one}",
                tuple(dice.integers(5, words, given.prompt).tolist()),
                given.group,
                1000 * number + one,
                Sampling(max_tokens=given.reply),
            )
            for one in range(groups)
        ]
        with measures.of(f"round {number + 1}, replies", tokens):
            samples = engine.generate_all(asked)
        rollouts = [
            Rollout(_group(request, made, dice), steps=given.group * given.reply, span=Span(number, number))
            for request, made in zip(asked, samples, strict=True)
        ]
        with measures.of(f"round {number + 1}, update", tokens):
            metrics = learner.learn(Batch(number, tuple(rollouts))).metrics
        worst = metrics.get("mismatch_max", float("nan"))
        print(f"  gradient norm {metrics['grad_norm']:.5g}, worst {worst:.3g}", flush=True)
        with measures.of(f"round {number + 1}, published"):
            engine.apply(number + 1, learner.snapshot())
    engine.close()


def _group(request: Request, samples: Any, dice: np.random.Generator) -> Group:
    return Group(
        prompt=np.array(request.prompt, np.int32),
        tokens=np.concatenate([sample.tokens for sample in samples]).astype(np.int32),
        lengths=np.array([len(sample.tokens) for sample in samples]),
        log_probs=np.concatenate([sample.log_probs for sample in samples]).astype(np.float32),
        versions=np.concatenate([sample.versions for sample in samples]).astype(np.int32),
        rewards=dice.random(len(samples)).astype(np.float32),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("full", "lora", "long"))
    parser.add_argument("--shape", default="7B", choices=("tiny", *NAMED_CONFIGS))
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--weights", default="bfloat16", choices=("bfloat16", "float32"), help="those that are trained")
    parser.add_argument("--optimizer", default="8bit", choices=("full", "8bit", "host"))
    parser.add_argument("--attention", default="auto", choices=("auto", "dense", "flex"))
    parser.add_argument("--compile", default="auto", choices=("auto", "on", "off"))
    parser.add_argument("--no_checkpointing", action="store_true", help="keep the activations of all layers")
    parser.add_argument("--lora_rank", type=int, default=16)
    parser.add_argument("--microbatch", type=int, default=8192)
    parser.add_argument("--chunk", type=int, default=2048, help="tokens whose logits are there at a time")
    parser.add_argument("--groups", type=int, default=8, help="full: in an update")
    parser.add_argument("--group", type=int, default=8, help="replies to a prompt")
    parser.add_argument("--rows", type=int, default=64, help="lora, long: replies that the engine makes at once")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--reply", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    measures = Measures(given.device)
    print(f"{given.what}: {vars(given)}", flush=True)
    full(given, measures) if given.what == "full" else in_turns(given, measures)


if __name__ == "__main__":
    main()
