"""What a run needs, said before anything is loaded: counts that are exact, estimates that hold, and what would help."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import cli
from headway.llm.memory.model_shape import NAMED_CONFIGS, ModelShape, ShapeError, named_shape, shape_of
from headway.llm.memory.model_shapes import find_shape
from headway.llm.memory.planned_run import PlannedRun, line_about_pages, places_apart, places_together, tree_tokens
from headway.llm.memory.planned_run_fit_report import PROCESS_BYTES, Place, Tenant, table_rows
from headway.llm.memory.remedies import find_remedies, learner_changes
from headway.llm.memory.remedies_machine import Gpu, HostMemory, host_memory
from headway.llm.memory.roles_generation_memory import VLLM_CPU_CACHE, Generation, engine_memory, spare_bytes
from headway.llm.memory.roles_memory_items import GB, MemoryItem, RoleMemory, in_gb
from headway.llm.memory.roles_training_memory import (
    CHECKED_ON_DEVICE_BYTES,
    SAVED_AHEAD_BYTES,
    Training,
    activation_bytes,
    adapter_parameters,
    learner_host_memory,
    learner_memory,
    shard_parameters,
)
from headway.tools.plan.division import Division, Work, best_of, divide, divisions, predict
from headway.tools.plan.division_rates import CACHE_BYTES_PER_S, ENGINE_RATES, LEARNER_RATES, Rates, shipped_rates

stable = settings(max_examples=100, deadline=None, derandomize=True)
Output = pytest.CaptureFixture[str]
SEVEN = named_shape("7B")
BIG = HostMemory(10**12, 10**12)
shapes = st.sampled_from([named_shape(name) for name in NAMED_CONFIGS])
trainings = st.builds(
    Training,
    microbatch_tokens=st.integers(64, 32768),
    row_tokens=st.integers(64, 4096),
    logit_chunk_tokens=st.integers(1, 8192),
    learner_ranks=st.integers(1, 64),
    ranks_per_node=st.integers(1, 8),
    sharding=st.sampled_from(["replicas", "full", "hybrid"]),
    parameter_dtype=st.sampled_from(["float32", "bfloat16"]),
    optimizer_state=st.sampled_from(["full", "8bit", "host"]),
    gradient_checkpointing=st.booleans(),
    lora_rank=st.sampled_from([0, 1, 16]),
    has_reference=st.booleans(),
    critic=st.sampled_from(["none", "shared", "own"]),
    device=st.sampled_from(["cpu", "cuda"]),
    saves=st.booleans(),
)


def peak(model: ModelShape, training: Training) -> int:
    return learner_memory(model, training).peak_bytes


# -- shapes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("135M", 134_515_008), ("0.5B", 494_032_768), ("1.5B", 1_543_714_304), ("7B", 7_615_616_512)],
)
def test_a_named_shape_has_the_parameters_of_the_model_it_is_named_after(name: str, parameters: int) -> None:
    assert named_shape(name).num_parameters == parameters


def test_a_shape_nobody_knows_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ShapeError, match=r"unknown shape '7b'; .*allowed: 0.5B, 1.5B, 135M, 7B"):
        named_shape("7b")


def test_a_config_that_says_too_little_is_refused_with_what_is_missing() -> None:
    with pytest.raises(ShapeError, match=r"nothing of its layers \(num_hidden_layers or n_layer"):
        shape_of({"model_type": "llama", "hidden_size": 4})


def test_a_kind_whose_weights_are_not_known_needs_them() -> None:
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 10}
    with pytest.raises(ShapeError, match="kind 'gpt2' are not known"):
        shape_of(config)
    weights = {"wte.weight": (10, 8), "h.0.attn.weight": (8, 24)}
    assert shape_of(config, weights=weights).num_parameters == 10 * 8 + 8 * 24


# -- the learner ------------------------------------------------------------------------------------


def test_seven_billion_parameters_are_what_was_counted_on_the_device() -> None:
    """Weights 30 GB, gradients 30, AdamW 61: 122 GB on every replica."""
    memory = learner_memory(SEVEN, Training())
    assert [round(memory.bytes_of(name) / GB) for name in ("weights", "gradients", "optimizer")] == [30, 30, 61]
    assert round(memory.held_bytes / GB) == 122


MEASURED = (
    ("135M", 16384, False, 2_252_611_072, 19_711_720_960),
    ("135M", 4096, False, 2_292_387_328, 7_395_569_152),
    ("0.5B", 16384, False, 7_984_358_400, 40_007_954_944),
    ("1.5B", 8192, False, 24_793_259_008, 60_101_576_192),
    ("1.5B", 8192, True, 24_800_320_000, 31_605_585_920),
    ("7B", 8192, True, 122_299_206_144, 141_537_579_520),
)
"""Bytes that torch had allocated on an H200 between updates and at the peak: groups of 8 replies of 256 tokens to
prompts of 128, by dense masks, with AdamW under autocast (docs/lab.md)."""


@pytest.mark.parametrize(("name", "microbatch", "checkpointing", "held", "most"), MEASURED)
def test_the_formula_is_within_five_percent_of_peaks_on_a_gpu(
    name: str, microbatch: int, checkpointing: bool, held: int, most: int
) -> None:
    model = named_shape(name)
    training = Training(
        microbatch_tokens=microbatch,
        row_tokens=tree_tokens(model, 128, 256, 8),
        gradient_checkpointing=checkpointing,
        trainer_attention="dense",
        max_lead=0,
        saves=False,
    )
    said = learner_memory(model, training)
    assert said.held_bytes == pytest.approx(held, rel=0.07)  # small tensors of the batch are in what was measured
    assert said.held_bytes <= held
    assert said.peak_bytes == pytest.approx(most, rel=0.05)


GIB = 2**30
BY_FLASH = (
    ("135M", Training(microbatch_tokens=38912, logit_chunk_tokens=4096), 22 * GIB),
    ("0.5B", Training(microbatch_tokens=15360, logit_chunk_tokens=4096), 27 * GIB),
    ("1.5B", Training(microbatch_tokens=15360, logit_chunk_tokens=4096), 61 * GIB),
    (
        "7B",
        Training(
            microbatch_tokens=8192,
            logit_chunk_tokens=2048,
            parameter_dtype="bfloat16",
            optimizer_state="8bit",
            gradient_checkpointing=True,
        ),
        51_200_000_000,
    ),
)
"""The same by flash kernels and compiled, what `auto` is on a GPU; the first three to a whole GiB (docs/lab.md)."""


@pytest.mark.parametrize(("name", "training", "most"), BY_FLASH)
def test_the_formula_is_near_the_peaks_of_compiled_learners(name: str, training: Training, most: int) -> None:
    model = named_shape(name)
    training = replace(training, row_tokens=2176, max_lead=0, saves=False)
    assert learner_memory(model, training).peak_bytes == pytest.approx(most, rel=0.06)
    masks = replace(training, trainer_attention="dense")
    assert learner_memory(model, masks).peak_bytes > learner_memory(model, training).peak_bytes


def test_weights_in_bfloat16_read_by_masks_are_said_as_they_were_measured() -> None:
    masks = replace(BY_FLASH[-1][1], row_tokens=2176, trainer_attention="dense", saves=False)
    assert learner_memory(SEVEN, masks).peak_bytes == pytest.approx(53.8 * GB, rel=0.02)


def test_a_kind_of_model_that_may_not_fit_flash_kernels_is_said_with_masks() -> None:
    known = named_shape("135M")
    other = replace(known, kind="gpt2")
    masks = replace(Training(), trainer_attention="dense")
    assert activation_bytes(other, Training()) == activation_bytes(known, masks) > activation_bytes(known, Training())
    assert activation_bytes(other, replace(Training(), trainer_attention="flash")) == activation_bytes(
        known, Training()
    )


@stable
@given(shapes, trainings, st.integers(1, 63))
def test_more_ranks_of_a_sharded_learner_never_need_more_memory_each(
    model: ModelShape, training: Training, more: int
) -> None:
    """From two on: one rank alone has nothing to gather."""
    training = replace(training, sharding="full", learner_ranks=1 + training.learner_ranks)
    assert peak(model, replace(training, learner_ranks=training.learner_ranks + more)) <= peak(model, training)


@stable
@given(shapes, trainings)
def test_what_is_meant_to_save_memory_never_takes_more(model: ModelShape, training: Training) -> None:
    whole = peak(model, training)
    held = learner_memory(model, training).held_bytes
    assert peak(model, replace(training, gradient_checkpointing=True)) <= max(
        whole, peak(model, replace(training, gradient_checkpointing=False))
    )
    assert peak(model, replace(training, microbatch_tokens=max(1, training.microbatch_tokens // 2))) <= whole
    assert learner_memory(model, replace(training, parameter_dtype="bfloat16")).held_bytes <= held
    for state in ("8bit", "host"):
        full = learner_memory(model, replace(training, optimizer_state="full", parameter_dtype="float32")).held_bytes
        less = replace(training, optimizer_state=state, parameter_dtype="float32")
        assert learner_memory(model, less).held_bytes <= full
    assert peak(model, replace(training, saves=False)) <= whole


@stable
@given(shapes, trainings)
def test_a_reference_and_a_critic_only_add(model: ModelShape, training: Training) -> None:
    bare = replace(training, has_reference=False, critic="none")
    assert peak(model, bare) <= peak(model, replace(bare, has_reference=True))
    assert peak(model, bare) <= peak(model, replace(bare, critic="shared")) <= peak(model, replace(bare, critic="own"))


def test_a_reference_costs_nothing_with_adapters() -> None:
    with_adapters = Training(lora_rank=8)
    assert peak(SEVEN, with_adapters) == peak(SEVEN, replace(with_adapters, has_reference=True))


@stable
@given(shapes, st.integers(1, 64), st.integers(1, 64))
def test_shards_hold_no_less_than_their_share_and_the_whole_is_the_sum_for_one(
    model: ModelShape, shards: int, rank: int
) -> None:
    assert shard_parameters(model, 1) == model.num_parameters
    assert shard_parameters(model, shards) >= model.num_parameters / shards
    assert adapter_parameters(model, rank) == sum(rank * (rows + columns) for rows, columns in model.matrices.values())


def test_replicas_join_their_gradients_in_one_more_message_and_copy_what_they_save() -> None:
    one, two = learner_memory(SEVEN, Training()), learner_memory(SEVEN, Training(learner_ranks=2))
    assert one.bytes_of("gradient message") == 0
    assert two.bytes_of("gradient message") == one.bytes_of("gradients")
    assert one.bytes_of("checkpoint") == pytest.approx(12 * SEVEN.num_parameters, rel=1e-6)
    host = learner_host_memory(SEVEN, Training())
    assert host.bytes_of("checkpoint") == pytest.approx(36 * SEVEN.num_parameters, rel=1e-6)
    assert learner_host_memory(SEVEN, Training(sharding="full", learner_ranks=8)).peak_bytes < host.peak_bytes / 8


def test_weights_to_check_an_engine_by_are_on_the_gpu_if_they_are_few_and_only_with_a_lead() -> None:
    name, small = "weights of a version to check the engine by", named_shape("135M")
    for model, training, on_gpu in (
        (small, Training(), True),
        (SEVEN, Training(lora_rank=16), True),
        (SEVEN, Training(), False),
    ):
        kept = learner_memory(model, training).bytes_of(name), learner_host_memory(model, training).bytes_of(name)
        assert (kept[0] > 0, kept[1] > 0) == (on_gpu, not on_gpu)
        assert (max(kept) <= CHECKED_ON_DEVICE_BYTES) == on_gpu
        for none in (replace(training, max_lead=0), replace(training, check_engine_every=0)):
            assert learner_memory(model, none).bytes_of(name) == learner_host_memory(model, none).bytes_of(name) == 0
    assert learner_memory(small, Training()).bytes_of(name) == 4 * small.num_parameters


def test_what_is_small_to_the_plan_is_small_to_the_check() -> None:
    engine_check = pytest.importorskip("headway.llm.train.grpo_learner_engine_check")
    assert CHECKED_ON_DEVICE_BYTES == engine_check.SMALL_BYTES


def test_one_rank_alone_is_a_replica_that_saves_its_state_in_files() -> None:
    whole, alone = Training(), Training(sharding="full")
    one, other = learner_memory(SEVEN, whole), learner_memory(SEVEN, alone)
    assert other.bytes_of("checkpoint") == 0 < one.bytes_of("checkpoint")
    for name in ("weights", "copies of matrices", "gathered layers", "publishing", "published version"):
        assert other.bytes_of(name) == one.bytes_of(name)


def test_shards_keep_the_rows_of_the_version_that_engines_have_and_make_those_of_the_next() -> None:
    four = learner_memory(SEVEN, Training(sharding="full", learner_ranks=4))
    rows = 2 * shard_parameters(SEVEN, 4)
    assert four.bytes_of("published version") == rows  # in bfloat16
    assert rows < four.bytes_of("publishing") < 1.1 * rows + 2 * SEVEN.largest_layer()
    adapters = learner_memory(SEVEN, Training(sharding="full", learner_ranks=4, lora_rank=8))
    matrices = sum(rows * columns for rows, columns in SEVEN.matrices.values())
    assert adapters.bytes_of("published version") == pytest.approx(2 * matrices / 4, rel=0.01)


def test_sharding_over_a_node_alone_holds_as_much_as_a_node_of_it() -> None:
    hybrid = Training(sharding="hybrid", learner_ranks=32, ranks_per_node=8)
    assert peak(SEVEN, hybrid) == peak(SEVEN, replace(hybrid, sharding="full", learner_ranks=8))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("sharding", "fsdp", "unknown sharding 'fsdp'.*allowed: full, hybrid, replicas"),
        ("parameter_dtype", "float16", "did you mean 'bfloat16'"),
        ("optimizer_state", "8-bit", "did you mean '8bit'"),
        ("learner_ranks", 0, "learner_ranks must be at least 1, received 0"),
        ("lora_rank", -1, "lora_rank must be at least 0, received -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Training(**{field: value})


def test_a_checkpoint_in_shards_takes_a_stated_amount_of_the_machines_memory() -> None:
    from headway.llm.train import shard_files_shard_writer as shard_writer

    assert SAVED_AHEAD_BYTES == shard_writer.AHEAD_BYTES
    shards = Training(sharding="full", learner_ranks=2)
    assert learner_host_memory(SEVEN, shards).bytes_of("checkpoint") == SAVED_AHEAD_BYTES
    small = named_shape("135M")
    assert learner_host_memory(small, replace(shards, learner_ranks=8)).bytes_of("checkpoint") < SAVED_AHEAD_BYTES
    assert learner_memory(SEVEN, replace(shards, device="cpu")).bytes_of("checkpoint") == SAVED_AHEAD_BYTES
    assert learner_memory(SEVEN, shards).bytes_of("checkpoint") == 0


# -- engines ----------------------------------------------------------------------------------------


@stable
@given(shapes, st.integers(1, 512), st.integers(2, 8192), st.sampled_from(["transformers", "vllm"]))
def test_an_engine_needs_more_for_more_rows_and_longer_ones(
    model: ModelShape, rows: int, context: int, engine: str
) -> None:
    few = Generation(prompt_tokens=1, context_tokens=context, engine=engine, engine_rows=rows)
    least = engine_memory(model, few).peak_bytes
    assert least <= engine_memory(model, replace(few, engine_rows=rows + 1)).peak_bytes
    assert least <= engine_memory(model, replace(few, context_tokens=context + 1)).peak_bytes


def test_parts_of_an_engine_hold_their_share() -> None:
    whole = Generation(engine="vllm")
    half = replace(whole, tensor_parallel_size=2)
    one, two = engine_memory(SEVEN, whole), engine_memory(SEVEN, half)
    assert two.bytes_of("cache") == -(-one.bytes_of("cache") // 2)
    with pytest.raises(ValueError, match="tensor_parallel_size=2 needs engine='vllm'"):
        Generation(tensor_parallel_size=2)


def test_vllm_keeps_a_prompt_once_for_its_replies() -> None:
    own = Generation(prompt_tokens=100, context_tokens=150, engine_rows=16, group_size=8, device="cpu")
    assert own.cached_tokens == 16 * 150
    assert replace(own, engine="vllm").cached_tokens == 16 * 50 + 2 * 100


# -- places -----------------------------------------------------------------------------------------


def place(held: int, coming: int, room: int | None) -> Place:
    items = (MemoryItem("held", held),), {"learning": (MemoryItem("coming", coming),)}
    return Place("memory", [Tenant(RoleMemory("learner", *items))], room, is_gpu=False)


@pytest.mark.parametrize(
    ("held", "coming", "room", "verdict"),
    [
        (10, 10, None, "unknown"),
        (10, 10, 100, "fits"),
        (50, 40, 100, "tight"),
        (50, 55, 100, "tight"),  # the estimate may be too high
        (50, 60, 100, "does not fit"),
        (101, 0, 100, "does not fit"),
    ],
)
def test_only_what_cannot_fit_is_refused(held: int, coming: int, room: int | None, verdict: str) -> None:
    assert place(held, coming, room).verdict == verdict


def test_everybody_on_one_machine_shares_the_first_gpu_and_ranks_go_round() -> None:
    run = PlannedRun(SEVEN, Training(learner_ranks=3), Generation(), engines=2)
    first, second, host = places_together(run, [BIG, BIG], BIG)
    assert [(one.memory.role, one.count) for one in first.tenants] == [("learner", 2), ("engine", 2), ("evaluator", 1)]
    assert [(one.memory.role, one.count) for one in second.tenants] == [("learner", 1)]
    assert first.overhead_bytes == 5 * PROCESS_BYTES
    assert host.overhead_bytes == 0
    (alone,) = places_together(replace(run, training=replace(run.training, device="cpu")), [], BIG)
    assert not alone.is_gpu
    assert len(alone.tenants) == 3


def test_vllm_takes_its_share_whatever_it_needs() -> None:
    small = named_shape("135M")
    run = PlannedRun(small, Training(), Generation(engine="vllm", gpu_memory_utilization=0.5))
    (first, _) = places_together(run, [Gpu("some", 100 * GB, 100 * GB)], None)
    assert first.tenants[1].peak_bytes == 50 * GB
    assert "its share" in {row[2] for row in table_rows([first])}


def test_vllm_needs_one_whole_row_beside_its_weights_and_takes_the_pages_it_gets() -> None:
    shape, room = named_shape("1.5B"), Gpu("some", 80 * GB, 80 * GB)
    long = Generation(prompt_tokens=128, context_tokens=32_896, engine="vllm", gpu_memory_utilization=0.3)
    assert engine_memory(shape, long).bytes_of("cache") > 50 * GB  # of 64 full rows
    (first, _) = places_together(PlannedRun(shape, Training(), long, evaluator="none"), [room], None)
    assert first.tenants[1].peak_bytes == 24 * GB
    row = 32_896 * shape.cache_bytes(2)
    assert spare_bytes(shape, long) == pytest.approx(engine_memory(shape, long).bytes_of("cache") - row, rel=1e-6)
    (small, _) = places_together(
        PlannedRun(shape, Training(), replace(long, gpu_memory_utilization=0.01)), [room], None
    )
    assert small.tenants[1].peak_bytes > 0.01 * 80 * GB + row  # weights and a row are needed, whatever its share


def test_vllm_on_a_cpu_has_the_cache_it_is_given() -> None:
    long = Generation(context_tokens=32_896, engine="vllm", device="cpu")
    (alone,) = places_together(PlannedRun(named_shape("135M"), Training(device="cpu"), long, evaluator="none"), [], BIG)
    memory = engine_memory(named_shape("135M"), long)
    assert alone.tenants[1].peak_bytes == memory.peak_bytes - memory.bytes_of("cache") + max(
        VLLM_CPU_CACHE, 32_896 * named_shape("135M").cache_bytes(4)
    )


@pytest.mark.parametrize(
    ("tokens", "rows", "room", "says"),
    [
        (
            32_768,
            64,
            80,
            "64 rows of 32,896 tokens, used or not (60.4 GB): --engine vllm has pages for the tokens in use",
        ),
        (8_192, 64, 80, ""),  # fits
        (32_768, 1, 30, ""),  # it is the learner that does not
    ],
)
def test_one_line_names_vllm_where_rows_of_long_replies_do_not_fit(
    tokens: int, rows: int, room: int, says: str
) -> None:
    generation = Generation(prompt_tokens=128, context_tokens=128 + tokens, engine_rows=rows)
    run = PlannedRun(named_shape("1.5B"), Training(gradient_checkpointing=True), generation, evaluator="none")
    places = places_together(run, [Gpu("some", room * GB, room * GB)], None)
    line = line_about_pages(run, places)
    assert line.endswith(says)
    assert bool(line) == bool(says)
    vllm = run.changed({"engine": "vllm"})
    assert line_about_pages(vllm, places) == ""
    if says:
        assert places_together(vllm, [Gpu("some", room * GB, room * GB)], None)[0].verdict != "does not fit"


def test_the_table_has_every_item_and_says_when_the_peak_is() -> None:
    run = PlannedRun(SEVEN, Training(has_reference=True, critic="own", learner_ranks=2), Generation())
    rows = table_rows(places_apart(run, 80 * GB, BIG))
    items = {row[2] for row in rows}
    wanted = "weights gradients optimizer activations reference critic publishing checkpoint cache"
    assert {*wanted.split(), "logits chunk", "gradient message"} <= items
    assert any(row[3].endswith("(peak)") for row in rows)
    assert any("does not fit" in row[5] for row in rows)


def test_bytes_are_said_in_the_unit_they_are_bought_in() -> None:
    assert [in_gb(n) for n in (122e9, 30.46e9, 0.54e9, 2e6)] == ["122 GB", "30.5 GB", "0.54 GB", "2.0 MB"]


# -- what would help --------------------------------------------------------------------------------


def remedies(training: Training, room: int, known: set[str] | None = None) -> list[Any]:
    run = PlannedRun(SEVEN, training, Generation())
    changes = learner_changes(
        microbatch_tokens=training.microbatch_tokens, least_tokens=384, learner_ranks=1, max_ranks=64
    )
    return find_remedies(lambda change: places_apart(run.changed(change), room, None), changes, known)


def test_what_would_help_is_tried_and_fits_where_it_says_so() -> None:
    training = Training(microbatch_tokens=8192, row_tokens=2168, trainer_attention="dense", saves=False)
    found = remedies(training, 150 * GB)
    first = found[0]
    assert first.fits
    assert dict(first.settings) == {"gradient_checkpointing": True}
    assert str(first).startswith("--gradient_checkpointing true: a rank's GPU 146 GB of 150 GB, fits")
    for remedy in found:
        changed = PlannedRun(SEVEN, training, Generation())
        worst = places_apart(changed.changed(remedy.settings), 150 * GB, None)[0]
        assert (worst.peak_bytes <= 150 * GB) == remedy.fits


def test_more_ranks_are_offered_in_the_smallest_number_that_fits() -> None:
    training = Training(microbatch_tokens=8192, row_tokens=2168, trainer_attention="dense")
    found = {tuple(one.settings): one for one in remedies(training, 80 * GB)}
    both = found["gradient_checkpointing", "sharding", "learner_ranks"]
    assert both.fits
    assert both.settings["learner_ranks"] == 4


def test_a_change_that_is_there_already_is_not_offered_again_beside_another() -> None:
    training = Training(microbatch_tokens=384, row_tokens=384, gradient_checkpointing=True)
    offered = [set(one.settings) for one in remedies(training, 80 * GB)]
    assert {"sharding"} in offered or {"sharding", "learner_ranks"} in offered
    assert not any("gradient_checkpointing" in names for names in offered)


def test_only_settings_that_there_are_are_offered() -> None:
    known = {"gradient_checkpointing", "microbatch_tokens", "lora_rank", "learner_ranks"}
    found = remedies(Training(microbatch_tokens=8192, row_tokens=2168), 40 * GB, known)
    assert found
    assert all(set(one.settings) <= known for one in found)


def test_where_nothing_is_enough_alone_a_sum_is_offered() -> None:
    known = {"gradient_checkpointing", "microbatch_tokens", "lora_rank"}
    found = remedies(Training(microbatch_tokens=8192, row_tokens=2168), 80 * GB, known)
    assert [one.fits for one in found] == [False] * (len(found) - 1) + [True]
    assert len(found[-1].settings) > 1


# -- rates and divisions ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMED_CONFIGS)
def test_a_measured_size_has_the_rate_that_was_measured(name: str) -> None:
    model = named_shape(name)
    rates = shipped_rates(model, engine_rows=256)
    assert rates.engine_tokens_per_s == pytest.approx(ENGINE_RATES[model.num_parameters][256])
    assert rates.learner_tokens_per_s == pytest.approx(LEARNER_RATES[model.num_parameters])
    assert "measured" in rates.source


def test_longer_context_and_fewer_rows_are_slower() -> None:
    usual, long = shipped_rates(SEVEN), shipped_rates(SEVEN, prompt_tokens=512, reply_tokens=16384)
    assert long.engine_tokens_per_s < usual.engine_tokens_per_s
    assert long.learner_tokens_per_s < usual.learner_tokens_per_s
    assert shipped_rates(SEVEN, engine_rows=8).engine_tokens_per_s < usual.engine_tokens_per_s
    with pytest.raises(ValueError, match="learner_tokens_per_s must be above 0"):
        Rates(1.0, 0.0, "nowhere")


QWEN3_30B_A3B = {
    **{"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32},
    **{"num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8},
    **{"moe_intermediate_size": 768, "vocab_size": 151936, "tie_word_embeddings": False},
}
DEEPSEEK_V2_LITE = {
    **{"model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16},
    **{"num_key_value_heads": 16, "n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2},
    **{"kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128},
    **{"moe_intermediate_size": 1408, "intermediate_size": 10944, "first_k_dense_replace": 1, "vocab_size": 102400},
    **{"tie_word_embeddings": False},
}


@pytest.fixture
def shape_from(tmp_path: Path) -> Callable[[Mapping[str, object]], ModelShape]:
    """Reads the shape from a config.json, with the weights as transformers knows them."""
    pytest.importorskip("transformers", reason="needs headway[llm]")

    def find(config: Mapping[str, object]) -> ModelShape:
        (tmp_path / "config.json").write_text(json.dumps(config))
        return find_shape(str(tmp_path / "config.json"))

    return find


ShapeFrom = Callable[[Mapping[str, object]], ModelShape]


def test_a_token_costs_the_experts_it_goes_through(shape_from: ShapeFrom) -> None:
    model = shape_from(QWEN3_30B_A3B)
    assert model.num_parameters == pytest.approx(30.5e9, rel=0.005)  # as published, with 3.3 billion active
    attention = 2 * 2048 * 4096 + 2 * 2048 * 512 + 2 * 128 + 2 * 2048
    by_hand = 2 * 151936 * 2048 + 48 * (attention + 128 * 2048 + 8 * 3 * 2048 * 768) + 2048
    assert model.parameters_used_by(1) == by_hand == pytest.approx(3.3e9, rel=0.02)
    rates = shipped_rates(model)
    low, high = sorted(LEARNER_RATES)[-2:]
    assert LEARNER_RATES[high] < rates.learner_tokens_per_s < LEARNER_RATES[low]
    assert "of models without experts" in rates.source


def test_an_engine_reads_the_experts_of_all_its_rows(shape_from: ShapeFrom) -> None:
    model = shape_from(QWEN3_30B_A3B)
    experts = 48 * 128 * 3 * 2048 * 768
    read = model.num_parameters - experts * (120 / 128) ** 64  # that many are idle where 64 rows draw 8 of 128 each
    assert model.parameters_used_by(64) == pytest.approx(read)
    dense = replace(model, weights={"model.w": (model.parameters_used_by(1), 1)}, used_experts=1.0)
    more_s = 2 * (read - model.parameters_used_by(1)) / CACHE_BYTES_PER_S
    a_step_s = 64 / shipped_rates(dense).engine_tokens_per_s + more_s
    assert shipped_rates(model).engine_tokens_per_s == pytest.approx(64 / a_step_s)


def test_latent_attention_caches_one_latent_and_one_rotary_key_a_layer(shape_from: ShapeFrom) -> None:
    model = shape_from(DEEPSEEK_V2_LITE)
    assert model.num_parameters == pytest.approx(15.7e9, rel=0.005)  # as published
    assert model.cache_bytes(2) == 31_104 == (512 + 64) * 27 * 2
    assert model.query_width == 16 * (128 + 64)
    generation = Generation(engine="vllm", engine_rows=64, tensor_parallel_size=4)
    whole = replace(generation, tensor_parallel_size=1)
    assert engine_memory(model, generation).bytes_of("cache") == engine_memory(model, whole).bytes_of("cache")


def test_experts_without_their_number_a_token_are_refused() -> None:
    config = {key: value for key, value in QWEN3_30B_A3B.items() if key != "num_experts_per_tok"}
    with pytest.raises(ShapeError, match=r"nothing of its experts a token \(num_experts_per_tok\)"):
        shape_of(config, weights={})


WORK = Work(tickets_per_batch=16, group_size=8, reply_tokens=256, engine_rows=64)
EVEN = Rates(10_000, 10_000, "here")


@stable
@given(st.integers(2, 16), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from(["own", "engine"]))
def test_a_division_uses_no_more_gpus_than_there_are_and_no_engine_spans_machines(
    per_node: int, parts: int, nodes: int, evaluator: Any
) -> None:
    generation = Generation(engine="vllm", tensor_parallel_size=parts)
    run = PlannedRun(named_shape("135M"), Training(), generation, evaluator=evaluator)
    gpus = per_node * nodes
    for one in divisions(run, WORK, EVEN, gpus=gpus, gpu_room=None, nodes=nodes):
        assert one.num_gpus <= gpus
        assert one.engines >= 1
        left = [per_node - min(per_node, max(0, one.learner_ranks - node * per_node)) for node in range(nodes)]
        assert sum(free // parts for free in left) >= one.engines + (evaluator == "own")


def test_only_divisions_that_fit_are_offered_and_the_fastest_comes_first() -> None:
    run = PlannedRun(
        SEVEN, Training(sharding="full", gradient_checkpointing=True, microbatch_tokens=4096), Generation()
    )
    found = divisions(run, WORK, EVEN, gpus=8, gpu_room=60 * GB)
    assert found
    assert min(one.learner_ranks for one in found) > 1  # one rank would need 122 GB
    bounds = [one.bound(WORK) for one in found]
    assert bounds == sorted(bounds, reverse=True)


def test_where_both_sides_are_even_a_lead_of_one_hides_the_shorter_one() -> None:
    division = Division(1, 1, 1, 0, group_s=1.0, update_s=2.0)
    prediction = predict(division, WORK, [0.0, 1.0, 2.0], uneven=0.0)
    serial, ahead = prediction.outcomes[0].updates_per_s, prediction.outcomes[1].updates_per_s
    assert serial == pytest.approx(1 / 4, rel=0.05)  # two groups after each other in each lane, then the update
    assert ahead == pytest.approx(1 / 2, rel=0.05)
    assert prediction.best.lead == 1


def test_the_simulation_orders_the_divisions() -> None:
    run = PlannedRun(named_shape("135M"), Training(), Generation())
    found = divisions(run, WORK, EVEN, gpus=4, gpu_room=None)
    predicted = best_of(found, WORK, [0.0, 1.0])
    speeds = [one.best.updates_per_s for one in predicted]
    assert speeds == sorted(speeds, reverse=True)


def test_weights_that_travel_slowly_make_updates_longer() -> None:
    run = PlannedRun(SEVEN, Training(), Generation())
    shares = {"engines": 1, "engine_gpus": 1, "learner_ranks": 1, "evaluator_gpus": 0}
    slow, quick = (divide(run, WORK, EVEN, **shares, publish=speed) for speed in (1e9, 1e11))
    assert slow.update_s - quick.update_s == pytest.approx(15.23 - 0.1523, rel=0.01)


# -- the machine ------------------------------------------------------------------------------------


def test_the_strictest_control_group_counts_and_caches_can_be_let_go(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:       10000 kB\nMemFree: 3 kB\nMemAvailable:  9000 kB\n")
    assert host_memory(tmp_path) == HostMemory(10_000 * 1024, 9000 * 1024)
    inner = tmp_path / "sys/fs/cgroup/job/step"
    inner.mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job/step\n")
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text("5000000\n")
    (inner.parent / "memory.current").write_text("3000000\n")
    (inner.parent / "memory.stat").write_text("anon 1\ninactive_file 1000000\n")
    assert host_memory(tmp_path) == HostMemory(5_000_000, 3_000_000)
    assert host_memory(tmp_path / "nowhere") is None


def test_what_others_have_at_the_moment_is_a_warning() -> None:
    taken = replace(place(30, 10, 100), left_bytes=20)
    assert taken.verdict == "tight"
    assert "of 0.0 MB (0.0 MB left now)" in taken.in_a_line()
    assert replace(taken, left_bytes=50).verdict == "fits"


def test_a_sum_of_several_processes_adds_up() -> None:
    learners = RoleMemory("learner", (MemoryItem("weights", 600_000_000),))
    engine = RoleMemory("engine", (MemoryItem("weights", 1_200_000_000),))
    shared = Place("the machine", [Tenant(learners, count=16), Tenant(engine)], 150 * 10**9, is_gpu=False)
    assert shared.in_a_line() == "the machine: 16 x learner 0.60 GB + engine 1.2 GB = 10.8 GB of 150 GB"  # 9.6 + 1.2


# -- the command ------------------------------------------------------------------------------------


def test_plan_says_what_fits_where_and_what_it_would_give(capsys: Output) -> None:
    words = "plan 1.5B --gpus 4 --gpu_memory_gb 141 --gradient_checkpointing --collectors 2 --leads 0,1"
    assert cli.main(words.split()) == 0
    out = capsys.readouterr().out
    for part in (
        "1,543,714,304 parameters",
        "a rank's GPU",
        "an engine's GPU (2 of them)",
        "advised: --runtime ray --collectors 2",
    ):
        assert part in out


def test_plan_refuses_what_cannot_fit_with_numbers_and_what_would_help(capsys: Output) -> None:
    assert cli.main(["plan", "7B", "--gpus", "1", "--gpu_memory_gb", "80"]) == 1
    out = capsys.readouterr().out
    assert "does not fit: GPU 0: learner" in out
    assert "--gradient_checkpointing true --sharding full: GPU 0" in out


def test_what_plan_advises_of_shards_within_machines_is_a_setting_of_a_run(capsys: Output) -> None:
    words = "plan 1.5B --gpus 8 --nodes 2 --gpu_memory_gb 80 --sharding hybrid --evaluator engine"
    assert cli.main(words.split()) == 0
    advised = re.search(r"--learner_ranks (\d+) .*--sharding hybrid --shard_ranks (\d+)", capsys.readouterr().out)
    assert advised
    ranks, part = map(int, advised.groups())
    assert part > 1 and ranks % part == 0


HELP = re.compile(r"^  (--.*): .*, (fits|not enough by itself)$", re.MULTILINE)


@pytest.mark.parametrize(
    "words",
    [
        "7B --gpus 1 --gpu_memory_gb 80",
        "1.5B --gpus 1 --gpu_memory_gb 40",
        "7B --gpus 8 --gpu_memory_gb 40",
        "7B --gpus 8 --gpu_memory_gb 40 --learner_ranks 2",
        "7B --gpus 3 --gpu_memory_gb 80",
        "7B --gpus 8 --gpu_memory_gb 40 --sharding replicas",
        "1.5B --gpus 1 --gpu_memory_gb 40 --engine vllm",
        "7B --gpus 8 --gpu_memory_gb 24",
    ],
)
def test_what_plan_says_would_help_does_when_it_is_said_to_plan(words: str, capsys: Output) -> None:
    assert cli.main(["plan", *words.split()]) == 1
    offered = HELP.findall(capsys.readouterr().out)
    assert "fits" in {ending for _, ending in offered}
    for change, ending in offered:
        if ending == "fits":
            told = {**_options(words), **_options(change)}
            again = ["plan", words.split()[0], *(part for name, value in told.items() for part in (name, value))]
            assert cli.main(again) == 0, change


def _options(words: str) -> dict[str, str]:
    parts = words.split()
    begin = next(index for index, part in enumerate(parts) if part.startswith("--"))
    return dict(zip(parts[begin::2], parts[begin + 1 :: 2], strict=True))


def test_a_model_that_does_not_fit_an_engines_gpu_is_spread_over_more_by_vllm(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "config.json"
    shape = {"num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8}
    more = {"intermediate_size": 28672, "vocab_size": 128256, "tie_word_embeddings": False}
    file.write_text(json.dumps({"model_type": "llama", **shape, **more}))
    machines = ["--gpus", "64", "--nodes", "8", "--gpu_memory_gb", "80", "--gradient_checkpointing", "true"]
    assert cli.main(["plan", str(file), *machines]) == 1
    out = capsys.readouterr().out
    assert "70,553,706,496 parameters" in out
    assert "--engine vllm --tensor_parallel_size 2: an engine's GPU (2 of them)" in out
    assert cli.main(["plan", str(file), *machines, "--engine", "vllm", "--tensor_parallel_size", "2"]) == 0


def test_plan_names_no_more_ranks_than_there_are_gpus(capsys: Output) -> None:
    assert cli.main(["plan", "7B", "--gpus", "1", "--gpu_memory_gb", "80"]) == 1
    out = capsys.readouterr().out
    assert "--learner_ranks" not in out
    assert "--gpus 8: a rank's GPU (6 of them)" in out


def test_plan_as_json_can_be_read(capsys: Output, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(NAMED_CONFIGS["0.5B"]))
    words = ["plan", str(file), "--gpus", "2", "--gpu_memory_gb", "80", "--evaluator", "engine", "--json"]
    assert cli.main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["model"]["parameters"] == 494_032_768
    assert said["fits"] is True
    held = said["places"][0]["roles"][0]["held"]
    assert held["weights"] == held["gradients"] == 4 * 494_032_768
    assert said["divisions"][0]["by_lead"].keys() == {"0", "1", "2", "4"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "plan needs a model"),
        ("nowhere.json", "there is no such file"),
        ("7B --gpu 8", "unknown option 'gpu'; did you mean 'gpus'?"),
        ("7B --gpus 0", "--gpus must be a whole number of at least 1, received 0"),
        ("7B --gpus 8 --nodes 3 --gpu_memory_gb 80", "--gpus 8 cannot be in --nodes 3"),
        ("7B --gpus 8 --gpu_memory_gb 80 --evaluator own_gpu", "unknown evaluator 'own_gpu'"),
        ("7B --gpus 8 --gpu_memory_gb 80 --engine sglang", "unknown engine 'sglang'"),
        ("7B --gpus 4 --gpu_memory_gb 80 --engine vllm --tensor_parallel_size 8", "more than the 4 GPUs of a machine"),
        ("7B --gpus 4 --gpu_memory_gb 80 --microbatch_tokens 100", "cannot hold a prompt and a reply (384)"),
        ("7B --gpus 4 --gpu_memory_gb 80 --json yes-please", "--json is true or false"),
        ("7B --engine 3", "unknown engine '3'; allowed: transformers, vllm"),
        ("7B --critic 3", "unknown critic '3'; allowed: none, own, shared"),
        ("7B --engine vllm --gpu_memory_utilization lots", "a share of a GPU, above 0 and at most 1, received 'lots'"),
        ("7B --engine vllm --gpu_memory_utilization 0", "a share of a GPU, above 0 and at most 1, received 0"),
        (
            "7B --gpus 8 --gpu_memory_gb 80 --engine vllm --tensor_parallel_size 3",
            "--tensor_parallel_size 3 does not divide the 28 heads of 7B",
        ),
        ("0.5B --gpus 2 --gpu_memory_gb 80", "an evaluator of its own needs GPUs too: --evaluator engine"),
    ],
)
def test_plan_refuses_in_one_line(words: str, message: str, capsys: Output) -> None:
    assert cli.main(["plan", *words.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_activations_grow_with_the_tokens_of_a_microbatch() -> None:
    short, long = (Training(microbatch_tokens=count, row_tokens=512) for count in (2048, 4096))
    assert activation_bytes(SEVEN, long) == 2 * activation_bytes(SEVEN, short)
