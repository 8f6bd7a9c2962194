"""What a language model wrote can be read: samples.jsonl, on several runtimes, resumed or not, and on the report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from command_runs import refused, run_of
from grpo_runs import make_material, tiny, tiny_values

from headway.cli import main
from headway.cli.report import write_report
from headway.coordinator.checkpoint import CheckpointStore
from headway.core.types import SAMPLES, Snapshot, Ticket
from headway.llm.grpo import GRPOConfig, stations
from headway.llm.tasks.rewards import overlong_penalty
from headway.runs.config import read_values
from headway.runs.folder import RunFolder
from headway.runs.samples import EVAL, TRAIN, read_samples

pytestmark = pytest.mark.timeout(180)
Output = pytest.CaptureFixture[str]
EVALUATED = {"evaluate_every": 2, "eval_prompts": 3, "eval_samples": 2, "eval_temperature": 1.0}


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_material(tmp_path_factory.mktemp("material"))


@pytest.fixture(scope="module")
def folder(material: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    values = tiny_values(material, updates=4, overlong_tokens=6, log_eval_samples=4, **EVALUATED)
    return run_of(tmp_path_factory.mktemp("run"), "grpo", **values)


def score(reply: str) -> float:
    """As the material's reward function does."""
    return sum(c.isdigit() for c in reply) / max(len(reply), 1)


def of(folder: RunFolder, split: str) -> list[dict[str, Any]]:
    return [one for one in read_samples(folder.samples) if one["split"] == split]


# -- what is in the file ----------------------------------------------------------------------------


def test_every_update_shows_as_many_replies_as_were_asked_for(folder: RunFolder) -> None:
    found = of(folder, TRAIN)
    assert [one["update"] for one in found] == [update for update in (1, 2, 3, 4) for _ in range(4)]
    assert len({one["uid"] for one in found if one["update"] == 1}) == 3  # of all prompts of the batch


def test_a_sample_says_what_was_asked_what_was_said_and_what_it_was_worth(folder: RunFolder) -> None:
    for one in read_samples(folder.samples):
        assert one["prompt"] == f"Count to {one['truth']}."
        penalty = overlong_penalty(one["tokens"], max_tokens=8, interval=6)
        assert one.get("parts") == ({"length": penalty} if one["split"] == TRAIN else None)
        assert one["reward"] == pytest.approx(score(one["reply"]) + (penalty if one["split"] == TRAIN else 0))
        assert one["finish"] in ("stop", "length")
        assert (one["finish"] == "length") <= (one["tokens"] == 8)


def test_ages_and_versions_are_those_of_the_tokens(folder: RunFolder) -> None:
    for one in of(folder, TRAIN):
        assert one["version"] == one["update"] - 1
        assert one["age"] == one["version"] - one["versions"][0]
    assert {one["age"] for one in of(folder, TRAIN)} == {0, 1}  # max_lead=1
    for one in of(folder, EVAL):
        assert (one["versions"], one["age"]) == ([one["version"]] * 2, 0)


def test_evaluations_show_the_same_questions_every_time(folder: RunFolder) -> None:
    by_version: dict[int, list[str]] = {}
    for one in of(folder, EVAL):
        by_version.setdefault(one["version"], []).append(one["uid"])
    assert list(by_version) == [2, 4]
    assert by_version[2] == by_version[4]
    assert by_version[2][0] == by_version[2][3]  # three questions, then the second answer to the first
    assert len(set(by_version[2])) == 3


def test_scores_in_checkpoints_hold_no_texts(folder: RunFolder) -> None:
    scores = CheckpointStore(folder.checkpoints).load().scores
    assert [one.version for one in scores] == [2, 4]
    assert all(one.samples == () for one in scores)


def test_a_group_brings_its_truth_and_the_texts_that_were_asked_for(material: Path) -> None:
    collector = stations(tiny(material, log_samples=2)).collector(0)
    try:
        rollouts = [collector.collect(Ticket(index, index, 0, 0), Snapshot(0, {})) for index in range(6)]
    finally:
        collector.close()  # type: ignore[attr-defined]
    assert [len(one.info.get(SAMPLES, ())) for one in rollouts] == [0, 1, 1, 0, 1, 1]  # two in every three
    for one in rollouts:
        assert one.info["truth"] == str(int(one.info["truth"]))
        for text in one.info.get(SAMPLES, ()):
            assert (text["uid"], text["truth"]) == (one.info["uid"], one.info["truth"])
            assert (text["reward"], text["tokens"]) == (one.payload.rewards[0], one.payload.lengths[0])


def test_what_a_reward_function_measures_besides_is_shown(tmp_path: Path) -> None:
    reward = "def share_of_digits(prompt, response, truth, info):\n"
    reward += "    return {'score': len(response), 'is_short': len(response) < 5}\n"
    values = tiny_values(make_material(tmp_path / "material", reward), updates=1, **EVALUATED)
    for one in read_samples(run_of(tmp_path, "grpo", **values).samples):
        assert one["parts"] == {"is_short": len(one["reply"]) < 5}
        assert one["reward"] == len(one["reply"])


def test_the_system_prompt_is_shown_with_the_question(material: Path, tmp_path: Path, capsys: Output) -> None:
    values = tiny_values(material, updates=2, system_prompt="Be brief.", max_prompt_tokens=96, **EVALUATED)
    run = run_of(tmp_path, "grpo", **values)
    found = list(read_samples(run.samples))
    assert {one["split"] for one in found} == {TRAIN, EVAL}
    for one in found:
        assert one["prompt"] == f"system: Be brief.\nuser: Count to {one['truth']}."
    capsys.readouterr()
    assert main(["samples", str(run.path), "--last", "1"]) == 0
    assert "system: Be brief." in capsys.readouterr().out


