"""The joint attention block of SD3, CogVideoX and Flux in plain NumPy, its norms, rotary and concatenation by gyrograd.

Forward and backward in float32 are compared with the same block written out in float64, whose gradient is compared with
a finite difference of its loss.
"""

import numpy as np

import gyrograd as gg

B, N, D, IMAGE, TEXT, EPS = 2, 4, 32, 24, 10, 1e-6
C = N * D
IMAGE_ROWS, TEXT_ROWS = ("query", "key", "value"), ("encoder_query", "encoder_key", "encoder_value")
MODELS = {
    # RMSNorm of each stream, image rows before text rows, no rotary embedding.
    "SD3": {"norm_type": "rms_affine", "norm_added_type": "rms_affine", "concat_order": "stream_first"},
    # One LayerNorm for both streams, text before image; neighbours turn, at the image's positions alone.
    "CogVideoX": {
        "norm_type": "layer_affine",
        "norm_added_type": "layer_affine",
        "concat_order": "encoder_first",
        "rope_type": "interleave",
        "rope_start": TEXT,
    },
    # RMSNorm of each stream, text before image; neighbours turn, at all positions.
    "Flux": {
        "norm_type": "rms_affine",
        "norm_added_type": "rms_affine",
        "concat_order": "encoder_first",
        "rope_type": "interleave",
    },
}


def tables(options):
    """cos and sin of the positions that turn, both members of a pair alike."""
    if "rope_type" not in options:
        return {}
    length = IMAGE + TEXT - options.get("rope_start", 0)
    angles = np.outer(np.arange(length), 10000.0 ** (-np.arange(0, D, 2) / D)).repeat(2, axis=-1)
    return {"rope_sin": np.sin(angles), "rope_cos": np.cos(angles)}


# -- norm, concatenation, rotary: by gyrograd, and written out -----------------------------------------------------


def by_gyrograd(rows, norms, options):
    """Joint query, key and value, [B, N, S, D], and the function that takes their gradients back."""
    turning = {name: table.astype(np.float32) for name, table in tables(options).items()}
    y = gg.norm_rope_concat(**rows, **norms, **turning, **options, eps=EPS)

    def backward(dquery, dkey, dvalue):
        inputs = {name: x for name, x in rows.items() if not name.endswith("value")}
        weights = {name: weight for name, weight in norms.items() if name.endswith("weight")}
        gradients = gg.norm_rope_concat_backward(
            dquery, dkey, dvalue, **inputs, **weights, **y.statistics, **turning, **options
        )
        return {name: gradient for name, gradient in gradients._asdict().items() if gradient is not None}

    return y[:3], backward


def rotate(x, cos, sin):
    """Each pair of neighbours turned by its angle; with -sin, turned back."""
    y = x * cos
    y[..., 0::2] -= x[..., 1::2] * sin[..., 0::2]
    y[..., 1::2] += x[..., 0::2] * sin[..., 1::2]
    return y


def written_out(rows, norms, options):
    """The same in plain NumPy."""
    turning, start = tables(options), options.get("rope_start", 0)
    text_first = options["concat_order"] == "encoder_first"
    layer = options["norm_type"] == "layer_affine"
    hats, rstds = {}, {}

    def turn(joint, sign):
        if turning:
            joint[:, :, start:] = rotate(joint[:, :, start:], turning["rope_cos"], sign * turning["rope_sin"])
        return joint

    def normed(name, norm):
        x = rows[name] - rows[name].mean(-1, keepdims=True) if layer else rows[name]
        rstds[name] = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)
        hats[name] = x * rstds[name]
        return hats[name] * norms[f"{norm}_weight"] + norms.get(f"{norm}_bias", 0)

    def joined(image, text):
        return np.concatenate([text, image] if text_first else [image, text], axis=1).swapaxes(1, 2)

    def backward(dquery, dkey, dvalue):
        found = {}
        for name, joint in zip(IMAGE_ROWS, (turn(dquery, -1), turn(dkey, -1), dvalue), strict=True):
            for stream, g in zip((name, f"encoder_{name}"), parted(joint, text_first), strict=True):
                found[stream] = g
                if name == "value":
                    continue
                norm = f"norm_{name}" if stream == name else f"norm_added_{name}"
                hat, h = hats[stream], g * norms[f"{norm}_weight"]
                inner = h - hat * (h * hat).mean(-1, keepdims=True) - (h.mean(-1, keepdims=True) if layer else 0)
                found[stream] = rstds[stream] * inner
                found[f"{norm}_weight"] = (g * hat).sum((0, 1, 2))
                if layer:
                    found[f"{norm}_bias"] = g.sum((0, 1, 2))
        return found

    query, key = (
        turn(joined(normed(name, f"norm_{name}"), normed(f"encoder_{name}", f"norm_added_{name}")), 1)
        for name in ("query", "key")
    )
    return (query, key, joined(rows["value"], rows["encoder_value"])), backward


# -- the block ------------------------------------------------------------------------------------------------------


