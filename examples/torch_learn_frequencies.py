"""Learning the frequencies of a rotary embedding: the tables require grad, and the gradient reaches what made them.

A teacher scores queries against keys by their distance with hidden frequencies. The student starts with those of a
longer context and learns them from the scores.
"""

import torch

import gyrograd.torch as gt

torch.manual_seed(0)
ROWS, PAIRS, STEPS = 32, 8, 60
positions = torch.arange(float(ROWS))
hidden = torch.logspace(0, -2, PAIRS)
logarithms = torch.linspace(0, -2.6, PAIRS).requires_grad_()  # base 10, of what is learned


def scores(q: torch.Tensor, k: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Of [batch, rows, heads, channels], with one table value a pair."""
    angles = torch.outer(positions, frequencies)[None, :, None]
    q, k = gt.rotary_qk(q, k, angles.cos(), angles.sin(), per_pair_tables=True)
    return torch.einsum("bqhd,bkhd->bhqk", q, k)


optimizer = torch.optim.Adam([logarithms], lr=0.03)
losses = []
for step in range(STEPS + 1):
    q, k = torch.randn(2, 4, ROWS, 2, 2 * PAIRS)
    loss = (scores(q, k, 10**logarithms) - scores(q, k, hidden)).square().mean()
    losses.append(loss.item())
    if step % 10 == 0:
        print(f"step {step:3d}  loss {losses[-1]:8.4f}")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("learned:", " ".join(f"{value:.4f}" for value in (10**logarithms).tolist()))
print("hidden: ", " ".join(f"{value:.4f}" for value in hidden.tolist()))
assert losses[-1] < losses[0] / 10, "the frequencies were not learned"
