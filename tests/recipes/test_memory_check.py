"""A run says what it will need before anything is loaded, and refuses what cannot fit on its machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway import cli
from headway.agents import recipe as agent
from headway.agents.config import AgentConfig
from headway.llm import grpo, gsm8k, sft
from headway.llm.grpo_config import GRPOConfig
from headway.llm.memory import check as memory_check
from headway.llm.memory.check import memory_of, planned_run
from headway.llm.memory.model_shapes import find_shape
from headway.llm.memory.remedies_machine import Gpu, HostMemory
from headway.llm.memory.roles_memory_items import GB
from headway.llm.sft_config import SFTConfig
from headway.runs.config import ConfigError
from headway.testing.tiny_models import save_tiny_model

Output = pytest.CaptureFixture[str]
TOY = (
    "--updates",
    "1",
    "--max_prompt_tokens",
    "96",
    "--tickets_per_batch",
    "1",
    "--group_size",
    "2",
    "--evaluate_every",
    "0",
    "--report",
    "false",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


def with_memory(monkeypatch: pytest.MonkeyPatch, total: int, left: int | None = None) -> None:
    """A machine with so much memory."""
    left = total if left is None else left
    monkeypatch.setattr(memory_check, "host_memory", lambda: HostMemory(total, left))


def with_gpus(monkeypatch: pytest.MonkeyPatch, *rooms: int) -> None:
    """A machine with these GPUs."""
    monkeypatch.setattr(memory_check, "_sees_gpus", lambda: bool(rooms))
    monkeypatch.setattr(memory_check, "gpus_here", lambda **_: tuple(Gpu("a GPU", room, room) for room in rooms))


def test_a_run_that_fits_easily_says_so_in_a_line(
    model: str, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_memory(monkeypatch, 16 * GB)
    words = ["run", "grpo", "--model", model, "--device", "cpu", *TOY, "--runs", str(tmp_path), "--quiet"]
    assert cli.main(words) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("needs at the peak: host memory: learner ")
    assert first.endswith(" of 16.0 GB")


@pytest.mark.parametrize("recipe", ["grpo", "agent", "sft"])
def test_a_run_that_cannot_fit_is_refused_with_the_numbers_and_leaves_nothing(
    recipe: str, model: str, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_memory(monkeypatch, 400_000)
    runs = tmp_path / "runs"
    words = ["run", recipe, "--device", "cpu", "--runs", str(runs), *(["--model", model] * (recipe == "grpo"))]
    assert cli.main([*words, "--microbatch_tokens", "4096"]) == 2
    said = capsys.readouterr()
    assert "gradients" in said.out  # the table, before
    assert said.err.startswith("headway: does not fit: host memory: learner ")
    assert "memory_check=warn begins all the same" in said.err
    assert not runs.exists()


def test_what_would_help_is_said_in_the_recipes_own_settings(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = GRPOConfig(model="7B", device="cpu", microbatch_tokens=8192, tickets_per_batch=32, evaluate_every=0)
    with_memory(monkeypatch, 330 * GB)
    report = memory_of(config)
    assert report is not None and report.is_refused
    offered = {name for remedy in report.remedies for name in remedy.settings}
    assert offered
    assert offered <= {*GRPOConfig.model_fields, "gpu_memory_utilization"}
    with pytest.raises(ConfigError, match=r"does not fit: host memory: learner [\s\S]*what would help:\n  --"):
        memory_check.check_memory(config)


def test_a_warning_begins_all_the_same_and_off_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    with_memory(monkeypatch, 1000)
    config = GRPOConfig(model="135M", device="cpu", memory_check="warn")
    said: list[str] = []
    memory_check.check_memory(config, say=said.append)
    assert len(said) == 1 and said[0].startswith("does not fit: ")
    assert memory_of(config.model_copy(update={"memory_check": "off"})) is None


def test_less_than_is_left_at_the_moment_is_shown_and_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_memory(monkeypatch, 100 * GB, left=GB)
    report = memory_of(GRPOConfig(model="135M", device="cpu"))
    assert report is not None
    assert not report.is_refused
    assert not report.fits_easily
    assert "of 100 GB (1.0 GB left now)" in report.lines()[0]


def test_on_gpus_ranks_go_round_and_engines_share_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with_memory(monkeypatch, 1000 * GB)
    with_gpus(monkeypatch, 24 * GB, 24 * GB)
    config = GRPOConfig(model="135M", learner_ranks=2, collectors=2, runtime="processes")
    report = memory_of(config)
    assert report is not None
    assert [place.name for place in report.places] == ["GPU 0", "GPU 1", "host memory"]
    assert [tenant.memory.role for tenant in report.places[0].tenants] == ["learner", "engine", "evaluator"]
    with_gpus(monkeypatch, 2 * GB, 24 * GB)
    report = memory_of(config)
    assert report is not None
    assert [place.verdict for place in report.places][:2] == ["does not fit", "fits"]


def test_a_gpu_with_room_for_larger_passes_is_offered_them_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many tokens again and again, as long as everything fits well and there is so much to read."""
    with_memory(monkeypatch, 1000 * GB)
    settings = {
        "model": "135M",
        "max_tokens": 256,
        "max_prompt_tokens": 128,
        "group_size": 8,
        "microbatch_tokens": 1024,
    }

    def offered(room: int, **changed: object) -> int | None:
        with_gpus(monkeypatch, *([room] if room else []))
        report = memory_of(GRPOConfig(**{**settings, "tickets_per_batch": 32, **changed}))
        assert report is not None and not report.is_refused
        *needs, last = report.lines()
        assert all(line.startswith("needs at the peak: ") for line in needs)
        if not report.quicker:
            assert last.startswith("needs at the peak: ")
            return None
        assert last.endswith("a pass of 1024 tokens is small for a GPU, what is learned is the same")
        return int(last.partition("--microbatch_tokens ")[2].partition(":")[0])

    assert offered(140 * GB) == 65_536  # 32 groups have 69,632 tokens
    assert offered(140 * GB, tickets_per_batch=4) == 8192
    assert offered(140 * GB, tickets_per_batch=1) is None  # twice as many are not worth a word
    assert offered(140 * GB, microbatch_tokens=32_768) is None
    smaller = offered(24 * GB)
    assert smaller is not None and 4096 <= smaller < 65_536
    fits = memory_of(GRPOConfig(**{**settings, "tickets_per_batch": 32, "microbatch_tokens": smaller}))
    assert fits is not None and [place.verdict for place in fits.places] == ["fits", "fits"]
    assert offered(0, device="cpu") is None


