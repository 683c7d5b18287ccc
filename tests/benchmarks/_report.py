"""One report of all results: what was measured on which machine, versus what, and how much faster ours is."""

import re
import statistics
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks._common import RESULTS, markdown_table

REPORT, IMAGE = RESULTS / "README.md", RESULTS / "README.png"
MACHINES = ("GPU", "CPU", "Machine")  # the facts that name one
OF_A_RUN = ("Commit", "Command")
RATIO = re.compile(r"(?P<peer>.+) / (?:ours|chosen)$|times faster$")


@dataclass
class Result:
    """What a benchmark wrote; of its tables, the first that has a ratio, or else the first."""

    path: Path
    title: str
    facts: dict
    header: list
    rows: list
    images: list

    @classmethod
    def read(cls, path):
        text = path.read_text()
        facts = dict(re.findall(r"^- ([^:\n]+): (.*)$", text, flags=re.MULTILINE))
        tables = [_cells(table) for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)]
        timed = (table for table in tables if any(map(RATIO.match, table[0])))
        header, _, *rows = next(timed, tables[0])
        images = re.findall(r"!\[.*\]\(.*\)", text)
        return cls(path, re.match("# (.*)", text)[1], facts, header, rows, images)

    @property
    def machine(self):
        return next(self.facts[name] for name in MACHINES if name in self.facts)

    @property
    def peer(self):
        return RATIO.match(self.header[self._ratio])["peer"] or "TVM's own"

    @property
    def ratios(self):
        """How many times faster than the peer, in each case."""
        return [float(row[self._ratio]) for row in self.rows if row[self._ratio] not in ("-", "")]

    @property
    def is_timed(self):
        return any(map(RATIO.match, self.header))

    @property
    def _ratio(self):
        return next(place for place, name in enumerate(self.header) if RATIO.match(name))


def write():
    """Write the report and its image, and return a message about them."""
    found = results()
    image = draw([result for result in found if result.is_timed])
    REPORT.write_text(compose(found))
    return f"Written to {REPORT}; {image}."


def results():
    """All results, those of one machine together, GPUs first."""
    found = [Result.read(path) for path in sorted(RESULTS.glob("*.md")) if path != REPORT]
    return sorted(found, key=lambda result: ("GPU" not in result.facts, result.machine))


def compose(found):
    """The report."""
    parts = [
        "# Benchmarks",
        "Composed by `python -m tests.benchmarks.run` from the other files in this folder. Each is named "
        "after the benchmark that wrote it, most also after the machine, and explains its columns.",
        f"![How many times faster]({IMAGE.name})",
    ]
    for machine in dict.fromkeys(result.machine for result in found):
        of_it = [result for result in found if result.machine == machine]
        parts += [
            f"## {machine}",
            environment(of_it),
            summary([result for result in of_it if result.is_timed]),
        ]
        for result in of_it:
            parts += [f"### {result.title}", markdown_table(result.header, result.rows), *result.images]
    return "\n\n".join(parts) + "\n"


def environment(found):
    """What the results of a machine say about it, whether all or only some do."""
    said = {}
    for result in found:
        for name, fact in result.facts.items():
            if name in OF_A_RUN:
                continue
            said.setdefault(name, {})[fact] = None
    return "\n".join(f"- {name}: {'; '.join(facts)}" for name, facts in said.items())


def summary(found):
    rows = []
    for result in found:
        least, median, most = (f"{each:.2f}" for each in spread(result.ratios))
        link = f"[{result.title}]({result.path.name})"
        rows.append([link, result.peer, str(len(result.ratios)), least, median, most])
    return markdown_table(["times faster", "than", "cases", "least", "median", "most"], rows)


def spread(ratios):
    return min(ratios), statistics.median(ratios), max(ratios)


def draw(found):
    """Draw a dot for each case, and a line where ours is as fast as the peer."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "its image is as it was, for matplotlib is not installed"
    figure = Figure(figsize=(9, 0.45 * len(found) + 1), layout="tight")
    axis = figure.subplots()
    for place, result in enumerate(found):
        colour = "tab:green" if "GPU" in result.facts else "tab:blue"
        axis.plot(result.ratios, [place] * len(result.ratios), "o", color=colour, alpha=0.35, mew=0)
        axis.plot(statistics.median(result.ratios), place, "|", color=colour, markersize=16, mew=2.5)
    axis.axvline(1, color="black", linewidth=1)
    labels = [f"{result.title}\nversus {result.peer}, {result.machine}" for result in found]
    axis.set_yticks(range(len(found)), labels, fontsize=7)
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel="times faster; a dot is a case, a line the median")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.grid(axis="x", alpha=0.3)
    figure.savefig(IMAGE, dpi=110)
    return f"image: {IMAGE}"


def _cells(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
