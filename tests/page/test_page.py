"""The page of a run in a real browser: what a reader sees, does with a mouse and with keys, and what never happens."""

import re
from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from tests.page.conftest import Open
from tests.page.runs import HOSTILE, HOSTILE_SHOWN

PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
PLOTS = ("ram-plot", "disk-plot", "timeline-plot")
NAMES = ["gpt", "long", "hostile", "empty", "first", "extreme"]
LOOKS = {"light": {}, "dark": {"color_scheme": "dark"}, "phone": PHONE}
each_look = pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, LOOKS[look], id=f"{name}-{look}")
        for name, looks in (
            ("gpt", ["light", "dark", "phone"]),
            ("hostile", ["light", "phone"]),
            ("empty", ["light", "dark"]),
            ("first", ["dark"]),
            ("long", ["light"]),
            ("extreme", ["light"]),
        )
        for look in looks
    ],
)


def shown_range(page: Page, plot: str = "timeline-plot") -> tuple[float, float]:
    """Seconds at the ends of a plot's axis."""
    first, last = page.evaluate(f"document.getElementById('{plot}').layout.xaxis.range")
    return first, last


def column(table: Locator, number: int) -> list[str]:
    """What the cells of a column say, of the rows that are shown."""
    return table.locator(f"tbody tr:visible > :nth-child({number})").all_inner_texts()


def header(table: Locator, title: str) -> Locator:
    return table.locator("thead button", has_text=title)


def has_background(page: Page, colour: str) -> None:
    expect(page.locator("body")).to_have_css("background-color", colour)


def wait_until(page: Page, condition: Callable[[], bool]) -> None:
    """Return when a condition holds. Playwright's own way evaluates text, which the page's policy forbids."""
    for _ in range(100):
        if condition():
            return
        page.wait_for_timeout(50)
    pytest.fail("still not so after 5 s")


WHITE, DARK = "rgb(255, 255, 255)", "rgb(20, 24, 28)"


@each_look
def test_a_page_opens_and_everything_on_it_can_be_used_without_a_complaint(name: str, options: dict, open_page: Open):
    page = open_page(name, **options)
    for button in page.get_by_role("button").all():
        button.click()
    for radio in page.get_by_role("radio").all():
        radio.check()
    for box in page.get_by_role("checkbox").all():
        box.check()
    for choice in page.get_by_role("combobox").all():
        choice.select_option(index=choice.locator("option").count() - 1)
    for search in page.get_by_role("searchbox").all():
        search.fill("mlp")
    expect(page.get_by_role("heading", level=1)).to_be_visible()


@each_look
def test_a_page_breaks_no_rule_of_accessibility(name: str, options: dict, open_page: Open):
    found = Axe().run(open_page(name, **options))
    assert found.violations_count == 0, found.generate_report()


def test_a_click_on_a_title_sorts_and_another_one_turns_the_order(open_page: Open):
    table = open_page().locator("#rows-op")
    rows = column(table, 1)
    title = header(table, "waited")
    cell = table.locator("thead th").last
    assert cell.get_attribute("aria-sort") is None
    title.click()
    expect(cell).to_have_attribute("aria-sort", "descending")
    assert table.locator("[aria-sort]").count() == 1
    values = [float(each.get_attribute("data-value")) for each in table.locator("tbody td:last-child").all()]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) > 1
    title.click()
    expect(cell).to_have_attribute("aria-sort", "ascending")
    values = [float(each.get_attribute("data-value")) for each in table.locator("tbody td:last-child").all()]
    assert values == sorted(values)
    assert sorted(column(table, 1)) == sorted(rows)
    assert table.locator("tfoot th").inner_text() == "all"


def test_keys_sort_and_names_with_numbers_are_in_the_order_of_these(open_page: Open):
    page = open_page()
    table = page.locator("#rows-module")
    header(table, "module").focus()
    page.keyboard.press("Enter")
    names = column(table, 1)
    assert names.index("transformer.h.2.mlp") < names.index("transformer.h.10.mlp")
    page.keyboard.press("Space")
    assert column(table, 1) == names[::-1]


