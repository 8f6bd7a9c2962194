"""A world model of texts: words in front, slots behind, and MuZero's or UniZero's model between.

    row    | words of the text | words of candidate 0 | ... | words of candidate K - 1 |     hashed; 0 is no word

    text        --bag--> features --+
    candidates  --bag--> vectors  --+--> body.encode --> latent --> queries, value
                            |                              | vector of the action's words
                            |                              +--body.step--> latent', reward
                            |
    policy, legality of an action = its vector . the query for it

An action is its words, never its number: candidates may come in any order, and the same words mean the same everywhere.
A bag is the sum of the embeddings of words and of pairs of neighbours, brought to one length; so "the key is in the
chest" and "the chest is in the key" differ. What the candidates are is seen too, as the mean of their vectors.

Everything that depends on several candidates is computed in the order of their keys: another order of the same ones
gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from headway.text_games.textzero_known_actions import KnownActions, keys_of
from headway.zero.muzero_network import MuZeroArchitecture, VectorNetwork
from headway.zero.unizero_network import UniZeroArchitecture, UniZeroNetwork
from headway.zero.world_model import Architecture, WorldModel
from headway.zero.world_model_two_hot import Support

Body = Literal["muzero", "unizero"]
MOST_BUCKETS = 2**24  # a row travels as float32, which knows every whole number up to here
FIRST_FACTOR, SECOND_FACTOR = 7919, 104729  # of the words of a pair, so that their order matters
NEVER = -1e9  # logit of an empty slot: finite, so that nothing times it is a number


@dataclass(frozen=True, slots=True, kw_only=True)
class TextZeroArchitecture:
    """What a network is made from. The first four are those of the rows."""

    text_words: int = 64
    slots: int = 16
    """Candidates that a row has room for: the actions of a search."""
    action_words: int = 6
    buckets: int = 4096
    """Numbers that words are hashed to."""
    embedding: int = 64
    """Features of a word, and of an action."""
    latent: int = 64
    """Features of a latent; of a token, where the body is a transformer."""
    hidden: int = 128
    """muzero: width of the layers between."""
    table: int = 256
    """Actions that the inside of a search chooses from. More: slower; fewer: rare ones are forgotten."""
    body: Body = "muzero"
    """muzero: a step is a function of the latent. unizero: a transformer that sees the whole way."""
    layers: int = 2
    """unizero: layers of the transformer."""
    heads: int = 4
    """unizero: heads of its attention."""
    attention_steps: int = 6
    """unizero: steps back that a token looks, its own among them."""
    value_support: Support = field(default_factory=lambda: Support(-2.0, 2.0, 41))
    reward_support: Support = field(default_factory=lambda: Support(-2.0, 2.0, 41))

    def __post_init__(self) -> None:
        for name in (one.name for one in fields(self) if one.type == "int"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, received {getattr(self, name)!r}")
        if self.buckets >= MOST_BUCKETS:
            raise ValueError(f"buckets must be below {MOST_BUCKETS}, received {self.buckets!r}")
        if self.body not in get_args(Body):
            raise ValueError(f"body must be one of {', '.join(get_args(Body))}, received {self.body!r}")
        for name in ("value_support", "reward_support"):
            support = getattr(self, name)
            if support.low != -support.high:  # an untrained head must say 0
                raise ValueError(f"{name} must reach as far down as up, received {support.low}..{support.high}")

    @property
    def row(self) -> int:
        """Numbers in a row."""
        return self.text_words + self.slots * self.action_words


class Reading(NamedTuple):
    """What rows say. N rows, U different actions in them."""

    features: Tensor  # [N, F], what the body encodes
    vectors: Tensor  # [U, E], of the actions; the first is of an empty slot, if there is one
    slots: Tensor  # [N, K] int64, which of the vectors is in each slot
    keys: Tensor  # [N, K] int64, of the words; 0: the slot is empty

    def chosen(self, actions: Tensor) -> Tensor:
        """Vectors [N, E] of the actions in slots [N]."""
        return self.vectors[self.slots.gather(1, actions[:, None])[:, 0]]

    def logits(self, queries: Tensor, rows: Tensor | None = None) -> Tensor:
        """[Q, K]: the answers of the slots of `rows` [Q] (None: of all) to queries [Q, E]."""
        slots, keys = (self.slots, self.keys) if rows is None else (self.slots[rows], self.keys[rows])
        return (queries @ self.vectors.T).gather(1, slots).masked_fill(keys == 0, NEVER)


class MixedEmbedding(nn.Embedding):
    """Takes mixtures [..., num] of its rows instead of the number of one of them."""

    def forward(self, input: Tensor) -> Tensor:
        return input @ self.weight


class TextZeroNetwork(WorldModel):
    """Words, a body, and the actions it knows."""

    def __init__(self, architecture: TextZeroArchitecture, *, seed: int) -> None:
        a = architecture
        seen = Architecture(observation=(a.row,), num_actions=a.slots)
        super().__init__(replace(seen, value_support=a.value_support, reward_support=a.reward_support))
        self.architecture = a
        self.words = nn.Embedding(a.buckets + 1, a.embedding)
        self.begin_weights(seed, lambda weight, random: None)
        self.body = _made_body(a, seed)
        self.known = KnownActions(a.table, a.action_words)

    # -- words --------------------------------------------------------------------------------------

    def bag(self, words: Tensor) -> Tensor:
        """Features [N, E] of words [N, L] int64, of variance 1; zeros where there is no word."""
        first, second = words[:, :-1], words[:, 1:]
        pairs = (first * FIRST_FACTOR + second * SECOND_FACTOR) % self.architecture.buckets + 1
        both = torch.cat((words, torch.where((first > 0) & (second > 0), pairs, 0)), 1)
        summed = functional.embedding_bag(both, self.words.weight, mode="sum", padding_idx=0)
        return functional.layer_norm(summed, summed.shape[-1:])

    def vectors(self, words: Tensor) -> Tensor:
        """Vectors [U, E] of length 1 of actions [U, W]."""
        return self.bag(words.long()) * self.architecture.embedding**-0.5

    def read(self, rows: Tensor) -> Reading:
        """What rows [N, row] say, whole numbers of any type."""
        a = self.architecture
        words = rows.long()
        text, actions = words[:, : a.text_words], self.candidates(words)
        keys = keys_of(actions)
        _, slots, first = distinct(keys.flatten())
        vectors = self.vectors(actions.flatten(0, 1)[first])
        slots = slots.view_as(keys)
        ordered = slots.sort(1).values
        present = (keys != 0).sum(1, keepdim=True).clamp(min=1)
        together = functional.embedding_bag(ordered, vectors, mode="sum") / present.sqrt()  # an empty one is 0
        scale = a.embedding**0.5
        return Reading(torch.cat((self.bag(text), together * scale), 1), vectors, slots, keys)

    def candidates(self, rows: Tensor) -> Tensor:
        """[N, K, W], the words of the candidates of rows [N, row]."""
        a = self.architecture
        return rows[:, a.text_words :].unflatten(1, (a.slots, a.action_words))

    # -- what is asked of every model ---------------------------------------------------------------

    def encode(self, observations: Tensor) -> Tensor:
        return self.body.encode(self.read(observations).features)

    def judge(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Policy logits [..., M] of the known actions, and value logits [..., bins], of the body's features."""
        queries, value_logits = self.body.judge(features)
        return queries[..., : self.architecture.embedding] @ self.vectors(self.known.words).T, value_logits

    def values(self, rows: Tensor) -> Tensor:
        """Value logits [N, bins] of rows [N, row], each seen alone."""
        _, where, first = distinct(keys_of(rows))
        latents = self.encode(rows[first])
        if isinstance(self.body, UniZeroNetwork):
            nothing = latents.new_zeros(len(latents), 0, self.architecture.embedding)
            seen = self.body(latents[:, None], nothing).seen[:, 0]
        else:
            seen = self.body.look(latents)
        return self.body.judge(seen)[1][where]


