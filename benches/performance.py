#!/usr/bin/env python3
"""Makes docs/performance.md, and the charts beside it, from what benches/all.sh has measured.

    python3 benches/performance.py FOLDER [PAGE]

The page's own words are in benches/performance.in.md. There `{{run}}` stands for the version and the
machine, `{{name.svg}}` for a chart of the folder, and

    {{name.md: COLUMN | COLUMN; ROWS}}

for all tables of a file that have these columns in this order: these columns alone, and of the rows
those that the regular expression ROWS finds. Both may take several lines. Missing figures are named
as such.
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


def tables(text):
    """The tables: each with the heading above it, and its lines as lists of cells."""
    heading, table = "", []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip("|").split("|")])
        elif table:
            yield heading, table
            table = []
        if line.startswith("#"):
            heading = line.lstrip("# ")


def places(header, columns):
    """Where the columns are, in their order; nothing if one is missing."""
    found = []
    for column in columns:
        if column not in header[found[-1] + 1 if found else 0:]:
            return None
        found.append(header.index(column, found[-1] + 1 if found else 0))
    return found


def picked(text, columns, rows):
    """These columns and rows of the tables that have them. Several have their headings in front."""
    having = ((heading, table, places(table[0], columns)) for heading, table in tables(text))
    found = [(heading, table, at) for heading, table, at in having if at]
    lines = []
    for heading, table, at in found:
        header, rule, *body = [[cells[i] for i in at] for cells in table]
        body = [cells for cells in body if re.search(rows, " | ".join(cells))]
        if len(found) > 1:
            header, rule = ["", *header], ["---", *rule]
            body = [[heading if i == 0 else "", *cells] for i, cells in enumerate(body)]
        lines += ([] if lines else [header, rule]) + body
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main():
    folder = pathlib.Path(sys.argv[1])
    page = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs" / "performance.md"
    charts = page.parent / "performance"
    shutil.rmtree(charts, ignore_errors=True)
    charts.mkdir(parents=True)

    def included(match):
        name, columns, rows = match.groups(default="")
        if name == "run":
            return run(folder)
        if not (folder / name).exists():
            return f"({name} was not measured.)"
        if name.endswith(".svg"):
            shutil.copy(folder / name, charts)
            return f"![{name.removesuffix('.svg')}](performance/{name})"
        columns = [column.strip() for column in columns.split("|")]
        return picked((folder / name).read_text(), columns, rows.replace("\n", ""))

    text = (ROOT / "benches" / "performance.in.md").read_text()
    page.write_text(re.sub(r"^\{\{([\w.-]+)(?:: ([^;}]+))?(?:; ([^}]+))?\}\}$", included, text, flags=re.M))


if __name__ == "__main__":
    main()