def test_a_filter_leaves_the_rows_that_have_the_words(open_page: Open):
    page = open_page()
    box, table = page.locator("#by-module"), page.locator("#rows-module")
    rows = column(table, 1)
    box.get_by_label("Filter").fill("  H.1.MLP ")
    assert column(table, 1) == [name for name in rows if "h.1.mlp" in name] != []
    expect(box.get_by_role("status")).to_have_text(f"3 of {len(rows)} rows")
    assert len(column(page.locator("#rows-op"), 1)) > 3
    header(table, "arrays").click()
    assert len(column(table, 1)) == 3
    box.get_by_label("Filter").fill("nothing of that name")
    assert column(table, 1) == []
    box.get_by_label("Filter").fill("")
    assert len(column(table, 1)) == len(rows)
    expect(box.get_by_role("status")).to_have_text("")


def drag(page: Page, plot: str, start: float, stop: float) -> None:
    """Drag across a plot, from one share of the width of its axes to another."""
    box = page.locator(f"#{plot} .nsewdrag").first.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + stop * box["width"], y, steps=5)
    page.mouse.up()


@pytest.mark.parametrize("plot", PLOTS)
def test_dragging_across_a_plot_zooms_all_and_a_double_click_shows_the_whole_run(plot: str, open_page: Open):
    page = open_page()
    first, last = shown_range(page)
    page.locator(f"#{plot}").scroll_into_view_if_needed()
    drag(page, plot, 0.25, 0.5)
    wait_until(page, lambda: shown_range(page)[0] > 0.5)
    width = last - first
    for each in PLOTS:
        assert shown_range(page, each) == pytest.approx((first + width / 4, first + width / 2), abs=width / 50)
    expect(page.locator("#window")).to_have_text(re.compile(r"^\d\.\d+ s to \d\.\d+ s$"))
    page.wait_for_timeout(500)  # the next click is no second one of the drag's
    page.locator(f"#{plot} .nsewdrag").first.dblclick()
    wait_until(page, lambda: shown_range(page) == (first, last))


def test_keys_zoom_move_and_show_a_step(open_page: Open):
    page = open_page()
    first, last = shown_range(page)
    width = last - first

    def press(name: str) -> tuple[float, float]:
        page.get_by_role("button", name=name).focus()
        page.keyboard.press("Enter")
        return shown_range(page)

    assert press("Zoom in") == pytest.approx((first + width / 4, first + width * 3 / 4))
    assert press("Later") == pytest.approx((first + width / 2, last))
    assert press("Later") == pytest.approx((first + width / 2, last))
    assert press("Earlier") == pytest.approx((first + width / 4, first + width * 3 / 4))
    assert press("Zoom out") == pytest.approx((first, last))
    page.locator("#step").select_option(label="3")
    began, ended = shown_range(page)
    assert ended - began == pytest.approx(width / 5, rel=0.1)
    assert began == pytest.approx(first + 2 * width / 5, rel=0.1)
    assert press("Whole run") == pytest.approx((first, last))
    expect(page.locator("#step")).to_have_value("")


def test_zooming_in_has_an_end_and_shows_single_spans(open_page: Open):
    page = open_page("long")
    page.evaluate("for (let i = 0; i < 60; i++) document.querySelector('[data-window=in]').click()")
    first, last = shown_range(page)
    assert 0 < last - first <= 0.0001


def test_of_many_spans_only_what_a_screen_can_show_is_drawn(open_page: Open):
    page = open_page("long")
    spans = page.evaluate("JSON.parse(document.getElementById('data').textContent).timeline.spans")
    drawn = page.locator("#timeline-plot .bars path").count()
    assert spans > 20_000
    assert 500 < drawn < 6_000
    page.locator("#step").select_option(label="70")
    assert 100 < page.locator("#timeline-plot .bars path").count() < 1_000


def test_a_bar_under_the_pointer_says_what_it_is(open_page: Open):
    page = open_page()
    page.locator("#step").select_option(label="2")
    page.evaluate("for (let i = 0; i < 3; i++) document.querySelector('[data-window=in]').click()")
    page.locator("#timeline-plot").scroll_into_view_if_needed()
    area = page.locator("#timeline-plot .nsewdrag").bounding_box()
    label = page.locator("#timeline-plot .hoverlayer .hovertext")
    seen = set()
    for bar in page.locator("#timeline-plot .trace.bars path").all():
        box = bar.bounding_box()
        left, right = max(box["x"], area["x"]), min(box["x"] + box["width"], area["x"] + area["width"])
        if right - left > 2:
            page.mouse.move((left + right) / 2, box["y"] + box["height"] / 2)
            expect(label).to_be_visible()
            seen.add(label.text_content())
    assert any("forward" in text or "backward" in text for text in seen)
    assert any(re.search(r"array \d+\d* ?.*MiB.*took .*ms.*from \d\.\d+ s", text) for text in seen), seen


