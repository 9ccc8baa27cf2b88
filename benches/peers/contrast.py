"""Times a step of images and texts here and in PyTorch, in turn, and writes a table.

Every round runs each contender once; the figures are medians. Run it through `benches/peers/run contrast`.
"""

import argparse
import json
import statistics

import torch
from torch import nn
from torch.nn import functional as F

from compare import HEADS, HIDDEN, OURS, THREADS, WIDTH, Ours, processor, sorted_loop, timed

PAIRS, SIDE, PATCH, LENGTH, VOCABULARY, DEPTH, EMBEDDING, EXPERTS = 64, 32, 4, 16, 8192, 4, 256, 8


def data():
    torch.manual_seed(0)
    return torch.randn(PAIRS, 3, SIDE, SIDE), torch.randint(1, VOCABULARY, (PAIRS, LENGTH))


def open_clip_step():
    """Two dense towers of open_clip, and its loss."""
    from open_clip.loss import ClipLoss
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    vision = CLIPVisionCfg(layers=DEPTH, width=WIDTH, head_width=WIDTH // HEADS, mlp_ratio=HIDDEN / WIDTH,
                           patch_size=PATCH, image_size=SIDE)
    text = CLIPTextCfg(context_length=LENGTH, vocab_size=VOCABULARY, width=WIDTH, heads=HEADS, layers=DEPTH)
    model, loss = CLIP(EMBEDDING, vision, text), ClipLoss()
    images, texts = data()
    return step(model, lambda: loss(*model(images, texts)))


class Block(nn.Module):
    """Attention and a feed-forward network, dense or of experts; sequences of two lengths."""

    def __init__(self, experts):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        dense = nn.Sequential(
            nn.Linear(WIDTH, HIDDEN), nn.GELU(approximate="tanh"), nn.Linear(HIDDEN, WIDTH))
        self.feed = sorted_loop(EXPERTS, 1) if experts else dense

    def attend(self, x):
        batch, tokens, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, HEADS, WIDTH // HEADS)
        mixed = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4))
        return x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, WIDTH))

    def forward(self, images, texts):
        images, texts = self.attend(images), self.attend(texts)
        rows = torch.cat([images.flatten(0, 1), texts.flatten(0, 1)])
        rows = rows + self.feed(self.norm2(rows))
        first, second = rows.split([images.shape[0] * images.shape[1], texts.shape[0] * texts.shape[1]])
        return first.view_as(images), second.view_as(texts)


class OneTower(nn.Module):
    """LIMoE as a PyTorch expert writes it."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.position = nn.Parameter(torch.randn((SIDE // PATCH) ** 2, WIDTH) * 0.02)
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block(index % 2 == 1) for index in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)
        self.image, self.text = (nn.Linear(WIDTH, EMBEDDING, bias=False) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(10.0).log())

    def forward(self, images, texts):
        images = self.patches(images).flatten(2).transpose(1, 2) + self.position
        texts = self.words(texts) + self.place
        for block in self.blocks:
            images, texts = block(images, texts)
        images = F.normalize(self.image(self.norm(images).mean(1)), dim=-1)
        texts = F.normalize(self.text(self.norm(texts).mean(1)), dim=-1)
        logits = self.scale.exp() * images @ texts.T
        labels = torch.arange(len(logits))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def one_tower_step():
    model = OneTower()
    images, texts = data()
    return step(model, lambda: model(images, texts))


def step(model, loss):
    parameters = [p for p in model.parameters() if p.requires_grad]
    return timed(lambda: torch.autograd.grad(loss(), parameters, allow_unused=True))


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--program", required=True)
    arguments.add_argument("--output", required=True)
    arguments.add_argument("--rounds", type=int, default=15)
    arguments = arguments.parse_args()
    torch.set_num_threads(THREADS)
    ours = Ours(arguments.program)
    jobs = {
        "two dense towers": {OURS: ours.job("contrast dense"), "open_clip": open_clip_step()},
        "one tower, 8 experts": {OURS: ours.job("contrast experts"), "PyTorch sorted loop": one_tower_step()},
    }
    results = {}
    for name, contenders in jobs.items():
        times = {contender: [] for contender in contenders}
        for contender, run in contenders.items():
            run(), run()
        for _ in range(arguments.rounds):
            for contender, run in contenders.items():
                times[contender].append(run())
        results[name] = times
    lines = [
        f"Forward and backward of {PAIRS} pairs, {THREADS} threads, f32, medians of {arguments.rounds} alternating rounds; "
        f"torch {torch.__version__}; {processor()}.",
        "",
        "| step | ommatidia, pairs/s | peer, pairs/s | ratio (quartiles over rounds) |",
        "|---|---:|---:|---:|",
    ]
    for name, times in results.items():
        (_, own), (peer, other) = times.items()
        ratios = [b / a for a, b in zip(own, other)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        rate = lambda all: f"{PAIRS / statistics.median(all):.0f}"
        lines.append(f"| {name} | {rate(own)} | {rate(other)} ({peer}) | {middle:.2f} ({low:.2f}–{high:.2f}) |")
    with open(arguments.output + ".md", "w") as file:
        file.write("\n".join(lines) + "\n")
    with open(arguments.output + ".json", "w") as file:
        json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
