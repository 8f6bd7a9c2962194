"""Scores per second of the in-process engine: all actions of all states packed, next to one by one, in the same run.

    python bench/scoring.py --model smollm2 [--prompt 256] [--actions 16] [--states 8] [--repeats 3] --threads 1
    python bench/scoring.py --shape 0.5b --prompt 1024 --actions 16      # random weights, as on a GPU

    alone           one by one: one request with one continuation at a time: prompt and action are read for every action
    transformers    the same by the forward pass of the model itself, as the library gives it
    unpacked        every prompt with one action, all of them side by side in one call: as many tokens, few launches
    state           the continuations of one state at a time, its prompt read once
    packed          all states in one call

The engine on a CPU keeps the last prompt, and reads what the next one begins with alike no more (llama_decoder.py). So
nobody asks about one prompt twice in a row here: one by one, all states are asked about their first action, then all
about their second, and so on, and states differ from their first token on. Every question reads its whole prompt, as it
would without packing, and with packing every state's prompt is read once a call.

Ways alternate in one run; the table gives medians and the spread of all repeats. Before anything is timed, all numbers
are compared with those that are read one by one, in float32 and on a GPU in bfloat16, which is timed. On a CPU it is
this process's own seconds that count, so give it one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from figures import spread
from generation import Words

from headway.llm.engine.protocol_engine import ContinuationScores, Engine, ScoreRequest
from headway.llm.engine.transformers_engine import TransformersEngine, build_decoder

SHAPES: dict[str, dict[str, Any]] = {
    "135m": {"vocab": 49152, "hidden": 576, "inner": 1536, "layers": 30, "heads": 9, "kv_heads": 3},
    "0.5b": {"vocab": 151936, "hidden": 896, "inner": 4864, "layers": 24, "heads": 14, "kv_heads": 2},
}
"""Of SmolLM2-135M and of Qwen2.5-0.5B."""


def load(options: argparse.Namespace, device: str, dtype: torch.dtype) -> Any:
    if options.model:
        from headway.llm.model.loading_models import load_model

        return load_model(options.model, dtype=dtype, device=device)
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = SHAPES[options.shape]
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=shape["vocab"],
        hidden_size=shape["hidden"],
        intermediate_size=shape["inner"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    with torch.device(device):
        return Qwen2ForCausalLM(config).to(dtype=dtype).eval()


def states(options: argparse.Namespace) -> list[ScoreRequest]:
    """Prompts of nearly one length, and actions of one to six tokens."""
    random = np.random.default_rng(0)
    requests = []
    for number in range(options.states):
        prompt = random.integers(5, 40000, options.prompt - 3 * number).tolist()
        actions = (random.integers(5, 40000, size).tolist() for size in random.integers(1, 7, options.actions))
        requests.append(ScoreRequest(tuple(prompt), tuple(map(tuple, actions)), str(number)))
    return requests


def packed(engine: Engine, requests: list[ScoreRequest]) -> list[np.ndarray]:
    return flat(engine.score(requests))


def a_state(engine: Engine, requests: list[ScoreRequest]) -> list[np.ndarray]:
    return [one for request in requests for one in flat(engine.score([request]))]


def one_by_one(engine: Engine, requests: list[ScoreRequest]) -> list[np.ndarray]:
    """Asks about an action of each state in turn, so that no question begins like the one before it."""
    found: dict[tuple[int, int], np.ndarray] = {}
    for place in range(len(requests[0].continuations)):
        for number, request in enumerate(requests):
            alone = ScoreRequest(request.prompt, (request.continuations[place],))
            (found[number, place],) = flat(engine.score([alone]))
    return [found[key] for key in sorted(found)]


def unpacked(engine: Engine, requests: list[ScoreRequest]) -> list[np.ndarray]:
    return flat(engine.score([ScoreRequest(one.prompt, (tokens,)) for one in requests for tokens in one.continuations]))


def flat(answers: list[ContinuationScores]) -> list[np.ndarray]:
    return [one for scores in answers for one in scores.log_probs]


@torch.no_grad()
def by_transformers(model: Any, requests: list[ScoreRequest], device: str) -> list[np.ndarray]:
    found = []
    for request in requests:
        for tokens in request.continuations:
            whole = torch.tensor([[*request.prompt, *tokens]], device=device)
            logits = model(input_ids=whole, use_cache=False, logits_to_keep=len(tokens) + 1).logits[0, :-1].float()
            logs = torch.log_softmax(logits, -1).gather(1, whole[0, len(request.prompt) :, None])
            found.append(logs[:, 0].cpu().numpy())
    return found


def gap(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--shape", choices=SHAPES, default="135m")
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--actions", type=int, default=16)
    parser.add_argument("--states", type=int, default=8, help="at least 2: one alone would be kept from call to call")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--ways", default="alone,transformers,unpacked,state,packed")
    options = parser.parse_args()
    if options.states < 2:
        parser.error(f"--states must be at least 2, received {options.states}")
    if options.threads:
        torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    requests = states(options)
    kinds = [torch.float32, torch.bfloat16] if device == "cuda" else [torch.float32]
    clock = time.perf_counter if device == "cuda" else time.process_time  # a machine may have other work
    for dtype in kinds:  # the last one is timed
        model = load(options, device, dtype)
        decoder = build_decoder(model, rows=1, context=options.prompt + 16)
        engine = TransformersEngine(decoder, Words(), ())
        ways: dict[str, Callable[[], list[np.ndarray]]] = {
            "alone": partial(one_by_one, engine, requests),
            "transformers": partial(by_transformers, model, requests, device),
            "unpacked": partial(unpacked, engine, requests),
            "state": partial(a_state, engine, requests),
            "packed": partial(packed, engine, requests),
        }
        ways = {name: way for name, way in ways.items() if name in options.ways.split(",")}
        found = {name: way() for name, way in ways.items()}  # kernels are chosen and compiled meanwhile
        gaps = ", ".join(f"{name} {gap(rows, found['alone']):.2g}" for name, rows in found.items() if name != "alone")
        print(f"{dtype}: furthest from what one by one gives: {gaps}", flush=True)
    count = options.states * options.actions
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name, way in ways.items():
            began = clock()
            way()
            rates[name].append(count / (clock() - began))
    what = f"prompts of {options.prompt}, {options.actions} actions, {options.states} states"
    second = "second" if device == "cuda" else "CPU second"
    print(f"{options.model or options.shape}, {device}, {dtype}, {what}: actions a {second}, ratio to one by one")
    for name, values in rates.items():
        ratios = [ours / theirs for ours, theirs in zip(values, rates["alone"], strict=True)]
        print(f"{name:>14} {spread(values, 1):>26} {spread(ratios, 1):>20}", flush=True)


if __name__ == "__main__":
    main()
