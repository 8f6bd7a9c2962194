"""Agents on two cores beside TRL's trainer: same model, game, group size, limits, learning rate and updates.

    make bench-peers                                   once: TRL in an environment of its own
    python bench/agents_beside_trl.py [--updates 6] [--repeats 3] [--turns 5] [--hidden 96] [--layers 3] [--ways ...]

The game is lights, by the same code on both sides: whatever is replied, it takes all its turns, so no episode is
shorter than another. The model is made on the spot: a small Llama with random weights that knows the words of the game.
Its replies end by chance or by their limit of tokens. Eight games of eight episodes are one update, trained on once.

What each does in a turn:

    TRL       `GRPOTrainer(environment_factory=...)` with transformers' generate, which is what it has without a GPU.
              All episodes go in lock-step: a turn begins when the longest reply of the turn before has ended. Tokens
              are kept, not made of texts again; but every turn reads the whole history of each episode again, padded to
              the longest. Each reply is parsed for a call of a tool (here every reply is one), and each answer is
              rendered in a dialogue made up for it, twice. The loop ends when a reply calls no tool, so after the end
              of the game one more reply is drawn, and trained on: it is counted as nothing here.
    headway   `agents/recipe.py` with the engine of transformers models. Each episode goes at its own pace, the engine
              keeps what it has read, and the trainer's last layer computes no more than what predicts a drawn token.

In turns, each in a process of its own: TRL with one thread of torch, TRL with two, ours without a lead (one thread),
ours with a lead of 1 or 2 (one thread for the engine, one for the trainer, so both cores: compare it with the better of
TRL's). `threads` is what a recipe does by itself; with `processes` (`--runtime processes`) engine and trainer are two
processes, which never wait for each other's interpreter. Episodes per second are those of all updates but the first
and the last, loading left out; ratios are taken within a repeat. Processor time is that of the whole process and of
those it has started, which other work on the machine disturbs less; TRL's two threads spin while they wait for each
other. TRL's gradient checkpointing is off, which is faster.

Episodes that were played to their end are counted, and printed. Those of the last update are played again from their
tokens, of both: every first message and answer must be the tokens that ours makes of it, every reward the game's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from figures import spread
from runs import last_line

from headway.agents.collector_agent_episodes import EpisodeCollector
from headway.core.types import Rollout, Snapshot, Ticket, derive_seed
from headway.llm.rollouts_episode import Episodes

ROOT = Path(__file__).parents[1]
PEER = ROOT / ".bench-venv-trl" / "bin" / "python"
GROUP, GAMES, TURN_TOKENS, EPISODE_TOKENS, CONTEXT, RATE = 8, 8, 16, 512, 640, 1e-5
WAYS: dict[str, tuple[float | None, int, str]] = {
    "TRL": (None, 1, ""),
    "TRL, two threads": (None, 2, ""),
    "headway, lead 0": (0, 1, "threads"),
    "headway, lead 1": (1, 1, "threads"),
    "headway, lead 1, processes": (1, 1, "processes"),
    "headway, lead 2, processes": (2, 1, "processes"),
}
"""Lead, threads of torch of each role, and runtime of each way."""
KEPT = "HEADWAY_BENCH_KEPT"
"""The variable that names the folder in which collectors leave what they have played."""

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<assistant><tool>' }}"
    "{% for call in message['tool_calls'] or [] %}{{ call['function']['name'] }}"
    "{% for name, value in call['function']['arguments'].items() %}{{ ' ' + name + ' ' + value }}{% endfor %}"
    "{% endfor %}"
    "{% else %}{{ '<user>' }}{% endif %}{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant><tool>' }}{% endif %}"
)
"""Says a tool's answer like a user's message, and begins every reply as a call. It names no end of a turn, so a reply
that its limit has cut and one that ended by itself are continued alike by both."""
CALLS = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<assistant>",
    "fields": {
        "tool_calls": {
            "open": "<tool>",
            "close": "<end>",
            "repeats": True,
            "content": "text",
            "transform": {"type": "function", "function": {"name": "press", "arguments": {"light": "{content}"}}},
        }
    },
}
"""How TRL finds the call in a reply: all of it is what the tool is given, as it is what our game is given."""


@dataclass(frozen=True)
class Job:
    """Says what is played and trained."""

    model: str
    turns: int
    updates: int
    seed: int

    @property
    def options(self) -> dict[str, int]:
        return {"lights": 8, "turns": self.turns}


def make_model(folder: Path, turns: int, hidden: int, layers: int) -> str:
    from headway.agents.games.lights import Lights
    from headway.llm.model.tiny_llama import make_word_model, word_tokenizer

    words = Lights.vocabulary(lights=8, turns=turns)
    make_word_model(words, folder, hidden=hidden, layers=layers)
    tokenizer = word_tokenizer(words)
    tokenizer.chat_template = TEMPLATE
    tokenizer.response_template = CALLS
    tokenizer.save_pretrained(folder)
    return str(folder)


class Counting(EpisodeCollector):
    """Leaves its groups in files, wherever it runs."""

    def collect(self, ticket: Ticket, snapshot: Snapshot) -> Rollout:
        rollout = super().collect(ticket, snapshot)
        found = derive_seed(ticket.seed, "game"), rollout.payload
        Path(os.environ[KEPT], f"{ticket.index:06}").write_bytes(pickle.dumps(found))
        return rollout


def processor_s() -> float:
    """Returns the processor time of this process and of those it has started so far."""
    spent, tick = time.process_time(), os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                spent += (int(fields[11]) + int(fields[12])) / tick
    return spent


def run_ours(job: Job, lead: float, threads: int, where: str) -> dict[str, Any]:
    from headway.agents.recipe import AgentConfig, stations
    from headway.coordinator.coordinator import Coordinator
    from headway.runs.event_log import MemoryRecorder
    from headway.runtimes.build import build_runtime

    config = AgentConfig(
        env="lights",
        env_options=job.options,
        model=job.model,
        group_size=GROUP,
        tickets_per_batch=GAMES,
        lanes=GAMES,
        engine_rows=GROUP * GAMES,
        max_turn_tokens=TURN_TOKENS,
        max_episode_tokens=EPISODE_TOKENS,
        max_context_tokens=CONTEXT,
        learning_rate=RATE,
        warmup_updates=0,
        updates=job.updates,
        max_lead=lead,
        torch_threads=threads,
        evaluate_every=0,
        save_every=0,
        log_samples=0,
        device="cpu",
        seed=job.seed,
    )

    class Watch(MemoryRecorder):
        """Notes the processor time at the end of every update."""

        def record(self, time_s: float, kind: str, fields: dict[str, Any]) -> None:
            super().record(time_s, kind, fields)
            if kind == "learn":
                processor.append(processor_s())

    processor = [processor_s()]
    runtime, recorder = build_runtime(where), Watch()
    wired = stations(config, collector=Counting)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[KEPT] = folder
        runtime.run(Coordinator(wired, config.settings(), runtime, recorder=recorder).run())
        kept: list[tuple[int, Episodes]] = [pickle.loads(file.read_bytes()) for file in sorted(Path(folder).iterdir())]
    learned = [event for event in recorder.events if event["e"] == "learn"]
    begin = next(event["t"] for event in recorder.events if event["e"] == "open")
    marks = [begin, *(event["t"] for event in learned)]
    last = []
    for seed, group in kept[-GAMES:]:
        ends = group.lengths.cumsum()
        for begin_at, end_at, reward in zip(ends - group.lengths, ends, group.returns, strict=True):
            tokens = group.tokens[begin_at:end_at].tolist()
            last.append({"seed": seed, "prompt": group.prompt.tolist(), "tokens": tokens, "reward": float(reward)})
    return {
        "seconds": [later - earlier for earlier, later in pairwise(marks)],
        "processor": [later - earlier for earlier, later in pairwise(processor)],
        "rewards": [event["m"]["reward"] for event in learned],
        "episodes": sum(group.end.count("done") for _, group in kept),
        "turns": sum(int(group.turns.sum()) for _, group in kept),
        "last": last,
    }


def run_peer(job: Job, threads: int) -> dict[str, Any]:
    tickets = [derive_seed(job.seed, "ticket", index) for index in range(GAMES * job.updates)]
    told = {
        **asdict(job),
        "options": job.options,
        "seeds": [derive_seed(seed, "game") for seed in tickets],
        "group_size": GROUP,
        "games_per_update": GAMES,
        "max_turn_tokens": TURN_TOKENS,
        "max_episode_tokens": EPISODE_TOKENS,
        "learning_rate": RATE,
        "threads": threads,
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(told, file)
        file.flush()
        return last_line([str(PEER), str(ROOT / "bench" / "peers" / "trl_agents.py"), job.model, file.name])


def what_differs(job: Job, found: dict[str, Any], behind: int) -> str:
    """Plays the episodes of the last update again from their tokens: '' if all is as it should be.

    `behind`: replies that may stand behind the end of the game.
    """
    from headway.agents.games.lights import Lights
    from headway.llm.model.conversation import Conversation
    from headway.llm.model.loading_models import load_tokenizer

    tokenizer = load_tokenizer(job.model)
    conversation, end = Conversation(tokenizer), tokenizer.eos_token_id
    for number, episode in enumerate(found["last"]):
        game, tokens, earned = Lights(**job.options), tuple(episode["tokens"]), 0.0
        first = game.reset(episode["seed"])
        if episode.get("first", first) != first or tuple(episode.get("prompt", conversation.first(first))) != (
            conversation.first(first)
        ):
            return f"episode {number} begins differently"
        for turn in range(job.turns):
            reply, tokens = cut_reply(tokens, end)
            step = game.step(tokenizer.decode([token for token in reply if token != end]))
            earned += step.reward
            if step.done != (turn == job.turns - 1):
                return f"episode {number} has {turn + 1} turns instead of {job.turns}"
            if not step.done or behind:
                answer = conversation.following(step.text, ended=False)
                if tokens[: len(answer)] != answer:
                    return f"episode {number}, turn {turn}: {step.text!r} is said differently"
                tokens = tokens[len(answer) :]
        for _ in range(behind):
            _, tokens = cut_reply(tokens, end)
        if tokens or abs(earned - episode["reward"]) > 1e-5:
            return f"episode {number}: {len(tokens)} tokens too many, reward {earned} and {episode['reward']}"
    return ""


def cut_reply(tokens: Sequence[int], end: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Divides tokens into a reply, up to its end or its limit, and what follows."""
    head = tuple(tokens[:TURN_TOKENS])
    length = head.index(end) + 1 if end in head else len(head)
    return head[:length], tuple(tokens[length:])


