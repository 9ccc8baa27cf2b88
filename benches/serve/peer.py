"""A checkpoint of this project's in PyTorch or ONNX Runtime, behind LitServe.

    python benches/serve/peer.py CKPT torch|onnx [--port 9000] [--batch 32] [--delay 0.002] [--workers 1] [--threads 2]

The model is the same and has the same weights: experts as PyTorch's sorted loop, attention fused, ONNX as PyTorch exports it.
"""

import argparse
import base64
import io
import json
import pathlib
import sys

import litserve
import numpy
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
from train import Block, Mlp, VMoe  # noqa: E402


class Model(nn.Module):
    """ViT with a class token and learned positions, and experts where the checkpoint has them."""

    def __init__(self, folder):
        super().__init__()
        config = json.loads((folder / "config.json").read_text())
        image, encoder = config["image"], config["encoder"]
        tensors = load_file(folder / "model.safetensors")
        width, mlp, self.patch = encoder["width"], encoder["mlp"], image["patch"]
        self.side = image["resolution"][0]
        tokens = (self.side // self.patch) ** 2 + 1
        moe = encoder["moe"]

        def feed_forward(block):
            name = f"blocks.{block}.feed_forward.router"
            if not any(key.startswith(name) for key in tensors):
                return Mlp(width, mlp)
            router = moe["router"]
            return VMoe(width, moe.get("hidden") or mlp, router["experts"], router["allocation"]["k"])

        self.embed = nn.Linear(3 * self.patch**2, width)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, tokens, width))
        blocks = [Block(width, encoder["heads"], feed_forward(block)) for block in range(encoder["depth"])]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, tensors["head.bias"].numel())
        self.read(tensors)

    def read(self, tensors):
        """Every tensor is used once, and every parameter is filled."""
        left = set(tensors)

        def fill(parameter, name, turned=False):
            left.remove(name)
            value = tensors[name]
            parameter.data.copy_((value.T if turned else value).reshape(parameter.shape))

        def linear(layer, weight, bias):
            fill(layer.weight, weight, turned=True)
            fill(layer.bias, bias)

        def norm(layer, name):
            fill(layer.weight, f"{name}.gamma")
            fill(layer.bias, f"{name}.beta")

        linear(self.embed, "embed.weight", "embed.bias")
        fill(self.class_token, "embed.class_token")
        fill(self.position, "embed.position")
        for number, block in enumerate(self.blocks):
            name = f"blocks.{number}"
            norm(block.norm1, f"{name}.norm1")
            norm(block.norm2, f"{name}.norm2")
            linear(block.attention.qkv, f"{name}.attention.qkv", f"{name}.attention.qkv_bias")
            linear(block.attention.out, f"{name}.attention.out", f"{name}.attention.out_bias")
            layer, inner = block.feed_forward, f"{name}.feed_forward"
            if isinstance(layer, VMoe):
                experts = f"{inner}.experts"
                fill(layer.router.weight, f"{inner}.router.weight", turned=True)
                for part in ["up", "up_bias", "down", "down_bias"]:
                    fill(getattr(layer, part), f"{experts}.{part}")
            else:
                linear(layer[0], f"{inner}.up", f"{inner}.up_bias")
                linear(layer[2], f"{inner}.down", f"{inner}.down_bias")
        norm(self.norm, "norm")
        linear(self.head, "head.weight", "head.bias")
        if left:
            raise SystemExit(f"this model is not known here: {sorted(left)[:4]}")

    def forward(self, images):
        """`[B, H, W, 3]` to probabilities `[B, classes]`"""
        batch, n, p = images.shape[0], self.side // self.patch, self.patch
        x = images.reshape(batch, n, p, n, p, 3).permute(0, 1, 3, 2, 4, 5).reshape(batch, n * n, -1)
        x = torch.cat([self.class_token.expand(batch, -1, -1), self.embed(x)], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0]).softmax(-1)


def onnx_session(model, threads):
    import onnxruntime
    file = io.BytesIO()
    image = torch.zeros(2, model.side, model.side, 3)
    torch.onnx.export(model, (image,), file, dynamo=False, input_names=["image"], output_names=["probabilities"],
                      dynamic_axes={"image": {0: "batch"}, "probabilities": {0: "batch"}}, opset_version=18)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(file.getvalue(), options, ["CPUExecutionProvider"])


class Classifier(litserve.LitAPI):
    def __init__(self, folder, engine, threads, **batching):
        super().__init__(**batching)
        self.folder, self.engine, self.threads = folder, engine, threads

    def setup(self, device):
        torch.set_num_threads(self.threads)
        model = Model(self.folder).eval()
        self.side = model.side
        if self.engine == "onnx":
            session = onnx_session(model, self.threads)
            self.run = lambda images: session.run(None, {"image": images})[0]
        else:
            self.run = lambda images: model(torch.from_numpy(images)).numpy()
        with torch.inference_mode():
            for count in (1, self.max_batch_size):
                self.run(numpy.zeros((count, self.side, self.side, 3), numpy.float32))

    def decode_request(self, request):
        picture = Image.open(io.BytesIO(base64.b64decode(request["image"]))).convert("RGB")
        if picture.size != (self.side, self.side):
            picture = picture.resize((self.side, self.side), Image.Resampling.BILINEAR)
        return numpy.asarray(picture, numpy.float32) / 127.5 - 1.0

    def batch(self, inputs):
        return numpy.stack(inputs)

    def predict(self, images):
        with torch.inference_mode():
            return self.run(images if images.ndim == 4 else images[None])

    def unbatch(self, output):
        return list(output)

    def encode_response(self, probabilities):
        probabilities = probabilities.reshape(-1)
        best = numpy.argsort(probabilities)[::-1][:5]
        return {"top": [{"class": str(k), "probability": float(probabilities[k])} for k in best]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("engine", choices=["torch", "onnx"])
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--delay", type=float, default=0.002)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    batching = {"max_batch_size": options.batch, "batch_timeout": options.delay if options.batch > 1 else 0.0}
    api = Classifier(options.checkpoint, options.engine, options.threads, **batching)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=options.workers, timeout=120)
    server.run(host="127.0.0.1", port=options.port, log_level="warning", generate_client_file=False)


if __name__ == "__main__":
    main()
