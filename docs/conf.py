"""The site: `make docs`. Pages of methods and of the reference are made of the code itself."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import generate  # noqa: E402

import evclplus  # noqa: E402

project = "evclplus"
author = "The evclplus developers"
version = release = evclplus.__version__

extensions = ["myst_nb"]
exclude_patterns = ["_build", "README.md"]
html_theme = "furo"
html_title = f"evclplus {version}"
html_copy_source = False
html_show_copyright = False

# Everything that is wrong fails the build (-W): an exception in a cell, a link that leads nowhere.
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_inline"]
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

generate.write(HERE / "generated")