def test_more_than_a_group_has_is_all_of_it(material: Path) -> None:
    collector = stations(tiny(material, log_samples=1000)).collector(0)
    try:
        rollout = collector.collect(Ticket(0, 0, 0, 0), Snapshot(0, {}))
    finally:
        collector.close()  # type: ignore[attr-defined]
    assert len(rollout.info[SAMPLES]) == 4


# -- runtimes, off, resume --------------------------------------------------------------------------


def test_processes_write_the_same_file_as_threads(folder: RunFolder, material: Path, tmp_path: Path) -> None:
    values = tiny_values(material, updates=4, overlong_tokens=6, log_eval_samples=4, **EVALUATED)
    other = run_of(tmp_path, "grpo", runtime="processes", **values)
    assert other.samples.read_bytes() == folder.samples.read_bytes()


def test_without_samples_there_is_no_file_and_the_weights_are_the_same(
    folder: RunFolder, material: Path, tmp_path: Path
) -> None:
    values = tiny_values(material, updates=4, overlong_tokens=6, log_samples=0, log_eval_samples=0, **EVALUATED)
    silent = run_of(tmp_path, "grpo", **values)
    assert not silent.samples.exists()
    assert silent.recorded_fingerprint() == folder.recorded_fingerprint()


def test_a_resumed_run_goes_on_in_the_same_file_without_doubles(material: Path, tmp_path: Path) -> None:
    values = tiny_values(material, max_lead=0, **EVALUATED)
    whole = run_of(tmp_path / "whole", "grpo", **{**values, "updates": 4})
    part = run_of(tmp_path / "part", "grpo", **{**values, "updates": 2})
    part.samples.write_bytes(whole.samples.read_bytes() + b'{"split":"tr')  # as if it had been killed later
    assert main(["resume", str(part.path), "--updates", "4", "--quiet", "--report", "false"]) == 0
    assert part.recorded_fingerprint() == whole.recorded_fingerprint()
    assert part.samples.read_bytes() == whole.samples.read_bytes()


# -- the command and the page -----------------------------------------------------------------------


def test_the_command_prints_the_newest_or_the_extreme_ones(folder: RunFolder, capsys: Output) -> None:
    def printed(*words: str) -> list[str]:
        capsys.readouterr()
        assert main(["samples", str(folder.path), *words]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith(("train, ", "eval, "))]

    newest = printed("--last", "3", "--split", "train")
    assert [line.partition(":")[0] for line in newest] == [
        f"train, update 4, {one['uid']}" for one in of(folder, TRAIN)[-3:]
    ]
    assert len(printed()) == 10
    rewards = sorted(one["reward"] for one in read_samples(folder.samples))
    assert f"reward {rewards[-1]:.4g}" in printed("--best", "--last", "1")[0]
    assert f"reward {rewards[0]:.4g}" in printed("--worst", "--last", "1")[0]
    assert printed("--last", "0") == []


def test_what_cannot_be_shown_is_said_in_one_line(folder: RunFolder, tmp_path: Path, capsys: Output) -> None:
    run = str(folder.path)
    for words, line in {
        (): "samples needs the folder of a run: headway samples RUN",
        (str(tmp_path / "absent"),): f"no run folder at {tmp_path / 'absent'}",
        (run, "--split", "test"): "unknown split 'test'; allowed: eval, train",
        (run, "--last", "few"): "--last must be a whole number, received 'few'",
        (run, "--best", "--worst"): "--best and --worst exclude each other",
        (run, "--first", "3"): "unknown option 'first'; allowed: best, last, worst",
    }.items():
        assert refused(capsys, "samples", *words) == line
    at_once = {"collect_ms": 0, "train_ms": 0, "evaluate_ms": 0}
    other = run_of(tmp_path, "functions", updates=2, **at_once)
    line = refused(capsys, "samples", str(other.path))
    assert line == f"{other.path} has no samples: its recipe, functions, generates no text"
    settings = folder.config.read_text()
    for log_samples, why in ((0, "log_samples was 0"), (4, "no group of replies has been whole so far")):
        failed = RunFolder(tmp_path / f"failed-{log_samples}")
        failed.path.mkdir()
        failed.config.write_text(re.sub(r"(?m)^log_samples: .*$", f"log_samples: {log_samples}", settings))
        assert refused(capsys, "samples", str(failed.path)) == f"{failed.path} has no samples: {why}"


def test_the_newest_samples_are_on_the_report_and_cannot_become_part_of_it(folder: RunFolder, tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    before = folder.samples.read_bytes()
    last = {**of(folder, TRAIN)[-1], "reply": evil + "x" * 9000, "prompt": evil}
    try:
        folder.samples.write_bytes(before + json.dumps(last).encode() + b"\n")
        text = write_report([folder.path], tmp_path / "report.html").read_text()
    finally:
        folder.samples.write_bytes(before)
    assert evil not in text
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    shown = data["runs"][0]["samples"]
    assert [one["head"].partition(",")[0] for one in shown] == ["eval"] * 3 + ["train"] * 3
    assert shown[3]["prompt"] == evil
    assert shown[3]["reply"].startswith(evil)
    assert len(shown[3]["reply"]) < 2100


# -- names known from elsewhere ---------------------------------------------------------------------


def test_the_number_of_shown_validations_is_known_by_its_other_name(material: Path) -> None:
    config = read_values(GRPOConfig, tiny_values(material), {"trainer.log_val_generations": 3})
    assert isinstance(config, GRPOConfig)
    assert config.log_eval_samples == 3
