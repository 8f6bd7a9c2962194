"""Agents on a Ray of their own: the bits of a run on threads, with evaluations that park what is open."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs headway[llm]")

from agent_runs import run_agent, tiny_agent

from headway.runs.fingerprint import fingerprint
from headway.testing.tiny_models import save_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.usefixtures("no_ray")]


@pytest.mark.parametrize("lead", [0, 1])
def test_an_agent_on_ray_has_the_bits_of_one_on_threads(tmp_path: Path, lead: int) -> None:
    model = save_tiny_model(tmp_path / "model")
    config = tiny_agent(model, max_lead=lead, evaluate_every=1, updates=2)
    here, there = run_agent(config, "threads"), run_agent(config, "ray")
    assert fingerprint(here.weights) == fingerprint(there.weights)
    assert [score.value for score in here.scores] == [score.value for score in there.scores]
