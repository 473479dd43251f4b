"""TensorBoard: ε so far, learning rate and gradient length. Nothing in it is private: the loss has noise."""

import tempfile

import torch

import sordino as sd

x = torch.randn(500, 4)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
loss_fn = lambda model, x, y: torch.nn.functional.cross_entropy(model(x), y, reduction="none")  # noqa: E731
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
query = sd.WithLoss(sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.5)), bound=2.0, noise=sd.Gaussian(5.0))
private = sd.Private(model, loss_fn, query)
log = sd.Log.tensorboard(tempfile.mkdtemp(), every=10)  # then: tensorboard --logdir FOLDER
for lot in private.draws(data, sd.Poisson(0.1), 20, expected_batch=50):
    private.backward(lot)
    log.step(private, optimizer, delta=1e-5)
    optimizer.step()
log.end(private, delta=1e-5)
print(private.claim(delta=1e-5))
