"""`env_packages`: installed with uv where the entrypoint needs it, and only then."""

import os
import shlex
import subprocess
import sys
import sysconfig
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tiltyard.errors import ManifestError
from tiltyard.manifest import EnvironmentSection
from tiltyard.manifest.probing import env_factory

UV = Path(sys.executable).with_name("uv")
SOURCE = Path(__file__).parents[2] / "src"

ENV = """
class Env:
    max_turns = 1
    over = False
    def reset(self, seed=None):
        self.over = False
        return f"Say {seed}.", {}
    def step(self, action):
        return "", 1.0 if action.isdecimal() else 0.5, True, False, {}
"""


def write_wheel(folder, name, version, source, *needs):
    """A package as an index has it: one module, and what it needs."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {need}\n" for need in needs)
    contents = {
        f"{name}.py": source,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**contents, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)


class Place:
    """An interpreter without packages of its own, which finds Tiltyard and what it needs; and an index in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.index = folder, folder / "index"
        self.index.mkdir()
        self.python = folder / "venv" / "bin" / "python"
        made = [str(UV), "venv", "-q", "--python", sys.executable, str(folder / "venv")]
        subprocess.run(made, check=True)
        self.site = Path(next((folder / "venv" / "lib").glob("python*")), "site-packages")
        (self.site / "found.pth").write_text(f"{SOURCE}\n{sysconfig.get_path('purelib')}\n")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PYTHONPATH"))},
            "UV_NO_INDEX": "1",
            "UV_FIND_LINKS": str(self.index),
            "UV_CACHE_DIR": str(folder / "cache"),
            "PATH": f"{UV.parent}:{os.environ['PATH']}",
        }

    def manifest(self, entrypoint, packages) -> Path:
        path = self.folder / "m.yaml"
        path.write_text(
            f"environment: {{env_type: rollout, entrypoint: '{entrypoint}', env_packages: {packages}}}\n"
            "model: {name: m}\n"
        )
        return path

    def check(self, manifest, *options):
        command = [str(self.python), "-m", "tiltyard", "check", str(manifest), *options]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)

    def installed(self) -> set[str]:
        return {path.name for path in self.site.glob("*.dist-info")}


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


def test_what_the_entrypoint_needs_is_installed_once_and_announced(place):
    """A second time it can be imported, and nothing is said or done."""
    write_wheel(place.index, "tiltyard_game", "1.0", ENV + "import tiltyard_dice\n", "tiltyard_dice>=2")
    write_wheel(place.index, "tiltyard_dice", "2.1", "")
    manifest = place.manifest("tiltyard_game:Env", "{uv: [tiltyard_game==1.0]}")
    done = place.check(manifest)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[:2] == [
        "tiltyard_game:Env needs tiltyard_game, which is not installed; installing tiltyard_game==1.0 with uv",
        f"into {place.folder / 'venv'} (--no-install refuses instead)",
    ]
    assert place.installed() == {"tiltyard_game-1.0.dist-info", "tiltyard_dice-2.1.dist-info"}
    again = place.check(manifest)
    assert (again.returncode, again.stderr) == (0, "")


def test_a_file_that_imports_what_is_not_there_is_helped_too(place):
    """The entrypoint is there; what it needs is not."""
    write_wheel(place.index, "tiltyard_dice", "2.1", "")
    (place.folder / "env.py").write_text("import tiltyard_dice\n" + ENV)
    done = place.check(place.manifest("env.py:Env", "{pip: [tiltyard_dice]}"))
    assert done.returncode == 0, done.stderr
    assert "needs tiltyard_dice, which is not installed" in done.stderr


