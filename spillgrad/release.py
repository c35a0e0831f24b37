"""The release of spillgrad. `pyproject.toml` reads the number here."""

__version__ = "0.1.0"
