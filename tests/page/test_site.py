"""The built site of docs/ in a real browser, from a server of files: `make docs` builds it."""

import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.page.conftest import Open

DOCS = Path(__file__).parents[2] / "docs"
SITE = (DOCS / "_build" / "html").resolve()
PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
LOOKS = {"light": {"color_scheme": "light"}, "dark phone": {"color_scheme": "dark", **PHONE}}
# The pages of names are all made in one way: a few of them stand for all.
NAMES = ["reference/index", "reference/spillgrad", "reference/nn", "reference/storage"]
PAGES = [
    *sorted(
        str(path.relative_to(DOCS).with_suffix(""))
        for path in DOCS.rglob("*")
        if path.suffix in (".md", ".ipynb") and path.relative_to(DOCS).parts[0] != "_build"
    ),
    *NAMES,
]
each_look = pytest.mark.parametrize("look", LOOKS)
each_page = pytest.mark.parametrize("name", PAGES)


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves the files of a folder, and is silent."""

    def log_message(self, *_: object) -> None:
        """Say nothing of a request."""


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    """The address of the site."""
    if not (SITE / "index.html").exists():
        pytest.fail(f"{SITE} is not there; run `make docs`, which builds it")
    handler = functools.partial(Files, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def visit(open_address: Open, site: str) -> Callable[..., Page]:
    """Opens a page of the site by its name."""
    return lambda name="index", **options: open_address(f"{site}{name}.html", within=site, **options)


def background(page: Page) -> int:
    """Return the sum of red, green and blue of the page's background, at most 765."""
    colour = page.locator("body").evaluate("element => getComputedStyle(element).backgroundColor")
    return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")[:3])


class Links(HTMLParser):
    """The anchors of a page, and the addresses that it links to or shows."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors, self.targets = set[str](), set[str]()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name in ("href", "src") and value is not None:
                self.targets.add(value)


def test_no_link_within_the_site_is_dead() -> None:
    pages = {page.resolve(): Links(page) for page in SITE.rglob("*.html") if "_static" not in page.parts}
    assert len(pages) > 100
    dead = []
    for page, links in pages.items():
        for target in links.targets:
            address, anchor = urldefrag(urljoin(page.as_uri(), target))
            if not address.startswith("file:"):
                continue
            path = Path(unquote(urlsplit(address).path)).resolve()
            path = path / "index.html" if path.is_dir() else path
            if not path.exists() or (anchor and path in pages and unquote(anchor) not in pages[path].anchors):
                dead.append(f"{page.relative_to(SITE)}: {target}")
    assert dead == []


@each_look
@each_page
def test_a_page_opens_fits_its_window_and_breaks_no_rule_of_accessibility(name: str, look: str, visit: Open):
    page = visit(name, **LOOKS[look])
    expect(page.locator("h1")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it scrolls sideways"
    found = Axe().run(page, options={"preload": False})  # it would look for a style sheet's imports beside the page
    assert found.violations_count == 0, found.generate_report()


def test_a_reader_gets_from_the_front_page_to_a_tutorial_and_to_the_next(visit: Open):
    page = visit()
    page.get_by_role("link", name="Tutorials").first.click()
    expect(page.locator("h1")).to_contain_text("Tutorials")
    page.get_by_role("navigation", name="Section Navigation").get_by_role("link").first.click()
    first = page.locator("h1").inner_text()
    page.locator(".prev-next-footer a.right-next").click()
    expect(page.locator("h1")).not_to_have_text(first)
    page.get_by_role("link", name="spillgrad").first.click()
    expect(page).to_have_url(visit().url)


def test_on_a_phone_the_menu_has_the_chapters(visit: Open):
    page = visit("tutorials/resume", **PHONE)
    page.locator(".primary-toggle").click()
    menu = page.get_by_role("dialog").or_(page.locator("#pst-primary-sidebar-modal"))
    menu.get_by_role("link", name="Memory methods").first.click()
    expect(page.locator("h1")).to_contain_text("Memory methods")


def test_the_search_finds_save_on_disk(visit: Open):
    page = visit()
    page.keyboard.press("Control+k")
    page.keyboard.type("save_on_disk")
    page.keyboard.press("Enter")
    found = page.locator("#search-results a", has_text="spillgrad.save_on_disk").first
    found.click()
    expect(page.locator("[id='spillgrad.save_on_disk']")).to_be_visible()


def test_colours_follow_the_system_until_somebody_chooses(visit: Open):
    assert background(visit(color_scheme="light")) > 700
    page = visit(color_scheme="dark")
    assert background(page) < 150
    for chosen, is_dark in (("Light", False), ("Dark", True), ("System", True), ("Light", False)):
        page.get_by_role("button", name="Color mode").first.click()
        page.get_by_role("button", name=chosen).first.click()
        assert (background(page) < 150) == is_dark
    page.reload()
    assert background(page) > 700


def test_a_click_copies_an_example(visit: Open):
    page = visit("tutorials/train_a_gpt", permissions=["clipboard-read", "clipboard-write"])
    example = page.locator("div.highlight").first
    example.hover()
    example.locator("button.copybtn").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() in example.inner_text()
    assert copied.strip()
