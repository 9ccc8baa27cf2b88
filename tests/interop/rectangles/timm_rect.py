"""Golden cases of timm's vision transformers on images that are not square.

    python timm_rect.py OUT                    write the cases into the folder OUT
    python timm_rect.py OUT --check GOLDEN     and first run stored cases of the folder GOLDEN again
"""

import argparse
import pathlib

import numpy as np
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer

import case

SETTINGS = {"img_size": (24, 32), "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 7}
DINOV2 = {"init_values": 0.1, "reg_tokens": 4, "no_embed_class": True}
FORMULA = [
    "Linear weights are (out, in); qkv is one (3D, D) matrix, output split as (3, H, Dh) in that order; "
    "patch_embed.proj is a Conv2d OIHW kernel",
    "pre-LN blocks, LayerNorm eps 1e-6, GELU exact (erf), softmax(q k^T / sqrt(Dh))",
]
GRID = "img_size is (height, width): a grid of {} rows x {} columns, patches in row-major order (column fastest)"
CLASS = "class token prepended, position embedding covers class + patches, head reads norm(x)[:, 0]"
REGISTERS = (
    "LayerScale; position embedding added to the patch tokens only, then [cls, 4 register tokens, patches] "
    "concatenated; head reads token 0"
)


def randomise(model, seed):
    """Every parameter random, never the library's initialiser, so that none can be forgotten."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith(("token", "pos_embed")):
                parameter.copy_(0.5 * noise)
            elif parameter.ndim >= 2:
                parameter.copy_(noise / parameter[0].numel() ** 0.5)
            elif "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.15 * noise)
            elif name.endswith("gamma"):
                parameter.copy_(0.6 + 0.25 * noise)
            else:
                parameter.copy_(0.15 * noise)
    return model.eval()


def images(seed, height, width, batch=2):
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.rand((batch, 3, height, width), generator=generator) * 2 - 1


@torch.no_grad()
def run(model, pixels):
    """timm's own forward pass, with the intermediate results overheard by hooks."""
    heard = {}
    hooks = [model.norm_pre.register_forward_pre_hook(lambda _, x: heard.update({"output/embedded": x[0]}))]
    for index, block in enumerate(model.blocks):
        name = f"output/block_{index}"
        hooks.append(block.register_forward_hook(lambda _, __, y, name=name: heard.update({name: y})))
    features = model.forward_features(pixels)
    for hook in hooks:
        hook.remove()
    results = {
        "output/logits": model(pixels),
        "output/features": features,
        "output/pooled": model.forward_head(features, pre_logits=True),
    }
    return {name: values.numpy() for name, values in (results | heard).items()}


def meanings(depth):
    return {
        "input/images": "(B, 3, H, W)",
        "output/logits": "(B, classes)",
        "output/features": "(B, T, D) forward_features: all tokens after the last block and `norm` (identity norm for avg)",
        "output/pooled": "(B, D) head input",
        "output/embedded": "(B, T, D) after patch embedding, special tokens and position embedding",
    } | {f"output/block_{i}": f"(B, T, D) after block {i}" for i in range(depth)}


def write(folder, name, model, config, pixels, formula, weights, weights_file, notes=()):
    results = run(model, pixels)
    exact = run(model.double(), pixels.double())
    model.float()
    grid = [side // config["patch_size"] for side in pixels.shape[2:]]
    config = config | {
        "image_layout": "NCHW",
        "grid": grid,
        "weights_file": weights_file,
        "weights": {key: list(values.shape) for key, values in weights.items()},
    }
    config["seed"] = config.pop("seed")  # last, as in the other cases
    case.write(
        folder,
        name,
        "timm VisionTransformer in PyTorch layout, images and patch grid not square; weights in the sibling file "
        f"{weights_file} with timm state-dict names.",
        FORMULA + [formula, GRID.format(*grid)],
        f"timm {timm.__version__} VisionTransformer, torch {torch.__version__}",
        config,
        {"input/images": pixels.numpy()} | results,
        meanings(config["depth"]),
        case.compare(results, exact),
        notes,
    )


def resampled(model, settings, grid):
    """The same model with its positions at another grid, by bicubic interpolation WITHOUT antialiasing."""
    rows, columns = model.patch_embed.grid_size
    size = tuple(side * settings["patch_size"] for side in grid)
    other = VisionTransformer(**(settings | {"img_size": size})).eval()
    weights = model.state_dict()
    first, patches = weights["pos_embed"][:, :1], weights["pos_embed"][:, 1:]
    patches = patches.reshape(1, rows, columns, -1).permute(0, 3, 1, 2)
    patches = F.interpolate(patches, size=grid, mode="bicubic", align_corners=False, antialias=False)
    weights["pos_embed"] = torch.cat([first, patches.permute(0, 2, 3, 1).flatten(1, 2)], 1)
    other.load_state_dict(weights)
    return other


def check(folder, names):
    """That this script runs timm as the stored cases were run."""
    for name in names:
        description, arrays = case.read(folder, name)
        config = description["config"]
        keys = [key for key in SETTINGS | DINOV2 if key in config]
        model = VisionTransformer(**{key: config[key] for key in keys}).eval()
        model.load_state_dict(load_file(pathlib.Path(folder) / config["weights_file"]))
        case.check(name, run(model, torch.from_numpy(arrays["input/images"])), arrays)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--check", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.check:
        check(arguments.check, ["timm_vit", "timm_vit_dinov2_reg"])

    height, width = SETTINGS["img_size"]
    for name, seed, extra, formula in [
        ("timm_vit_rect", 9100, {}, CLASS),
        ("timm_vit_dinov2_rect", 9200, DINOV2, REGISTERS),
    ]:
        settings = SETTINGS | extra
        model = randomise(VisionTransformer(**settings), seed)
        weights_file = f"{name}.weights.safetensors"
        config = settings | {"img_size": list(settings["img_size"]), "seed": seed}
        pixels, weights = images(seed, height, width), model.state_dict()
        write(arguments.out, name, model, config, pixels, formula, weights, weights_file)
        save_file(model.state_dict(), arguments.out / weights_file)
    check(arguments.out, ["timm_vit_rect", "timm_vit_dinov2_rect"])

    # The weights of timm_vit_rect on images of 40 x 24 pixels, a grid of 5 x 3: more rows, fewer columns.
    # These two share timm_vit_rect's weights file and differ only in how positions are resampled.
    seed, extra, grid = 9100, arguments.out / "extra", (5, 3)
    model = randomise(VisionTransformer(**SETTINGS, dynamic_img_size=True), seed)
    pixels = images(9300, *(side * SETTINGS["patch_size"] for side in grid))
    config = SETTINGS | {"img_size": list(SETTINGS["img_size"]), "images": list(pixels.shape[2:]), "seed": seed}
    weights, weights_file = model.state_dict(), "timm_vit_rect.weights.safetensors"
    timm_way = (
        "Positions resampled from 3 x 4 to 5 x 3 by timm itself (dynamic_img_size=True): "
        "timm.layers.resample_abs_pos_embed, that is F.interpolate(mode='bicubic', antialias=True), "
        "whose cubic has a = -0.5, and whose support grows by 4/3 along the columns that shrink"
    )
    plain_way = (
        "Positions resampled from 3 x 4 to 5 x 3 by F.interpolate(mode='bicubic', align_corners=False, "
        "antialias=False), whose cubic has a = -0.75; this is DINOv2's way, not timm's; the rest is timm"
    )
    dynamic = config | {"dynamic_img_size": True, "resample": "bicubic, antialias"}
    write(extra, "timm_vit_rect_resampled_timm", model, dynamic, pixels, CLASS, weights, weights_file, [timm_way])
    model = resampled(model, SETTINGS, grid)
    plain = config | {"resample": "bicubic, no antialias"}
    write(extra, "timm_vit_rect_resampled_plain", model, plain, pixels, CLASS, weights, weights_file, [plain_way])


if __name__ == "__main__":
    main()
