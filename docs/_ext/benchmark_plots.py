"""Draws the plots of the benchmarks as SVG files that can be read on a light and on a dark page."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

# Each has a contrast of at least 3 with white, and with the dark theme's background.
INK, RULE = "#7d8590", "#7d859066"
COLORS = ("#3f86cf", "#d07a2d", "#3f9a63")
STYLE: dict[str, Any] = {
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": RULE, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.facecolor": "none", "figure.facecolor": "none",
    "font.size": 9, "legend.frameon": False, "grid.color": RULE, "grid.linewidth": 0.5, "svg.hashsalt": "spillgrad",
    "svg.fonttype": "path",
}  # fmt: skip


def dots(path: Path, points: Mapping[str, Mapping[str, Sequence[float]]], label: str) -> None:
    """Draw a line for each group, with a dot for each ratio; the series of a group lie below each other."""
    with matplotlib.rc_context(STYLE):
        names = list(points)
        series = list(dict.fromkeys(name for of_group in points.values() for name in of_group))
        figure = Figure(figsize=(7, 0.8 + 0.36 * len(names)), layout="constrained")
        axes = figure.subplots()
        axes.axvline(1, color=INK, linewidth=1)
        for number, name in enumerate(series):
            offset = (number - (len(series) - 1) / 2) * 0.3
            found = [(ratio, row + offset) for row, group in enumerate(names) for ratio in points[group].get(name, ())]
            xs, ys = [x for x, _ in found], [y for _, y in found]
            axes.plot(xs, ys, "o", color=COLORS[number], alpha=0.75, markersize=4.5, linewidth=0, label=f"× {name}")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(matplotlib.ticker.FixedLocator([0.5, 1, 2, 5, 10]))
        axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ratios = [ratio for group in points.values() for found in group.values() for ratio in found]
        axes.set_xlim(min(0.45, *(ratio / 1.1 for ratio in ratios)), max(13, *(ratio * 1.1 for ratio in ratios)))
        axes.grid(axis="x")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel(label)
        axes.legend(loc="lower right")
        _save(figure, path)


def bars(path: Path, labels: Sequence[str], series: Mapping[str, Sequence[float]]) -> None:
    """Draw a panel of horizontal bars for each series, one bar for each label."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 0.8 + 0.34 * len(labels)), layout="constrained")
        panels = figure.subplots(1, len(series), sharey=True, squeeze=False)[0]
        for number, (axes, (name, values)) in enumerate(zip(panels, series.items(), strict=True)):
            drawn = axes.barh(range(len(labels)), values, color=COLORS[number], height=0.6)
            axes.bar_label(drawn, [f"{value:.3g}" for value in values], padding=3)
            axes.set_xlabel(name)
            axes.set_xlim(0, max(values) * 1.2)
            axes.set_yticks(range(len(labels)), labels)
            axes.set_ylim(len(labels) - 0.5, -0.5)
        _save(figure, path)


def marks(path: Path, points: Sequence[tuple[str, float, float]], across: str, up: str) -> None:
    """Draw a numbered mark at each point (name, x, y), and the names beside the plot."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 3.6), layout="constrained")
        axes = figure.subplots()
        for number, (name, x, y) in enumerate(points, 1):
            axes.plot([x], [y], "o", color=COLORS[0], markersize=5, label=f"{number}  {name}")
            axes.annotate(str(number), (x, y), xytext=(4, 3), textcoords="offset points")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid()
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        figure.legend(loc="outside right upper", handlelength=0, markerscale=0, fontsize=8)
        _save(figure, path)


def curves(path: Path, panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], across: str, up: str) -> None:
    """Draw a panel for each entry, with a line for each series of points (x, y); x doubles from mark to mark."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 2.8), layout="constrained")
        found = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (title, series) in zip(found, panels.items(), strict=True):
            for number, (name, points) in enumerate(series.items()):
                xs, ys = zip(*points, strict=True)
                axes.plot(xs, ys, "o-", color=COLORS[number], markersize=3, linewidth=1, label=name)
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.set_ylim(0, 1.05)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
            axes.grid()
            axes.set_title(title, fontsize=9)
            axes.set_xlabel(across)
        found[0].set_ylabel(up)
        figure.legend(*found[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(COLORS))
        _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    made = io.StringIO()
    figure.savefig(made, format="svg", transparent=True, metadata={"Date": None})
    if not path.exists() or path.read_text() != made.getvalue():
        path.write_text(made.getvalue())
