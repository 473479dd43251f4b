"""What a run has to show: `report.html`, `PRIVACY.md`, and runs side by side."""

from sordino.report.evidence import Evidence, read
from sordino.report.statement import Statement
from sordino.report.write import write

__all__ = ["Evidence", "Statement", "read", "write"]