def test_no_install_refuses_with_the_command_that_installs(place):
    """What it says can be pasted, and then it works."""
    write_wheel(place.index, "tiltyard_game", "1.0", ENV)
    manifest = place.manifest("tiltyard_game:Env", "{uv: [tiltyard_game]}")
    refused = place.check(manifest, "--no-install")
    assert refused.returncode == 2
    assert place.installed() == set()
    said, _, command = refused.stderr.strip().partition("install it with: ")
    assert said == (
        "tiltyard: environment.env_packages: 'tiltyard_game:Env' needs 'tiltyard_game', which is not installed, and "
        "--no-install was given; "
    )
    subprocess.run(shlex.split(command), env=place.environment, check=True, capture_output=True)
    assert place.check(manifest, "--no-install").returncode == 0


def test_a_package_that_cannot_be_had_leaves_everything_as_it_was(place):
    """Nor does it bring half of what it names."""
    write_wheel(place.index, "tiltyard_dice", "2.1", "")
    done = place.check(place.manifest("tiltyard_game:Env", "{uv: [tiltyard_dice, tiltyard_game]}"))
    assert done.returncode == 2
    assert (
        "tiltyard_dice, tiltyard_game cannot be installed beside what is installed; nothing was changed" in done.stderr
    )
    assert place.installed() == set()


def test_what_is_installed_keeps_its_version(place):
    """A package that wants another version of what the trainer has is refused, though there is one."""
    write_wheel(place.index, "pyyaml", "99.0", "")
    write_wheel(place.index, "tiltyard_game", "1.0", ENV, "pyyaml>=99")
    done = place.check(place.manifest("tiltyard_game:Env", "{uv: [tiltyard_game]}"))
    assert done.returncode == 2
    assert "cannot be installed beside what is installed" in done.stderr
    assert "pyyaml" in done.stderr
    assert "name it by env_url" in done.stderr
    assert place.installed() == set()


def test_what_an_attempt_brought_that_failed_half_way_goes_away_again(place):
    """Here uv installs, and then fails."""
    write_wheel(place.index, "tiltyard_game", "1.0", ENV)
    failing = place.python.with_name("uv")
    failing.write_text(
        f'#!/bin/sh\n"{UV}" "$@" || exit\ncase "$*" in *--dry-run*|*uninstall*) exit 0;; esac\n'
        "echo the disk is full >&2; exit 2\n"
    )
    failing.chmod(0o755)
    done = place.check(place.manifest("tiltyard_game:Env", "{uv: [tiltyard_game]}"))
    assert done.returncode == 2
    assert "the disk is full" in done.stderr
    assert place.installed() == set()


def test_a_package_without_the_module_is_told(place):
    """It is installed, and is the wrong one."""
    write_wheel(place.index, "tiltyard_dice", "2.1", "")
    done = place.check(place.manifest("tiltyard_game:Env", "{uv: [tiltyard_dice]}"))
    assert done.returncode == 2
    assert "tiltyard_dice is installed, and 'tiltyard_game:Env' still needs 'tiltyard_game'" in done.stderr


def test_of_two_processes_one_installs(place):
    """The other waits, and finds it done."""
    write_wheel(place.index, "tiltyard_game", "1.0", ENV)
    manifest = place.manifest("tiltyard_game:Env", "{uv: [tiltyard_game]}")
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: place.check(manifest), range(2)))
    assert [one.returncode for one in done] == [0, 0]
    assert sum("installing" in one.stderr for one in done) == 1


def test_without_uv_it_says_how_to_get_it(place):
    """Nothing else is tried."""
    place.environment["PATH"] = "/nowhere"
    done = place.check(place.manifest("tiltyard_game:Env", "{uv: [tiltyard_game]}"))
    assert done.returncode == 2
    assert "which is not on the path; install it with: pip install uv" in done.stderr


def test_from_python_nothing_is_installed_and_the_command_is_told():
    """Only the command line installs."""
    section = EnvironmentSection(
        env_type="rollout", entrypoint="tiltyard_game:Env", env_packages={"uv": ["tiltyard_game"]}
    )
    with pytest.raises(ManifestError) as raised:
        env_factory(section)
    assert "'tiltyard_game' is not installed" in str(raised.value)
    assert str(raised.value).endswith(f"uv pip install --python {shlex.quote(sys.executable)} tiltyard_game")
