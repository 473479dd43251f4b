"""Several processes train one model: `torchrun --nproc-per-node 2 torchrun.py`. The claim is the same on any number."""

import torch
import torch.distributed as dist

import sordino as sd

dist.init_process_group("gloo")  # "nccl" on GPUs
torch.manual_seed(0)
x = torch.randn(500, 4)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
loss_fn = lambda model, x, y: torch.nn.functional.cross_entropy(model(x), y, reduction="none")  # noqa: E731
model = torch.nn.Linear(4, 2)
private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.5)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for lot in private.draws(data, sd.Poisson(0.1), 10, expected_batch=50):
    private.backward(lot)  # every rank computes its share of the lot
    optimizer.step()
if dist.get_rank() == 0:
    print(private.claim(delta=1e-5))
dist.destroy_process_group()
