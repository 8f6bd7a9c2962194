"""The whole recipe on one GPU: generate, score, train, publish. Ours without and with a lead, and a plain loop.

    python bench/llm_recipe.py [--prompts 32] [--group 8] [--new 256] [--updates 14]

Random weights in the shape of SmolLM2-135M, which take as long as trained ones; every reply runs to its full length.
The plain loop generates with transformers' `generate` in bfloat16, trains the same number of tokens under autocast with
a fused AdamW and copies the weights back. All ways see the same prompts and rewards, in turns, on the same GPU.
With --processes engine and trainer of ours live in a process each, so that two interpreters feed the GPU; weights go
through shared memory, or with --direct from the trainer's process to the engine's. --layers 1 tries the script where
there is no GPU. "undivided" lets engine and trainer use all of the GPU at once, "dense" is that with a trainer as it is
on a CPU; --share is the trainer's part otherwise. --ways takes some of them, like "lead 0,lead 1".
Tokens per second are generated ones, over all updates but the first (of ours: the first four, in which graphs are
captured), by the clock on the wall. The GPU's busy share is what nvidia-smi says, sampled ten times a second; it counts
a moment as busy if any kernel runs, however small.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from figures import Busy, spread
from generation import Words, load

from headway.coordinator.coordinator import Coordinator
from headway.coordinator.roles import Stations
from headway.coordinator.settings import Deadlines, Plan, Settings
from headway.llm.collector import GroupCollector, GroupSettings
from headway.llm.engine.protocol_engine import Sample, Sampling
from headway.llm.engine.transformers_engine import TransformersEngine, build_decoder
from headway.llm.tasks.tasks import Prompt, user_says
from headway.llm.train.grpo_learner_learner import GRPOLearner, GRPOSettings
from headway.llm.weights.receiver_weight_link import Intake
from headway.llm.weights.source_linked_learner import LinkedLearner
from headway.runs.event_log import MemoryRecorder
from headway.runtimes.processes import Processes
from headway.runtimes.threads import Threads

PROMPT_TOKENS = 128


class Numbers:
    """A task whose prompts are random tokens."""

    def prompt(self, index: int) -> Prompt:
        return Prompt(f"numbers/{index}", index, "train", "numbers", (user_says(str(index)),), "")


def encode(prompt: Prompt) -> tuple[int, ...]:
    return tuple(np.random.default_rng(prompt.index).integers(5, 40000, PROMPT_TOKENS).tolist())


def reward_of(tokens: np.ndarray) -> float:
    return float((tokens % 2 == 0).mean())


class Collector(GroupCollector):
    def reward(self, prompt: Prompt, sample: Sample) -> float:
        return reward_of(sample.tokens)


def plain_loop(given: argparse.Namespace, device: str) -> list[float]:
    """Seconds of each update of the loop one would write."""
    actor = load(None, device, torch.bfloat16, layers=given.layers)
    trained = load(None, device, torch.float32, layers=given.layers).train()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-6, fused=True)
    seconds = []
    for update in range(given.updates):
        began = time.perf_counter()
        prompts = [encode(Numbers().prompt(update * given.prompts + number)) for number in range(given.prompts)]
        rows = torch.tensor([prompt for prompt in prompts for _ in range(given.group)], device=device)
        with torch.no_grad():
            whole = actor.generate(
                rows,
                attention_mask=torch.ones_like(rows),
                do_sample=True,
                max_new_tokens=given.new,
                min_new_tokens=given.new,
                top_k=0,
                pad_token_id=0,
                eos_token_id=None,
            )
        replies = whole[:, PROMPT_TOKENS:].cpu().numpy()
        rewards = torch.tensor([reward_of(reply) for reply in replies], device=device).view(given.prompts, given.group)
        advantages = ((rewards - rewards.mean(1, True)) / (rewards.std(1, keepdim=True) + 1e-6)).view(-1)
        optimizer.zero_grad(set_to_none=True)
        for start in range(0, len(whole), given.rows):
            part = whole[start : start + given.rows]
            with torch.autocast(device, torch.bfloat16):
                logits = trained(part[:, :-1]).logits
            logs = torch.log_softmax(logits[:, PROMPT_TOKENS - 1 :].float(), -1)
            chosen = logs.gather(2, part[:, PROMPT_TOKENS:, None])[..., 0]
            ratio = torch.exp(chosen - chosen.detach())
            loss = -(ratio * advantages[start : start + given.rows, None]).sum() / (len(whole) * given.new)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(actor.parameters(), trained.parameters(), strict=True):
                mine.copy_(theirs)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds


def make_engine(given: argparse.Namespace, device: str) -> TransformersEngine:
    model = load(None, device, precision(device), layers=given.layers)
    rows, context = given.prompts * given.group, PROMPT_TOKENS + given.new
    intake = Intake(device) if given.direct else None
    return TransformersEngine(build_decoder(model, rows=rows, context=context), Words(), (), intake=intake)


def make_learner(given: argparse.Namespace, device: str, kernels: dict[str, Any]) -> Any:
    settings = GRPOSettings(learning_rate=1e-6, microbatch_tokens=given.microbatch, **kernels)
    load_trained = partial(load, None, device, torch.float32, layers=given.layers)
    learner = GRPOLearner(load_trained, settings, publish_dtype=precision(device))
    return LinkedLearner(learner) if given.direct else learner


def make_collector(given: argparse.Namespace, device: str, number: int) -> Collector:
    groups = GroupSettings(size=given.group, sampling=Sampling(max_tokens=given.new))
    return Collector(partial(make_engine, given, device), Numbers(), encode, groups)


def precision(device: str) -> torch.dtype:
    """Of the engine, and of the weights it is sent."""
    return torch.bfloat16 if device == "cuda" else torch.float32


def ours(given: argparse.Namespace, device: str, lead: float, on_publish: str, **kernels: Any) -> list[float]:
    """Seconds of each update, from the events."""
    stations = Stations(partial(make_collector, given, device), partial(make_learner, given, device, kernels))
    settings = Settings(
        plan=Plan(updates=given.updates),
        max_lead=lead,
        tickets_per_batch=given.prompts,
        lanes=given.prompts,
        on_publish=on_publish,  # type: ignore[arg-type]
        deadlines=Deadlines(start_s=600.0),
    )
    runtime, recorder = (Processes(start_s=600.0) if given.processes else Threads()), MemoryRecorder()
    runtime.run(Coordinator(stations, settings, runtime, recorder=recorder).run())
    marks = [next(event["t"] for event in recorder.events if event["e"] == "open")]
    marks += [event["t"] for event in recorder.events if event["e"] == "learn"]
    learning = [event["d"] for event in recorder.events if event["e"] == "learn"][given.skip :]
    print(f"  lead {lead}, {on_publish}: {statistics.fmean(learning):.2f} s of an update are training", flush=True)
    return [later - earlier for earlier, later in pairwise(marks)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--updates", type=int, default=14)
    parser.add_argument("--skip", type=int, default=4, help="updates of ours that only warm up")
    parser.add_argument("--peer-updates", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rows", type=int, default=32, help="sequences a microbatch of the plain loop")
    parser.add_argument("--microbatch", type=int, default=36864, help="tokens a microbatch of ours")
    parser.add_argument("--share", type=float, default=0.6, help="trainer_gpu_share")
    parser.add_argument("--layers", type=int, default=30, help="of the model; fewer to try the script without a GPU")
    parser.add_argument("--processes", action="store_true", help="engine and trainer of ours in a process each")
    parser.add_argument("--direct", action="store_true", help="weights go from the trainer's process to the engine's")
    parser.add_argument("--ways", help="only these of the table, comma-separated")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    peer = argparse.Namespace(**{**vars(given), "updates": given.peer_updates})
    undivided = partial(ours, given, device, 1, "drain", trainer_gpu_share=1.0)
    ways = {
        "plain loop": partial(plain_loop, peer, device),
        "lead 0": partial(ours, given, device, 0, "drain"),
        "lead 1": partial(ours, given, device, 1, "drain", trainer_gpu_share=given.share),
        "lead 1 partial": partial(ours, given, device, 1, "partial", trainer_gpu_share=given.share),
        "lead 1 undivided": undivided,
        "lead 1 dense": partial(undivided, trainer_attention="dense", compile_trainer="off"),
    }
    if given.ways:
        ways = {name: ways[name] for name in given.ways.split(",")}
    tokens = given.prompts * given.group * given.new
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    shares: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(given.repeats):
        for name, way in ways.items():
            with Busy() as busy:
                seconds = way()[1 if name == "plain loop" else given.skip :]
            speeds[name].append(tokens * len(seconds) / sum(seconds))
            shares[name].append(busy.share)
            print(f"{name}: {speeds[name][-1]:,.0f} tokens/s, GPU busy {busy.share:.0%} (start included)", flush=True)
    print(f"\n{tokens} tokens an update\n{'':<28} {'tokens/s':>28} {'times the loop':>20} {'GPU busy':>9}")
    for name, found in speeds.items():
        ratios = [mine / theirs for mine, theirs in zip(found, speeds.get("plain loop", []), strict=False)]
        print(f"{name:<28} {spread(found, 0):>28} {spread(ratios, 1):>20} {statistics.fmean(shares[name]):>9.0%}")


if __name__ == "__main__":
    main()
