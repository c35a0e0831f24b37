"""How Sphinx builds the site; `make docs` runs it."""

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

import spillgrad  # noqa: E402

project = "spillgrad"
author = "the spillgrad developers"
copyright = author
release = spillgrad.__version__
version = ".".join(release.split(".")[:2])

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
    "benchmarks",
    "command_line",
    "reference",
]
exclude_patterns = ["_build", "_ext"]

# Pages in Markdown; those with {code-cell} are executed.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(DOCS / "_build" / "executed")
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True

# Docstrings.
default_role = "py:obj"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
# Refused: a docstring, summary, parameter or result that is missing or in another form. Ruff checks the rest.
numpydoc_validation_checks = {
    *("GL03", "GL06", "GL07", "GL08", "SS01", "SS03"),
    *("PR01", "PR02", "PR03", "PR04", "PR07", "PR08", "PR09", "PR10"),
    *("RT01", "RT03", "RT04", "RT05"),
}
# Enumerations, whose values are theirs alone; the protocol, which has no constructor; what functions, too, describe.
numpydoc_validation_exclude = {r"\.CheckpointPolicy$", r"\.ReduceOp$", r"storage\.Store$", r"Tensor\.(backward|mH)$"}
autodoc_member_order = "bysource"
autodoc_typehints = "none"
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 88

html_theme = "pydata_sphinx_theme"
html_title = f"spillgrad {version}"
html_static_path = ["_static"]
html_favicon = "_static/icon.svg"
html_css_files = ["spillgrad.css"]
html_js_files = ["names.js"]
html_show_sourcelink = False
html_copy_source = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": f"spillgrad {version}"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "show_prev_next": True,
    "header_links_before_dropdown": 5,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
}

# Where each release is at DOCS_URL/<version>/, pages of one lead to those of the others, which DOCS_URL/versions.json
# lists: [{"version": "0.1", "url": "https://…/0.1/"}].
if "DOCS_URL" in os.environ:
    html_baseurl = f"{os.environ['DOCS_URL'].rstrip('/')}/{version}/"
    html_theme_options |= {
        "navbar_end": ["version-switcher", "theme-switcher"],
        "switcher": {"json_url": f"{os.environ['DOCS_URL'].rstrip('/')}/versions.json", "version_match": version},
        "check_switcher": False,
    }
