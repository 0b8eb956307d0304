"""What is released: a wheel that explains by itself, versions that agree, workflows and a recipe that are sound."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from PIL import Image

import hilrp
from helpers.paths import ROOT, SCRIPTS
from hilrp.scenes import Scenes

sys.path.insert(0, str(SCRIPTS))

import release

yaml = pytest.importorskip("yaml")
requirements = pytest.importorskip("packaging.requirements")

#: The most that an index takes of one file without being asked, and what we stay below.
LARGEST = 100 * 10**6
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

# Versions, days, citation ---------------------------------------------------------------------------------------------


def test_this_can_be_released():
    assert release.problems() == []
    assert release.problems(f"v{hilrp.__version__}") == []


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("src/hilrp/__init__.py", '__version__ = "', '__version__ = "9', "The versions differ"),
        ("CHANGELOG.md", "## ", "## 9", "The versions differ"),
        ("CITATION.cff", "version: ", "version: 9", None),  # that of the format stands before it
        ("CITATION.cff", "\nversion: ", "\nversion: 9", "The versions differ"),
        ("CITATION.bib", "version = {", "version = {9", "The versions differ"),
        ("recipe/recipe.yaml", 'version: "', 'version: "9', "The versions differ"),
        ("CITATION.cff", "date-released: 2", "date-released: 3", "The days differ"),
        ("CHANGELOG.md", "(2", "(soon, 2", "is no day"),
    ],
)
def test_what_differs_is_said(tmp_path, file, old, new, said):
    for each in release.PLACES:
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / each, tmp_path / each)
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1))
    found = release.problems(root=tmp_path)
    assert found == [] if said is None else any(said in each for each in found)


def test_another_tag():
    assert release.problems("v0.0.1") == [
        f"The tag is v0.0.1, the version {hilrp.__version__}: set v{hilrp.__version__}."
    ]


def test_both_citations_tell_the_same():
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "date-released", "version"} <= set(cff)
    assert cff["license"] == PROJECT["license"]
    paper, software = (ROOT / "CITATION.bib").read_text().split("@software")
    preferred = cff["preferred-citation"]
    authors = " and ".join(f"{each['family-names']}, {each['given-names']}" for each in preferred["authors"])
    assert f"author = {{{authors}}}" in paper
    assert f"{{{preferred['title']}}}" in paper.replace("{HiLRP}", "HiLRP")
    assert re.search(r"year\s+= \{(\d+)\}", paper)[1] == str(preferred["year"])
    assert re.search(r"title\s+= \{(.*)\}", software)[1] == cff["title"]
    assert re.search(r"license\s+= \{(.*)\}", software)[1] == cff["license"]
    for entry in (paper, "@software" + software):
        assert entry.count("{") == entry.count("}")


# Workflows and recipe -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows(path):
    """They are YAML, may do no more than they need, and run what there is."""
    found = yaml.safe_load(path.read_text())
    assert found["permissions"] == {"contents": "read"}
    assert found[True]  # YAML takes `on` for the truth value
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name, job in found["jobs"].items():
        needs = job.get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(found["jobs"])
        assert job["timeout-minutes"] <= 60
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), (name, step)
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[\w./-]+", step["uses"])
                continue
            for target in re.findall(r"\bmake ([\w-]+)", step["run"]):
                assert target in targets
            for script in re.findall(r"\bpython (\S+\.py)", step["run"]):
                assert (ROOT / script).is_file()


def test_only_a_tag_is_published_and_only_what_was_tried():
    found = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert found[True]["push"] == {"tags": ["v*"]}
    publish = found["jobs"]["publish"]
    assert publish["if"] == "github.ref_type == 'tag'"
    assert (publish["needs"], found["jobs"]["try"]["needs"]) == ("try", "build")
    # Trusted publishing: a token of the moment, and no key.
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets" not in (ROOT / ".github" / "workflows" / "release.yml").read_text()
    # What is tried is the wheel: there is no checkout beside it.
    assert not any("checkout" in step.get("uses", "") for step in found["jobs"]["try"]["steps"])


def test_the_recipe_needs_what_pyproject_needs():
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text())
    renamed = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    wanted = {}
    for item in PROJECT["dependencies"]:
        each = requirements.Requirement(item)
        wanted[renamed.get(each.name, each.name)] = str(each.specifier)
    python, *others = recipe["requirements"]["run"]
    assert dict(each.split(" ") for each in others) == wanted
    assert f">={recipe['context']['python_min']}" == PROJECT["requires-python"]
    assert python == "python >=${{ python_min }}"
    (builder,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert builder.replace(">=", " >=") in recipe["requirements"]["host"]
    scripts = [f"{name} = {place}" for name, place in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    assert recipe["about"]["license"] == PROJECT["license"]
    assert recipe["about"]["summary"] == PROJECT["description"]
    assert (ROOT / recipe["about"]["license_file"]).is_file()


@pytest.mark.parametrize(
    "path", [*WORKFLOWS, ROOT / "recipe" / "recipe.yaml", ROOT / "CITATION.cff"], ids=lambda p: p.name
)
def test_no_host_is_named(path):
    assert not re.search(r"https?://|\b[\w-]+\.(org|com|io|net)\b", path.read_text())


# The wheel ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """The files of the package that git knows; a wheel of a checkout must hold these and no others."""
    found = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True)
    if found.returncode or not found.stdout:
        pytest.skip("there is no git here that knows which files belong to the package")
    return [line for line in found.stdout.splitlines() if (ROOT / line).is_file()]


@pytest.fixture(scope="module")
def wheel(tracked, tmp_path_factory) -> Path:
    """Built from what is tracked."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in [*tracked, "pyproject.toml", "README.md", "LICENSE"]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    made = subprocess.run(command, capture_output=True, text=True, cwd=out)
    assert made.returncode == 0, made.stdout + made.stderr
    (found,) = out.glob("*.whl")
    return found


