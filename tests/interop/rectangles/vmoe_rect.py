"""Golden cases of vmoe's V-MoE on images that are not square.

Needs google-research/vmoe and google-research/vision_transformer (for `vit_jax`), neither of which is a
package to install: put checkouts of both on PYTHONPATH.

    PYTHONPATH=VMOE:VISION_TRANSFORMER python vmoe_rect.py OUT
    PYTHONPATH=VMOE:VISION_TRANSFORMER python vmoe_rect.py OUT --check GOLDEN
                                 first run stored cases of the folder GOLDEN again
"""

import argparse
import math
import pathlib

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from vmoe.nn import vit_moe

import case

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_default_matmul_precision", "highest")

CONFIG = {
    "B": 2, "height": 12, "width": 16, "patch": 4, "hidden": 16, "layers": 2, "heads": 2, "mlp": 32,
    "moe_layers": [1], "E": 4, "K": 2, "cf": 1.0, "mult": 4, "bpr": True, "classes": 10, "seqs_per_group": 1,
}  # fmt: skip
OBJECTIVE = "mean_b CE(logits, labels) + 0.01 * mean_g(auxiliary_loss)"
POOLING = {
    "token": "class token prepended before the position embedding; head reads token 0",
    "gap": "head reads the mean over all tokens",
}
SINCOS = (
    "sincos2d: q = D/4, omega_k = 10000^(-k/(q-1)), k = 0..q-1; pos(row y, col x) = [sin(x w), cos(x w), sin(y w), "
    "cos(y w)], patches in row-major order; the class token gets none"
)
PARTS = {
    "query": "attention projection", "key": "attention projection", "value": "attention projection",
    "out": "attention output projection", "Dense_0": "first MLP", "Dense_1": "second MLP",
}  # fmt: skip


def grid(config):
    return config["height"] // config["patch"], config["width"] // config["patch"]


def tokens(config):
    rows, columns = grid(config)
    return rows * columns + (config["classifier"] == "token")


def build(config):
    """The model of vmoe that a case's settings describe."""
    router = {
        "num_selected_experts": config["K"],
        "noise_std": 0.0,
        "gshard_loss_weight": 0.0,
        "importance_loss_weight": 1.0,
        "load_loss_weight": 0.0,
        "dispatcher": {
            "name": "einsum",
            "batch_priority": config["bpr"],
            "capacity_factor": config["cf"],
            "capacity_multiple_of": config["mult"],
            "bfloat16": False,
        },
    }
    return vit_moe.VisionTransformerMoe(
        num_classes=config["classes"],
        patch_size=(config["patch"], config["patch"]),
        hidden_size=config["hidden"],
        classifier=config["classifier"],
        deterministic=True,
        encoder={
            "num_layers": config["layers"],
            "mlp_dim": config["mlp"],
            "num_heads": config["heads"],
            "dropout_rate": 0.0,
            "attention_dropout_rate": 0.0,
            "position_emb": {"name": config.get("pos", "learned")},
            "moe": {
                "layers": tuple(config["moe_layers"]),
                "num_experts": config["E"],
                "group_size": tokens(config) * config["seqs_per_group"],
                "router": router,
            },
        },
    )


def randomise(shapes, rng):
    """Every parameter random, never the library's initialiser, so that none can be forgotten."""
    params = {}
    for path, shape in sorted((path, leaf.shape) for path, leaf in shapes.items()):
        noise = rng.standard_normal(shape)
        if path[-1] == "pos_embedding":
            values = 0.4 * noise
        elif path[-1] == "cls":
            values = 0.5 * noise
        elif path[-1] == "scale":
            values = 1 + 0.15 * noise
        elif path[-1] == "bias":
            values = 0.15 * noise
        else:
            # Inputs of the kernel: all axes but the last, or what is special about it.
            fan = {"query": shape[0], "key": shape[0], "value": shape[0]}.get(path[-2], math.prod(shape[:-1]))
            fan = fan // shape[0] if "Moe" in path and "Mlp" in path else fan
            values = noise * (2.5 if "Router" in path else 1.0) / fan**0.5
        params[path] = values.astype(np.float32)
    return params


