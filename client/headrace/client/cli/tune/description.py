"""Writes what was chosen into a ``network.toml``. All else in it stays, comments and
line ends too."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.client.cli.console import fail, writing
from headrace.client.cli.tune.candidates import Variant

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

FILE: Final = "network.toml"


class DescriptionFile:
    """A ``network.toml``. A file that cannot be read, or a folder that cannot be written to, ends
    the program, best before anything is measured.

    Args:
        path: the file, which need not exist and ends with .toml, or its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = (path if path.suffix == ".toml" else path / FILE).resolve()
        if not os.access(self.path.parent, os.W_OK):
            fail(f"cannot write {self.path}: its folder is missing or cannot be written to")
        self._newline = "\n"
        self._read()

    def write(self, choice: Variant) -> None:
        """Writes the device and the keys of the choice. The file is written whole or not at all."""
        import tomlkit

        said = self._read()
        said["device"] = choice.device
        if choice.config:
            said.setdefault("config", tomlkit.table()).update(choice.config)
        with writing(self.path):
            self._replace(tomlkit.dumps(said))

    def _read(self) -> TOMLDocument:
        import tomlkit  # slow to import
        from tomlkit.exceptions import TOMLKitError

        try:
            with self.path.open(encoding="utf-8") as file:
                said = tomlkit.parse(file.read())
            self._newline = file.newlines if isinstance(file.newlines, str) else "\n"
        except FileNotFoundError:
            return tomlkit.document()
        except (TOMLKitError, UnicodeDecodeError) as error:
            fail(f"{self.path} is not valid TOML: {error}; mend it, or leave --write out")
        except OSError as error:
            fail(f"cannot read {self.path}: {error.strerror or error}")
        config: Any = said.get("config", {})
        if not isinstance(config, dict):
            fail(f"{self.path}: config is not a table; mend it, or leave --write out")
        return said

    def _replace(self, text: str) -> None:
        temporary = self.path.with_name(f".{FILE}.{secrets.token_hex(4)}")
        try:
            with temporary.open("x", encoding="utf-8", newline=self._newline) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileNotFoundError):
                shutil.copymode(self.path, temporary)
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
