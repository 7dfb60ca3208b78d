"""Presents the results of the flights pipeline as two tables and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from examples.flights.dataset import AIRPORTS
from examples.flights.verify import Results
from rich.box import SIMPLE_HEAD
from rich.table import Table

LOCAL_TIME = "America/New_York"
WORST_HOURS = 5
FEWEST_DEPARTURES = 10  # hours with fewer are not listed
COLOURS = {"EWR": "#c1502e", "JFK": "#1f6f8b", "LGA": "#7a8b2f"}
RAIN_INCHES = [-0.01, 0.0, 0.05, 0.2, 10]
RAIN_WORDS = ["dry", "up to 0.05", "0.05 to 0.2", "more than 0.2"]


def airports_table(results: Results) -> Table:
    """Return a table of the delays per airport."""
    table = Table(title="Departures by airport", box=SIMPLE_HEAD, title_justify="left")
    for title in ("airport", "flights", "cancelled", "mean delay", "worst month"):
        table.add_column(title, justify="left" if title == "airport" else "right", no_wrap=True)
    sums = results.delays.groupby("origin")[["flights", "departed", "delay_sum"]].sum()
    by_month = _mean_delay(
        results.delays, results.delays["hour"].dt.tz_convert(LOCAL_TIME).dt.month
    )
    for origin, row in sums.iterrows():
        months = by_month[origin]
        table.add_row(
            f"{origin} {AIRPORTS[str(origin)]}",
            f"{row['flights']:,.0f}",
            f"{row['flights'] - row['departed']:,.0f}",
            f"{row['delay_sum'] / row['departed']:.1f} min",
            f"{pd.Timestamp(2013, int(months.idxmax()), 1):%B} ({months.max():.1f} min)",
        )
    return table


def worst_hours_table(results: Results) -> Table:
    """Return a table of the hours with the longest mean delay, with their weather."""
    title = f"Worst hours (of those with {FEWEST_DEPARTURES} departures or more)"
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    # Short names: the table must fit into a terminal of 80 columns.
    for name in ("from", "hour (local)", "flights", "delay", "rain", "wind", "visibility"):
        is_text = name in ("from", "hour (local)")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    weather = results.in_weather.groupby(["origin", "time_hour"]).first()
    busy = results.delays[results.delays["departed"] >= FEWEST_DEPARTURES]
    worst = busy.sort_values(["delay", "hour"], ascending=[False, True]).head(WORST_HOURS)
    for row in worst.itertuples():
        at = (
            weather.loc[(row.origin, row.hour)] if (row.origin, row.hour) in weather.index else None
        )
        table.add_row(
            row.origin,
            f"{row.hour.tz_convert(LOCAL_TIME):%a %d %b, %H:00}",
            f"{row.departed:,}",
            f"{row.delay:.0f} min",
            "-" if at is None else f"{at['precip']:.2f} in",
            "-" if at is None else f"{at['wind_speed']:.0f} mph",
            "-" if at is None else f"{at['visib']:.1f} mi",
        )
    return table


def _mean_delay(delays: pd.DataFrame, by: pd.Series[Any]) -> pd.DataFrame:
    """Return the mean delay in minutes, with a column for each airport."""
    sums = delays.groupby([by, "origin"])[["delay_sum", "departed"]].sum()
    return (sums["delay_sum"] / sums["departed"]).unstack()


def plot(results: Results, path: Path) -> None:
    """Plot the delay by hour and by rain."""
    import matplotlib  # noqa: PLC0415 - takes a second to load

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(12, 5), layout="constrained", width_ratios=(3, 2)
    )
    count = results.delays["flights"].sum()
    figure.suptitle(
        f"Departure delays of New York's airports, 2013 ({count:,} flights)",
        fontsize=14,
        fontweight="bold",
    )
    local = results.delays["hour"].dt.tz_convert(LOCAL_TIME).dt.hour
    by_hour = _mean_delay(results.delays[local >= 5], local[local >= 5])
    for origin, colour in COLOURS.items():
        left.plot(
            by_hour.index,
            by_hour[origin],
            color=colour,
            marker="o",
            ms=4,
            lw=2,
            label=f"{AIRPORTS[origin]} ({origin})",
        )
    left.set(
        title="Delay grows over the day",
        xlabel="scheduled hour of departure, local time",
        ylabel="mean delay, minutes",
        xticks=range(5, 24, 2),
        xticklabels=[f"{hour}:00" for hour in range(5, 24, 2)],
    )
    left.axhline(0, color="#888888", lw=0.8)
    left.legend(frameon=False)
    _plot_rain(right, results.in_weather)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", lw=0.8)
        axes.set_axisbelow(True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _plot_rain(axes: Any, flights: pd.DataFrame) -> None:
    rain = pd.cut(flights["precip"], RAIN_INCHES, labels=RAIN_WORDS)
    grouped = flights.groupby([rain, "origin"], observed=True)["dep_delay"].mean().unstack()
    width = 0.26
    for number, (origin, colour) in enumerate(COLOURS.items()):
        positions = [x + (number - 1) * width for x in range(len(grouped))]
        bars = axes.bar(positions, grouped[origin], width * 0.92, color=colour, label=origin)
        axes.bar_label(bars, fmt="%.0f", fontsize=8, color="#444444")
    axes.set(
        title="Delay grows with rain",
        xlabel="rain in the hour of departure, inches",
        ylabel="mean delay, minutes",
        xticks=range(len(grouped)),
        xticklabels=list(grouped.index),
    )
    axes.legend(frameon=False)
