"""Take the README's picture of a report, from its top to its timeline.

python -m spillgrad_tools train --steps 8 --out runs/picture --report
python -m tests.page.screenshot runs/picture/report.html docs/_static/report.webp
"""

import base64
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def take(report: Path, picture: Path) -> None:
    """Write a picture of a report."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 1000}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        plot = page.locator("#timeline-plot").bounding_box()
        assert plot
        clip = {"x": 0, "y": 0, "width": 1000, "height": plot["y"] + plot["height"], "scale": 1}
        # Chromium writes WebP, which Playwright does not ask for: half the bytes.
        session = page.context.new_cdp_session(page)
        options = {"format": "webp", "quality": 75, "clip": clip, "captureBeyondViewport": True}
        picture.write_bytes(base64.b64decode(session.send("Page.captureScreenshot", options)["data"]))
        browser.close()


if __name__ == "__main__":
    take(*map(Path, sys.argv[1:]))
