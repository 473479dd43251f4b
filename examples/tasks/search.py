"""A search for hyper-parameters that is in the claim: the best of a secret, random number of trials (`sordino tune`)."""

import tempfile
from pathlib import Path

from sordino.app.runs.search import NegativeBinomial, carry_out_search, plan_search
from sordino.app.runs.settings import make_settings

settings = make_settings("spiral", {"epsilon": 4.0, "steps": 20, "records": 500})
planned = plan_search(settings, {"learning_rate": [0.1, 0.5, 1.0]}, NegativeBinomial(2.0))
found = carry_out_search(planned, Path(tempfile.mkdtemp()) / "search")
print(found.claim)