def run(config, params, images, labels):
    """vmoe's own forward pass, the results in between, and the gradients of the objective."""
    model = build(config)

    def objective(params):
        params = flax.traverse_util.unflatten_dict(params)
        (logits, metrics), state = model.apply({"params": params}, images, capture_intermediates=True)
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        total = cross_entropy + 0.01 * metrics["auxiliary_loss"].mean()
        return total, (logits, metrics, cross_entropy, state["intermediates"])

    (total, (logits, metrics, cross_entropy, heard)), gradients = jax.value_and_grad(objective, has_aux=True)(params)
    encoder = heard["Encoder"]
    results = {
        "output/logits": logits,
        "output/auxiliary_loss": metrics["auxiliary_loss"],
        # The dropout that does nothing has, as its result, the tokens with their positions.
        "output/embedded": encoder["Dropout_0"]["__call__"][0],
        "output/encoded": encoder["encoder_norm"]["__call__"][0],
        "output/pre_logits": heard["pre_logits"]["__call__"][0],
        "output/cross_entropy": cross_entropy,
        "output/objective": total,
    }
    router_logits = {}
    for index in range(config["layers"]):
        block = encoder[f"encoderblock_{index}"]
        result = block["__call__"][0]
        if index in config["moe_layers"]:
            result, losses = result
            results[f"output/importance_loss_{index}"] = losses["importance_loss"]
            router_logits[index] = np.asarray(block["Moe"]["Router"]["dense"]["__call__"][0], np.float64)
        results[f"output/block_{index}"] = result
    results |= {"grad/param/" + ".".join(path): values for path, values in gradients.items()}
    return {name: np.asarray(values) for name, values in results.items()}, router_logits


def exactly(config, params, images, labels):
    """The same in float64."""
    with jax.enable_x64(True):
        wide = {path: jnp.asarray(values, jnp.float64) for path, values in params.items()}
        results = run(config, wide, jnp.asarray(images, jnp.float64), labels)[0]
    assert all(values.dtype == np.float64 for values in results.values())
    return results


