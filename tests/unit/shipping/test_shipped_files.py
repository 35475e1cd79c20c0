"""What a module reads as text on the target must be sent along: Ansible sends only what is imported."""
from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CORE = ROOT / "module_utils" / "plumbline"
MODULES = sorted((ROOT / "library").glob("*.py"))


def imports(path: Path, package: tuple[str, ...]) -> set[Path]:
    """Files of the core that ``path`` imports, wherever the import stands; ``package``: where the file itself is."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level:
            base = package[: len(package) - node.level + 1]
            base += tuple((node.module or "").split(".")) if node.module else ()
        elif (node.module or "").startswith("ansible.module_utils.plumbline"):
            base = tuple(node.module.split(".")[3:])
        else:
            continue
        for parts in (base, *((*base, alias.name) for alias in node.names)):
            file = CORE.joinpath(*parts).with_suffix(".py")
            if parts and file.is_file():
                found.add(file)
    return found


def reached(module: Path) -> set[Path]:
    """Every file of the core that Ansible sends with a module."""
    todo, seen = imports(module, ()), set()
    while todo:
        file = todo.pop()
        if file not in seen:
            seen.add(file)
            todo |= imports(file, file.relative_to(CORE).parent.parts)
    return seen


@pytest.mark.parametrize("module", MODULES, ids=[m.stem for m in MODULES])
def test_what_is_read_as_text_is_imported_too(module: Path):
    sent = reached(module)
    for file in sent:
        for name in re.findall(r'get_data\(__package__, "(\w+\.py)"\)', file.read_text()):
            assert file.with_name(name) in sent, f"{file.name} reads {name}, which is not sent with {module.stem}"


def test_the_walk_finds_what_is_there():
    sent = {f.name for f in reached(ROOT / "library" / "plumbline_throughput.py")}
    assert {"measurement.py", "samples.py", "supervisor.py", "nvml_loop.py"} <= sent
