"""Libraries import modules that a server may never need; these wait until they are used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.runtime.system import late_imports


def run(code: str, path: Path | None = None) -> str:
    """What a fresh interpreter prints."""
    extended = f"import sys; sys.path.insert(0, {str(path)!r})\n{code}" if path else code
    done = subprocess.run(
        [sys.executable, "-c", extended], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder with the modules `library` and `heavy`. The first imports the second."""
    (tmp_path / "library.py").write_text("import heavy\ndef ask(): return heavy.ANSWER\n")
    (tmp_path / "heavy.py").write_text("ANSWER = 42\n")
    return tmp_path


# The module alone: its package takes half a second.
SPARED = (
    f"import runpy; import_without = runpy.run_path({late_imports.__file__!r})['import_without']\n"
)


def test_a_module_is_imported_when_something_of_it_is_used(library: Path) -> None:
    code = f"{SPARED}import_without('library', 'heavy')\nimport library\n"
    asked = "print('heavy' in sys.modules, library.ask(), 'heavy' in sys.modules)"
    assert run(code + asked, library) == "False 42 True"


def test_others_import_the_module_itself(library: Path) -> None:
    code = f"{SPARED}import_without('library', 'heavy')\nimport heavy, types\n"
    assert run(code + "print(type(heavy) is types.ModuleType)", library) == "True"


def test_a_name_that_the_module_lacks_is_an_attribute_error(library: Path) -> None:
    code = f"{SPARED}import_without('library', 'heavy')\nimport library\n"
    asked = "print(hasattr(library.heavy, 'absent'), hasattr(library.heavy, '__wrapped__'))"
    assert run(code + asked, library) == "False False"


def test_modules_that_are_there_already_stay_as_they_are(library: Path) -> None:
    code = f"import heavy\n{SPARED}import_without('library', 'heavy')\nimport library\n"
    assert run(code + "print(library.heavy is heavy)", library) == "True"


def test_a_library_that_cannot_be_imported_leaves_no_stand_in(tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text("import heavy\nraise ImportError('broken')\n")
    code = f"{SPARED}try: import_without('library', 'heavy')\nexcept ImportError as e: print(e)\n"
    assert run(f"{code}print('heavy' in sys.modules)", tmp_path) == "broken\nFalse"


def test_symbolic_dimensions_compute_as_before() -> None:
    code = (
        "import sys, headrace.runtime, onnx_ir as ir\n"
        "before = 'sympy' in sys.modules\n"
        "doubled = ir.SymbolicDim('N') * 2 + 1\n"
        "print(before, doubled.evaluate({'N': 3}), 'sympy' in sys.modules)"
    )
    assert run(code) == "False 7 True"


def test_a_server_starts_without_what_few_servers_need() -> None:
    code = (
        "import sys, headrace.server.command, headrace.plugins.cpu.plugin\n"
        "print(*[each for each in ('sympy', 'cryptography', 'jwt', 'onnx.reference', 'onnxscript')"
        " if each in sys.modules])"
    )
    assert run(code) == ""
