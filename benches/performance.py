#!/usr/bin/env python3
"""Makes docs/performance.md, and the charts beside it, from what benches/all.sh has measured.

    python3 benches/performance.py FOLDER [PAGE]

The page's own words are in benches/performance.in.md; a line `{{name}}` stands for the file `name`
of the folder, `{{run}}` for the version and the machine. Missing figures are named as such.
"""

import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(folder):
    """The version and the machine of the figures."""
    version = (folder / "version").read_text().strip() if (folder / "version").exists() else "unknown"
    stops = (folder / "stops.md").read_text() if (folder / "stops.md").exists() else ""
    machine = re.search(r"^(.+); \d+ rounds\.$", stops, flags=re.M)
    return f"Version {version}; {machine[1] if machine else 'unknown machine'}."


def main():
    folder = pathlib.Path(sys.argv[1])
    page = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs" / "performance.md"
    charts = page.parent / "performance"
    shutil.rmtree(charts, ignore_errors=True)
    charts.mkdir(parents=True)
    for chart in sorted(folder.glob("*.svg")):
        shutil.copy(chart, charts)

    def included(match):
        name = match[1]
        if name == "run":
            return run(folder)
        if not (folder / name).exists():
            return f"({name} was not measured.)"
        if name.endswith(".svg"):
            return f"![{name.removesuffix('.svg')}](performance/{name})"
        # Headings one or two levels below the page's own.
        return re.sub(r"^(#+) ", r"##\1 ", (folder / name).read_text().strip(), flags=re.M)

    text = (ROOT / "benches" / "performance.in.md").read_text()
    page.write_text(re.sub(r"^\{\{(.+)\}\}$", included, text, flags=re.M))


if __name__ == "__main__":
    main()
