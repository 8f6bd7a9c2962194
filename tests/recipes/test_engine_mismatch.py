"""An engine that computes something else than the trainer is noticed at every lead; an honest one is not accused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from grpo_runs import make_material, tiny  # noqa: E402

from headway.cli.report import examine  # noqa: E402
from headway.core.types import Snapshot  # noqa: E402
from headway.llm.collector import GroupCollector  # noqa: E402
from headway.llm.grpo import GRPOConfig, stations  # noqa: E402
from headway.runs.folder import RunFolder  # noqa: E402
from headway.runs.launch_session import launch  # noqa: E402
from headway.tools.report.advice import advise  # noqa: E402
from headway.tools.report.recorded_run_run_history import read_story  # noqa: E402
from headway.tools.report.recorded_run_story_records import Story  # noqa: E402
from headway.tools.report.time_report import account  # noqa: E402

NOISE = 0.02

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_material(tmp_path_factory.mktemp("mismatch"), kind="mistral")


class NoisyCollector(GroupCollector):
    """Its engine gets other weights than were published."""

    def apply(self, snapshot: Snapshot) -> None:
        if snapshot.version != self._engine.version:
            random = torch.Generator().manual_seed(snapshot.version)
            noisy = {
                name: tensor + NOISE * torch.randn(tensor.shape, generator=random)
                for name, tensor in snapshot.payload.items()
            }
            self._engine.apply(snapshot.version, noisy)


def config_of(folder: Path, **values: Any) -> GRPOConfig:
    return tiny(folder, **{"updates": 13, "max_tokens": 16, "learning_rate": 1e-3, **values})


def told(config: GRPOConfig, place: Path, collector: type[GroupCollector] = GroupCollector) -> Story:
    launch(
        stations(config, collector=collector),
        config.settings(),
        runtime="inline",
        folder=RunFolder(place),
        metrics_interval_s=0,
        alarms=config.alarms,
    )
    return read_story(place)


def gaps(story: Story) -> list[float]:
    return [update.metrics["mismatch_mean"] for update in story.updates if "mismatch_mean" in update.metrics]


@pytest.mark.parametrize("max_lead", [0, 1, 2])
def test_noise_on_the_engines_weights_rings_at_every_lead_and_a_clean_engine_does_not(
    folder: Path, tmp_path: Path, max_lead: int
) -> None:
    config = config_of(folder, max_lead=max_lead)
    noisy = told(config, tmp_path / "noisy", NoisyCollector)
    assert [alarm.name for alarm in noisy.alarms] == ["engine_mismatch"]
    assert examine(tmp_path / "noisy").startswith("1. Engine and trainer compute different policies")
    clean = told(config, tmp_path / "clean")
    assert clean.alarms == []
    assert len(gaps(clean)) >= 3 and max(gaps(clean)) < 1e-4


def test_a_cut_is_no_mismatch(folder: Path, tmp_path: Path) -> None:
    """Seed settings of a well-known agentic run: top_p 0.99, top_k 100 and a temperature of 0.99."""
    for max_lead in (0, 1):
        config = config_of(folder, max_lead=max_lead, top_p=0.99, top_k=100, temperature=0.99)
        story = told(config, tmp_path / f"cut {max_lead}")
        assert story.alarms == []
        assert len(gaps(story)) >= 3 and max(gaps(story)) < 1e-4
        first = story.updates[0].metrics
        assert 0.3 < first["weight_mean"] < 0.95  # the mass that the cut leaves: 100 of 259 nearly equal tokens
        assert first["behaviour_kl"] > 0.01


def test_whether_engine_and_trainer_are_compared_changes_nothing_else(folder: Path) -> None:
    found = []
    for every in (0, 1, 4):
        config = config_of(folder, max_lead=1, updates=6, check_engine_every=every)
        found.append(launch(stations(config), config.settings(), runtime="inline"))
    for result in found[1:]:
        for name, tensor in found[0].weights.items():
            assert torch.equal(tensor, result.weights[name])


def test_the_doctor_says_when_they_were_not_compared(folder: Path, tmp_path: Path) -> None:
    story = told(config_of(folder, max_lead=1, check_engine_every=0, learning_rate=1e-9), tmp_path / "never")
    assert len(gaps(story)) == 1  # the first batch
    for update in story.updates:
        update.metrics.pop("mismatch_mean", None)
    found = {one.about: one for one in advise(story, account(story))}
    assert found["engine not compared"].change == "--check_engine_every 4"


def test_with_partial_rollouts_a_stale_cache_is_not_taken_for_a_mismatch(folder: Path, tmp_path: Path) -> None:
    config = config_of(folder, max_lead=2, on_publish="partial", max_tokens=60, lanes=6, learning_rate=1e-2)
    place = tmp_path / "partial"
    launch(
        stations(config),
        config.settings(),
        runtime="threads",
        folder=RunFolder(place),
        metrics_interval_s=0,
        alarms=config.alarms,
    )
    found = gaps(read_story(place))
    assert found and max(found) < 1e-4
