"""GRPO as a whole: a model that learns, the same bits as a plain script, and bad input in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from grpo_runs import make_material, tiny  # noqa: E402

from headway.coordinator.run_result import RunResult  # noqa: E402
from headway.core.types import Batch, Snapshot, Span, Ticket, derive_seed  # noqa: E402
from headway.llm.grpo import GRPOConfig, stations  # noqa: E402
from headway.llm.gsm8k import GSM8KConfig  # noqa: E402
from headway.runs.config import ConfigError, read_values  # noqa: E402
from headway.runs.fingerprint import fingerprint  # noqa: E402
from headway.runs.launch_session import launch  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_material(tmp_path_factory.mktemp("grpo"))


def config_of(folder: Path, **values: Any) -> GRPOConfig:
    return tiny(folder, **{"group_size": 6, "updates": 4, "max_lead": 0, **values})


def run(config: GRPOConfig, runtime: str = "inline") -> RunResult:
    return launch(stations(config), config.settings(), runtime=runtime)


def plain_script(config: GRPOConfig) -> Any:
    """Generate, score, train, generate: without a coordinator."""
    built = stations(config)
    collector, learner = built.collector(0), built.learner()
    weights = learner.snapshot()
    index = 0
    for version in range(config.updates or 0):
        snapshot = Snapshot(version, {name: tensor.clone() for name, tensor in weights.items()})
        collector.apply(snapshot)  # type: ignore[attr-defined]
        rollouts = []
        for _ in range(config.tickets_per_batch):
            ticket = Ticket(index, derive_seed(config.seed, "ticket", index), version, 0)
            rollouts.append(collector.collect(ticket, snapshot))
            index += 1
        learner.learn(Batch(version, tuple(rollouts)))
        weights = learner.snapshot()
    return weights


@pytest.mark.parametrize("runtime", ["inline", "threads", "processes"])
def test_without_a_lead_a_run_is_the_plain_script_bit_for_bit(folder: Path, runtime: str) -> None:
    config = config_of(folder, num_minibatches=2)
    assert fingerprint(run(config, runtime).weights) == fingerprint(plain_script(config))


@pytest.mark.parametrize("critic", ["shared", "own"])
def test_with_a_critic_too_and_with_one_reply_a_prompt(folder: Path, critic: str) -> None:
    config = config_of(folder, estimator="ppo", critic=critic, group_size=1, tickets_per_batch=6, num_minibatches=2)
    assert config.estimator == "gae"
    assert fingerprint(run(config, "threads").weights) == fingerprint(plain_script(config))


def test_without_a_lead_every_token_has_the_version_being_trained(folder: Path) -> None:
    result = run(config_of(folder, updates=3), "threads")
    assert result.ledger.staleness == {0: 9}
    assert result.metrics["token_staleness_max"] == 0
    assert result.metrics["mismatch_max"] < 1e-4


@pytest.mark.parametrize(("kind", "layout"), [("gemma2", "tree"), ("gemma2", "rows"), ("bloom", "auto")])
def test_engine_and_trainer_agree_whatever_the_family(tmp_path: Path, kind: str, layout: str) -> None:
    config = config_of(make_material(tmp_path, kind=kind), updates=3, max_tokens=24, layout=layout)
    result = run(config)
    assert result.metrics["mismatch_max"] < 1e-4
    assert result.metrics["reply_tokens_max"] > 8  # the window is


def test_a_layout_that_does_not_fit_the_model_ends_the_run_in_one_line(tmp_path: Path) -> None:
    config = config_of(make_material(tmp_path, kind="bloom"), layout="tree")
    with pytest.raises(Exception, match="layout='tree' does not fit a model of type 'bloom'"):
        run(config)


def test_a_model_learns_what_is_rewarded(folder: Path) -> None:
    config = config_of(folder, updates=25, evaluate_every=25, eval_temperature=1.0, eval_prompts=4, group_size=8)
    result = run(config, "threads")
    assert result.metrics["reward"] > 0.6  # a random model: 0.04
    assert result.scores[-1].value is not None and result.scores[-1].value > 0.6


@pytest.mark.parametrize("more", [{"critic": "shared"}, {"critic": "own", "critic_learning_rate": 1e-3}])
def test_a_model_learns_with_a_critic_and_a_lead(folder: Path, more: dict[str, Any]) -> None:
    options = {"estimator": "gae", "max_lead": 1, "updates": 30, "group_size": 2, "tickets_per_batch": 12, **more}
    result = run(config_of(folder, **options), "threads")
    assert result.metrics["reward"] > 0.5
    assert result.metrics["explained_variance"] < 1
    assert result.metrics["value_loss"] > 0


def test_a_lead_gives_older_data_and_learns_too(folder: Path) -> None:
    result = run(config_of(folder, updates=25, max_lead=1, group_size=8), "threads")
    assert result.ledger.max_staleness == 1
    assert result.metrics["reward"] > 0.6


def test_a_rollout_carries_everything_a_sample_needs(folder: Path) -> None:
    config = config_of(folder)
    collector = stations(config).collector(0)
    rollout = collector.collect(Ticket(5, 7, 0, 0), Snapshot(0, None))
    payload = rollout.payload
    assert rollout.span == Span(0, 0)
    assert payload.lengths.sum() == len(payload.tokens) == len(payload.log_probs) == rollout.steps
    assert payload.rewards.shape == (6,) and (payload.versions == 0).all()
    assert {"uid", "index", "data_source"} <= set(rollout.info)
    again = collector.collect(Ticket(5, 7, 0, 0, attempt=1), Snapshot(0, None))
    assert again.payload.tokens.tolist() == payload.tokens.tolist()


def test_silent_groups_are_filtered_and_counted(folder: Path) -> None:
    (folder / "always.py").write_text(
        "def one(prompt, response, truth, info):\n    return 1.0 if '1' in truth else len(response)\n"
    )
    options = {"reward": f"{folder / 'always.py'}:one"}
    result = run(config_of(folder, task_options=options, filter_silent=True, updates=3))
    assert result.ledger.dropped.get("filtered", 0) > 0
    assert result.metrics["silent_groups"] == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"correction": "none", "max_lead": 1}, "correction='none' with max_lead=1"),
        ({"correction": "token_si"}, "token_is"),
        ({"estimator": "grop"}, "grpo"),
        ({"group_size": 1}, "group_size must be >= 2"),
        ({"critic": "own"}, "critic='own' goes with estimator='gae', received estimator='grpo'"),
        ({"gae_lambda": 0.9, "estimator": "rloo"}, "gae_lambda=0.9 goes with estimator='gae'"),
        ({"estimator": "gea"}, "did you mean 'gae'"),
        ({"lr_schedule": "cosine", "updates": None, "wall_s": 5}, "lr_schedule='cosine' needs updates"),
        ({"microbatch_tokens": 60}, "microbatch_tokens=60 cannot hold a prompt and a reply"),
        ({"learner_ranks": 0}, "learner_ranks=0"),
        ({"eval_samples": 4}, "needs eval_temperature"),
        ({"recompute_cache": True}, "on_publish=partial"),
        ({"correction_options": {"capp": 2}}, "unknown setting of correction 'token_is' 'capp'; did you mean 'cap'?"),
        ({"correction_options": {"cap": "two"}}, "correction_options={'cap': 'two'}: TypeError"),
        ({"correction_options": {"cap": 0.5}}, "cap must be >= 1, received 0.5"),
        ({"eval_ks": [1, 2]}, "eval_ks: pass@2 needs at least 2 answers, received eval_samples=1"),
        ({"eval_ks": [0]}, "eval_ks: pass@0 needs"),
        ({"eval_top_p": 0.5}, "eval_top_p < 1 needs eval_temperature > 0"),
        ({"overlong_tokens": 9}, "overlong_tokens=9 must not exceed max_tokens=8"),
        ({"credit": "turn", "turn_gamma": 0.5}, "turn_gamma=0.5 has no effect in grpo: a reply is one turn"),
        ({"generation_deadline_s": 700}, "must be below collect_deadline_s=600"),
        ({"engine_deadline_s": 5}, "engine_deadline_s needs engine='vllm'"),
        ({"vllm_options": {"seed": 1}}, "vllm_options needs engine='vllm'"),
        ({"engine": "vllm", "engine_deadline_s": 100}, "must be below publish_deadline_s"),
        ({"engine": "vllm", "vllm_options": {"model": "x"}}, "model is decided by the engine itself"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(folder: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        config_of(folder, **values)
    assert "\n" not in str(refused.value)


def test_a_vllm_that_is_not_there_is_named_before_anything_starts(folder: Path) -> None:
    with pytest.raises(ConfigError, match="'/no/such/python' is not a Python interpreter that can be run"):
        stations(config_of(folder, engine="vllm", vllm_python="/no/such/python"))


def test_trainer_and_engines_ask_for_gpus_unless_they_compute_on_the_cpu(folder: Path) -> None:
    for device, trainer, engine in (("auto", 2.0, 0.5), ("cpu", 0.0, 0.0)):
        asked = config_of(folder, learner_gpus=2.0, engine_gpus=0.5, torch_threads=2, device=device)
        wired = stations(asked)
        assert (wired.learner_placement.num_gpus, wired.learner_placement.num_cpus) == (trainer, 2)
        assert wired.collector_placement.num_gpus == wired.evaluator_placement.num_gpus == engine


def test_groups_past_their_deadline_are_cut_or_fail(folder: Path) -> None:
    """So short a time that no token can be there: what cannot be cut fails, and both say so."""
    for choice in ("fail", "cut"):
        config = config_of(folder, generation_deadline_s=1e-6, on_generation_deadline=choice)
        with pytest.raises(Exception, match="not whole within 1e-06 s"):
            run(config)


def test_a_model_that_is_not_there_is_named_in_one_line(folder: Path) -> None:
    with pytest.raises(Exception, match="model '/no/such/model' does not exist"):
        run(config_of(folder, model="/no/such/model"))


def test_a_prompt_longer_than_its_room_is_named_in_one_line(folder: Path) -> None:
    with pytest.raises(Exception, match=r"has \d+ tokens, more than max_prompt_tokens=4"):
        run(config_of(folder, max_prompt_tokens=4))


def test_a_long_prompt_is_refused_before_anything_starts_in_both_splits(folder: Path) -> None:
    long = {"prompt": "Count, please, to a number that is very large indeed.", "truth": "9"}
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    for name, lines in (("short", rows), ("one_long", [*rows[:3], long, *rows[3:]])):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = {"reward": f"{folder / 'rewards.py'}:share_of_digits"}
    for train, held_out, message in (
        ("one_long", "short", "prompt one_long/4 has"),
        ("short", "one_long", "prompt one_long/4 has"),
    ):
        values = {
            "task": f"jsonl:{folder / train}.jsonl",
            "task_options": {**options, "held_out": f"{folder / held_out}.jsonl"},
            "evaluate_every": 1,
            "max_prompt_tokens": 40,
        }
        with pytest.raises(ValueError, match=message):
            stations(config_of(folder, **values))
        stations(config_of(folder, **{**values, "on_long_prompt": "drop"}))
        if train == "short":
            stations(config_of(folder, **{**values, "eval_prompts": 3}))  # nobody asks it


def test_long_prompts_are_left_out_said_and_not_counted_as_an_epoch(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": f"Count to {n}." + " Now." * (n % 2), "truth": str(n)} for n in range(20)]
    (folder / "half.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = f"jsonl:{folder / 'half.jsonl'}"
    options = {"reward": f"{folder / 'rewards.py'}:share_of_digits", "held_out": str(folder / "half.jsonl")}
    values = {"task": task, "task_options": options, "max_prompt_tokens": 16, "on_long_prompt": "drop", "updates": None}
    config = config_of(folder, **values, data_epochs=1, evaluate_every=1, tickets_per_batch=2, eval_prompts=20)
    assert stations(config).collector(0).health()["prompts_left_out"] == 10  # type: ignore[attr-defined]
    capsys.readouterr()
    result = run(config)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "headway: prompts longer than max_prompt_tokens=16 are left out: 10 of 20 to train on, 10 of 20 held out"
    ]
    assert result.updates == 5  # 10 prompts, 2 a batch
    assert not result.ledger.dropped


def test_long_prompts_that_are_made_on_demand_are_dropped_one_by_one(folder: Path) -> None:
    values = {"task": "larger_than", "task_options": {"max_number": 100_000}, "evaluate_every": 2, "eval_prompts": 4}
    room = {"max_prompt_tokens": 40, "updates": 2}
    with pytest.raises(Exception, match="more than max_prompt_tokens=40"):
        run(config_of(folder, **values, **room))
    result = run(config_of(folder, **values, **room, on_long_prompt="drop"))
    assert result.updates == 2 and result.ledger.dropped.get("filtered", 0) > 0
    assert result.scores[-1].value is not None


def test_what_a_reward_has_measured_is_in_the_metrics(folder: Path) -> None:
    (folder / "theirs.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {'score': 1.0, 'letters': len(solution_str), 'pred': solution_str}\n"
    )
    options = {"reward": f"{folder / 'theirs.py'}:compute_score"}
    result = run(
        config_of(folder, task_options=options, updates=1, evaluate_every=1, eval_prompts=2, overlong_tokens=8)
    )
    assert result.metrics["reward_letters"] > 0 > result.metrics["reward"] - 1
    assert result.scores[-1].metrics["reward_letters"] > 0


def test_checkpoints_are_written_unless_they_are_switched_off(folder: Path) -> None:
    assert config_of(folder).settings().plan.save_every == 10
    assert config_of(folder, save_every=0).settings().plan.save_every == 0


def test_an_empty_dataset_is_refused_before_anything_starts(folder: Path) -> None:
    (folder / "empty.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="holds no samples"):
        stations(config_of(folder, task=f"jsonl:{folder / 'empty.jsonl'}"))


@pytest.mark.parametrize(("body", "message"), [("raise KeyError('x')", "KeyError"), ("return float('nan')", "nan")])
def test_a_reward_function_that_fails_stops_the_run_with_the_sample_named(
    folder: Path, body: str, message: str
) -> None:
    file = folder / f"broken_{message}.py"  # two of one name, size and second would share their bytecode
    file.write_text(f"def reward(prompt, response, truth, info):\n    {body}\n")
    with pytest.raises(Exception, match=message) as failed:
        run(config_of(folder, task_options={"reward": f"{file}:reward"}))
    assert "prompts/" in str(failed.value)


def test_a_reward_function_that_fails_can_cost_its_group_alone(folder: Path) -> None:
    (folder / "shaky.py").write_text(
        "def reward(prompt, response, truth, info):\n    assert truth not in ('7', '11')\n    return len(response)\n"
    )
    options = {"reward": f"{folder / 'shaky.py'}:reward"}
    result = run(config_of(folder, task_options=options, on_failure="drop", updates=12))
    assert result.ledger.dropped.get("failed", 0) >= 1 and result.updates == 12


def test_gsm8k_takes_its_folder(tmp_path: Path) -> None:
    row = json.dumps({"question": "1 + 1?", "answer": "It is 2.\n#### 2"})
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text(row)
    config = read_values(GSM8KConfig, {"data": str(tmp_path), "scoring": "strict"})
    assert config.task == f"gsm8k:{tmp_path}" and config.all_task_options["scoring"] == "strict"
    with pytest.raises(ConfigError, match="the task of this recipe"):
        read_values(GSM8KConfig, {"data": str(tmp_path), "task": "arithmetic"})
    elsewhere = read_values(GSM8KConfig, config.model_dump(mode="json"), {"data": "elsewhere"})
    assert (elsewhere.data, elsewhere.task) == ("elsewhere", "gsm8k:elsewhere")
    named = read_values(GSM8KConfig, {"task": "gsm8k:there"})
    assert (named.data, named.task) == ("there", "gsm8k:there")


def test_gsm8k_takes_options_of_its_task_too_and_says_nothing_twice(folder: Path) -> None:
    config = read_values(GSM8KConfig, {"task_options": "{scoring: strict}", "format_bonus": 0.1})
    assert isinstance(config, GSM8KConfig)
    assert (config.scoring, config.all_task_options) == ("strict", {"scoring": "strict", "format_bonus": 0.1})
    changed = read_values(GSM8KConfig, config.model_dump(mode="json"), {"scoring": "flexible"})
    assert changed.all_task_options["scoring"] == "flexible"
    with pytest.raises(ConfigError, match=r"^task_options say scoring='strict', but scoring='flexible' is set too$"):
        read_values(GSM8KConfig, {"task_options": {"scoring": "strict"}, "scoring": "flexible"})
    wrong = {"model": str(folder / "model"), "task_options": {"scoring": "strict", "nonsense": 1}}
    with pytest.raises(ValueError, match=r"^unknown option of task 'gsm8k' 'nonsense'; allowed: format_bonus, scoring"):
        stations(read_values(GSM8KConfig, wrong))


def test_evaluation_is_pinned_to_its_version_and_can_be_repeated(folder: Path) -> None:
    config = config_of(folder, eval_samples=4, eval_temperature=1.0, eval_prompts=3, evaluate_every=1)
    built = stations(config)
    assert built.evaluator is not None
    evaluator = built.evaluator()
    learner = built.learner()
    learner.learn(Batch(0, (built.collector(0).collect(Ticket(0, 1, 0, 0), Snapshot(0, None)),)))
    newer = learner.snapshot()
    first = evaluator.evaluate(Snapshot(1, newer), seed=3)
    assert {"pass@1", "pass@4", "reply_tokens"} <= set(first.metrics)
    assert evaluator.evaluate(Snapshot(1, newer), seed=3) == first
    assert not np.isclose(evaluator.evaluate(Snapshot(1, newer), seed=4).value, first.value)


def test_an_evaluation_says_how_many_different_prompts_it_asked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"task_options": {}, "max_prompt_tokens": 100, "evaluate_every": 2, "updates": 2, "tickets_per_batch": 1}
    result = run(config_of(folder, task="arithmetic", **values))
    assert result.scores[-1].metrics["prompts"] == 11
    line = "headway: task arithmetic holds out 11 different prompts, fewer than eval_prompts=32: evaluations ask those"
    assert line in capsys.readouterr().err.splitlines()


def test_evaluation_reports_what_it_is_asked_for(folder: Path) -> None:
    values = {"eval_samples": 4, "eval_temperature": 1.0, "eval_prompts": 3, "evaluate_every": 1, "eval_ks": [2, 4]}

    def scored(**more: Any) -> Any:
        make = stations(config_of(folder, **{**values, **more})).evaluator
        assert make is not None
        return make().evaluate(Snapshot(0, None), seed=1)

    strict, lenient = scored(), scored(eval_passes_at=0.0)
    assert {name for name in strict.metrics if name.startswith("pass@")} == {"pass@2", "pass@4"}
    assert strict.metrics["pass@4"] < lenient.metrics["pass@4"] == 1.0
    assert strict.value == lenient.value
    alike = scored(eval_top_p=1e-6, eval_passes_at=0.1)  # only the most likely token is left: one answer, four times
    assert alike.metrics["pass@2"] == alike.metrics["pass@4"]
    assert alike.value == pytest.approx(scored(eval_top_p=1e-6, eval_temperature=0.5).value)
