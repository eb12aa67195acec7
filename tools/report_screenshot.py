"""Make the README's picture of a report: `python -m tools.report_screenshot DATASET docs/report.png`.

Needs Chromium. The same dataset and version of the browser give the same picture.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

import wdsplit

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def screenshot(page: Path, picture: Path, width: int, height: int) -> None:
    """Write a PNG of the top of a page."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise SystemExit(f"none of {', '.join(PROGRAMS)} is installed")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},{height}"]
    subprocess.run([program, *options, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=1060)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        wdsplit.report(arguments.dataset, page, wdsplit.ReportOptions(samples=16))
        screenshot(page, arguments.picture.resolve(), arguments.width, arguments.height)


if __name__ == "__main__":
    main()
