"""PPO for any Gymnasium environment: segments from many copies at once, a correction for what is stale.

headway run ppo --env CartPole-v1 --target_score 475
headway run ppo --env Pendulum-v1 --normalise true --max_lead 2 --correction vtrace
headway run ppo --env Acrobot-v1 --stepping first_ready --env_workers 4
headway run ppo --env MinAtar/Breakout-v1 --memory gru
headway run ppo --env ALE/Pong-v5 --atari true
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from pydantic import Field, field_validator, model_validator

from headway.coordinator.checkpoint_best_weights import Kept
from headway.coordinator.roles import Stations
from headway.core.protocols import Collector
from headway.core.types import derive_seed
from headway.core.types_opaque import SettingValue
from headway.envs.atari import NAMES as ATARI_NAMES
from headway.envs.atari import is_atari
from headway.envs.envpool_vector import is_game_of_atari
from headway.envs.evaluator_episodes import EpisodeEvaluator
from headway.envs.gymnasium_vector import Backend, EnvVector, Space, Spec, describe
from headway.envs.policy_env_policy import EnvPolicy
from headway.envs.policy_network_files import Deployable
from headway.envs.source_env_settings import EnvSettings
from headway.envs.source_env_source import EnvSource, find
from headway.ppo.first_ready import first_ready_collector
from headway.ppo.learner import PPOLearner, PPOSettings
from headway.ppo.networks_bodies import NetworkName, require_widths
from headway.ppo.networks_memory_cells import Memory
from headway.ppo.policy import Actor, ActorCritic, load_weights
from headway.ppo.recipe_deployed import MostLikelyActions, MostLikelyActionsFrom
from headway.ppo.recurrent import RecurrentPPOLearner
from headway.ppo.recurrent_policy import RecurrentActor, RecurrentActorCritic
from headway.ppo.segments import segment_collector
from headway.ppo.segments_reward_scale import RewardScale, RewardSigns
from headway.ppo.sparse_planes_plane_step import SparsePlanes
from headway.ranks.rank import Rank, device_for
from headway.ranks.settings import RankedConfig, over_ranks
from headway.runs.config import require_correction, with_defaults
from headway.runs.recipes_facts import Facts

GPU_PAYS_FROM = 50_000
"""Weights. On an H200 an update of a network of 9,000 took 68 ms and 18 ms on one core; of 200,000, 78 and 364 ms."""

USUAL_LONGEST = 1000
"""Steps of an episode where the environment does not say how long one may be: MuJoCo's."""
USUAL_FOR_ATARI = {"frame_skip": 4, "frame_stack": 4, "grey": True, "resize": (84, 84)}