def distinct(keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The different ones of keys [N] in order [U], which of them each is [N], and where each stands first [U]."""
    found, where = keys.unique(return_inverse=True)
    at = torch.arange(len(keys), device=keys.device)
    first = torch.zeros_like(found).scatter_reduce_(0, where, at, "amin", include_self=False)
    return found, where, first


def _made_body(a: TextZeroArchitecture, seed: int) -> VectorNetwork | UniZeroNetwork:
    """A model whose actions are vectors, and whose policy is two queries: what is good, and what can be done."""
    queries, features = 2 * a.embedding, 2 * a.embedding
    body: VectorNetwork | UniZeroNetwork
    if a.body == "muzero":
        vector = MuZeroArchitecture(
            observation=(features,),
            num_actions=queries,
            latent=a.latent,
            hidden=a.hidden,
            projection=a.latent,
            value_support=a.value_support,
            reward_support=a.reward_support,
        )
        body, width = VectorNetwork(vector, seed=seed), a.hidden
    else:
        tokens = UniZeroArchitecture(
            observation=(features,),
            num_actions=queries,
            dim=a.latent,
            layers=a.layers,
            heads=a.heads,
            attention_steps=a.attention_steps,
            value_support=a.value_support,
            reward_support=a.reward_support,
        )
        body, width = UniZeroNetwork(tokens, seed=seed), a.latent
    body.action = MixedEmbedding(a.embedding, width)
    nn.init.normal_(body.action.weight, generator=torch.Generator().manual_seed(seed + 1))
    return body
