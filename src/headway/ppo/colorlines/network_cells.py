"""A policy and its value estimate for Colour Lines: moves scored by what their two cells see.

    board ──> spots (colour, cell), four line patterns each ──> embeddings, summed over the lines
                       │                                              │
                       └── context: the cell's spots, the board's ────┤
                                                                      v
    leave(a)   score of taking the ball on a away        place(b | colour, a lifted)   score of putting it on b
    logit(a, b) = leave(a) + <colour of a, place(., b)>                              masked by reachability

The middle term is a bilinear form of two cell embeddings, the colours of the origin and the seven placing scores of
the target; only where a stands on a line of b does b look again, along lines without the ball. So all moves of a
position cost about as much as its cells, and yet every probability is exact: p(a, b) = p(a) p(b | a) with
p(a) the sum over b. Drawing goes in that order, from two uniform numbers.

Legality is computed from the observation, so no mask of 6561 moves is stored or sent, and masks passed in are ignored.
On a full board, which is only ever seen by a step that resets, all moves count as equally likely.

Symmetries: patterns are the same for all colours and for all eight turns and reflections of the board, and so are
values and probabilities of the images of a position, exactly. Training on images of the data would repeat the same
gradient: there is no augmentation to do, and none whose ratios could be wrong.

Given, not learned: which eight cells a line has, and what patterns have in common (`FEATURES`: the run a ball would
make, the fullest five that can still be completed). Worth and use of them are learned. On the CPU only: the patterns
are found by numba.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn

from headway.ppo.colorlines.network_patterns import FEATURES, NUM_PATTERNS, Spots, spots_of
from headway.ppo.colorlines.rules import CELLS, COLOURS, MOVES
from headway.ppo.networks_network import PPONetwork
from headway.ppo.policy import load_weights

MASKED = -1e9  # instead of -inf: its log-probability stays finite, and so do gradients
LEAST_LOG = -60.0  # what is less likely adds nothing to an entropy, and exp is slow there
CHUNK = 512  # positions at once where no gradient is wanted: [512, 6561] floats are 13 MB


class _Seen(NamedTuple):
    """Spots as tensors, with the flat places they belong to."""

    num: int
    patterns: Tensor  # [S, 5]
    place: Tensor  # [S] row * 81 + cell
    score: Tensor  # [S] (row * 8 + colour) * 81 + cell
    is_ball: Tensor  # [S]
    crossing_patterns: Tensor  # [C, 5]
    crossing_origin: Tensor  # [C] row * 81 + from
    crossing_place: Tensor  # [C] row * 81 + to
    crossing_move: Tensor  # [C] row * 6561 + move
    colours: Tensor  # [N, 81, 8] one-hot
    legal: Tensor  # [N, 6561]


@njit(cache=True, nogil=True)
def _sum_rows(table, index, out):  # [P, W], [S, K] -> [S, W]
    for s in range(len(index)):
        for w in range(table.shape[1]):
            out[s, w] = table[index[s, 0], w]
        for k in range(1, index.shape[1]):
            row = index[s, k]
            for w in range(table.shape[1]):
                out[s, w] += table[row, w]


@njit(cache=True, nogil=True)
def _add_to_rows(change, index, table):  # [S, W], [S, K] -> [P, W]
    for s in range(len(index)):
        for k in range(index.shape[1]):
            row = index[s, k]
            for w in range(table.shape[1]):
                table[row, w] += change[s, w]


class _SumOfRows(torch.autograd.Function):
    """nn.EmbeddingBag(mode="sum"), whose way back sorts all indices and took five times as long."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        ctx.index, ctx.shape = index, table.shape
        out = torch.empty(len(index), table.shape[1])
        _sum_rows(table.detach().numpy(), index.numpy(), out.numpy())
        return out

    @staticmethod
    def backward(ctx: Any, *changes: Tensor) -> tuple[Tensor, None]:
        table = torch.zeros(ctx.shape)
        _add_to_rows(changes[0].contiguous().numpy(), ctx.index.numpy(), table.numpy())
        return table, None


