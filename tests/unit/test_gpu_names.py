"""What other systems' names of GPUs mean here: ranks, engines, and how a model is spread over them; or one line."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from headway.runs.config import ConfigError, read_values, understand
from headway.runs.recipes_package import load_recipe
from headway.tools.names import rows_gpu_places as gpu_places

GSM8K, AGENT = load_recipe("gsm8k").config, load_recipe("agent").config

VERL = """
actor_rollout_ref:
  actor: {strategy: fsdp2}
  rollout: {name: vllm, tensor_model_parallel_size: 2}
trainer: {n_gpus_per_node: 4, nnodes: 2}
rollout: {n_gpus_per_node: 4, nnodes: 1}
"""
ROLL = """
num_gpus_per_node: 8
actor_train:
  device_mapping: list(range(0,4))
  strategy_args: {strategy_name: fsdp2_train}
actor_infer:
  device_mapping: list(range(4,8))
  strategy_args: {strategy_name: vllm, strategy_config: {tensor_parallel_size: 2}}
"""


def read(kind: Any, text: str, **more: object) -> Any:
    return read_values(kind, yaml.safe_load(text), more)


def problems(kind: Any, text: str, **more: object) -> str:
    with pytest.raises(ConfigError) as caught:
        read(kind, text, **more)
    return str(caught.value)


# -- verl -------------------------------------------------------------------------------------------


def test_gpus_of_verl_are_ranks_and_engines_of_the_size_that_vllm_is_told() -> None:
    config = read(GSM8K, VERL, runtime="ray")
    assert (config.learner_ranks, config.collectors, config.engine_gpus) == (8, 2, 2.0)
    assert config.vllm_options == {"tensor_parallel_size": 2}


def test_without_vllm_an_engine_is_on_one_gpu() -> None:
    config = read(GSM8K, VERL.replace("name: vllm, tensor_model_parallel_size: 2", "name: hf"), runtime="ray")
    assert (config.collectors, config.engine_gpus) == (4, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("strategy: fsdp2", "strategy: megatron"),
            "only fsdp or fsdp2 is possible here: a layer is not cut over GPUs",
        ),
        (("parallel_size: 2", "parallel_size: 8"), "an engine of 8 GPUs"),
        (("parallel_size: 2", "parallel_size: 3"), "4 GPUs cannot be divided into engines of 3"),
        (("parallel_size: 2", "parallel_size: two"), "must be a whole number >= 1, received 'two'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(change: tuple[str, str], message: str) -> None:
    assert message in problems(GSM8K, VERL.replace(*change), runtime="ray")


def test_a_strategy_is_sharding_where_there_is_such_a_setting() -> None:
    theirs = {gpu_places.TRAINER_GPUS: 8}
    assert gpu_places.strategy("fsdp2", theirs, {"sharding"}) == {"sharding": "full"}
    assert gpu_places.strategy("fsdp2", {}, {"sharding"}) == "one rank has everything"
    assert "each has all weights" in str(gpu_places.strategy("fsdp", theirs, set()))


def with_fsdp(**options: object) -> str:
    told = yaml.safe_load(VERL)
    told["actor_rollout_ref"]["actor"]["fsdp_config"] = options
    return yaml.safe_dump(told)


@pytest.mark.parametrize(
    ("size", "sharding", "shard_ranks"),
    [
        (-1, "full", None),
        (8, "full", None),
        (16, "full", None),
        (4, "hybrid", 4),
        (2, "hybrid", 2),
        (1, "replicas", None),
    ],
)
def test_fsdp_size_is_how_many_ranks_hold_a_model_together(size: int, sharding: str, shard_ranks: int | None) -> None:
    config = read(GSM8K, with_fsdp(fsdp_size=size), runtime="ray")
    assert (config.learner_ranks, config.sharding, config.shard_ranks) == (8, sharding, shard_ranks)


@pytest.mark.parametrize("name", ["optimizer_offload", "offload_policy"])
def test_offloading_keeps_the_moments_of_the_optimizer_on_the_host(name: str) -> None:
    assert read(GSM8K, with_fsdp(**{name: True}), runtime="ray").optimizer_state == "host"
    both = {"optimizer_offload": name == "optimizer_offload", "offload_policy": name == "offload_policy"}
    assert read(GSM8K, with_fsdp(**both), runtime="ray").optimizer_state == "host"
    assert read(GSM8K, with_fsdp(**{name: False}), runtime="ray").optimizer_state == "full"


def test_precision_and_compiling_are_the_settings_of_the_learner() -> None:
    config = read(GSM8K, with_fsdp(model_dtype="bf16", use_torch_compile=False), runtime="ray")
    assert (config.parameter_dtype, config.compile_trainer) == ("bfloat16", "off")
    config = read(GSM8K, with_fsdp(model_dtype="fp32", use_torch_compile=True), runtime="ray")
    assert (config.parameter_dtype, config.compile_trainer) == ("float32", "auto")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fsdp_size": 3}, "8 ranks cannot be divided into models of 3 (fsdp_size)"),
        ({"fsdp_size": 0}, "fsdp_size must be a whole number >= 1, received 0"),
        ({"model_dtype": "fp16"}, "only fp32 or float32 or bf16 or bfloat16 is possible here"),
        ({"strategy": "megatron"}, "only fsdp or fsdp2 is possible here"),
        ({"ulysses_sequence_parallel_size": 2}, "only 1 is possible here: a sequence is not spread over GPUs"),
        ({"mixed_precision": {"param_dtype": "fp16"}}, "only bf16 or bfloat16 is possible here"),
        ({"mixed_precision": {"reduce_dtype": "bf16"}}, "only fp32 or float32 is possible here"),
    ],
)
def test_what_fsdp_cannot_be_here_is_refused_in_a_line(options: dict[str, Any], message: str) -> None:
    assert message in problems(GSM8K, with_fsdp(**options), runtime="ray")


# -- ROLL -------------------------------------------------------------------------------------------


def test_device_mappings_of_roll_are_ranks_and_engines_on_ray() -> None:
    config = read(AGENT, ROLL, runtime="ray")
    assert (config.learner_ranks, config.collectors, config.engine_gpus) == (4, 2, 2.0)
    assert config.vllm_options["tensor_parallel_size"] == 2


def test_fsdp_size_of_roll_is_how_many_ranks_hold_a_model_together() -> None:
    sized = ROLL.replace("fsdp2_train}", "fsdp2_train, strategy_config: {fsdp_size: 2}}")
    config = read(AGENT, sized, runtime="ray")
    assert (config.learner_ranks, config.sharding, config.shard_ranks) == (4, "hybrid", 2)
    assert read(AGENT, sized).sharding == "replicas"  # one rank
    assert "4 ranks cannot be divided into models of 3" in problems(
        AGENT, sized.replace("size: 2}", "size: 3}"), runtime="ray"
    )


def test_elsewhere_they_only_say_how_a_batch_is_cut() -> None:
    config = read(AGENT, ROLL)
    assert (config.learner_ranks, config.collectors, config.engine_gpus) == (1, 1, 1.0)
    said = {one.name: one.meaning for one in understand(AGENT, yaml.safe_load(ROLL))[1]}
    assert "with runtime=ray it is learner_ranks" in str(said["actor_train.device_mapping"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("list(range(4,8))", "list(range(2,6))"), "actor_infer has GPU 2, 3 too: here both work at the same time"),
        (("list(range(4,8))", "[4, 5, 6]"), "3 GPUs cannot be divided into engines of 2"),
        (("num_gpus_per_node: 8", "num_gpus_per_node: 1"), "an engine of 2 GPUs"),
        (("fsdp2_train", "zero"), "only fsdp2_train, fsdp_train, deepspeed_train, megatron_train are understood"),
        (
            ("{strategy_name: fsdp2_train}", "{strategy_config: {tensor_model_parallel_size: 2}}"),
            "a layer is not cut over GPUs here; more ranks hold less each",
        ),
    ],
)
def test_mappings_that_cannot_be_are_refused_in_a_line(change: tuple[str, str], message: str) -> None:
    assert message in problems(AGENT, ROLL.replace(*change), runtime="ray")


# -- engines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"vllm_options": {"tensor_parallel_size": 2}},
            "spreads an engine over 2 GPUs, but each asks for engine_gpus=1",
        ),
        ({"engine_gpus": 2}, "gives each engine GPUs that it does not use"),
        ({"vllm_options": {"tensor_parallel_size": "two"}}, "must be a whole number >= 1, received 'two'"),
    ],
)
def test_an_engine_asks_for_the_gpus_that_it_is_spread_over(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_values(GSM8K, {"engine": "vllm", "runtime": "ray", **settings})
    assert message in str(caught.value)


def test_an_engine_with_as_many_gpus_as_parts_is_let_through() -> None:
    values = {"engine": "vllm", "runtime": "ray", "engine_gpus": 2, "vllm_options": {"tensor_parallel_size": 2}}
    assert read_values(GSM8K, values).engine_gpus == 2