def test_areas_of_modules_switch_between_measures(open_page: Open):
    page = open_page()
    plot = page.locator("#modules-plot")
    expect(plot).to_contain_text("everything  900 MiB")
    expect(plot).to_contain_text("h.3  75 MiB")
    page.get_by_role("radio", name="packed").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="written")).to_be_checked()
    expect(plot).to_contain_text("everything  675 MiB")
    page.get_by_role("radio", name="waiting").click()
    expect(plot).to_contain_text("everything  240 ms")
    page.get_by_label("Inside").select_option(label="transformer.h.3")
    expect(plot).to_contain_text("gelu()")
    expect(plot).not_to_contain_text("h.4")


def test_a_click_on_a_module_goes_inside_and_the_list_goes_along(open_page: Open):
    page = open_page()
    page.locator("#modules-plot").scroll_into_view_if_needed()
    box = page.locator("#modules-plot text.slicetext", has_text="h.5").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator("#inside")).to_have_value(re.compile(r"^[1-9]\d*$"))
    expect(page.locator("#modules-plot")).not_to_contain_text("h.4")


def test_where_motion_is_unwelcome_nothing_moves(open_page: Open):
    page = open_page(reduced_motion="reduce")
    moving = "[...document.querySelectorAll('*')].filter((e) => getComputedStyle(e).transitionDuration !== '0s').length"
    assert page.evaluate(moving) == 0
    tile = page.locator("#modules-plot g.slice", has_text="h.5")
    # Asked in the same breath: an animation would only have begun.
    after = tile.first.evaluate(
        "(tile) => { tile.dispatchEvent(new MouseEvent('click', {bubbles: true}));"
        " return document.getElementById('modules-plot').textContent; }"
    )
    assert "h.4" not in after
    assert page.evaluate("document.getAnimations().length") == 0


def test_colours_follow_the_system_until_somebody_chooses(open_page: Open):
    page = open_page(color_scheme="light")
    has_background(page, WHITE)
    page.emulate_media(color_scheme="dark")
    has_background(page, DARK)
    plot = "document.getElementById('ram-plot').layout.paper_bgcolor"
    assert page.evaluate(plot) == "#14181c"
    page.get_by_role("button", name="Light colours").click()
    has_background(page, WHITE)
    assert page.evaluate(plot) == "#ffffff"
    page.emulate_media(color_scheme="light")
    page.emulate_media(color_scheme="dark")
    has_background(page, WHITE)
    page.get_by_role("button", name="Dark colours").click()
    has_background(page, DARK)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_page_scrolls_sideways_but_tables_do_in_their_box(name: str, width: int, open_page: Open):
    page = open_page(name, viewport={"width": width, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for box in page.locator(".scroll").all():
        edges = box.bounding_box()
        assert edges["x"] >= 0
        assert edges["x"] + edges["width"] <= width
    if name == "gpt" and width == 360:
        assert page.locator("#by-module .scroll").evaluate("(box) => box.scrollWidth > box.clientWidth")


def test_plots_take_the_width_that_a_turned_phone_has(open_page: Open):
    page = open_page(**PHONE)
    width = "document.querySelector('#timeline-plot svg').clientWidth"
    page.set_viewport_size({"width": 740, "height": 360})
    wait_until(page, lambda: page.evaluate(width) > 600)
    page.set_viewport_size({"width": 360, "height": 740})
    wait_until(page, lambda: page.evaluate(width) < 360)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_hostile_names_are_shown_as_they_are_and_do_nothing(open_page: Open):
    page = open_page("hostile")
    assert page.locator("main img, main script, main b, main iframe").count() == 0
    assert page.evaluate("document.scripts.length") == open_page("gpt").evaluate("document.scripts.length")
    for place in ("#rows-module", "#rows-op", "#rows-dtype", ".settings", ".failures", ".state", "h1"):
        assert HOSTILE_SHOWN[:60].replace("/", "") in page.locator(place).first.inner_text().replace("/", ""), place
    tile = page.locator("#modules-plot .slicetext").filter(has_text="<img src=x")
    expect(tile).not_to_have_count(0)
    page.locator("#timeline-plot").scroll_into_view_if_needed()
    box = page.locator("#timeline-plot .nsewdrag").bounding_box()
    seen = ""
    for share in range(5, 100, 5):
        page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] * share / 100)
        page.wait_for_timeout(80)
        seen += " ".join(page.locator("#timeline-plot .hoverlayer").all_text_contents())
    assert "<img src=x onerror=alert(1)></script><script>alert(2)</script>" in seen
    assert "<b>bold</b>" in seen
    assert HOSTILE not in page.content()


