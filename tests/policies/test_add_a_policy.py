"""What `docs/add-a-policy.md` shows is run here as it stands there."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

PAGE = Path(__file__).parents[2] / "docs" / "add-a-policy.md"
FILE = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def package(tmp_path):
    """The page's files, installed the way pip would: the module and its entry points on the path."""
    files = dict(FILE.findall(PAGE.read_text()))
    assert set(files) == {"cheapest.py", "test_cheapest.py", "pyproject.toml", "router.yaml"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    metadata = tmp_path / f"router_cheapest-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    points = "".join(f"{name} = {place}\n" for name, place in project["entry-points"]["router.policies"].items())
    (metadata / "entry_points.txt").write_text(f"[router.policies]\n{points}")
    return tmp_path


def python(folder, *arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )


def test_the_example_passes_its_own_tests(package):
    done = python(package, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_cheapest.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_example_is_loaded_by_its_place_and_by_its_name(package):
    settings = yaml.safe_load((package / "router.yaml").read_text())
    code = (
        "from router.policies import load, names\n"
        f"print(load('cheapest:Cheapest'), load({settings['policy']!r}, {settings['policy_options']!r}), names()[-1])"
    )
    done = python(package, "-c", code)
    assert done.stdout == "Cheapest(full=8) Cheapest(full=12) cheapest\n", done.stderr


def test_a_wrong_option_of_the_example_is_named(package):
    done = python(package, "-c", "from router.policies import load; load('cheapest', {'full': 0})")
    assert "ValueError: policy cheapest: full must be a number of at least 1, not 0" in done.stderr


def test_the_example_is_short():
    code = [text for name, text in FILE.findall(PAGE.read_text()) if name.endswith(".py")]
    assert sum(len(text.splitlines()) for text in code) < 60
