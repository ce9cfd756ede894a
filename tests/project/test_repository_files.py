"""What GitHub and pre-commit read: workflows, forms, the hook."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import stickytoken

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def jobs():
    return {
        f"{path.stem}: {name}": job
        for path in WORKFLOWS
        for name, job in yaml.safe_load(path.read_text("utf-8"))["jobs"].items()
    }


def commands():
    """Every line of shell in the workflows."""
    return [step["run"] for job in jobs().values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
        ("dependabot", [GITHUB / "dependabot.yml"]),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_a_file_has_the_form_that_its_reader_expects(schema, paths):
    assert paths
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *paths]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_workflow_is_unsafe():
    """Actions are pinned by hash, permissions are least, no template reaches a shell."""
    auditor = shutil.which("zizmor", path=str(Path(sys.executable).parent)) or shutil.which("zizmor")
    command = [auditor, "--offline", "--quiet", "--no-progress", "--persona", "pedantic", str(GITHUB)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_make_target_of_a_workflow_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    (versions,) = (job for name, job in jobs().items() if name == "test: versions")
    called = {f"test-{each}" for each in versions["strategy"]["matrix"]["versions"]}
    called |= {target for line in commands() for target in re.findall(r"\bmake ([a-z-]+)", line)}
    assert called <= targets
    assert {"check", "test", "test-lowest", "test-newest", "test-dist"} <= called


def test_the_versions_of_python_that_are_claimed_are_tested():
    matrix = jobs()["test: test"]["strategy"]["matrix"]["python"]
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert matrix == claimed
    assert PROJECT["requires-python"] == f">={matrix[0]}"


def test_only_the_upload_may_prove_who_it_is_to_pypi():
    release = yaml.safe_load((GITHUB / "workflows" / "release.yml").read_text("utf-8"))
    allowed = {name for name, job in release["jobs"].items() if "id-token" in job.get("permissions", {})}
    assert allowed == {"publish"}
    assert release["permissions"] == {"contents": "read"}
    assert release["jobs"]["publish"]["environment"]["name"] == "pypi"
    assert "password" not in str(release)
    address = release["jobs"]["build"]["env"]["STICKYTOKEN_REPOSITORY"]
    assert address == "${{ github.server_url }}/${{ github.repository }}"
    assert [name for name, job in jobs().items() if "timeout-minutes" not in job] == []


def test_the_notes_of_a_release_are_its_part_of_the_changelog(tmp_path):
    (script,) = (line for line in commands() if "notes.md" in line)
    awk = script.partition("test -s")[0]
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    environment = {"GITHUB_REF_NAME": f"v{stickytoken.__version__}", "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-ec", awk], cwd=tmp_path, env=environment, check=True)
    whole, notes = (ROOT / "CHANGELOG.md").read_text("utf-8"), (tmp_path / "notes.md").read_text("utf-8")
    assert notes.strip()
    assert notes in whole
    assert not re.search("^## ", notes, re.MULTILINE)


def test_pre_commit_accepts_the_hook():
    manifest = ROOT / ".pre-commit-hooks.yaml"
    command = [sys.executable, "-m", "pre_commit", "validate-manifest", str(manifest)]
    subprocess.run(command, check=True, capture_output=True)
    (hook,) = yaml.safe_load(manifest.read_text("utf-8"))
    files = re.compile(hook["files"])
    for name in ("pyproject.toml", "my_model/model.safetensors", "my_model/1_Pooling/config.json"):
        assert files.search(name)
    for name in ("README.md", "src/model.py", "data.csv", "vocab.txt.bak"):
        assert not files.search(name)
    assert f"entry: {hook['entry']}\n" in (ROOT / "docs" / "ci.md").read_text("utf-8")