def selection(config, router_logits):
    """Capacity and drops of every MoE block, and the smallest gap that any decision rests on."""
    capacity = math.ceil(tokens(config) * config["seqs_per_group"] * config["K"] * config["cf"] / config["E"])
    capacity = -(-capacity // config["mult"]) * config["mult"]
    report, margin = {}, math.inf
    for index, logits in router_logits.items():
        gates = np.exp(logits - logits.max(-1, keepdims=True))
        gates /= gates.sum(-1, keepdims=True)
        ordered = -np.sort(-gates, axis=-1)
        choices = ordered[..., : config["K"] + 1]
        margin = min(margin, float(-np.diff(choices, axis=-1).max()))
        priority = -np.sort(-ordered[..., 0], axis=-1)
        margin = min(margin, float(-np.diff(priority, axis=-1).max()))
        chosen = np.argsort(-gates, axis=-1, kind="stable")[..., : config["K"]]
        counts = [np.bincount(group.ravel(), minlength=config["E"]) for group in chosen]
        drops = [int(np.maximum(count - capacity, 0).sum()) for count in counts]
        report[f"encoderblock_{index}"] = {"capacity": capacity, "dropped_choices": drops}
    return report, margin


def meaning(path):
    """What a parameter is, in the words of the other cases."""
    if path[-1] == "scale":
        words = "LayerNorm scale (D,), or the scalar Soft MoE scale"
    elif path[-1] == "pos_embedding":
        words = "learned position embedding (1, T, D), class token first, then patches in row-major order"
    elif path[-1] == "cls":
        words = "class token (1, 1, D), prepended"
    elif path[0] == "embedding":
        kernel = "patch-embedding convolution kernel, HWIO layout (ph, pw, 3, D), stride = patch size, VALID padding"
        words = kernel if path[-1] == "kernel" else "bias"
    elif "Router" in path:
        words = "router kernel, no bias; (D, E)"
    elif path[-2] in PARTS:
        words = PARTS[path[-2]]
        attention = path[-2] in ("query", "key", "value", "out")
        if path[-1] == "bias":
            shape = ", (D,)" if path[-2] == "out" else ", (H, Dh)"
            words = words.replace("output projection", "output") + " bias" + (shape if attention else "")
        elif attention:
            words += ", (H, Dh, D)" if path[-2] == "out" else ", (D, H, Dh)"
        else:
            words += " matrix, " + ("(in, hidden)" if path[-2] == "Dense_0" else "(hidden, out)")
        if "Moe" in path:
            words = f"stacked over experts on axis 0 (E, ...); {words}"
    elif path[0] == "head" and path[-1] == "kernel":
        words = "dense kernel (in, out)"
    else:
        words = "bias"
    return f"flax parameter {'/'.join(path)}: {words}"


def write(folder, name, config, first_seed, with_gradients):
    """The first seed whose routing drops something and is decided far above rounding."""
    shapes = jax.eval_shape(
        lambda key: build(config).init(key, jnp.zeros((config["B"], config["height"], config["width"], 3))),
        jax.random.PRNGKey(0),
    )
    shapes = flax.traverse_util.flatten_dict(shapes["params"])
    for seed in range(first_seed, first_seed + 50):
        rng = np.random.default_rng(seed)
        params = randomise(shapes, rng)
        images = rng.uniform(-1, 1, (config["B"], config["height"], config["width"], 3)).astype(np.float32)
        labels = rng.integers(0, config["classes"], config["B"]).astype(np.int32)
        results, router_logits = run(config, params, images, labels)
        drops, margin = selection(config, router_logits)
        if margin > 3e-4 and all(any(block["dropped_choices"]) for block in drops.values()):
            break
    else:
        raise SystemExit("no seed will do")

    if not with_gradients:
        left = ("grad/", "output/cross_entropy", "output/objective")
        results = {key: values for key, values in results.items() if not key.startswith(left)}
    rows, columns = grid(config)
    learned = config.get("pos", "learned") == "learned"
    formula = [
        "pre-LN transformer: x += MHSA(LN_0(x)); x += MLP_or_MoE(LN_1(x)); final LN (encoder_norm); LN eps 1e-6; "
        "softmax(q k^T / sqrt(Dh)); gelu tanh; no dropout",
        POOLING[config["classifier"]],
        "head = Dense(pooled); auxiliary_loss = sum over MoE layers of the per-group loss (importance weight 1, gshard "
        "weight 0, load absent in deterministic mode)",
        *([] if learned else [SINCOS]),
        f"a grid of {rows} rows x {columns} columns, patches in row-major order (column fastest)",
    ]
    full = config | {
        "tokens": tokens(config),
        "group_size": tokens(config) * config["seqs_per_group"],
        "grid": [rows, columns],
        "capacity_and_drops": drops,
        "capacity_ceil_or_round": "ceil",
        "noise": "none (deterministic)",
        "image_layout": "NHWC",
        "representation_size": None,
        "loss_weights": {"gshard": 0.0, "importance": 1.0, "load": 0.0},
        "objective": OBJECTIVE if with_gradients else None,
        "seed": seed,
    }
    arrays = {"input/images": images}
    meanings = {"input/images": "(B, H, W, 3) images in [-1, 1]"}
    if with_gradients:
        arrays["input/labels"] = labels
        meanings["input/labels"] = "(B,) class ids"
    arrays |= {"param/" + ".".join(path): values for path, values in params.items()}
    meanings |= {"param/" + ".".join(path): meaning(path) for path in params}
    said = {
        "output/logits": "(B, classes)",
        "output/auxiliary_loss": "(G,) summed over MoE layers",
        "output/embedded": "(B, T, D) after patch embedding, class token and position embedding",
        "output/encoded": "(B, T, D) after encoder_norm",
        "output/pre_logits": "(B, D) head input",
        "output/cross_entropy": "scalar",
        "output/objective": "scalar",
    }
    for index in range(config["layers"]):
        said[f"output/block_{index}"] = f"(B, T, D) residual stream after block {index}"
        said[f"output/importance_loss_{index}"] = f"(G,) importance loss of block {index}"
    names = [".".join(path) for path in params]
    said |= {f"grad/param/{path}": f"d(objective)/d(param/{path})" for path in names}
    meanings |= {key: said[key] for key in results}
    position = "learned" if learned else "sincos2d"
    case.write(
        folder,
        name,
        f'Tiny V-MoE Vision Transformer on images that are not square, classifier "{config["classifier"]}", {position} '
        f"position embeddings, deterministic: forward {'and all parameter gradients' if with_gradients else 'only'}.",
        formula,
        f"vmoe.nn.vit_moe.VisionTransformerMoe (jax {jax.__version__}, flax {flax.__version__})",
        full,
        arrays | results,
        meanings,
        case.compare(results, exactly(config, params, images, labels)),
        margin=margin,
    )
    print(f"{name}: seed {seed}, margin {margin:.1e}, {drops}")


def check(folder, names):
    """That this script runs vmoe as the stored cases were run."""
    for name in names:
        description, arrays = case.read(folder, name)
        config = description["config"]
        params = {k.removeprefix("param/"): v for k, v in arrays.items() if k.startswith("param/")}
        params = {tuple(key.split(".")): jnp.asarray(values) for key, values in params.items()}
        labels = arrays.get("input/labels", np.zeros(config["B"], np.int32))
        found, router_logits = run(config, params, arrays["input/images"], labels)
        assert selection(config, router_logits)[0] == config["capacity_and_drops"], name
        np.testing.assert_allclose(selection(config, router_logits)[1], description["selection_margin"], rtol=0.01)
        case.check(name, found, arrays)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--check", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.check:
        modes = ["token", "gap", "sincos2d_gap", "sincos2d_token"]
        check(arguments.check, [f"vit_moe_{mode}" for mode in modes])
    write(arguments.out, "vit_moe_rect", CONFIG | {"classifier": "token"}, 9400, True)
    write(arguments.out, "vit_moe_sincos2d_rect", CONFIG | {"classifier": "gap", "pos": "sincos2d"}, 9500, False)
    check(arguments.out, ["vit_moe_rect", "vit_moe_sincos2d_rect"])


if __name__ == "__main__":
    main()
