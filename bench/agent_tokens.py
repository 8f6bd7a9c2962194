"""Tokens that an engine computes for games of many turns: with sessions, and asked with the whole history each turn.

    python bench/agent_tokens.py [--episodes 64] [--group 8] [--turns 8] [--rows 64] [--repeats 3]

A made-up game on a tiny model with random weights: a prompt for each group, then replies and observations in turn, each
episode in a thread of its own. Both ways play the same games, and every reply must be the same token by token. A token
is computed when it is read (prompts, observations, histories) or drawn. The two alternate; seconds are medians with
their spread. With fewer rows than episodes, sessions are evicted and read again: that is what --rows shows.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from figures import spread

from headway.llm.engine.protocol_engine import Request, Sampling, Session
from headway.llm.engine.transformers_engine import TransformersEngine, build_decoder
from headway.testing.tiny_models import tiny_model, tiny_tokenizer

CONTEXT = 512
SAMPLING = Sampling(max_tokens=8)
Say = Callable[[list[int]], None]
Draw = Callable[[int], list[int]]


@dataclass(frozen=True)
class Game:
    """Says what is played: how often, how long, and by how many at a time."""

    episodes: int
    group: int
    turns: int
    rows: int

    def prompt(self, group: int) -> list[int]:
        tokens: list[int] = np.random.default_rng(group).integers(3, 200, 40).tolist()
        return tokens

    def observation(self, episode: int, turn: int) -> list[int]:
        rng = np.random.default_rng([episode, turn])
        tokens: list[int] = rng.integers(3, 200, int(rng.integers(4, 13))).tolist()
        return tokens


@dataclass(frozen=True)
class Played:
    """Holds what was replied, and what it took."""

    replies: list[list[list[int]]]  # [episode][turn]
    read: int
    drawn: int
    seconds: float


def engine_of(game: Game) -> TransformersEngine:
    decoder = build_decoder(tiny_model(context=CONTEXT), rows=game.rows, context=CONTEXT)
    return TransformersEngine(decoder, tiny_tokenizer(), (0, 7, 90, 91, 92))


def play_all(game: Game, subject: TransformersEngine, players: Sequence[tuple[Say, Draw]]) -> Played:
    """Plays every episode in a thread of its own."""
    replies: list[list[list[int]]] = [[] for _ in players]

    def play(episode: int) -> None:
        say, draw = players[episode]
        for turn in range(game.turns):
            replies[episode].append(draw(1000 * episode + turn))
            say(game.observation(episode, turn))

    threads = [threading.Thread(target=play, args=(episode,)) for episode in range(len(players))]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    health = subject.health()
    return Played(replies, int(health.details["tokens_read"]), health.tokens, seconds)


def with_sessions(game: Game) -> Played:
    subject, players = engine_of(game), []
    for group in range(game.episodes // game.group):
        for session in subject.open(f"g{group}", game.prompt(group), game.group):

            def draw(seed: int, session: Session = session) -> list[int]:
                tokens: list[int] = session.reply(SAMPLING, seed=seed).tokens.tolist()
                return tokens

            players.append((session.say, draw))
    return play_all(game, subject, players)


def with_histories(game: Game) -> Played:
    subject, players = engine_of(game), []
    for episode in range(game.episodes):
        history = game.prompt(episode // game.group)

        def draw(seed: int, history: list[int] = history) -> list[int]:
            (sample,) = subject.generate(Request("e", tuple(history), 1, seed, SAMPLING))
            history.extend(sample.tokens.tolist())
            tokens: list[int] = sample.tokens.tolist()
            return tokens

        players.append((history.extend, draw))
    return play_all(game, subject, players)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    game = Game(args.episodes, args.group, args.turns, args.rows)
    if game.episodes % game.group:
        parser.error(f"--episodes {game.episodes} must be whole groups of {game.group}")
    kept, whole = [], []
    for _ in range(args.repeats):
        kept.append(with_sessions(game))
        whole.append(with_histories(game))
        assert kept[-1].replies == whole[-1].replies, "the two ways did not play the same games"
    print(f"{game.episodes} episodes of {game.turns} turns in groups of {game.group}, {game.rows} rows")
    print("| | tokens read | drawn | computed | seconds |")
    print("|---|---|---|---|---|")
    for name, played in (("sessions", kept), ("whole histories", whole)):
        read, drawn = sorted({one.read for one in played}), sorted({one.drawn for one in played})
        computed = sorted({one.read + one.drawn for one in played})
        counts = " | ".join(
            "-".join(f"{count:,}" for count in (some[0], some[-1])[: len(some)]) for some in (read, drawn, computed)
        )
        print(f"| {name} | {counts} | {spread([one.seconds for one in played], 1)} |")
    ratios = [(one.read + one.drawn) / (other.read + other.drawn) for one, other in zip(kept, whole, strict=True)]
    print(f"computed with sessions, as a share of that without: {min(ratios):.3f} to {max(ratios):.3f}")
    if game.rows >= game.episodes and max(ratios) > 0.5:
        raise SystemExit("sessions computed more than half of what whole histories do")


if __name__ == "__main__":
    main()
