"""Stop and go on: the state holds the ledger, so nothing that was spent is forgotten."""

import torch

import sordino as sd

data = torch.utils.data.TensorDataset(x := torch.randn(1000, 4), (x[:, 0] > 0).long())


def train(saved, until):
    """Trains up to a step, from the saved states where there are any."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    private = sd.Private(model, lambda m, x, y: loss(m(x), y), sd.NoisySum(sd.Flat(1.0), sd.Gaussian(2.0)))
    for part, state in zip((model, optimizer, private), saved, strict=False):
        part.load_state_dict(state)
    for lot in private.draws(data, sd.Poisson(0.05), until - private.steps, expected_batch=50):
        private.backward(lot)
        optimizer.step()
    return [model.state_dict(), optimizer.state_dict(), private.state_dict()], private.claim(delta=1e-5)


saved, _ = train([], until=15)  # torch.save(saved, file), and torch.load(file) in the next process
print(train(saved, until=40)[1])
