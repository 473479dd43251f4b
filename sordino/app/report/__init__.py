"""Reports about runs: `report.html`, `PRIVACY.md`, and comparisons of several runs."""

from sordino.app.report.evidence import Evidence, read
from sordino.app.report.statement import Statement
from sordino.app.report.write import write

__all__ = ["Evidence", "Statement", "read", "write"]