def test_all_that_can_be_used_is_reached_by_the_tab_key_and_seen_there(open_page: Open):
    page = open_page()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    expect(page.locator(".skip")).to_be_in_viewport()
    wanted = page.evaluate(
        "[...document.querySelectorAll('a[href], button, input, select, [tabindex=\"0\"]')]"
        ".filter((e) => e.type !== 'radio' || e.checked).map((e, i) => e.dataset.place = String(i)).length"
    )
    reached = []
    for _ in range(wanted + 1):
        place = page.evaluate("document.activeElement.dataset.place")
        if place is None or place in reached:
            break
        reached.append(place)
        # Of the hidden radio button it is the label that is outlined.
        outline = page.evaluate(
            "(() => { const e = document.activeElement, seen = e.type === 'radio' ? e.nextElementSibling : e;"
            " return getComputedStyle(seen).outlineStyle; })()"
        )
        assert outline == "solid", page.evaluate("document.activeElement.outerHTML")
        page.keyboard.press("Tab")
    assert reached == [str(place) for place in range(wanted)]


def test_the_skip_link_goes_to_the_content(open_page: Open):
    page = open_page()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_plots_have_words_for_who_cannot_see_them(open_page: Open):
    page = open_page()
    words = {plot: page.locator(f"#{plot}").get_attribute("aria-label") for plot in (*PLOTS, "modules-plot")}
    assert "of a budget of 64 MiB" in words["ram-plot"]
    assert "135 MiB on the disk" in words["disk-plot"]
    assert "reading ahead" in words["timeline-plot"]
    assert "table by module" in words["modules-plot"]


def test_memory_of_the_process_is_shown_when_asked(open_page: Open):
    page = open_page()
    top = "document.getElementById('ram-plot').layout.yaxis.range[1]"
    before = page.evaluate(top)
    page.get_by_label("Show all memory of the process").check()
    assert page.evaluate(top) > 4 * before
    expect(page.locator("#ram-legend")).to_contain_text("all of the process")


def test_the_budget_is_a_line_and_parts_of_ram_are_a_stack(open_page: Open):
    page = open_page()
    shapes = page.evaluate("document.getElementById('ram-plot').layout.shapes.map((s) => s.y0)")
    assert shapes == [64 << 20]
    groups = page.evaluate("document.getElementById('ram-plot').data.map((trace) => trace.stackgroup)")
    assert groups == ["ram"] * 5


def test_without_scripts_the_numbers_are_there(open_page: Open):
    page = open_page(java_script_enabled=False)
    expect(page.locator("noscript p")).to_be_visible()
    expect(page.locator("#rows-op")).to_contain_text("scaled_dot_product_attention")
    expect(page.get_by_role("button", name="Zoom in")).to_have_count(0)


def test_an_empty_run_says_so_in_place_of_every_plot(open_page: Open):
    page = open_page("empty")
    assert page.locator(".plot").count() == 0
    assert page.locator(".empty:visible").count() >= 6


def test_a_journal_of_the_first_version_has_the_plots_it_can(open_page: Open):
    page = open_page("first")
    assert page.locator("#ram-plot").count() == 0
    expect(page.locator("#timeline-plot .bars path").first).to_be_attached()
    expect(page.locator("#modules-plot")).to_contain_text("75 MiB")
