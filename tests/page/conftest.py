"""A real browser for pages: Debian's chromium, which `make test-page` installs where it is missing."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, sync_playwright

from spillgrad_tools.report.page import write_report
from tests.page import runs

DESKTOP = {"width": 1280, "height": 900}

Open = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.fail("no chromium on PATH; install it, or run `make test-page`, which does where there is apt-get")
    with sync_playwright() as playwright:
        # Its sandbox needs rights that containers seldom give; it opens nothing but pages made here.
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pages, made once."""
    directory = tmp_path_factory.mktemp("reports")
    for name, make, advice in (
        ("gpt", runs.gpt, runs.ADVICE),
        ("long", lambda: runs.gpt(steps=150), runs.ADVICE),
        ("hostile", runs.hostile, []),
        ("empty", lambda: (runs.EMPTY, []), []),
        ("first", runs.first_version, []),
        ("extreme", runs.extreme, []),
    ):
        run, spans = make()
        write_report(run, spans, advice, directory / f"{name}.html")
    return directory


@pytest.fixture
def open_address(browser: Browser) -> Iterator[Open]:
    """Opens a page by its address; fails if one asks for more than itself and what is below `within`, or complains."""
    problems: list[str] = []
    contexts = []

    def open_address(address: str, within: str | None = None, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        contexts.append(context)
        page = context.new_page()

        def said(message: ConsoleMessage) -> None:
            if not (message.type == "log" and message.text.startswith("[PST]")):  # how the site's theme was set up
                problems.append(f"console {message.type}: {message.text} ({message.location['url']})")

        def asked(dialog: Dialog) -> None:
            problems.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        def requested(request: Request) -> None:
            inside = within is not None and request.url.startswith(within)
            if not inside and request.url != address and not request.url.startswith("data:"):
                problems.append(f"request: {request.url}")

        page.on("console", said)
        page.on("dialog", asked)
        page.on("request", requested)
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.goto(address)
        return page

    yield open_address
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def open_page(open_address: Open, reports: Path) -> Open:
    """Opens a report by its name, which asks for nothing but itself."""

    def open_page(name: str = "gpt", **options: Any) -> Page:
        return open_address((reports / f"{name}.html").as_uri(), **options)

    return open_page