def speed(found: dict[str, Any]) -> float:
    """Episodes a second, without the update that warms up and the one beside which nothing is collected any more."""
    middle = found["seconds"][1:-1]
    return GROUP * GAMES * len(middle) / sum(middle)


def work(found: dict[str, Any]) -> float:
    """Milliseconds of processor time an episode, of the same updates."""
    middle = found["processor"][1:-1]
    return 1e3 * sum(middle) / (GROUP * GAMES * len(middle))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=6, help="that are measured")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="NAME", help=", ".join(WAYS))
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        job, *way = given.one
        print(json.dumps(run_ours(Job(**job), *way)))
        return
    if not PEER.exists():
        raise SystemExit("TRL is not there: make bench-peers")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in given.ways}
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "model", given.turns, given.hidden, given.layers)
        for repeat in range(given.repeats):
            job = Job(model, given.turns, given.updates + 2, repeat)
            for name in given.ways:
                lead, threads, where = WAYS[name]
                if lead is None:
                    last = run_peer(job, threads)
                else:
                    told = json.dumps([asdict(job), lead, threads, where])
                    last = last_line([sys.executable, __file__, "--one", told])
                found[name].append(last)
                differs = what_differs(job, last, behind=1 if lead is None else 0) or "same texts, turns and rewards"
                played = f"{last['episodes']} episodes, {last['turns']} turns"
                print(
                    f"{name}, repeat {repeat}: {speed(last):.1f} episodes/s, {work(last):.1f} ms; {played}; {differs}",
                    flush=True,
                )
    peers = [name for name in given.ways if WAYS[name][0] is None]
    heads = "".join(f" {f'times {name}':>24}" for name in peers)
    print(f"\n{'':<26} {'episodes/s':>22}{heads} {'processor ms/episode':>24}")
    for name, runs in found.items():
        speeds = [speed(run) for run in runs]
        ratios = [[mine / speed(run) for mine, run in zip(speeds, found[peer], strict=True)] for peer in peers]
        shown = "".join(f" {spread(some, 2):>24}" for some in ratios)
        print(f"{name:<26} {spread(speeds, 1):>22}{shown} {spread([work(run) for run in runs], 1):>24}")


if __name__ == "__main__":
    main()
