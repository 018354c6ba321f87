"""What holds for the project as a whole: public names, errors, docstrings, sizes, the wheel."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from kit import ROOT

import casstore
from casstore import errors

MODULES = sorted((ROOT / "casstore").rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in MODULES]


@pytest.fixture(params=MODULES, ids=NAMES)
def module(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_public_names_are_sorted_and_each_can_be_had() -> None:
    """`__all__` is in order, without doubles, and dir() and getattr know every name of it."""
    assert casstore.__all__ == sorted(set(casstore.__all__))
    assert set(casstore.__all__) <= set(dir(casstore))
    assert all(getattr(casstore, name) is not None for name in casstore.__all__)


def test_a_name_that_isnt_public_is_an_attribute_error() -> None:
    """The lazy module fails like any other."""
    with pytest.raises(AttributeError, match="nonsense"):
        _ = casstore.nonsense


def test_importing_the_package_loads_nothing_heavy() -> None:
    """`import casstore` brings neither SQLAlchemy, NumPy, Pillow nor torch."""
    script = (
        "import sys, casstore; print(sorted({'sqlalchemy', 'numpy', 'PIL', 'torch', 'alembic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def classes() -> list[type[errors.CasstoreError]]:
    found = [errors.CasstoreError]
    for kind in found:
        found += kind.__subclasses__()
    return [kind for kind in found if kind.__module__ == "casstore.errors"]


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    """Each error stands in it once, below its parent, with its other bases and its exit code."""
    lines = [line for line in (errors.__doc__ or "").splitlines() if "──" in line or "exit code" in line]
    drawn: dict[str, tuple[str, str, str]] = {}
    parents: list[str] = []
    for line in lines:
        found = re.match(r"\s*([│├└─ ]*)(\w+)(?: \((\w+)\))?\s+(?:exit code )?(\d+)?", line)
        assert found, line
        marks, name, other, code = found.groups()
        del parents[len(marks) // 4 :]
        inherited = drawn[parents[-1]][2] if parents else ""
        drawn[name] = (parents[-1] if parents else "", other or "", code or inherited)
        parents.append(name)
    real = {}
    for kind in classes():
        ours = [base.__name__ for base in kind.__bases__ if issubclass(base, errors.CasstoreError)]
        others = [base.__name__ for base in kind.__bases__ if not issubclass(base, errors.CasstoreError)]
        parent = ours[0] if ours else ""
        real[kind.__name__] = (parent, others[0] if others and parent else "", str(kind.exit_code))
    assert drawn == real


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_an_error_keeps_its_class_and_message_on_its_way_between_processes(kind: type[errors.CasstoreError]) -> None:
    """Each class takes one string, says just that, and is itself again after copy and transport."""
    import copy
    import multiprocessing.reduction as reduction

    error = kind("what happened")
    back = reduction.ForkingPickler.loads(reduction.ForkingPickler.dumps(error))  # type: ignore[attr-defined]
    for found in (back, copy.copy(error)):
        assert (type(found), str(found)) == (kind, "what happened")


def test_everything_public_has_a_docstring(module: Path) -> None:
    """Modules, public classes, functions, and methods of more than one statement say what they are for."""
    tree = ast.parse(module.read_text())
    missing = [] if ast.get_docstring(tree) else ["module"]

    def look(node: ast.Module | ast.ClassDef, where: str) -> None:
        for child in node.body:
            if not isinstance(child, ast.ClassDef | ast.FunctionDef) or child.name.startswith("_"):
                continue
            if not ast.get_docstring(child) and not (where and len(child.body) == 1):
                missing.append(where + child.name)
            if isinstance(child, ast.ClassDef):
                look(child, f"{where}{child.name}.")

    look(tree, "")
    assert missing == []


def test_no_module_is_longer_than_450_lines(module: Path) -> None:
    """A module that has grown beyond that has more than one reason to change."""
    assert len(module.read_text().splitlines()) <= 450


def test_nothing_that_is_read_is_ever_executed(module: Path) -> None:
    """No pickle, eval, exec, torch.load, unsafe YAML or marshal anywhere: neither imported nor called."""
    banned = {"pickle", "marshal", "shelve", "dill", "eval", "exec", "compile", "yaml"}
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            assert not {alias.name.partition(".")[0] for alias in node.names} & banned
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in banned
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in banned
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) != ("torch", "load")


def test_every_module_can_be_imported_first(module: Path) -> None:
    """Each module is importable by its name, and none of it runs anything."""
    name = ".".join(module.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    if not name.endswith("__main__"):
        assert importlib.import_module(name).__name__ == name


def test_only_fsio_and_locks_change_the_file_system(module: Path) -> None:
    """No other module links, renames, unlinks, flushes or makes folders by itself (init's parents excepted)."""
    if module.name in ("fsio.py", "locks.py"):
        pytest.skip("this is the place")
    banned = {
        "link",
        "rename",
        "replace",
        "unlink",
        "remove",
        "fsync",
        "fdatasync",
        "sync",
        "mkdir",
        "rmdir",
        "truncate",
    }
    calls = {
        node.func.attr
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if isinstance(node.func.value, ast.Name) and node.func.value.id in ("os", "shutil")
    }
    assert not calls & {*banned, "rmtree", "move", "copytree"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel that hatchling builds of this checkout."""
    place = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = place.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_has_all_that_a_store_needs(wheel: zipfile.ZipFile) -> None:
    """Every module, the migrations, the schema, the README of stores and the typing mark are in it."""
    names = set(wheel.namelist())
    sources = {os.path.relpath(path, ROOT) for path in MODULES}
    data = {f"casstore/{name}" for name in ("py.typed", "index/schema.sql", "core/CASSTORE.txt", "migrations/env.py")}
    revisions = {f"casstore/migrations/versions/{path.name}" for path in (ROOT / "migrations/versions").glob("*.py")}
    assert revisions
    assert sources | data | revisions <= names


def test_the_wheel_has_nothing_else(wheel: zipfile.ZipFile) -> None:
    """No tests, caches or scripts travel along; everything is below casstore/ or the metadata."""
    for name in wheel.namelist():
        assert re.match(r"casstore(-[^/]*\.dist-info)?/", name), name
        assert "__pycache__" not in name


def test_the_installed_wheel_creates_and_upgrades_a_store_by_itself(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Unpacked elsewhere, without the checkout, it makes a store and finds its own migrations."""
    wheel.extractall(tmp_path / "site")
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path / "site")!r})
import casstore
from casstore.index import migrate
assert casstore.__file__.startswith({str(tmp_path)!r})
assert str(migrate.migrations_folder()).startswith({str(tmp_path)!r})
casstore.open({str(tmp_path / "s")!r}, create=True, durability="off").close()
migrate.upgrade({str(tmp_path / "s")!r})
with casstore.open({str(tmp_path / "s")!r}) as store:
    print(store.status().variants)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_the_console_script_is_the_command_line(wheel: zipfile.ZipFile) -> None:
    """Installing gives a command `casstore` that is casstore.cli.main."""
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "casstore = casstore.cli:main" in wheel.read(name).decode()
