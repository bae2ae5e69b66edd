"""The layout, the packaging and the layers are what the documentation says they are."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: list[str] = PYPROJECT["tool"]["setuptools"]["packages"]
FOLDERS: dict[str, str] = PYPROJECT["tool"]["setuptools"]["package-dir"]
MAX_LINES = 450

# Which layers of `ramet` a folder may import; inside a folder, imports are relative.
MAY_IMPORT: dict[str, set[str]] = {
    "kernels": set(),
    "radix": set(),
    "runtime": {"radix", "kernels"},
    "frontend_lang": {"runtime"},
    # `import ramet` and `ramet.runtime`, no submodule of theirs: the names that every program may use.
    "bench": {"ramet", "radix", "kernels", "runtime"},
}
MAY_NOT_USE = {"radix": {"torch", "transformers", "fastapi"}}

# Dependencies that are used without being imported by name, and by what.
USED_INDIRECTLY = {
    "httptools": "uvicorn's HTTP parser",
    "jinja2": "transformers' chat templates",
    "uvloop": "uvicorn's event loop",
}


def python_files(*folders: str) -> list[Path]:
    """Every Python file of these folders, each found at least once."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert files
    return files


def imports(path: Path, *, at_import_time: bool = False) -> Iterator[str]:
    """Absolute names that a file imports, those for type checkers included."""
    tree = ast.parse(path.read_text())
    inside = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.FunctionDef | ast.AsyncFunctionDef) or _is_for_checkers(block)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if at_import_time and id(node) in inside:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            if node.module == "ramet":
                yield from (f"ramet.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


def _is_for_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def distribution_names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~;\[ ]", item)[0].lower() for item in requirements}


def test_every_folder_of_code_is_packaged_and_nothing_else() -> None:
    on_disk = {
        ".".join([package, *path.parent.relative_to(ROOT / folder).parts])
        for package, folder in FOLDERS.items()
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert on_disk == set(PACKAGES)


def test_every_folder_with_code_has_an_init_file() -> None:
    for path in python_files(*FOLDERS.values()):
        assert (path.parent / "__init__.py").exists(), path


def test_tests_are_no_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_import_ramet_is_light() -> None:
    heavy = {"torch", "transformers", "fastapi", "ramet.runtime", "ramet.kernels", "ramet.radix"}
    code = f"import sys, ramet; assert not {heavy} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_top_level_kernels_stays_inert() -> None:
    tree = ast.parse((ROOT / "kernels" / "__init__.py").read_text())
    assert [type(node) for node in tree.body] == [ast.Expr], "a docstring and nothing else"


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_layers(folder: str) -> None:
    for path in python_files(folder):
        for name in imports(path):
            root, *rest = name.split(".")
            assert root not in {*FOLDERS.values(), "tests"}, f"{path}: write ramet.{name}"
            assert root not in MAY_NOT_USE.get(folder, set()), f"{path} imports {name}"
            if root == "ramet":
                assert (rest or ["ramet"])[0] in MAY_IMPORT[folder], f"{path} imports {name}"


def test_benchmarks_use_the_public_face_of_the_runtime() -> None:
    for path in python_files("bench"):
        for name in imports(path):
            assert not name.startswith("ramet.runtime."), f"{path} imports {name}"


def test_frontend_reaches_the_runtime_at_call_time_only() -> None:
    for path in python_files("frontend_lang"):
        for name in imports(path, at_import_time=True):
            assert not name.startswith("ramet."), f"{path} imports {name} when it is imported"


@pytest.mark.parametrize("folder", sorted(FOLDERS.values()))
def test_files_are_short_enough_to_read(folder: str) -> None:
    for path in python_files(folder):
        num_lines = len(path.read_text().splitlines())
        assert num_lines <= MAX_LINES, f"{path} has {num_lines} lines"


def test_only_the_command_line_and_the_client_of_openai_read_the_environment() -> None:
    """Programs written for OpenAI have their key there, and name it nowhere."""
    readers = (Path("frontend_lang/cli.py"), Path("frontend_lang/lang/backends/openai.py"))
    for path in python_files(*FOLDERS.values()):
        if path.relative_to(ROOT) in readers:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            reads = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
            assert not reads, f"{path} reads the environment"


def test_no_pickle_crosses_a_boundary() -> None:
    for path in python_files("runtime", "frontend_lang"):
        assert not {"pickle", "dill", "cloudpickle"} & set(imports(path)), path


def test_every_import_is_a_declared_dependency() -> None:
    declared = distribution_names(PYPROJECT["project"]["dependencies"])
    bench = declared | distribution_names(PYPROJECT["project"]["optional-dependencies"]["bench"])
    homes = packages_distributions()
    undeclared = set()
    for path in python_files(*FOLDERS.values()):
        allowed = bench if path.is_relative_to(ROOT / "bench") else declared
        for name in imports(path):
            root = name.split(".")[0]
            if root in sys.stdlib_module_names or root == "ramet":
                continue
            owners = {owner.lower().replace("_", "-") for owner in homes.get(root, [])}
            if not owners & allowed:
                undeclared.add(f"{path.relative_to(ROOT)} imports {name}")
    assert not undeclared


def test_every_declared_dependency_is_used() -> None:
    homes = packages_distributions()
    used = {
        owner.lower().replace("_", "-")
        for path in python_files(*FOLDERS.values())
        for name in imports(path)
        for owner in homes.get(name.split(".")[0], [])
    }
    declared = distribution_names(PYPROJECT["project"]["dependencies"])
    assert declared - used == set(USED_INDIRECTLY) - used


def test_readme_gives_a_reason_for_every_dependency() -> None:
    table = re.findall(r"^\| `([^`]+)` \| (.+) \|$", (ROOT / "README.md").read_text(), re.M)
    reasons = {name: reason.strip() for name, reason in table}
    for name in distribution_names(PYPROJECT["project"]["dependencies"]):
        assert reasons.get(name), f"README.md does not say what {name} is for"


def test_readme_tree_names_every_top_level_folder_of_code() -> None:
    readme = (ROOT / "README.md").read_text()
    for folder in (*FOLDERS.values(), "tests"):
        assert f"{folder}/" in readme


def test_ci_runs_the_whole_check() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert "make test" in script.read_text()
    dry = subprocess.run(
        ["make", "--dry-run", "test"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for command in ("ruff check", "ruff format --check", "mypy", "pytest"):
        assert command in dry


def test_module_and_script_are_the_same_command() -> None:
    assert PYPROJECT["project"]["scripts"] == {"ramet": "ramet.cli:main"}
    command = [sys.executable, "-P", "-m", "ramet", "--version"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert re.fullmatch(r"ramet \d+\.\d+\.\d+\S*\n", out)


def test_plugged_in_commands_exist() -> None:
    for value in PYPROJECT["project"]["entry-points"]["ramet.commands"].values():
        module, attribute = value.split(":")
        code = f"import {module} as m, typer; assert isinstance(m.{attribute}, typer.Typer)"
        subprocess.run([sys.executable, "-P", "-c", code], check=True)
