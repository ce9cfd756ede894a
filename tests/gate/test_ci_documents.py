"""The workflow and the hook of docs/ci.md do what the page says, run as a build server runs them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stickytoken.detection import run as model_files
from stickytoken.detection.run import look_at_model, open_run, record_model

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "ci.md").read_text("utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


WORKFLOW, HOOKS = map(yaml.safe_load, blocks("yaml"))
(SETTINGS,) = blocks("toml")


@pytest.fixture
def repository(planted_profile, tmp_path, monkeypatch):
    """A git repository with a model that has a sticky token, its run, and the settings of the page."""
    monkeypatch.setattr(model_files, "_SETTLED", 0)
    root = tmp_path / "repository"
    shutil.copytree(planted_profile[0], root / "my_model")
    shutil.copytree(planted_profile[1], root / "runs" / "run")
    seen = look_at_model(str(root / "my_model"))
    record_model(root / "runs" / "run", open_run(root / "runs" / "run").record, seen)
    shutil.copytree(root / "runs" / "run", root / "runs" / "baseline")
    (root / "pyproject.toml").write_text(SETTINGS, encoding="utf-8")
    (root / ".pre-commit-config.yaml").write_text(yaml.safe_dump(HOOKS), encoding="utf-8")
    command = tmp_path / "bin" / "stickytoken"
    command.parent.mkdir()
    command.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -W ignore -m stickytoken "$@"\n', encoding="utf-8"
    )
    command.chmod(0o755)
    for arguments in (["init", "-q"], ["add", "pyproject.toml", ".pre-commit-config.yaml", "my_model"]):
        shell(root, "git", *arguments)
    return root


def shell(root, *command):
    """A command as a build server runs it, with stickytoken installed."""
    paths = [str(root.parent / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {
        "PATH": os.pathsep.join(paths),
        "PRE_COMMIT_HOME": str(root.parent / "pre-commit"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
    }
    return subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment, check=False)


def settings(root, text):
    (root / "pyproject.toml").write_text(f'[tool.stickytoken]\nmodel = "my_model"\n{text}', encoding="utf-8")


@pytest.mark.slow
def test_the_workflow_stops_at_a_sticky_token_and_leaves_what_it_uploads(repository):
    """Steps with `uses` run on GitHub alone; those with `run` run here, but for the installation."""
    (job,) = WORKFLOW["jobs"].values()
    steps = [step["run"] for step in job["steps"] if "run" in step]
    assert steps.pop(0) == "pip install stickytoken"
    assert steps
    (upload,) = (step for step in job["steps"] if "upload-sarif" in step.get("uses", ""))
    assert upload["if"] == "always()"
    for text, status in (("", 10), ('baseline = "runs/baseline"\n', 0), ("max = 50\n", 0)):
        settings(repository, text)
        for step in steps:
            done = shell(repository, "bash", "-e", "-c", step)
            assert done.returncode == status, done.stderr
            assert "Traceback" not in done.stderr
        document = json.loads((repository / upload["with"]["sarif_file"]).read_text("utf-8"))
        (run,) = document["runs"]
        assert run["results"]
        assert any(result["level"] == "error" for result in run["results"]) == (status == 10)
        place = run["results"][0]["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "pyproject.toml"
        assert place["region"] == {"startLine": 2}


@pytest.mark.slow
def test_the_hook_refuses_a_commit_with_a_sticky_model(repository):
    settings(repository, "")
    shell(repository, "git", "add", "-A", "my_model", "pyproject.toml")
    done = shell(repository, sys.executable, "-m", "pre_commit", "run", "stickytoken")
    assert done.returncode == 1, done.stderr
    assert "exit code: 10" in done.stdout
    assert "sticky" in done.stdout
    settings(repository, "max = 50\n")
    shell(repository, "git", "add", "pyproject.toml")
    done = shell(repository, sys.executable, "-m", "pre_commit", "run", "stickytoken")
    assert (done.returncode, "Passed" in done.stdout) == (0, True), done.stdout