class _Embedding(nn.Module):
    """Sums of pattern embeddings: what patterns have in common, and what each has of its own (nothing at first)."""

    features: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shared = nn.Parameter(torch.empty(FEATURES.shape[1], width))
        self.own = nn.Parameter(torch.empty(NUM_PATTERNS, width))
        self.register_buffer("features", torch.from_numpy(FEATURES), persistent=False)

    def forward(self, patterns: Tensor) -> Tensor:
        """[S, 5] -> [S, width]"""
        table = torch.addmm(self.own, self.features, self.shared)
        return _SumOfRows.apply(table, patterns)


class _Lines(nn.Module):
    """From spots to features [S, width], each with the context of its cell and of the board."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patterns = _Embedding(width)
        self.own = nn.Linear(width, width)
        self.beside = nn.Linear(width, width, bias=False)
        self.around = nn.Linear(width, width, bias=False)

    def first(self, patterns: Tensor) -> Tensor:
        return torch.relu(self.patterns(patterns))

    def context(self, features: Tensor, seen: _Seen) -> Tensor:
        """[N * 81, width]: for every cell, from the spots on it and from all."""
        cells = features.new_zeros(seen.num * CELLS, features.shape[1]).index_add(0, seen.place, features) / COLOURS
        board = cells.view(seen.num, CELLS, -1).mean(1)
        mixed: Tensor = self.beside(cells).view(seen.num, CELLS, -1) + self.around(board)[:, None]
        return mixed.view(seen.num * CELLS, -1)

    def second(self, features: Tensor, context: Tensor, place: Tensor) -> Tensor:
        return torch.relu(self.own(features) + context.index_select(0, place))


class CellsActorCritic(PPONetwork):
    """Scores of moves, and the value of a position. `width`: features per spot; more see more and cost more."""

    normalise = False

    def __init__(self, width: int = 24, *, seed: int = 0) -> None:
        super().__init__()
        self.actor = _Lines(width)
        self.critic = _Embedding(width)
        self.leave, self.place = nn.Linear(width, 1), nn.Linear(width, 1)
        self.value = nn.Sequential(nn.Linear(2 * width + 1, 64), nn.ReLU(), nn.Linear(64, 1))
        random = torch.Generator().manual_seed(seed)  # never the global one: roles are built at the same time
        for name, parameter in self.named_parameters():
            if name.endswith(("bias", "patterns.own", "critic.own")):
                nn.init.zeros_(parameter)
            elif name.endswith("shared"):
                nn.init.normal_(parameter, std=0.3, generator=random)
            else:  # the first policy is close to uniform
                scale = 0.02 if name.startswith(("leave", "place")) else 1.0
                nn.init.orthogonal_(parameter, scale, generator=random)

    def outputs(self, obs: Tensor) -> Tensor:
        """Log-probabilities of all moves [N, 6561]."""
        return self._log_probs(_see(obs))

    def values(self, obs: Tensor) -> Tensor:
        """[N]"""
        return self._values(_see(obs))

    def evaluate(self, obs: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, entropies and values, each [N], from one look at the boards."""
        seen = _see(obs)
        return *self._of_moves(self._log_probs(seen), actions), self._values(seen)

    def _values(self, seen: _Seen) -> Tensor:
        features = torch.relu(self.critic(seen.patterns))
        kind = seen.place.div(CELLS, rounding_mode="floor") * 2 + seen.is_ball
        pooled = features.new_zeros(2 * seen.num, features.shape[1]).index_add(0, kind, features) / CELLS
        empty = seen.colours[:, :, 0].mean(1, keepdim=True)
        return self.value(torch.cat([pooled.view(seen.num, -1), empty], 1)).squeeze(1)

    def log_probs_and_entropy(self, obs: Tensor, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Of each move [N], and the entropy of the distribution over all moves [N]: both exact."""
        if not torch.is_grad_enabled() and len(obs) > CHUNK:
            parts = zip(obs.split(CHUNK), actions.split(CHUNK), strict=True)
            log_probs, entropies = zip(*(self.log_probs_and_entropy(*part, None) for part in parts), strict=True)
            return torch.cat(log_probs), torch.cat(entropies)
        return self._of_moves(self.outputs(obs), actions)

    def _of_moves(self, logs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        least = logs.clamp(min=LEAST_LOG)
        return logs.gather(1, actions[:, None].long()).squeeze(1), -(least.exp() * least).sum(1)

    def _log_probs(self, seen: _Seen) -> Tensor:
        lines = self.actor
        first = lines.first(seen.patterns)
        context = lines.context(first, seen)
        features = lines.second(first, context, seen.place)
        placing = self.place(features).squeeze(1) * ~seen.is_ball
        leaving = self.leave(features).squeeze(1) * seen.is_ball
        place = placing.new_zeros(seen.num * (COLOURS + 1) * CELLS).index_add(0, seen.score, placing)
        leave = leaving.new_zeros(seen.num * CELLS).index_add(0, seen.place, leaving)
        again = lines.second(lines.first(seen.crossing_patterns), context, seen.crossing_place)
        lifted = self.place(again).squeeze(1) + leave.index_select(0, seen.crossing_origin)
        logits = torch.baddbmm(
            leave.view(seen.num, CELLS, 1), seen.colours, place.view(seen.num, COLOURS + 1, CELLS)
        )  # [N, 81, 81]
        logits = logits.view(-1).index_put((seen.crossing_move,), lifted).view(seen.num, MOVES)
        return torch.log_softmax(torch.where(seen.legal, logits, MASKED), 1)


class CellsActor:
    """Acts with given weights. The collectors' side of the policy."""

    def __init__(self, network: CellsActorCritic) -> None:
        self._network = network.eval()

    def load(self, weights: object) -> None:
        load_weights(self._network, weights)

    def noise(self, seed: int, steps: int, num_envs: int) -> np.ndarray:
        """[steps, num_envs, 2] in [0, 1): one number for the origin, one for the target."""
        return np.random.default_rng(seed).random((steps, num_envs, 2), dtype=np.float32)

    @torch.no_grad()
    def act(self, obs: np.ndarray, noise: np.ndarray, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        logs = self._network.outputs(torch.from_numpy(obs))
        chances = logs.double().exp().view(-1, CELLS, CELLS)
        drawn = torch.from_numpy(noise)
        origin = _draw(chances.sum(2), drawn[:, 0])
        target = _draw(chances[torch.arange(len(chances)), origin], drawn[:, 1])
        moves = origin * CELLS + target
        return moves.numpy(), logs.gather(1, moves[:, None]).squeeze(1).numpy()

    def drawn(self, obs: np.ndarray, mask: np.ndarray | None, seed: int) -> np.ndarray:
        """Moves by the policy's own chances."""
        return self.act(obs, self.noise(seed, 1, len(obs))[0], mask)[0]

    @torch.no_grad()
    def best(self, obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """The most likely move: for evaluation."""
        return self._network.outputs(torch.from_numpy(obs)).argmax(1).numpy()


def _draw(chances: Tensor, uniform: Tensor) -> Tensor:
    """One index per row of chances [N, K], which need not sum to 1; never one whose chance is 0."""
    upto = chances.cumsum(1)
    return (upto <= uniform[:, None].double() * upto[:, -1:]).sum(1)


def _see(obs: Tensor) -> _Seen:
    """Everything that does not depend on weights, from observations [N, 84]."""
    compact = obs.numpy().astype(np.uint8)
    spots: Spots = spots_of(compact)
    origin, target = np.divmod(spots.crossing_move, CELLS)
    tensor = torch.from_numpy
    return _Seen(
        num=len(compact),
        patterns=tensor(spots.patterns),
        place=tensor(spots.row * CELLS + spots.cell),
        score=tensor((spots.row * (COLOURS + 1) + spots.colour) * CELLS + spots.cell),
        is_ball=tensor(spots.is_ball),
        crossing_patterns=tensor(spots.crossing_patterns),
        crossing_origin=tensor(spots.crossing_row * CELLS + origin),
        crossing_place=tensor(spots.crossing_row * CELLS + target),
        crossing_move=tensor(spots.crossing_row * MOVES + spots.crossing_move),
        colours=tensor(np.eye(COLOURS + 1, dtype=np.float32)[compact[:, :CELLS]]),
        legal=tensor(spots.legal.reshape(-1, MOVES)),
    )
