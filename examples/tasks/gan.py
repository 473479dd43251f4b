"""A GAN: the discriminator is private; the generator is trained through it, which is post-processing and costs nothing."""

import torch
from torch.nn import Linear, ReLU, Sequential, functional

import sordino as sd

data = torch.utils.data.TensorDataset(torch.randn(400, 2) + 3.0)
generator, critic = (Sequential(Linear(n, 16), ReLU(), Linear(16, m)) for n, m in ((4, 2), (2, 1)))


def loss_fn(d, x):  # a record, and a fake of its own
    return (functional.softplus(-d(x)) + functional.softplus(d(generator(torch.randn(len(x), 4)).detach())))[:, 0]


private = sd.Private(critic, loss_fn, epsilon=5.0, delta=1e-5)
critic_optimizer, optimizer = (torch.optim.Adam(net.parameters(), lr=0.01) for net in (critic, generator))
for lot in private.draws(data, batch_size=40, epochs=3):
    private.backward(lot)
    critic_optimizer.step()
    with private.post_processing("the generator is trained through the discriminator"):
        optimizer.zero_grad()
        functional.softplus(-critic(generator(torch.randn(40, 4)))).mean().backward()
        optimizer.step()
print(private.claim(delta=1e-5))