def parted(joint, text_first):
    """The image's and the text's rows of a joint tensor, [B, S, N, D]."""
    rows = joint.swapaxes(1, 2)
    return (rows[:, TEXT:], rows[:, :TEXT]) if text_first else (rows[:, :IMAGE], rows[:, IMAGE:])


def block(parameters, upstream, options, norm_rope_concat):
    """The loss sum(output * upstream) of the block and its gradient by every parameter."""
    p = parameters
    text_first = options["concat_order"] == "encoder_first"
    sources = {name: "image" if name in IMAGE_ROWS else "text" for name in IMAGE_ROWS + TEXT_ROWS}
    rows = {name: (p[source] @ p[f"to_{name}"]).reshape(B, -1, N, D) for name, source in sources.items()}
    norms = {name: weight for name, weight in p.items() if name.startswith("norm_")}
    (query, key, value), backward = norm_rope_concat(rows, norms, options)

    scores = query @ key.swapaxes(2, 3) / D**0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    image, text = (part.reshape(B, -1, C) for part in parted(weights @ value, text_first))
    loss = np.sum(image @ p["out"] * upstream["image"]) + np.sum(text @ p["add_out"] * upstream["text"])

    gradients = {
        "out": np.einsum("bsi,bso->io", image, upstream["image"]),
        "add_out": np.einsum("bsi,bso->io", text, upstream["text"]),
    }
    parts = [(upstream["image"] @ p["out"].T), (upstream["text"] @ p["add_out"].T)]
    parts = parts[::-1] if text_first else parts
    doutput = np.concatenate(parts, axis=1).reshape(B, -1, N, D).swapaxes(1, 2)
    dvalue = weights.swapaxes(2, 3) @ doutput
    dweights = doutput @ value.swapaxes(2, 3)
    dscores = weights * (dweights - (dweights * weights).sum(-1, keepdims=True)) / D**0.5
    found = backward(dscores @ key, dscores.swapaxes(2, 3) @ query, dvalue)

    gradients |= {name: found[name] for name in norms}
    gradients |= {source: np.zeros_like(p[source]) for source in ("image", "text")}
    for name, source in sources.items():
        drows = found[name].reshape(B, -1, C)
        gradients[f"to_{name}"] = np.einsum("bsi,bso->io", p[source], drows)
        gradients[source] += drows @ p[f"to_{name}"].T
    return loss, gradients


def make_parameters(rng, options):
    """Inputs, projections and norms of a block. CogVideoX's two streams share their norms' values."""
    p = {"image": rng.standard_normal((B, IMAGE, C)), "text": rng.standard_normal((B, TEXT, C))}
    names = [f"to_{name}" for name in IMAGE_ROWS + TEXT_ROWS]
    p |= {name: rng.standard_normal((C, C)) / C**0.5 for name in (*names, "out", "add_out")}
    members = ("weight", "bias") if options["norm_type"] == "layer_affine" else ("weight",)
    for name in ("query", "key"):
        for member in members:
            values = (member == "weight") + 0.1 * rng.standard_normal((2, D))
            p[f"norm_{name}_{member}"], p[f"norm_added_{name}_{member}"] = values[[0, 0 if len(members) == 2 else 1]]
    return p


def main():
    for model, options in MODELS.items():
        rng = np.random.default_rng(0)
        parameters = make_parameters(rng, options)
        upstream = {"image": rng.standard_normal((B, IMAGE, C)), "text": rng.standard_normal((B, TEXT, C))}
        loss, want = block(parameters, upstream, options, written_out)

        direction = {name: rng.standard_normal(value.shape) for name, value in parameters.items()}
        step = 1e-6
        ends = [
            block({n: v + sign * step * direction[n] for n, v in parameters.items()}, upstream, options, written_out)[0]
            for sign in (1, -1)
        ]
        slope, difference = sum(np.sum(want[n] * direction[n]) for n in parameters), (ends[0] - ends[1]) / (2 * step)
        assert abs(slope - difference) < 1e-6 * abs(difference)

        narrow = [{n: v.astype(np.float32) for n, v in values.items()} for values in (parameters, upstream)]
        got_loss, got = block(*narrow, options, by_gyrograd)
        errors = {n: np.abs(got[n] - want[n]).max() / np.abs(want[n]).max() for n in want}
        if model == "CogVideoX":  # what the shared norms' gradients are
            for n in [n for n in want if n.startswith("norm_added")]:
                own = n.replace("added_", "")
                both, exact = got[own] + got[n], want[own] + want[n]
                errors[f"shared {own}"] = np.abs(both - exact).max() / np.abs(exact).max()
        print(f"{model}: loss {got_loss:.4f}, in float64 {loss:.4f}")
        print(f"  {len(errors)} gradients agree; largest relative error {max(errors.values()):.1e}")
        assert abs(got_loss - loss) < 1e-5 * sum(np.abs(v).sum() for v in upstream.values())
        assert max(errors.values()) < 1e-5, errors


if __name__ == "__main__":
    main()
