"""Rewards of users in a whole run: the same bits wherever they are computed, beside generation, faults in one line."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from grpo_runs import make_material, tiny, tiny_values  # noqa: E402
from waiting import patient, wait_until  # noqa: E402

from headway.coordinator.run_result import RunResult  # noqa: E402
from headway.core.types import SAMPLES, Snapshot, Ticket  # noqa: E402
from headway.llm.grpo import GRPOConfig, stations  # noqa: E402
from headway.runs.config import ConfigError, read_values  # noqa: E402
from headway.runs.fingerprint import fingerprint  # noqa: E402
from headway.runs.launch_session import launch  # noqa: E402
from headway.testing.tiny_models import save_tiny_reward_model  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
LONG_S = patient(30)

REWARDS = """
import pathlib, threading, time

HERE = pathlib.Path(__file__).parent
seen, lock = {}, threading.Lock()


def share_of_digits(prompt, response, truth, info):
    return sum(c.isdigit() for c in response) / max(len(response), 1)


async def later(prompt, response, truth, info):
    return share_of_digits(prompt, response, truth, info)


def batched(completions, truth, **columns):
    return [share_of_digits("", text, "", {}) for text in completions]


def short(completions, truth, **columns):
    return [None if right == "7" else -float(len(text)) for text, right in zip(completions, truth)]


def unavailable_once(prompt, response, truth, info):
    with lock:
        first = seen.setdefault((info["uid"], response), 0) == 0
        seen[info["uid"], response] += 1
    if first:
        raise ConnectionError("503 Service Unavailable")
    return share_of_digits(prompt, response, truth, info)


def hangs(prompt, response, truth, info):
    if truth == "7":
        time.sleep(3600)
    return share_of_digits(prompt, response, truth, info)


def never(prompt, response, truth, info):
    if truth == "7":
        raise ConnectionError("503 Service Unavailable")
    return share_of_digits(prompt, response, truth, info)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_material(tmp_path_factory.mktemp("rewards"), reward=REWARDS)


def config_of(folder: Path, *names: str, **values: Any) -> GRPOConfig:
    common = {"task_options": {}, "group_size": 4, "updates": 3, "max_lead": 0, "reward_delay_s": 0.0}
    reward = [name if name in ("math", "task") else f"{folder}/rewards.py:{name}" for name in names]
    return tiny(folder, **{**common, "reward": reward, **values})


def run(config: GRPOConfig, runtime: str = "threads") -> RunResult:
    return launch(stations(config), config.settings(), runtime=runtime)


# -- the same bits ----------------------------------------------------------------------------------


def test_bits_do_not_depend_on_where_or_how_rewards_are_computed(folder: Path) -> None:
    ways: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        (("share_of_digits",), {}),
        (("share_of_digits",), {"reward_calls": 1}),
        (("share_of_digits",), {"reward_runs_in": "processes", "reward_calls": 2}),
        (("later",), {}),
        (("batched",), {}),
        (("unavailable_once",), {"reward_attempts": 2}),
    ]
    prints = {fingerprint(run(config_of(folder, *names, **more)).weights) for names, more in ways}
    by_option = config_of(folder, task_options={"reward": f"{folder}/rewards.py:share_of_digits"})
    prints.add(fingerprint(run(by_option, "inline").weights))
    assert len(prints) == 1


# -- beside generation ------------------------------------------------------------------------------


