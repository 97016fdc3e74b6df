"""The wheel and the sdist: what is in them, and that the wheel alone runs the demo."""

import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import evclplus

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.slow


def run(*words: str | Path, folder: Path) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both, made of the files that git would have."""
    build = pytest.importorskip("hatchling.build", reason="needs hatchling, which builds the wheel")
    folder = tmp_path_factory.mktemp("dist")
    code = (
        f"from {build.__name__} import build_sdist, build_wheel\n"
        f"build_wheel({str(folder)!r}); build_sdist({str(folder)!r})"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    return folder


def test_both_have_what_is_needed(built: Path) -> None:
    name = f"evclplus-{evclplus.__version__}"
    with zipfile.ZipFile(built / f"{name}-py3-none-any.whl") as wheel:
        inside = set(wheel.namelist())
        about = wheel.read(f"{name}.dist-info/METADATA").decode()
    package = ROOT / "src" / "evclplus"
    files = (path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert inside >= {path.relative_to(package.parent).as_posix() for path in files}
    assert "evclplus/py.typed" in inside
    assert "Requires-Python: <3.14,>=3.11" in about
    assert not [one for one in inside if not one.startswith("evclplus")]
    with tarfile.open(built / f"{name}.tar.gz") as sdist:
        names = sdist.getnames()
    for path in ("pyproject.toml", "README.md", "LICENSE", "src/evclplus/__init__.py"):
        assert f"{name}/{path}" in names


def test_the_wheel_alone_runs_the_demo(built: Path, tmp_path: Path) -> None:
    """In an environment with nothing of this checkout; what it depends on is lent to it."""
    run(sys.executable, "-m", "venv", tmp_path / "env", folder=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, folder=tmp_path)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    # A path alone: .pth files in it, such as that of an editable install, are not read.
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-c", "import evclplus; print(evclplus.__file__)", folder=tmp_path)
    assert Path(where.strip()).is_relative_to(site)
    command = tmp_path / "env" / "bin" / "evclplus"
    # The demo, shorter; the workflow `wheel` runs all of it, with dependencies of its own.
    plan = site / "evclplus" / "experiments" / "demo.toml"
    short = ("--methods=ewc,finetune", "--seeds=1", "--epochs=1", "--jobs=1", "--out=out")
    shown = run(command, "compare", "--config", plan, *short, folder=tmp_path)
    assert "report: out/report.html" in shown
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


def test_a_type_checker_sees_its_types(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "use.py").write_text(
        "import evclplus as ec\nreveal_type(ec.method('ewc'))\nec.method(3)\n"
    )
    words = [sys.executable, "-m", "mypy", "--follow-imports=silent", "use.py"]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "MYPYPATH": str(tmp_path / "site")},
    )
    assert "evclplus.methods.base.Method" in done.stdout
    assert 'incompatible type "int"; expected "str"' in done.stdout
