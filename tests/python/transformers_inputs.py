"""Arguments for the rotary functions of transformers, for the tests: random, with tables that are nobody's cosine."""

import torch

BATCH, LENGTH, HEADS, KEY_HEADS, WIDTH = 2, 5, 4, 2, 16


def rows(generator, heads, length=LENGTH, transposed=True):
    """[B, N, S, D], as attention has it: a view of [B, S, N, D]."""
    x = torch.randn(BATCH, length, heads, WIDTH, generator=generator)
    return x.transpose(1, 2) if transposed else x


def table_width(rotary):
    turning = WIDTH if rotary.part == "all" else WIDTH // 2
    return turning // 2 if rotary.tables in ("pairs", "complex") else turning


def arguments(rotary, seed, batch=BATCH):
    """What the function takes, as a list, and the places of the tensors that have gradients."""
    generator = torch.Generator().manual_seed(seed)
    width = table_width(rotary)

    def tables(*shape):
        return [torch.randn(*shape, width, generator=generator) for _ in range(2)]

    q, k = rows(generator, HEADS), rows(generator, KEY_HEADS)
    match rotary.arguments:
        case "q, k" | "q, k, positions" | "q, k or none" | "q, optional k":
            return [q, k, *tables(batch, LENGTH)]
        case "q, k, fixed axis" if rotary.unsqueeze is None:
            return [q, k, *tables(LENGTH)]
        case "q, k, fixed axis":
            return [q[0].transpose(0, 1), k[0].transpose(0, 1), *tables(LENGTH)]
        case "q, k, memory":
            return [q, k, *tables(1, 1, LENGTH)]
        case "q of the last, k":
            return [rows(generator, HEADS, 3), k, *tables(batch, LENGTH)]
        case "q, k, v, positions":
            positions = torch.randint(0, 9, (batch, LENGTH), generator=generator)
            return [q, k, rows(generator, KEY_HEADS), *tables(9), positions]
        case "q, k after a prefix":
            return [q, k, *tables(LENGTH - 2)]
        case "x":
            return [q, *tables(batch, LENGTH)]
        case "x, positions":
            return [q.transpose(1, 2), *tables(batch, LENGTH), torch.zeros(batch, LENGTH, 2, dtype=torch.int64)]
        case "tensor, sin, cos":
            return [q.transpose(1, 2), *tables(batch, LENGTH)]
        case "complex q, k":
            swapped = (q, k) if rotary.unsqueeze == 1 else (q.transpose(1, 2), k.transpose(1, 2))
            return [*swapped, torch.complex(*tables(batch, LENGTH))]
        case "complex q, k, vision":
            return [q.transpose(1, 2), k.transpose(1, 2), torch.complex(*tables(LENGTH))]
    raise ValueError(rotary.arguments)
