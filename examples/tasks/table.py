"""A table: a classifier with scikit-learn's interface. Bounds of columns and names of classes are public."""

import numpy as np

from sordino.integrations.sklearn import DPClassifier

rng = np.random.default_rng(0)
x = np.column_stack([rng.uniform(18, 90, 2000), rng.uniform(0, 80, 2000)])  # age and weekly hours
y = np.where(x.sum(1) + rng.normal(0, 10, 2000) > 95, "high", "low")

model = DPClassifier(epsilon=1.0, delta=1e-5, low=[18, 0], high=[90, 80], classes=["high", "low"], epochs=10, lot=200)
model.fit(x[:1600], y[:1600])
print(f"accuracy on held-out rows: {model.score(x[1600:], y[1600:]):.2f}")
print(model.claim_)
