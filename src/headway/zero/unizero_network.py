"""A world model over tokens: latents of observations and actions in turn.

    z_0   a_0   z_1   a_1   z_2            causal transformer, norms before the layers
     |     |     |     |     |
    p,v  r,z_1  p,v  r,z_2  p,v            what is read off: policy and value, reward and next latent

A latent is a token as it is: normalised (mean 0, variance 1), whether an encoder made it or the model itself, so a
search can put in what the model expects where learning puts in what was seen.

Node k is the pair (a_{k-1}, z_k): what a step of a search adds. A token sees the tokens of its own node before it and
those of the `attention_steps` - 1 nodes before, in learning as in search. Positions are rotations: only the distance
of two tokens matters, so a sequence may begin anywhere.

After a termination comes `ending`, a latent of its own that nothing follows but itself. Heads begin at zero: every
action is as likely, every value and reward 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway.zero.world_model import WINDOW, Architecture, WorldModel

SLOWEST_TURN = 1000.0  # tokens per radian of the slowest rotation: far longer than any path


@dataclass(frozen=True, slots=True, kw_only=True)
class UniZeroArchitecture(Architecture):
    """What a network is made from."""

    dim: int = 64
    """Features of a token, and of a latent."""
    layers: int = 2
    heads: int = 4
    attention_steps: int = 6
    """Nodes that a token sees, its own among them."""

    def __post_init__(self) -> None:
        Architecture.__post_init__(self)
        if self.dim % (2 * self.heads):
            raise ValueError(f"dim must be a multiple of 2 * heads = {2 * self.heads}, received {self.dim!r}")

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


class Sequence(NamedTuple):
    """What came of a sequence. B rows, K latents, L layers, D features."""

    seen: Tensor  # [B, K, D], at latents
    done: Tensor  # [B, actions, D], at actions
    memory: Tensor  # [B, tokens, L, 2, D], keys and values


class Block(nn.Module):
    """One layer: attention, then a function of each token, both beside what goes around them."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(dim)
        self.ask = nn.Linear(dim, 3 * dim)
        self.answer = nn.Linear(dim, dim)
        self.between = nn.LayerNorm(dim)
        self.inner = nn.Linear(dim, 4 * dim)
        self.outer = nn.Linear(4 * dim, dim)

    def project(self, x: Tensor, phases: Tensor) -> tuple[Tensor, Tensor]:
        """Queries [B, T, D], and keys and values [B, T, 2, D], of tokens [B, T, D]; phases [..., 1, 1, H / 2]."""
        batch, tokens, dim = x.shape
        asked = self.ask(self.before(x)).view(batch, tokens, 3, dim)
        turned = torch.view_as_complex(asked[:, :, :2].reshape(batch, tokens, 2, self.heads, -1, 2)) * phases
        queries, keys = torch.view_as_real(turned).view(batch, tokens, 2, dim).unbind(2)
        return queries, torch.stack((keys, asked[:, :, 2]), 2)

    def attend(self, x: Tensor, queries: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Tokens [B, T, D] after this layer; memory [B, S, 2, D] may be a view, mask is added to [B, heads, T, S]."""
        keys, values = (self._split(part) for part in memory.unbind(2))
        heard = functional.scaled_dot_product_attention(self._split(queries), keys, values, attn_mask=mask)
        x = x + self.answer(heard.transpose(1, 2).flatten(2))
        return x + self.outer(torch.relu(self.inner(self.between(x))))

    def _split(self, x: Tensor) -> Tensor:
        """[B, heads, T, head_dim]."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class UniZeroNetwork(WorldModel):
    """Encoder, transformer and heads."""

    def __init__(self, architecture: UniZeroArchitecture, *, seed: int) -> None:
        super().__init__(architecture)
        self.architecture = a = architecture
        self.encoder = _encoder(a)
        self.action = nn.Embedding(a.num_actions, a.dim)
        self.blocks = nn.ModuleList(Block(a.dim, a.heads) for _ in range(a.layers))
        self.last = nn.LayerNorm(a.dim)
        self.seen_layer = nn.Linear(a.dim, 2 * a.dim)
        self.policy_head = nn.Linear(2 * a.dim, a.num_actions)
        self.value_head = nn.Linear(2 * a.dim, a.value_support.num_bins)
        self.done_layer = nn.Linear(a.dim, 2 * a.dim)
        self.change_head = nn.Linear(2 * a.dim, a.dim)
        self.reward_head = nn.Linear(2 * a.dim, a.reward_support.num_bins)

        def draw(weight: Tensor, random: torch.Generator) -> None:
            nn.init.normal_(weight, std=weight[0].numel() ** -0.5, generator=random)

        self.begin_weights(seed, draw, self.policy_head, self.value_head, self.reward_head, self.change_head)

    # -- from and to tokens -------------------------------------------------------------------------

    def encode(self, observations: Tensor) -> Tensor:
        """Latents [N, D] of observations [N, ...]."""
        return normalise(self.encoder(self.scaled(observations)))

    @property
    def ending(self) -> Tensor:
        """[D], what follows a termination: features 1 and -1 in turn."""
        return 1.0 - 2.0 * (torch.arange(self.architecture.dim, device=self.action.weight.device) % 2)

    def judge(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Policy logits [..., A] and value logits [..., bins] at latents' tokens [..., D]."""
        hidden = torch.relu(self.seen_layer(seen))
        return self.policy_head(hidden), self.value_head(hidden)

    def expect(self, done: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Next latents [..., D] and reward logits [..., bins] at actions' tokens, after latents [..., D]."""
        hidden = torch.relu(self.done_layer(done))
        return normalise(latents + self.change_head(hidden)), self.reward_head(hidden)

    # -- all of a sequence --------------------------------------------------------------------------

    def forward(self, latents: Tensor, actions: Tensor, lengths: Tensor | None = None) -> Sequence:
        """Latents [B, K, D] and what was done between them, [B, K - 1] or one more.

        :param lengths: [B], how many of the latents there are; the others, and their actions, come first and are not
            looked at. None: all.
        """
        batch, num, dim = latents.shape
        tokens = num + actions.shape[1]
        x = latents.new_empty(batch, tokens, dim)
        x[:, ::2] = latents
        x[:, 1::2] = self.action(actions)
        mask = self._mask(tokens, 2 * (num - 1), lengths, x.device)
        phases = turns(torch.arange(tokens, device=x.device) - 2 * (num - 1), self.architecture.head_dim)
        memory = []
        for block in self.blocks:
            assert isinstance(block, Block)
            queries, kept = block.project(x, phases[:, None, None])
            x = block.attend(x, queries, kept, mask)
            memory.append(kept)
        x = self.last(x)
        return Sequence(x[:, ::2], x[:, 1::2], torch.stack(memory, 2))

    def _mask(self, tokens: int, newest: int, lengths: Tensor | None, device: torch.device) -> Tensor:
        """[T, T] or [B, 1, T, T]: 0 where a token is looked at, -inf where not. Each sees itself, whatever it is."""
        at = torch.arange(tokens, device=device)
        node = (at + 1) // 2
        back = node[:, None] - node
        looks = (at[:, None] >= at) & (back < self.architecture.attention_steps)
        if lengths is not None:
            first = newest - 2 * (lengths - 1)  # [B], the first token there is
            looks = looks & (at >= first[:, None])[:, None, None]
        looks = looks | torch.eye(tokens, dtype=torch.bool, device=device)
        return torch.zeros_like(looks, dtype=torch.float32).masked_fill(~looks, -math.inf)


def normalise(latents: Tensor) -> Tensor:
    """Each latent [..., D] to mean 0 and variance 1."""
    return functional.layer_norm(latents, latents.shape[-1:])


def turns(positions: Tensor, head_dim: int) -> Tensor:
    """The rotations [..., head_dim / 2] complex64 of positions [...]."""
    num = head_dim // 2
    speeds = SLOWEST_TURN ** (-torch.arange(num, device=positions.device) / num)
    angles = positions[..., None] * speeds
    return torch.polar(torch.ones_like(angles), angles)


def _encoder(a: UniZeroArchitecture) -> nn.Sequential:
    """Two layers, after convolutions that halve a picture until no side has more than 8 cells."""
    if a.windows:
        return _board_encoder(a)
    size, layers = math.prod(a.observation), list[nn.Module]()
    if len(a.observation) == 3:
        planes, height, width = a.observation
        channels = max(8, a.dim // 2)
        layers += [nn.Conv2d(planes, channels, 3, padding=1), nn.ReLU()]
        while max(height, width) > 8:
            layers += [nn.Conv2d(channels, channels, 3, stride=2, padding=1), nn.ReLU()]
            height, width = (height + 1) // 2, (width + 1) // 2
        size = channels * height * width
    layers += [nn.Flatten(), nn.Linear(size, 2 * a.dim), nn.LayerNorm(2 * a.dim), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(2 * a.dim, a.dim))


def _board_encoder(a: UniZeroArchitecture) -> nn.Sequential:
    """Cells that see their neighbours, then every window of 4 by 4 of them with the same weights: as MuZero's."""
    planes, height, width = a.observation
    side, channels = min(WINDOW, height, width), max(8, a.dim // 4)
    places = (height - side + 1) * (width - side + 1)
    layers: list[nn.Module] = [nn.Conv2d(planes, channels, 3, padding=1), nn.ReLU()]
    layers += [nn.Conv2d(channels, a.windows, side), nn.ReLU(), nn.Flatten()]
    layers += [nn.Linear(a.windows * places, 2 * a.dim), nn.LayerNorm(2 * a.dim), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(2 * a.dim, a.dim))
