"""scikit-learn's interface for a table: columns with public bounds, classes with public names."""

import numpy as np

from sordino.integrations.sklearn import DPClassifier

rng = np.random.default_rng(0)
age, hours = rng.uniform(18, 90, 3000), rng.uniform(0, 80, 3000)
x = np.column_stack([age, hours])
y = np.where(age + hours + rng.normal(0, 10, 3000) > 95, "high", "low")
held_out = x[2500:].copy()

model = DPClassifier(epsilon=1.0, delta=1e-5, low=[18, 0], high=[90, 80], classes=["high", "low"], epochs=10, lot=200)
model.fit(x[:2500], y[:2500])
print(f"accuracy {model.score(held_out, y[2500:]):.2f}")
print(model.claim_)
