"""GRPO on Ray whose engines fetch the weights from the trainer's actor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs headway[llm]")

from grpo_runs import make_material, tiny_values

from headway.coordinator.coordinator import Coordinator
from headway.llm.grpo import GRPOConfig, stations
from headway.runs.config import read_values
from headway.runs.fingerprint import fingerprint
from headway.runtimes.inline import Inline
from headway.runtimes.ray_actors import RayActors

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("local_ray")]


class Weighed(RayActors):
    """Notes how large what the trainer publishes is, where the driver sees it."""

    published: list[int]

    async def call(self, role: str, method: str, *args: Any, deadline_s: float) -> Any:
        answer = await super().call(role, method, *args, deadline_s=deadline_s)
        if method == "learn":
            self.published.append(getattr(answer[1].payload, "size", 0))
        return answer


def test_the_bits_are_the_same_and_the_object_store_sees_no_weights(tmp_path: Path) -> None:
    values = tiny_values(make_material(tmp_path), updates=3)
    found = {}
    for way in ("direct", "store"):
        config = read_values(GRPOConfig, {**values, "runtime": "ray", "weight_transport": way})
        assert isinstance(config, GRPOConfig)
        runtime = Weighed()
        runtime.published = []
        found[way] = runtime.run(Coordinator(stations(config), config.settings(), runtime).run())
        assert len(runtime.published) == 3 and (min(runtime.published) > 1000) == (way == "store")
    plain = read_values(GRPOConfig, values)
    assert isinstance(plain, GRPOConfig)
    torch.set_num_threads(1)
    inline = Inline()
    here = inline.run(Coordinator(stations(plain), plain.settings(), inline).run())
    assert fingerprint(found["direct"].weights) == fingerprint(found["store"].weights) == fingerprint(here.weights)
