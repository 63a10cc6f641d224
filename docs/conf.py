"""How Sphinx builds the manual: ``make docs``."""

import tomllib
from pathlib import Path

with (Path(__file__).parents[1] / "pyproject.toml").open("rb") as file:
    release = tomllib.load(file)["project"]["version"]

project = f"headrace {release}"
html_title = project
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["manual.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
extensions = ["myst_parser"]
smartquotes = False  # --option stays as it is typed
# Links to headings are checked too.
myst_heading_anchors = 3