def test_long_replies_that_do_not_fit_in_rows_are_refused_with_a_line_that_names_vllm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_memory(monkeypatch, 1000 * GB)
    with_gpus(monkeypatch, 80 * GB)
    lengths = {"max_tokens": 32_768, "max_prompt_tokens": 128, "microbatch_tokens": 32_896}
    less = {"gradient_checkpointing": True, "parameter_dtype": "bfloat16", "evaluate_every": 0}
    report = memory_of(GRPOConfig(model="1.5B", engine_rows=64, **lengths, **less))
    assert report is not None
    assert report.is_refused
    lines = report.refusal().splitlines()
    assert lines[0].startswith("does not fit: GPU 0: learner ")
    assert lines[1].startswith("the engine in this process keeps room for 64 rows of ")
    assert lines[1].endswith("--engine vllm has pages for the tokens in use")
    assert any(line.startswith("  --engine vllm: GPU 0 ") for line in lines)


def test_on_ray_needs_are_said_and_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_memory(monkeypatch, 1000)
    report = memory_of(GRPOConfig(model="7B", runtime="ray", device="cuda", collectors=2))
    assert report is not None
    assert report.fits_easily
    assert any(line.startswith("needs at the peak: an engine's GPU (2 of them): engine 3") for line in report.lines())
    assert memory_of(GRPOConfig(model="somewhere/on-other-machines", runtime="ray")) is None


def test_settings_decide_what_is_planned(model: str) -> None:
    shape = find_shape(model)
    plain = GRPOConfig(model=model, kl_weight=0.1, estimator="gae", critic="own", max_lead=0)
    run = planned_run(plain, shape, "cpu")
    assert run.training.has_reference
    assert run.training.critic == "own"
    assert run.evaluator == "own"
    few = planned_run(plain.model_copy(update={"tickets_per_batch": 1, "group_size": 2}), shape, "cpu")
    assert few.training.microbatch_tokens <= run.training.microbatch_tokens
    episodes = planned_run(AgentConfig(model=model, lora_rank=4), shape, "cuda")
    assert episodes.training.lora_rank == 4
    assert episodes.generation is not None and episodes.generation.context_tokens == 512
    halves = planned_run(
        plain.model_copy(update={"learner_ranks": 4, "sharding": "hybrid", "shard_ranks": 2}), shape, "cpu"
    )
    assert halves.training.shards == 2
    imitation = planned_run(SFTConfig(model=model), shape, "cpu")
    assert imitation.generation is None
    assert [one.role for one in imitation.beside] == ["evaluator"]


def test_every_recipe_of_a_language_model_says_what_it_needs() -> None:
    assert all(recipe.memory is memory_of for recipe in (agent, grpo, gsm8k, sft))


def test_a_probe_measures_both_rates_here(capsys: Output, model: str) -> None:
    words = ["plan", model, "--gpus", "1", "--gpu_memory_gb", "8", "--probe", "--engine_rows", "4", "--group_size", "2"]
    assert cli.main([*words, "--prompt_tokens", "8", "--reply_tokens", "8", "--microbatch_tokens", "64"]) == 0
    out = capsys.readouterr().out
    assert "probing" in out
    assert "measured on" in out
