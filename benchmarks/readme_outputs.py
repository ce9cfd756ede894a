"""Run the commands whose output the README and the how-to pages show, and record what they print.

python benchmarks/readme_outputs.py FOLDER                # results/readme.json
python benchmarks/readme_outputs.py FOLDER --only judge   # records one command again

A test compares the documents with the record. The commands run in FOLDER, which holds what they need:
``tampered``, a copy of all-MiniLM-L6-v2 with planted rows; ``questions.txt``, the questions of TREC; ``runs``
with the runs of docs/compare.md; and on port 8451 a server with ``tampered``
(tests/support/embedding_server.py).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

from checks import RESULTS
from stickytoken.measurement.resume import hardware, now, package_versions

_ROOT = RESULTS.parents[1]
DOCUMENTS = (_ROOT / "README.md", *(_ROOT / "docs" / name for name in ("compare.md", "model_card.md")))
RECORD = RESULTS / "readme.json"
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)


def shown(text: str) -> list[tuple[str, list[str]]]:
    """Every command in the blocks of a document, with the lines that the document shows below it."""
    found: list[tuple[str, list[str]]] = []
    for block in _BLOCK.findall(text):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def recorded(command: str, folder: Path) -> dict[str, Any]:
    """What a command prints, and its exit status."""
    environment = {**os.environ, "COLUMNS": "150", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        shlex.split(command), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    printed = {name: getattr(done, name).splitlines() for name in ("stdout", "stderr")}
    return {**printed, "status": done.returncode}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the commands run")
    parser.add_argument("--only", help="run only the commands that contain this")
    arguments = parser.parse_args()
    earlier = json.loads(RECORD.read_text("utf-8"))["commands"] if RECORD.exists() else {}
    commands: dict[str, Any] = {}
    for command, _ in [each for path in DOCUMENTS for each in shown(path.read_text("utf-8"))]:
        if arguments.only and arguments.only not in command and command in earlier:
            commands[command] = earlier[command]
        else:
            commands[command] = recorded(command, arguments.folder)
        document = {"date": now(), "hardware": hardware("cpu"), "versions": package_versions()}
        RECORD.write_text(json.dumps(document | {"commands": commands}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