def test_generation_goes_on_while_rewards_are_computed(folder: Path) -> None:
    """The reward of ticket 0 comes only after ticket 1 was generated and scored by the same engine."""
    built = stations(config_of(folder, "share_of_digits", updates=1))
    collector: Any = built.collector(0)
    (function,) = collector._task.rewards.functions
    first, second = (collector._task.prompt(k).uid for k in (0, 1))
    second_scored, asked = threading.Event(), threading.Event()
    own = function._function

    def waits(prompt: str, response: str, truth: str, info: dict[str, Any]) -> float:
        if info["uid"] == first:
            asked.set()
            assert second_scored.wait(LONG_S)
        elif info["uid"] == second:
            second_scored.set()
        return float(own(prompt, response, truth, info))

    object.__setattr__(function, "_function", waits)
    found: dict[int, Any] = {}

    def collect(index: int) -> None:
        found[index] = collector.collect(Ticket(index, 7 + index, 0, 0), Snapshot(0, None))

    threads = [threading.Thread(target=collect, args=(index,), daemon=True) for index in (0, 1)]
    threads[0].start()
    assert asked.wait(LONG_S)
    assert not found
    told = collector.doing()[0]
    assert "share_of_digits on sample" in told and first in told
    threads[1].start()
    for thread in threads:
        thread.join(LONG_S)
    assert set(found) == {0, 1}
    assert found[0].info["measures"]["scoring_s"] > 0
    collector.close()


def test_why_names_a_reward_that_hangs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(folder, "share_of_digits", updates=1)
    built = stations(config)
    collector: Any = built.collector(0)
    (function,) = collector._task.rewards.functions
    end, begun = threading.Event(), threading.Event()

    def hangs(prompt: str, response: str, truth: str, info: dict[str, Any]) -> float:
        begun.set()
        end.wait(LONG_S)
        return 0.0

    object.__setattr__(function, "_function", hangs)
    thread = threading.Thread(target=collector.collect, args=(Ticket(0, 7, 0, 0), Snapshot(0, None)), daemon=True)
    thread.start()
    assert begun.wait(LONG_S)
    wait_until(lambda: any("rewards.py:share_of_digits on sample prompts/" in line for line in collector.doing()))
    end.set()
    thread.join(LONG_S)
    collector.close()


# -- several, and what is shown ---------------------------------------------------------------------


def test_each_part_is_in_metrics_and_samples(folder: Path) -> None:
    config = config_of(folder, "share_of_digits", "short", reward_weights=[1.0, 0.01], updates=2, evaluate_every=2)
    result = run(config)
    share, short = result.metrics["reward_share_of_digits"], result.metrics["reward_short"]
    assert 0 <= share <= 1 and short < 0
    assert result.metrics["scoring_s"] > 0 and result.metrics["scoring_retries"] == 0
    assert result.scores[-1].metrics["reward_short"] < 0
    collector: Any = stations(config).collector(0)
    shown = [collector.collect(Ticket(k, k, 0, 0), Snapshot(0, None)).info.get(SAMPLES, []) for k in range(3)]
    parts = [sample["parts"] for samples in shown for sample in samples]
    assert parts and all({"share_of_digits", "short"} >= set(part) >= {"share_of_digits"} for part in parts)
    collector.close()


def test_a_reward_model_scores_in_the_pool(folder: Path) -> None:
    save_tiny_reward_model(folder / "judge")
    config = config_of(folder, "share_of_digits", reward_model=str(folder / "judge"), reward_weights=[1.0, 0.5])
    first, second = run(config), run(config.model_copy(update={"reward_calls": 1}))
    assert fingerprint(first.weights) == fingerprint(second.weights)
    assert first.metrics["reward_model"] != 0
    expected = first.metrics["reward_share_of_digits"] + 0.5 * first.metrics["reward_model"]
    assert first.metrics["reward"] == pytest.approx(expected, abs=1e-5)