@with_defaults(updates=500, evaluate_every=10)
class PPOConfig(PPOSettings, EnvSettings, RankedConfig):
    """Environment: what is played, and in which segments."""

    shown_first = "env num_envs segment_steps collectors max_lead updates target_score learning_rate"

    stepping: Literal["vector", "first_ready"] = "vector"
    """vector: all copies of a collector step together. first_ready: each in its own time, and those that are ready
    act, for environments whose steps take different times. Of the same copies both collect the same bits."""
    env_backend: Literal["auto", "gymnasium", "envpool"] = "auto"
    """What steps the copies. auto: the environment's own vector, else EnvPool where it is installed and knows the
    environment, else a vector of copies. The run's config.yaml says what it came down to."""
    env_workers: int = Field(default=0, ge=0)
    """Processes for the copies of a collector, with first_ready; 0: one each. Fewer save memory, and copies in the
    same process wait for each other."""
    min_ready: int = Field(default=1, ge=1)
    """Copies that must be ready before the policy acts, with first_ready. Raising it makes policy calls fewer and
    larger and waits longer for slow copies; num_envs is lock-step."""
    step_deadline_s: float = Field(default=60.0, gt=0)
    """A copy that takes longer for one step fails its ticket by name, with first_ready."""
    num_envs: int = Field(default=16, ge=1)
    """Copies per collector, stepped together. More make each policy call cheaper per step."""
    segment_steps: int = Field(default=128, ge=1)
    """Steps of each copy per ticket. Longer segments mean better advantages and older data."""
    eval_episodes: int = Field(default=20, ge=1)
    """Episodes per evaluation."""
    eval_max_steps: int = Field(default=10_000, ge=1)
    """Steps after which an episode of an evaluation is cut: it counts with its return so far. Raise it where episodes
    that long end by themselves; without a bound, those of a policy that goes round in circles never do."""
    network: NetworkName = "auto"
    """What sees the observation. mlp: tanh layers. small, nature, impala: convolutions and a layer that both heads
    share, for pictures from 3, 36 and 1 a side on; impala is the largest and slowest. conv: convolutions that halve a
    picture of any size, then mlp. auto: mlp for vectors; for pictures of 10 to 16 a side small, 36 to 128 nature, for
    others conv."""
    hidden: tuple[int, ...] | None = None
    """Widths of the layers, of pictures after their convolutions; []: no layers; unset: [64, 64], of small [128],
    nature [512], impala [256]. Wider and more can represent more, and every update takes longer."""
    sparse_planes: SparsePlanes = "off"
    """Kernels for the network small that skip what is zero in a picture, as nine tenths of MinAtar's planes are: acting
    and updates take half the time or less. bfloat16 rounds what the layer multiplies and is quicker still on processors
    that can (avx512_bf16, AMX). Nothing is gained from pictures that are full. off: torch's own convolutions."""
    memory: Memory = "none"
    """What the policy remembers of an episode with, where one observation does not say enough. gru is quicker than
    lstm. Minibatches are then whole segments of some copies."""
    memory_size: int = Field(default=128, ge=1)
    """Units of the memory. More remember more, and every step of an update takes longer."""
    normalise: bool = False
    """Scale observations by their running mean and deviation (part of the published weights)."""
    normalise_rewards: bool = False
    """Divide rewards by the deviation of the discounted returns seen so far, each collector by its own. Evaluations
    and the returns that are reported stay as the environment gives them."""
    clip_rewards: bool = False
    """Learn from rewards as -1, 0 and 1. Evaluations and the returns that are reported stay as the environment gives
    them."""
    atari: bool = False
    """Treat a game of ale-py (ALE/Pong-v5) as they usually are: no-op starts, every action 4 times, grey pictures of 84
    x 84, the last 4 of them, FIRE where a game waits for it; to learn from, an episode a life and clipped rewards. What
    is said beside it (resize, frame_skip, frame_stack, time_limit) holds."""
    learner_gpus: Annotated[float, Field(ge=0)] | Literal["auto"] = "auto"
    """GPUs the learner asks for, where there are any (without, it computes on the CPU). A fraction shares one. auto:
    one for pictures and for networks of 50,000 weights or more, none for smaller ones: those are quicker on the CPU."""

    @field_validator("hidden")
    @classmethod
    def _layers_have_units(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        return value if value is None else require_widths(value)

    @model_validator(mode="after")
    def _what_is_usual_is_said(self) -> PPOConfig:
        for name, value in USUAL_FOR_ATARI.items() if self.atari else ():
            if name not in self.model_fields_set:
                object.__setattr__(self, name, value)  # before anybody has seen it
        return self

    @model_validator(mode="after")
    def _environment_is_known(self) -> PPOConfig:
        if self.env_backend == "auto":
            settled = self.source.choose_backend() if self.stepping == "vector" else "gymnasium"
            object.__setattr__(self, "env_backend", settled)  # before anybody has seen it
        if self.stepping != "vector" and self.env_backend == "envpool":
            raise ValueError("env_backend='envpool' steps its copies itself: use stepping='vector' with it")
        self.source.check(self.backend, one_by_one=self.stepping != "vector")
        longest = min(self.eval_max_steps, self.source.longest_episode or USUAL_LONGEST)
        version = self.num_envs * self.segment_steps * self.tickets_per_batch * self.publish_every
        self.evaluate_rarely(self.eval_episodes * longest, version)
        return self

    @classmethod
    def implied(cls, name: str, system: str | None, values: Mapping[str, SettingValue]) -> Mapping[str, SettingValue]:
        """CleanRL's files put wrappers around an environment; which file plays it follows from the environment."""
        if system != "cleanrl" or name not in ("env_id", "gym_id"):
            return {}
        kwargs = dict(values.get("env_kwargs", {}))
        usual = _treatment_of_cleanrl(EnvSource(str(values["env"]), kwargs=kwargs))
        return {setting: value for setting, value in usual.items() if setting == "env" or setting not in values}

    @property
    def source(self) -> EnvSource:
        """What makes copies of it, to learn from."""
        return replace(super().source, atari="learned") if self.atari else super().source

    @property
    def measured_source(self) -> EnvSource:
        """What makes copies of it, to measure by: whole games."""
        return replace(self.source, atari="measured") if self.atari else self.source

    @property
    def backend(self) -> Backend:
        """What env_backend came down to."""
        assert self.env_backend != "auto"
        return self.env_backend

    @model_validator(mode="after")
    def _stepping_is_possible(self) -> PPOConfig:
        for name, value in {"env_workers": self.env_workers, "min_ready": self.min_ready}.items():
            if value > self.num_envs:
                raise ValueError(f"{name}={value} is more than there are copies (num_envs={self.num_envs})")
        for name in ("env_workers", "min_ready", "step_deadline_s"):
            value = getattr(self, name)
            if self.stepping == "vector" and value != type(self).model_fields[name].default:
                raise ValueError(f"{name}={value} needs stepping='first_ready'")
        return self

    @model_validator(mode="after")
    def _rewards_have_one_scale(self) -> PPOConfig:
        if self.normalise_rewards and self.clip_rewards:
            raise ValueError("normalise_rewards and clip_rewards are two scales for one reward: choose one")
        return self

    @model_validator(mode="after")
    def _a_size_is_of_a_memory(self) -> PPOConfig:
        if self.memory == "none" and self.memory_size != type(self).model_fields["memory_size"].default:
            raise ValueError(f"memory_size={self.memory_size} needs memory='gru' or 'lstm'")
        return self

    @model_validator(mode="after")
    def _kernels_for_planes_suit(self) -> PPOConfig:
        if self.sparse_planes != "off" and self.memory != "none":
            raise ValueError(f"sparse_planes={self.sparse_planes!r} needs memory='none'")
        if self.sparse_planes != "off" and self.learner_gpus not in ("auto", 0):
            raise ValueError(f"sparse_planes={self.sparse_planes!r} computes on the CPU: set learner_gpus=0")
        return self

    @model_validator(mode="after")
    def _stale_data_need_a_correction(self) -> PPOConfig:
        require_correction(self.correction, self.max_lead)
        return self


CONFIG = PPOConfig


def _treatment_of_cleanrl(source: EnvSource) -> dict[str, SettingValue]:
    """What CleanRL's file for this environment puts around it, as settings; ppo.py puts nothing.

    ppo_atari.py and ppo_atari_envpool.py: the usual treatment; a game by EnvPool's name (Breakout-v5) is one whose
    actions never stick. ppo_continuous_action.py: observations and rewards are normalised and clipped to 10.
    """
    if ":" not in source.env and is_game_of_atari(source.env):
        return {"env": f"{ATARI_NAMES}{source.env}", "env_kwargs": {"repeat_action_probability": 0.0}, "atari": True}
    try:
        found = find(source.env)
        if isinstance(found, EnvSpec) and is_atari(found):
            return {"atari": True}
        env = source.make()
    except ValueError:  # it is refused with its reason where settings are checked
        return {}
    env.close()
    return {"normalise": True, "normalise_rewards": True} if isinstance(env.action_space, Box) else {}


def stations(config: PPOConfig) -> Stations:
    """Everything wired: one line an edge."""
    spec = _spec_of(config)
    with_gpus = replace(config.placement, num_gpus=_num_gpus(config, spec), processes=config.learner_ranks)
    return Stations(
        collector=partial(_collector, config),
        learner=over_ranks(config, partial(_learner, config, spec), with_gpus),
        evaluator=partial(_evaluator, config),
        collector_placement=config.placement,
        learner_placement=with_gpus,
        evaluator_placement=config.placement,
    )


def _spec_of(config: PPOConfig) -> Spec:
    env = _vector(config, 1)
    try:
        return describe(env)
    finally:
        env.close()


def _num_gpus(config: PPOConfig, spec: Spec) -> float:
    network = _network(config, spec)  # whatever it comes to: one that does not suit is refused here
    if config.learner_gpus != "auto":
        return config.learner_gpus
    if config.sparse_planes != "off":
        return 0.0
    is_large = sum(tensor.numel() for tensor in network.parameters()) >= GPU_PAYS_FROM
    return 1.0 if len(spec.observation) == 3 or is_large else 0.0


def _network(config: PPOConfig, spec: Spec) -> ActorCritic | RecurrentActorCritic:
    torch.set_num_threads(config.torch_threads)
    seed = derive_seed(config.seed, "network")
    if config.memory == "none":
        return ActorCritic(
            spec,
            config.hidden,
            network=config.network,
            normalise=config.normalise,
            sparse_planes=config.sparse_planes,
            seed=seed,
        )
    return RecurrentActorCritic(
        spec,
        config.hidden,
        memory=config.memory,
        memory_size=config.memory_size,
        network=config.network,
        normalise=config.normalise,
        seed=seed,
    )


def _policy(config: PPOConfig, spec: Spec) -> Actor | RecurrentActor:
    return _actor(_network(config, spec))


def _actor(network: ActorCritic | RecurrentActorCritic) -> Actor | RecurrentActor:
    return RecurrentActor(network) if isinstance(network, RecurrentActorCritic) else Actor(network)


def _vector(config: PPOConfig, num_envs: int) -> EnvVector:
    return config.source.vector(num_envs, config.backend)


def _measured_vector(config: PPOConfig, num_envs: int) -> EnvVector:
    return config.measured_source.vector(num_envs, config.backend)


def _scale(config: PPOConfig) -> RewardScale | RewardSigns | None:
    if config.normalise_rewards:
        return RewardScale(config.gamma)
    return RewardSigns() if config.clip_rewards or config.atari else None


def _collector(config: PPOConfig, number: int) -> Collector:
    seed = derive_seed(config.seed, "environment", number) % 2**31
    scale = _scale(config)
    if config.stepping == "vector":
        copies = partial(_vector, config, config.num_envs)
        return segment_collector(copies, partial(_policy, config), steps=config.segment_steps, seed=seed, scale=scale)
    return first_ready_collector(
        config.source.single_maker(),
        partial(_policy, config),
        num_envs=config.num_envs,
        steps=config.segment_steps,
        seed=seed,
        num_workers=config.env_workers,
        min_ready=config.min_ready,
        start_s=config.start_deadline_s,
        step_s=config.step_deadline_s,
        scale=scale,
    )


def _learner(config: PPOConfig, spec: Spec, rank: Rank) -> PPOLearner:
    device = device_for(_num_gpus(config, spec))
    settings = config.part(PPOSettings)
    kind = PPOLearner if config.memory == "none" else RecurrentPPOLearner
    return kind(partial(_network, config, spec), settings, seed=config.seed, rank=rank, device=device)


def _evaluator(config: PPOConfig) -> EpisodeEvaluator:
    copies, policy = partial(_measured_vector, config), partial(_policy, config)
    is_array = config.backend == "gymnasium" and config.source.has_own_vector  # a copy more costs next to nothing
    most = 128 if is_array else 32
    return EpisodeEvaluator(
        copies, policy, episodes=config.eval_episodes, max_envs=most, max_steps=config.eval_max_steps
    )


# -- for others -------------------------------------------------------------------------------------


def load_policy(config: PPOConfig, kept: Kept) -> EnvPolicy:
    """The policy with these weights, to act with elsewhere."""
    vector = _vector(config, 1)
    try:
        spec, observation, action = describe(vector), vector.single_observation_space, vector.single_action_space
    finally:
        vector.close()
    network = _network(config, spec)
    load_weights(network, kept.weights)
    return EnvPolicy(
        Facts("ppo", config.env, kept.version, kept.score),
        _actor(network),
        network,
        spec,
        observation,
        action,
        make_env=config.measured_source.make,
        deployable=_deployable(network, spec, action),
        seed=config.seed,
    )


def _deployable(network: ActorCritic | RecurrentActorCritic, spec: Spec, action: Space) -> Deployable:
    """The network as other programs have it: with a memory, the state goes in and comes out."""
    seen = torch.zeros((2, *spec.observation), dtype=torch.uint8 if spec.is_bytes else torch.float32)
    if isinstance(network, RecurrentActorCritic):
        remembering = partial(MostLikelyActionsFrom, network, action)
        state = torch.zeros(2, network.state_size)
        return Deployable(remembering, {"observation": seen, "state": state}, remembering().outputs)
    module = partial(MostLikelyActions, network, action)
    return Deployable(module, {"observation": seen}, module().outputs)
