"""A model of transformers, switched to gyrograd by one line: the same training with stock and with gyrograd, side by
side.
"""

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from gyrograd.integrations.transformers import switch_to_gyrograd

STEPS, TOKENS, WIDTH = 60, 48, 24


def train(model: Qwen3ForCausalLM) -> list[float]:
    """Losses of learning to count: each sequence goes up by a step of its own."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(STEPS + 1):
        start, step = torch.randint(64, (16, 1)), torch.randint(1, 5, (16, 1))
        tokens = (start + step * torch.arange(TOKENS)) % 64
        loss = model(input_ids=tokens, labels=tokens).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def new_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=64, **sizes, **heads))


stock = train(new_model())

model = new_model()
switch = switch_to_gyrograd(model)  # the one line
print(switch.report)
switched = train(model)
switch.undo()

print("loss    stock                              gyrograd")
for step in range(0, STEPS + 1, 5):
    bars = ["#" * round(WIDTH * losses[step] / stock[0]) for losses in (stock, switched)]
    print(f"{step:4d}  {stock[step]:7.4f} {bars[0]:<{WIDTH}}  {switched[step]:7.4f} {bars[1]}")
differences = [abs(a - b) / a for a, b in zip(stock, switched, strict=True)]
print(f"largest difference: {max(differences):.1e} of the loss")
assert max(differences) < 1e-3, "the losses do not agree"
