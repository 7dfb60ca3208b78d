"""The notebook runs from its first cell to its last, and its saved results are those of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="the notebook needs nbformat")
nbclient = pytest.importorskip("nbclient", reason="the notebook needs nbclient and ipykernel")
pytest.importorskip("ipykernel", reason="the notebook needs ipykernel")
pytest.importorskip("pyspark", reason="the notebook needs the spark extra")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook" / "live_plot.ipynb"
CELL_SECONDS = 280


def results(notebook: Any) -> tuple[str, int]:
    """Return what the cells printed, and the number of pictures."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(each.text for each in outputs if each.get("name") == "stdout")
    pictures = [each for each in outputs if "image/png" in each.get("data", {})]
    return printed, len(pictures)


def check(notebook: Any) -> None:
    printed, pictures = results(notebook)
    assert "ready: kafka" in printed
    assert "1,100 of 1,100 records counted" in printed
    assert pictures == 1


def test_the_saved_notebook_has_the_results_of_a_run() -> None:
    check(nbformat.read(NOTEBOOK, 4))
    assert '"stderr"' not in NOTEBOOK.read_text(), "save it without what libraries log"


def test_the_notebook_runs_to_its_end() -> None:
    notebook = nbformat.read(NOTEBOOK, 4)
    # The project is installed.
    notebook.cells = [
        cell for cell in notebook.cells if "install" not in cell.metadata.get("tags", [])
    ]
    for cell in notebook.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell.outputs = []
    resources = {"metadata": {"path": str(NOTEBOOK.parent)}}
    nbclient.NotebookClient(notebook, timeout=CELL_SECONDS, resources=resources).execute()
    check(notebook)
