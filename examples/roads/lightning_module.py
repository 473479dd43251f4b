"""Lightning's own loop, with its automatic optimisation: losses per record in place of a training step."""

import lightning
import torch
from torch import nn

import sordino as sd
from sordino.integrations import Privacy
from sordino.integrations.lightning import PrivateModule


class Classifier(PrivateModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))

    def record_losses(self, x, y):
        return nn.functional.cross_entropy(self.net(x), y, reduction="none")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


x = torch.randn(2000, 20)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > x[:, 1]).long())
module = Classifier()
lots = module.make_private(
    data, Privacy.target(epsilon=3.0, delta=1e-5, bound=1.0), sd.Poisson(rate=0.05), steps=100, expected_batch=100
)
trainer = lightning.Trainer(
    max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(module, lots)
print(module.claim())
