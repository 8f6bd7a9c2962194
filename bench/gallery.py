"""Makes the pictures of docs/gallery.md: short runs of several recipes, and their reports in Chromium.

    python bench/gallery.py                  all of them, some minutes on 2 cores
    python bench/gallery.py --only muzero    one of them
    python bench/gallery.py --runs FOLDER    keeps the runs and their reports there

Each scene is commands of `headway` and the parts of the report that are shown. Everything but durations follows from
the seeds in the commands. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures" / "gallery"
WAITING = "headway.envs.waiting_cartpole:headway/WaitingCartPole-v1"
REWARD = """def share_of_digits(prompt, response, truth, info):
    return sum(c.isdigit() for c in response) / max(len(response), 1)
"""


@dataclass(frozen=True)
class Scene:
    """Runs whose reports are put on one page, and the sections of it that are shown, by their headings."""

    runs: tuple[str, ...]
    sections: tuple[str, ...]


SCENES = {
    "cartpole": Scene(
        tuple(f"cartpole --env {WAITING} --updates 60 --max_lead {lead} --correction clip" for lead in (0, 1)),
        ("Learning", "Timeline", "Staleness"),
    ),
    "colorlines": Scene(("colorlines --updates 60 --evaluate_every 20",), ("Learning", "Where the time went")),
    "muzero": Scene(
        ("muzero --env tictactoe --updates 300 --evaluate_every 100 --dispatch free --max_lead 2",),
        ("Learning", "Timeline"),
    ),
    "grpo": Scene(
        (
            "grpo --model model --task jsonl:prompts.jsonl --reward rewards.py:share_of_digits --max_tokens 8 "
            "--max_prompt_tokens 64 --tickets_per_batch 4 --group_size 8 --learning_rate 1e-2 --updates 40 "
            "--evaluate_every 10 --max_lead 1 --order ready --dispatch free --device cpu",
        ),
        ("Learning", "Staleness"),
    ),
    "agent": Scene(
        (
            "agent --model model --env lights --max_turn_tokens 4 --tickets_per_batch 4 --group_size 4 --lanes 4 "
            "--updates 12 --evaluate_every 6 --max_lead 1 --device cpu",
        ),
        ("Episodes",),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=sorted(SCENES), action="append")
    parser.add_argument("--runs", type=Path)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = words.runs or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        make_material(folder)
        for name in words.only or SCENES:
            page = report_of(SCENES[name], folder, name)
            for picture in photograph(page, SCENES[name].sections, name):
                print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size / 1000:.0f} kB")


def make_material(folder: Path) -> None:
    """What the language models of the scenes read: a tiny model, forty prompts, and a reward for digits."""
    from headway.testing.tiny_models import save_tiny_model

    if not (folder / "model").exists():
        save_tiny_model(folder / "model")
    (folder / "rewards.py").write_text(REWARD)
    rows = [json.dumps({"prompt": f"Count to {n}.", "truth": str(n)}) for n in range(40)]
    (folder / "prompts.jsonl").write_text("\n".join(rows))


def report_of(scene: Scene, folder: Path, name: str) -> Path:
    """Runs the scene's commands in the folder; the page with all of its runs."""
    before = set(folder.glob("runs/*"))
    for run in scene.runs:
        print(f"$ headway run {run}", flush=True)
        headway(folder, "run", *run.split(), "--quiet", "--report", "false", "--tensorboard", "false")
    made = sorted(set(folder.glob("runs/*")) - before)
    page = folder / f"{name}.html"
    headway(folder, "report", *map(str, made), "--output", str(page))
    return page


def headway(folder: Path, *words: str) -> None:
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "import sys; from headway.cli import main; sys.exit(main(sys.argv[1:]))", *words]
    subprocess.run(command, cwd=folder, env=settings, check=True, stdout=subprocess.DEVNULL, timeout=900)


def photograph(page: Path, sections: tuple[str, ...], name: str) -> list[Path]:
    """A picture of each section of the report."""
    sys.path.insert(0, str(ROOT / "tests"))
    from chromium import launched  # the tests' way to find one

    PICTURES.mkdir(parents=True, exist_ok=True)
    with launched() as browser:
        tab = browser.new_page(viewport={"width": 1000, "height": 900}, color_scheme="light")
        tab.goto(page.resolve().as_uri())
        tab.wait_for_load_state("networkidle")
        return [_section(tab, heading, name) for heading in sections]


def _section(tab: Any, heading: str, name: str) -> Path:
    path = PICTURES / f"{name}-{heading.lower().replace(' ', '-')}.png"
    section = tab.locator("section", has=tab.locator("h2", has_text=heading)).first
    section.screenshot(path=str(path))
    compress(path)
    return path


def compress(path: Path) -> None:
    """128 colours are enough for charts, and a third of the bytes."""
    from PIL import Image

    with Image.open(path) as picture:
        picture.convert("RGB").quantize(128).save(path, optimize=True)


if __name__ == "__main__":
    main()
