"""Checkpoints written by other projects, read by this one. See README.md."""

import argparse
import json
import pathlib
import re
import subprocess
import tempfile

import numpy as np
import timm
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "target" / "release"
TIMM = ["vit_tiny_patch16_224", "vit_small_patch14_dinov2", "vit_base_patch32_224"]
RTOL = 1e-4


def randomised(model, seed):
    """Every parameter random, so that none can be forgotten; of a size that keeps logits near 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2 and "token" not in name and "pos" not in name:
                fan = parameter[0].numel() if parameter.ndim != 3 else parameter.shape[-1]
                parameter.copy_(noise / fan**0.5)
            elif "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.1 * noise)
            elif "gamma" in name or "lambda" in name:
                parameter.copy_(0.5 + 0.1 * noise)
            else:
                parameter.copy_(0.1 * noise)
    return model.eval()


def images(size, seed, batch=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand((batch, 3, size, size), generator=generator) * 2 - 1


def ours(checkpoint, pixels, folder, settings=(), convert=True):
    """What this project says of the images, stage by stage."""
    out = folder / "converted"
    if convert:
        arguments = [PROGRAMS / "omma", "convert", checkpoint, out, "--quiet", "--force", "--check"]
        for setting in settings:
            arguments += ["--set", setting]
        result = subprocess.run(arguments, check=True, capture_output=True, text=True)
        print("   ", result.stdout.strip().replace("\n", "; ").replace(str(folder), ""))
    pixels = np.ascontiguousarray(pixels.numpy().transpose(0, 2, 3, 1))
    save_file({"images": pixels}, folder / "images.safetensors")
    stages = [PROGRAMS / "examples" / "stages", out, folder / "images.safetensors", folder / "stages.safetensors"]
    subprocess.run(stages, check=True)
    return load_file(folder / "stages.safetensors")


def report(name, found, expected):
    difference = float(np.abs(found - expected).max())
    print(f"{name}: largest difference {difference:.2e} (values up to {np.abs(expected).max():.2f})")
    assert difference <= RTOL * max(1.0, float(np.abs(expected).max())), f"{name} does not agree"


def timm_models():
    for seed, name in enumerate(TIMM):
        model = randomised(timm.create_model(name, pretrained=False), seed)
        pixels = images(model.patch_embed.img_size[0], seed)
        with torch.no_grad():
            expected = model(pixels).numpy()
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            save_torch(model.state_dict(), folder / "model.safetensors")
            torch.save(model.state_dict(), folder / "model.pth")
            for file in ["model.safetensors", "model.pth"]:
                found = ours(folder / file, pixels, folder)["logits"][0]
                report(f"{name} as {file}", found, expected)


def onnx_layers(graph, weights):
    """Every block of a ViT-S/14 against onnxruntime running the graph that its weights come from."""
    import onnx
    import onnxruntime

    model = onnx.load_model(graph)
    for axis, name in zip(model.graph.input[0].type.tensor_type.shape.dim, ["batch", "channels", "height", "width"]):
        axis.dim_param = name
    # The last addition directly below a layer is its residual connection.
    adds = [node for node in model.graph.node if node.op_type == "Add"]
    blocks = []
    for layer in range(12):
        prefix = f"/backbone/encoder/layer.{layer}/"
        ends = [node.output[0] for node in adds if re.fullmatch(prefix + r"Add(_\d+)?", node.name)]
        blocks.append(ends[-1])
    for name in blocks:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    entry = session.get_inputs()[0]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for convert, size in [(True, 518), (False, 224)]:
            pixels = images(size, 0, batch=1)
            expected = session.run(blocks, {entry.name: pixels.numpy()})
            stages = ours(weights, pixels, folder, convert=convert)
            for layer, values in enumerate(expected):
                found = stages[f"block_{layer}"]
                difference = float(np.abs(found - values).max())
                largest = float(np.abs(values).max())
                print(f"ViT-S/14 at {size} px, block {layer}: {difference:.2e} (values up to {largest:.1f})")
                assert difference < 1e-3, "a layer does not agree"


def google(rng, prefix, big_vision):
    """A small ViT in Google's names."""
    width, heads, hidden, classes = 24, 3, 40, 5
    norm2, mlp, attention = ("1", "0", "0") if big_vision else ("2", "3", "1")

    def random(*shape, scale=0.3):
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def norm():
        return {"scale": 1 + random(width, scale=0.1), "bias": random(width)}

    arrays = {
        "embedding": {"kernel": random(8, 8, 3, width, scale=0.1), "bias": random(width)},
        "cls": random(1, 1, width),
        "head": {"kernel": random(width, classes), "bias": random(classes)},
        "Transformer": {"encoder_norm": norm()},
    }
    positions = random(1, 5, width)
    if big_vision:
        arrays["pos_embedding"] = positions
    else:
        arrays["Transformer"]["posembed_input"] = {"pos_embedding": positions}
    for block in range(2):
        def projection():
            return {"kernel": random(width, heads, width // heads), "bias": random(heads, width // heads)}

        arrays["Transformer"][f"encoderblock_{block}"] = {
            "LayerNorm_0": norm(),
            f"LayerNorm_{norm2}": norm(),
            f"MultiHeadDotProductAttention_{attention}": {
                "query": projection(), "key": projection(), "value": projection(),
                "out": {"kernel": random(heads, width // heads, width), "bias": random(width)},
            },
            f"MlpBlock_{mlp}": {
                "Dense_0": {"kernel": random(width, hidden), "bias": random(hidden)},
                "Dense_1": {"kernel": random(hidden, width), "bias": random(width)},
            },
        }
    flat = {}

    def walk(tree, path):
        for key, value in tree.items():
            walk(value, f"{path}{key}/") if isinstance(value, dict) else flat.__setitem__(path + key, value)

    walk(arrays, prefix)
    return flat


def small_timm(**settings):
    return VisionTransformer(
        img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=3, mlp_ratio=40 / 24, num_classes=5, **settings
    )


def small_files():
    """Small checkpoints, an image each, and what their own projects say of it."""
    from transformers import Dinov2Config, Dinov2ForImageClassification, ViTConfig, ViTForImageClassification

    out = ROOT / "crates" / "model" / "tests" / "data"
    out.mkdir(parents=True, exist_ok=True)
    pixels = images(16, 7)
    answers = {"images": np.ascontiguousarray(pixels.numpy().transpose(0, 2, 3, 1))}

    def keep(name, model):
        with torch.no_grad():
            result = model(pixels)
        answers[name] = (result if isinstance(result, torch.Tensor) else result.logits).numpy()

    model = randomised(small_timm(), 1)
    torch.save(model.state_dict(), out / "timm.pth")
    keep("timm.pth", model)
    torch.save({"state_dict": model.half().state_dict()}, out / "timm_half.pth")
    keep("timm_half.pth", model.float())

    model = randomised(small_timm(reg_tokens=2), 2)
    save_torch(model.state_dict(), out / "timm_registers.safetensors")
    keep("timm_registers.safetensors", model)

    # DINOv2's own names, which timm converts: registers, a mask token, positions of class and patches.
    model = randomised(small_timm(reg_tokens=2, no_embed_class=True, init_values=0.1), 3)
    original = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.Generator().manual_seed(30)
    original["register_tokens"] = original.pop("reg_token")
    original["mask_token"] = torch.zeros(1, 24)
    original["pos_embed"] = torch.randn((1, 5, 24), generator=generator) * 0.1
    save_torch(original, out / "dinov2.safetensors")
    converted = checkpoint_filter_fn(dict(original), model)
    model.load_state_dict(converted)
    keep("dinov2.safetensors", model)

    sizes = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, image_size=16, patch_size=8, num_labels=5)
    model = randomised(ViTForImageClassification(ViTConfig(intermediate_size=40, **sizes)), 4)
    folder = out / "hf_vit"
    model.save_pretrained(folder)
    keep("hf_vit", model)
    model = randomised(Dinov2ForImageClassification(Dinov2Config(mlp_ratio=2, **sizes)), 5)
    folder = out / "hf_dinov2"
    model.save_pretrained(folder)
    keep("hf_dinov2", model)
    for name in ["hf_vit", "hf_dinov2"]:
        config = json.loads((out / name / "config.json").read_text())
        kept = {key: config[key] for key in ["model_type", "hidden_size", "num_attention_heads", "layer_norm_eps"]}
        (out / name / "config.json").write_text(json.dumps(kept, indent=1) + "\n")

    for name, prefix, big_vision, save in [
        ("google.npz", "", False, np.savez),
        ("big_vision.npz", "params/", True, np.savez_compressed),
    ]:
        arrays = google(np.random.default_rng(6), prefix, big_vision)
        save(out / name, **arrays)
        # The same file, read by timm's loader.
        model = small_timm(act_layer=lambda: torch.nn.GELU(approximate="tanh"))
        model.load_pretrained(str(out / name))
        keep(name, model.eval())

    swiglu = {"patch_embed.proj.weight": np.zeros((4, 3, 2, 2), np.float32), "blocks.0.mlp.w12.weight": np.zeros((4, 4), np.float32)}
    save_file(swiglu, out / "swiglu.safetensors")
    save_file(answers, out / "answers.safetensors")
    for file in sorted(out.rglob("*")):
        if file.is_file():
            print(f"{file.relative_to(ROOT)}: {file.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--onnx")
    parser.add_argument("--weights")
    arguments = parser.parse_args()
    if arguments.small:
        small_files()
        return
    timm_models()
    if arguments.onnx and arguments.weights:
        onnx_layers(arguments.onnx, arguments.weights)


main()