def test_a_reward_model_gives_what_the_model_itself_says(folder: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from headway.llm.tasks.reward_functions import RewardQuestion, answered
    from headway.llm.tasks.reward_models import ModelReward
    from headway.llm.tasks.rewards import RewardError
    from headway.llm.tasks.tasks import Prompt, user_says

    place = str(save_tiny_reward_model(folder / "other-judge", seed=3))
    prompt = Prompt("p/1", 0, "train", "p", (user_says("How are you?"),))
    texts = ("Fine.", "I do not know, and I will say so at length.", "7")
    found = answered(ModelReward(place, rows=2), RewardQuestion(prompt, texts))
    model = AutoModelForSequenceClassification.from_pretrained(place).eval()
    tokenizer = AutoTokenizer.from_pretrained(place)
    for text, reward in zip(texts, found, strict=True):
        said = [*prompt.messages, {"role": "assistant", "content": text}]
        tokens = tokenizer.apply_chat_template(said, tokenize=True, return_dict=True)["input_ids"]
        with torch.inference_mode():
            alone = float(model(torch.tensor([tokens])).logits)
        assert reward == pytest.approx(alone, abs=1e-5)
    with pytest.raises(RewardError, match=r"reads 1 to 128 tokens; sample p/1 has \d+"):
        answered(ModelReward(place), RewardQuestion(prompt, ("x" * 200,)))


# -- faults -----------------------------------------------------------------------------------------


def test_a_service_that_is_away_once_costs_calls_and_no_group(folder: Path) -> None:
    result = run(config_of(folder, "unavailable_once", reward_attempts=2, seed=5))
    assert result.updates == 3 and not result.ledger.dropped.get("failed")
    assert result.metrics["scoring_retries"] > 0


def test_attempts_that_are_used_up_follow_on_failure(folder: Path) -> None:
    with pytest.raises(Exception, match=r"never failed on sample prompts/8: ConnectionError: 503 .* \(2 attempts\)"):
        run(config_of(folder, "never", updates=12, reward_attempts=2))
    result = run(config_of(folder, "never", updates=12, reward_attempts=2, on_failure="drop"))
    assert result.updates == 12 and result.ledger.dropped["failed"] >= 1


def test_a_function_that_hangs_is_killed_in_its_process_and_costs_its_group(folder: Path) -> None:
    limit = patient(0.25)
    common: dict[str, Any] = {"reward_deadline_s": limit, "reward_attempts": 1, "reward_calls": 4, "updates": 12}
    line = rf"hangs did not return within {limit:g} s \(its thread is left behind\) on sample prompts/8"
    with pytest.raises(Exception, match=line):
        run(config_of(folder, "hangs", **common))
    result = run(config_of(folder, "hangs", **common, reward_runs_in="processes", on_failure="drop"))
    assert result.updates == 12 and result.ledger.dropped["failed"] >= 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"reward": "rewards.py"}, "unknown reward 'rewards.py'"),
        ({"reward_weights": [1, 2]}, r"reward_weights must be one for each of 0 rewards \(none\), received"),
        ({"reward_calls": 4}, "reward_calls=4 needs reward or reward_model: the rule of a task is computed at once"),
        ({"reward_model_rows": 4}, "reward_model_rows=4 needs reward_model"),
        (
            {"reward": "math", "reward_deadline_s": 300},
            r"a reward call can take 901.5 s in all .* must be below collect_deadline_s=600",
        ),
        ({"reward": "math", "task_options": {"reward": "a.py:b"}}, "rewards are named twice"),
        ({"reward_runs_in": "thread", "reward": "math"}, "threads"),
        ({"reward_model": "/no/such/folder"}, "model '/no/such/folder' does not exist"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(values: dict[str, Any], message: str) -> None:
    from headway.llm.prompts import build_task

    with pytest.raises((ConfigError, ValueError), match=message):
        build_task(read_values(GRPOConfig, {"task": "arithmetic", **values}))  # type: ignore[arg-type]


def test_a_model_with_more_than_one_number_is_no_reward_model(folder: Path) -> None:
    from headway.llm.tasks.reward_models import ModelReward

    with pytest.raises(ValueError, match=r"has 2 labels; a reward model has one number as its head"):
        ModelReward(str(folder / "model"))


def test_one_function_is_named_without_a_list(folder: Path) -> None:
    values = {**tiny_values(folder, task_options={}), "reward": f"{folder}/rewards.py:batched"}
    config = read_values(GRPOConfig, values)
    assert config.reward == (f"{folder}/rewards.py:batched",)  # type: ignore[attr-defined]
    assert json.loads(config.model_dump_json())["reward"] == [f"{folder}/rewards.py:batched"]
