"""`spillgrad inspect --html` and `spillgrad train --report`: write a page about a run; the page needs no network."""

import base64
import datetime
import hashlib
import importlib.resources
import importlib.util
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from spillgrad.errors import ArgumentError
from spillgrad.inspection.advice import advise
from spillgrad.inspection.find import require_not_stored
from spillgrad.inspection.printable import printable
from spillgrad.inspection.ranks import DistributedRun, inspect_together, parts
from spillgrad.inspection.records import Advice, Run, Span
from spillgrad.inspection.runs import spans
from spillgrad_tools.inspect.words import beyond_budget
from spillgrad_tools.quantities import format_duration
from spillgrad_tools.report import data as report_data
from spillgrad_tools.report import tables as report_tables
from spillgrad_tools.report import text as report_text
from spillgrad_tools.report import timeline as report_timeline

# The packages that a page needs; the extra `report` installs them.
NEEDED = ("jinja2", "plotly")
SCRIPTS = ("page.js", "time.js", "modules.js", "tables.js")
MOST_FAILURES = 100
# The most ranks that the timeline shows.
MOST_RANKS = 16


def require_packages(option: str) -> None:
    """Raise ArgumentError if a package that pages need is missing; the message names `option`."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ArgumentError(f"report: got {option} without {' and '.join(missing)}; pip install 'spillgrad[report]'")


def report(path: Path, page_path: Path) -> None:
    """Write the page of the run at `path`.

    Raises ArgumentError if there are several runs, or if a package is missing. Raises OSError if the page cannot be
    written. Raises the errors of `inspect`.
    """
    require_packages("--html")
    require_not_stored(page_path)
    found = inspect_together("report", path)
    run, together = (found, None) if isinstance(found, Run) else (found.first, found)
    write_report(run, spans(run), advise(run), page_path, together)


def write_report(
    run: Run, timed: Iterable[Span], advice: Sequence[Advice], path: Path, together: DistributedRun | None = None
) -> None:
    """Write the page of a run to `path`, whole or not at all; an existing file is replaced. See `page`.

    Raises ArgumentError if a package is missing. Raises OSError if the page cannot be written.
    """
    require_packages(f"a page to write, {path}")
    text = page(run, timed, advice, together).encode()
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(text)  # a pipe or a terminal is written to, not replaced
        else:
            _replace(Path(os.path.realpath(path)), text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error  # name the page, not the temporary file


def _replace(path: Path, text: bytes) -> None:
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        new.write_bytes(text)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def page(run: Run, timed: Iterable[Span], advice: Sequence[Advice], together: DistributedRun | None = None) -> str:
    """Return the page of a run as HTML that contains all scripts, styles and data.

    If `run` is of one of several processes, the timeline and a table also show those of `together`.
    """
    import jinja2
    from markupsafe import Markup, escape
    from plotly.offline import get_plotlyjs

    data: dict[str, Any] = {
        "memory": report_data.memory(run),
        "timeline": report_timeline.timeline(_spans(run, timed, together)),
        "modules": report_data.modules(run.origins),
        "steps": [[name, step.began_s, step.took_s] for name, step in zip(run.step_names(), run.steps, strict=True)],
        "from_s": run.first_s,
        "to_s": run.duration_s,
    }
    theme = _part("theme.js")
    scripts = [get_plotlyjs(), *map(_part, SCRIPTS)]
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    # A browser may break a long name after a part; <wbr> adds no character to a copy of the name.
    environment.filters["breakable"] = lambda text: Markup(re.sub(r"(?<=[._])(?=\w)", "<wbr>", escape(text)))
    return environment.from_string(_part("page.html")).render(
        run=run,
        name=report_text.name(run),
        host=printable(run.host or ""),
        state=report_text.state(run),
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        headline=report_text.headline(run),
        figures=report_text.figures(run),
        advice=[(printable(each.text, 1000), report_text.call(each)) for each in advice],
        data=data,
        ram_words=report_text.ram_words(run),
        beyond_budget=list(beyond_budget(run)),
        disk_words=report_text.disk_words(run),
        lanes_words=", ".join(lane["name"] for lane in data["timeline"]["lanes"]),
        names=report_tables.NAMES,
        tables=[*report_tables.of_ranks(together), *report_tables.tables(run)],
        ranks_words=report_text.ranks(run, together),
        settings=report_text.settings(run),
        failures=[(format_duration(f.t), printable(f.reason, 1000)) for f in run.failures[-MOST_FAILURES:]],
        duration=format_duration,
        policy=_policy([theme, *scripts]),
        theme=Markup(theme),
        scripts=[Markup(script) for script in scripts],
        styles=Markup(_part("page.css")),
    )


def _spans(run: Run, timed: Iterable[Span], together: DistributedRun | None) -> report_timeline.Spans:
    """Return the spans of the run and of those beside it; times count from the beginning of the run."""
    if together is None:
        return report_timeline.Spans(timed)
    shown = parts(together)[:MOST_RANKS]
    zero_s = next(each.zero_s for each in parts(together) if each.run is run)
    return report_timeline.Spans(
        *(timed if each.run is run else spans(each.run) for each in shown),
        parts=[each.name for each in shown], zeros_s=[each.zero_s - zero_s for each in shown],
    )  # fmt: skip


def _part(name: str) -> str:
    return importlib.resources.files("spillgrad_tools.report").joinpath(name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Return a content security policy that allows only these scripts, and no requests."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    runs = " ".join(f"'sha256-{each}'" for each in hashes)
    # Plotly makes styles of its own.
    return (
        f"default-src 'none'; script-src {runs}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
