"""What the project is made of: the lock, what is installed from it, licences, advisories, the bill of materials."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers.paths import ROOT, SCRIPTS

sys.path.insert(0, str(SCRIPTS))

import audit_dependencies
import dependencies
import environment
import lock
import sbom

requirements = pytest.importorskip("packaging.requirements")
PYTHON = Path("python")
ENTRY = "a-b==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\n    # via\n    #   c\n    #   hilrp (pyproject.toml)\n"


@pytest.mark.parametrize("item", dependencies.requirements())
def test_the_lock_has_what_pyproject_asks_for(item):
    wanted = requirements.Requirement(item)
    pinned = dependencies.locked()[dependencies.normalised(wanted.name)]
    assert wanted.specifier.contains(pinned.version), f"{item}, but {pinned.version} is locked: make lock"
    assert "hilrp" in pinned.parents


def test_every_entry_has_hashes_and_whoever_needs_it():
    packages = dependencies.locked()
    assert len(packages) > 100
    for package in packages.values():
        assert package.hashes
        assert set(package.parents) <= {*packages, "hilrp"}


def test_the_lock_names_no_place():
    """No address, no host, no option, no path: nothing but names, versions, hashes and who needs what."""
    for path in (dependencies.LOCK, dependencies.LIBRARIES_LOCK):
        text = path.read_text()
        for line in text.splitlines()[2:]:
            assert re.fullmatch(
                r"[a-z0-9.-]+==[0-9a-z.+]+ \\|    --hash=sha256:[0-9a-f]{64}(?: \\)?|"
                r"    #(?: via)?|    #(?: via|  ) [a-z0-9.-]+(?: \(pyproject\.toml\))?",
                line,
            ), line
        assert "://" not in text
        assert text.splitlines()[1] == "#    make lock"


def test_entries_are_read():
    found = dependencies.locked(f"# made\n#    by\n{ENTRY}d==2 \\\n    --hash=sha256:{'1' * 64}\n    # via a-b\n")
    assert [(each.name, each.version, each.parents) for each in found.values()] == [
        ("a-b", "1.0", ("c", "hilrp")),
        ("d", "2", ("a-b",)),
    ]
    assert found["a-b"].text == ENTRY
    with pytest.raises(ValueError, match="no pinned version in 'a>=1'"):
        dependencies.locked("a>=1\n")


def test_where_the_lock_fits_only_its_files_are_installed(monkeypatch):
    calls = installed(monkeypatch, fits=True)
    assert len(calls) == 2
    for call in calls:
        assert {"--require-hashes", "--only-binary=:all:"} <= set(call)
    assert calls[-1][-4:] == ["--no-binary=grad-cam", "--no-build-isolation", "-r", str(dependencies.LOCK)]


def test_elsewhere_the_bounds_are_and_that_is_said(monkeypatch, capsys):
    assert installed(monkeypatch, fits=False) == [["python", "-m", "pip", "install", "--quiet", "torch>=2.6"]]
    said = capsys.readouterr().err
    assert said.startswith("requirements/dev.lock is for Python 3.11 on Linux")
    assert said.count("\n") == 1


def installed(monkeypatch, fits: bool) -> list[list[str]]:
    """The commands that install."""
    calls: list[list[str]] = []
    monkeypatch.setattr(environment, "fits", lambda: fits)
    monkeypatch.setattr(environment.subprocess, "run", lambda command, **_: calls.append(command))
    environment.install(PYTHON, ["torch>=2.6"])
    return calls


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sys.platform", "darwin"),
        ("platform.machine", lambda: "aarch64"),
        ("platform.python_version_tuple", lambda: ("3", "12", "1")),
        ("platform.libc_ver", lambda: ("", "")),
        ("platform.libc_ver", lambda: ("glibc", "2.17")),
        ("sys.implementation.name", "pypy"),
    ],
)
def test_the_lock_fits_one_platform(monkeypatch, name, value):
    here = {
        "sys.platform": "linux",
        "platform.machine": lambda: "x86_64",
        "platform.python_version_tuple": lambda: ("3", "11", "7"),
        "platform.libc_ver": lambda: ("glibc", "2.36"),
        "sys.implementation.name": "cpython",
    }
    for each, usual in here.items():
        monkeypatch.setattr(f"environment.{each}", usual)
    assert environment.fits()
    monkeypatch.setattr(f"environment.{name}", value)
    assert not environment.fits()


def test_another_lock_is_another_environment(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "fits", lambda: True)
    before = environment.key(["torch"])
    monkeypatch.setattr(environment, "LOCK", tmp_path / "dev.lock")
    environment.LOCK.write_text(dependencies.LOCK.read_text() + ENTRY)
    assert environment.key(["torch"]) != before


def test_the_libraries_are_those_that_are_wanted_and_no_others():
    """Each pinned with its hashes; none is a dependency of hilrp, or of what it is developed with."""
    wanted = [line for line in dependencies.LIBRARIES.read_text().splitlines() if not line.startswith("#")]
    pinned = dependencies.locked(dependencies.LIBRARIES_LOCK.read_text())
    assert sorted(map(dependencies.normalised, wanted)) == list(pinned)
    assert all(package.hashes for package in pinned.values())
    assert not {*pinned} & {*dependencies.locked()}


def test_the_environment_of_the_libraries_adds_to_that_of_the_tests(monkeypatch, tmp_path):
    """No package of another place, none that these want in turn; what the tests have is seen."""
    calls: list[list[str]] = []
    run = environment.subprocess.run
    own = tmp_path / "own" / "bin" / "python"
    environment.venv.create(own.parents[1])

    def noted(command, **options):
        calls.append(command)
        return run(command, **options) if "-m" not in command else None

    monkeypatch.setattr(environment.subprocess, "run", noted)
    environment.install_libraries(own, Path(sys.executable))
    assert {"--no-deps", "--require-hashes", "--only-binary=:all:", str(dependencies.LIBRARIES_LOCK)} <= set(calls[0])
    code = "import torch, pytest; print(torch.__file__)"
    assert run([str(own), "-c", code], capture_output=True, text=True, check=True).stdout.strip() == torch.__file__


def test_there_are_two_environments(monkeypatch, capsys):
    made: list[str] = []
    monkeypatch.setattr(environment, "built", lambda name, fill, said: made.append(name) or PYTHON)
    environment.main()
    environment.main("libraries")
    assert [name.partition("-")[0] for name in made] == ["venv", "venv", "libraries"]
    assert made[0] == made[1]
    with pytest.raises(SystemExit, match="there is `libraries`"):
        environment.main("library")


def test_the_lock_is_written_from_one_index_and_without_its_address():
    commands = lock.commands(PYTHON, ["--upgrade"])
    assert len(commands) == 2
    for command in commands:
        assert {"--generate-hashes", "--strip-extras", "--no-config", "--upgrade"} <= set(command)
        assert not any(option.startswith(("--emit", "--find-links", "--extra-index", "--index")) for option in command)
    assert "--no-deps" in commands[1]
    assert {"UV_FIND_LINKS", "UV_EXTRA_INDEX_URL"} <= set(lock.OTHERS)


def test_licences_that_are_not_permissive_are_explained():
    table, explained = audit_dependencies.licences({"zennit": "LGPLv3+", "torch": "BSD-3-Clause"})
    assert explained
    assert [line for line in table if line.startswith("| zennit | LGPLv3+ | a comparator in tests")]
    assert not any(line.startswith("| torch |") for line in table)
    for terms in ("GPL-3.0-only", "MPL-2.0 AND MIT", "LicenseRef-NVIDIA-Proprietary", None):
        assert not audit_dependencies.licences({"new": terms})[1]


def test_the_licences_of_this_environment_are_explained():
    found = {name: dependencies.licence(name) for name in dependencies.locked()}
    installed = {name: terms for name, terms in found.items() if terms}
    assert len(installed) > 50
    assert audit_dependencies.licences(installed)[1], "\n".join(audit_dependencies.licences(installed)[0])


def test_the_package_imports_no_comparator():
    for path in (ROOT / "src").rglob("*.py"):
        assert not re.search(r"^\s*(?:import|from) (?:zennit|quantus)", path.read_text(), re.M), path


def report(*packages: dict) -> str:
    return json.dumps({"dependencies": list(packages), "fixes": []})


GOOD = {"name": "a", "version": "1", "vulns": []}
BAD = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-0"}]}
SKIPPED = {"name": "c", "skip_reason": "Dependency not found on PyPI and could not be audited: c (3)"}


@pytest.mark.parametrize(
    ("said", "status", "words"),
    [
        (report(GOOD), 0, "0 known vulnerabilities in the 1 packages"),
        (report(BAD), 1, "b 2: PYSEC-0"),
        (report(SKIPPED), 3, "the service could not be asked about 1 of 1 packages"),
        ("", 3, "the service could not be asked about 1 of 1 packages"),
        ("Traceback", 3, "nothing is known of them"),
    ],
)
def test_advisories_that_cannot_be_had_are_no_success(said, status, words):
    """pip-audit ends with 0 where it had to skip every package."""
    lines, found = audit_dependencies.advisories(said, 1)
    assert found == status
    assert words in "\n".join(lines)
    assert not (status == 3 and any(line.startswith("0 known") for line in lines))


def test_a_found_advisory_counts_more_than_a_missing_one():
    assert audit_dependencies.advisories(report(BAD, SKIPPED), 2)[1] == 1


@pytest.fixture(scope="module")
def bill(tmp_path_factory) -> str:
    return sbom.main(tmp_path_factory.mktemp("dist")).read_text()


def test_the_bill_of_materials_is_that_of_the_lock(bill):
    found = json.loads(bill)
    components = {each["name"]: each for each in found["components"]}
    packages = dependencies.locked()
    assert components.keys() == packages.keys()
    for name, package in packages.items():
        assert components[name]["version"] == package.version
        assert {each["content"] for each in components[name]["hashes"]} == set(package.hashes)
    scopes = {name: components[name]["scope"] for name in ("torch", "pillow", "gradio", "ray", "zennit", "pytest")}
    assert list(scopes.values()) == ["required"] * 2 + ["optional"] * 2 + ["excluded"] * 2
    assert components["zennit"]["licenses"]
    own = next(each for each in found["dependencies"] if each["ref"].startswith("pkg:pypi/hilrp@"))
    assert components["torch"]["purl"] in own["dependsOn"]


def test_the_bill_of_materials_follows_its_schema(bill):
    pytest.importorskip("cyclonedx")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(bill) is None
    assert validator.validate_str(bill.replace('"SHA-256"', '"SHA-0"')) is not None


def test_the_same_lock_gives_the_same_bill(bill, tmp_path):
    assert sbom.main(tmp_path).read_text() == bill


def test_scripts_need_python_alone():
    """The environment is built by them."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import environment, lock"
    subprocess.run([sys.executable, "-I", "-S", "-c", code, str(SCRIPTS)], check=True)
