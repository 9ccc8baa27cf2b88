"""Training throughput of the default recipe against the same model and recipe in PyTorch eager.

Alternates this project and PyTorch, round by round, two threads each, data loading included: this
project draws every image of its world anew; PyTorch takes ready 8-bit images from memory and
normalises them, which is less work.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
import tomllib

import torch
from torch import nn
from torch.nn import functional as F

from compare import processor


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.out(x.transpose(1, 2).reshape(batch, tokens, width))


class Mlp(nn.Sequential):
    def __init__(self, width, hidden):
        super().__init__(nn.Linear(width, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, width))


class VMoe(nn.Module):
    """Noisy top-k with importance and load loss; experts as a sorted loop, nothing dropped."""

    def __init__(self, width, hidden, experts, k):
        super().__init__()
        self.experts, self.k = experts, k
        self.router = nn.Linear(width, experts, bias=False)
        scale = width**-0.5
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * scale)
        self.up_bias = nn.Parameter(torch.zeros(experts, hidden))
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)
        self.down_bias = nn.Parameter(torch.zeros(experts, width))

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        logits = self.router(x)
        sigma = 1.0 / self.experts
        noisy = logits + sigma * torch.randn_like(logits) if self.training else logits
        gates = noisy.softmax(-1)
        weights, chosen = gates.topk(self.k)
        self.loss = self.balance(logits, noisy, sigma) if self.training else 0.0

        order = chosen.flatten().argsort()
        rows = order // self.k
        counts = torch.bincount(chosen.flatten(), minlength=self.experts).tolist()
        parts = []
        experts = zip(self.up.unbind(), self.up_bias.unbind(), self.down.unbind(), self.down_bias.unbind())
        for tokens, (up, up_bias, down, down_bias) in zip(x[rows].split(counts), experts):
            hidden = F.gelu(torch.addmm(up_bias, tokens, up), approximate="tanh")
            parts.append(torch.addmm(down_bias, hidden, down))
        y = torch.cat(parts) * weights.flatten()[order].unsqueeze(1)
        return torch.zeros_like(x).index_add(0, rows, y).view(shape)

    def balance(self, logits, noisy, sigma):
        importance = logits.softmax(-1).sum(0)
        threshold = noisy.topk(self.k).values[:, -1:]
        load = torch.distributions.Normal(0.0, 1.0).cdf((logits - threshold) / sigma).sum(0)
        variation = lambda v: (v.std(unbiased=False) / (v.mean() + 1e-6)) ** 2
        return 0.005 * (variation(importance) + variation(load))


class Block(nn.Module):
    def __init__(self, width, heads, feed_forward):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention, self.feed_forward = Attention(width, heads), feed_forward

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Model(nn.Module):
    def __init__(self, model, moe_blocks):
        super().__init__()
        width, heads, mlp = model["width"], model["heads"], model["mlp"]
        moe = model["moe"]
        self.patch = model["patch"]
        self.embed = nn.Linear(3 * self.patch**2, width)
        tokens = (model["resolution"] // self.patch) ** 2
        self.position = nn.Buffer(torch.randn(1, tokens, width))
        self.moes = nn.ModuleDict(
            {str(b): VMoe(width, moe.get("hidden", mlp), moe["experts"], moe["k"]) for b in moe_blocks}
        )
        self.blocks = nn.Sequential(*[
            Block(width, heads, self.moes[str(b)] if b in moe_blocks else Mlp(width, mlp))
            for b in range(model["depth"])
        ])
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        batch, side, _, channels = images.shape
        n, p = side // self.patch, self.patch
        x = images.view(batch, n, p, n, p, channels).permute(0, 1, 3, 2, 4, 5).reshape(batch, n * n, -1)
        x = self.blocks(self.embed(x) + self.position)
        return self.head(self.norm(x).mean(1)), sum(moe.loss for moe in self.moes.values())


def read_recipe(program, name):
    """A recipe with every setting, as this project writes it; its model's sizes in one flat table."""
    command = [program, "recipes", name, "--full"]
    recipe = tomllib.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    image, encoder = recipe["model"]["image"], recipe["model"]["encoder"]
    moe = encoder["moe"]
    router = moe["router"]
    experts = {"hidden": moe.get("hidden", encoder["mlp"]), "experts": router["experts"]}
    sizes = {name: encoder[name] for name in ["width", "heads", "mlp", "depth"]}
    recipe["model"] = {
        **sizes,
        "patch": image["patch"],
        "resolution": image["resolution"][0],
        "moe": {**experts, "k": router["allocation"]["k"]},
    }
    return recipe


def torch_round(recipe, steps):
    torch.manual_seed(0)
    torch.set_num_threads(2)
    config, batch = recipe["model"], recipe["train"]["batch"]
    depth = config["depth"]
    model = Model(config, [b for b in range(depth) if b % 2 == 1][-2:])
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
    side = config["resolution"]
    pictures = torch.randint(0, 256, (20_000, side, side, 3), dtype=torch.uint8)
    labels = torch.randint(0, 10, (20_000,))

    def step():
        rows = torch.randint(0, len(labels), (batch,))
        images = pictures[rows].float().div_(127.5).sub_(1.0)
        logits, auxiliary = model(images)
        loss = F.cross_entropy(logits, labels[rows]) + auxiliary
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        return loss.item()

    for _ in range(5):
        step()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    return steps * batch / (time.perf_counter() - begin)


def our_round(program, steps):
    with tempfile.TemporaryDirectory() as folder:
        settings = [
            f"train.steps={steps}", "data.test_samples=10", "data.validation=0.0",
            "train.linear_baseline=false", "train.checkpoint_minutes=0",
        ]
        command = [program, "train", "--json", "--run", folder]
        for setting in settings:
            command += ["--set", setting]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return json.loads(output)["images_per_second"]


def side_by_side(ours, theirs):
    ratios = sorted(a / b for a, b in zip(ours, theirs))
    speeds = {"omma": statistics.median(ours), f"PyTorch {torch.__version__}": statistics.median(theirs)}
    return {"machine": processor(), "images_per_second": speeds, "ratio": statistics.median(ratios), "ratios": ratios}


def write(output, result, job, rounds, more=""):
    with open(f"{output}.json", "w") as file:
        json.dump(result, file, indent=2)
        file.write("\n")
    rows = "\n".join(f"| {name} | {speed:.0f} |" for name, speed in result["images_per_second"].items())
    ratios = ", ".join(f"{ratio:.2f}" for ratio in result["ratios"])
    with open(f"{output}.md", "w") as file:
        file.write(
            f"{job}, 2 threads, {result['machine']}; medians of {rounds} alternating rounds.\n\n"
            f"| | images/s |\n|---|---:|\n{rows}\n\nRatio {result['ratio']:.2f}× (rounds: {ratios}){more}\n"
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    recipe = read_recipe(arguments.program, "default")
    ours, theirs = [], []
    for _ in range(arguments.rounds):
        ours.append(our_round(arguments.program, arguments.steps))
        theirs.append(torch_round(recipe, arguments.steps))
    job = "Training the default recipe, data loading included"
    write(arguments.output, side_by_side(ours, theirs), job, arguments.rounds)


if __name__ == "__main__":
    main()