def test_the_wheel_holds_the_package_and_nothing_else(wheel, tracked):
    with zipfile.ZipFile(wheel) as archive:
        held = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert sorted(held) == sorted(name.removeprefix("src/") for name in tracked)
        for ending in (".safetensors", ".json", ".js", ".css", "py.typed"):
            assert any(name.endswith(ending) for name in held), ending
        # What is read at run time is whole.
        for name in held:
            if name.endswith((".safetensors", ".json", ".js", ".css")):
                assert archive.read(name) == (ROOT / "src" / name).read_bytes()
    assert wheel.stat().st_size < LARGEST


def test_what_the_wheel_says_of_itself(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = {name.partition(".dist-info/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
        said = message_from_string(archive.read(inside["METADATA"]).decode())
        assert archive.read(inside["entry_points.txt"]).decode().split() == [
            "[console_scripts]",
            "hilrp",
            "=",
            "hilrp.cli:app",
        ]
        assert archive.read(inside["licenses/LICENSE"]) == (ROOT / "LICENSE").read_bytes()
    assert (said["Name"], said["Version"]) == ("hilrp", hilrp.__version__)
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Requires-Python"] == PROJECT["requires-python"]
    assert said["Description-Content-Type"] == "text/markdown"
    needed = [requirements.Requirement(each) for each in said.get_all("Requires-Dist")]
    plain = {str(each) for each in needed if each.marker is None}
    assert plain == {str(requirements.Requirement(each)) for each in PROJECT["dependencies"]}
    assert set(said.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])


def test_twine_finds_nothing(wheel):
    pytest.importorskip("twine")
    found = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(wheel)], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The program of an environment with the wheel; all that it needs is that of this one."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    place = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    ).strip()
    (Path(place) / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", *options, wheel], check=True)
    return home / "bin" / "hilrp"


def test_the_installed_wheel_explains(installed, tmp_path):
    """Without the checkout: neither its folder nor its path is near."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["OMP_NUM_THREADS"] = "1"

    def call(*command) -> str:
        found = subprocess.run(
            [str(each) for each in command], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    code = "import importlib.util; print(importlib.util.find_spec('hilrp').origin)"
    assert installed.parent.parent in Path(call(installed.parent / "python", "-c", code)).parents
    assert call(installed, "--version") == f"hilrp {hilrp.__version__}\n"
    Image.fromarray(Scenes(seed=1)[0].image).save(tmp_path / "scene.png")
    said = call(installed, "explain", "scene.png", "--model", "zoo/resnet", "-o", "out")
    assert "1 of 1 explained." in said
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "index.html",
        "scene.png",
        "scene.json",
        "scene.npz",
    }
