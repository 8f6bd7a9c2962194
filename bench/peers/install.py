"""Environments for the peers of the benchmarks, one per requirements file here. Run again, it does what is missing.

    make bench-peers            or    python bench/peers/install.py [NAME ...]

`main.txt` goes into .bench-venv, any other NAME.txt into .bench-venv-NAME. A stamp in each environment says which text
it was made from. A peer that cannot be installed is named with the reason, and is absent from the tables.

Lines for this script begin with `#:` in a requirements file. `#: unconstrained`: it insists on another torch, let it.
`#: then WORDS`: afterwards, pip install WORDS.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CONSTRAINTS = HERE / "torch.txt"


def place_of(name: str) -> Path:
    return ROOT / (".bench-venv" if name == "main" else f".bench-venv-{name}")


def install(requirements: Path) -> str:
    """What became of it, in one line."""
    place, wanted = place_of(requirements.stem), requirements.read_text()
    stamp, python = place / ".installed", place / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted:
        return "there"
    if not python.exists():
        venv.create(place, with_pip=True)
    told = [line.removeprefix("#:").split() for line in wanted.splitlines() if line.startswith("#:")]
    constraints = [] if ["unconstrained"] in told else ["-c", str(CONSTRAINTS)]
    for words in ([*constraints, "-r", str(requirements)], *(line[1:] for line in told if line[0] == "then")):
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*pip, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            return f"absent: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}"
    stamp.write_text(wanted)
    return "installed"


def main() -> None:
    for requirements in sorted(HERE.glob("*.txt")):
        if requirements != CONSTRAINTS and (len(sys.argv) == 1 or requirements.stem in sys.argv):
            print(f"{requirements.stem}: ", end="", flush=True)
            print(install(requirements), flush=True)


if __name__ == "__main__":
    main()
