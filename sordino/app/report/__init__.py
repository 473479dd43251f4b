"""What a run has to show: `report.html`, `PRIVACY.md`, and runs side by side."""

from sordino.app.report.evidence import Evidence, read
from sordino.app.report.statement import Statement
from sordino.app.report.write import write

__all__ = ["Evidence", "Statement", "read", "write"]
