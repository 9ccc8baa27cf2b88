"""Speed and memory of `omma eval` against the same model in PyTorch with `torch.inference_mode`.

Both read the 10,000 test images of Fashion-MNIST and compute error, NLL, Brier score and calibration
error. Alternates the two, round by round, two threads each; PyTorch has its images in memory and takes the
fastest of three batch sizes, this project reads them from disk and uses its default. Memory is the peak
of the whole process of this project for 10,000 and for 60,000 images.
"""

import argparse
import gzip
import json
import statistics
import subprocess
import tempfile
import time

import torch

from train import Model, read_recipe, side_by_side, write

IMAGES = "/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz"
LABELS = "/usr/share/datasets/fashion-mnist/t10k-labels-idx1-ubyte.gz"


def read(path, header):
    with gzip.open(path) as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


def scores(logits, labels):
    probabilities = logits.softmax(-1)
    sureness, said = probabilities.max(-1)
    right = (said == labels).double()
    nll = -logits.log_softmax(-1).gather(1, labels[:, None]).sum()
    truth = torch.nn.functional.one_hot(labels, 10)
    brier = ((probabilities - truth) ** 2).sum()
    bins = (sureness * 15).ceil().long().clamp(1, 15) - 1
    table = torch.zeros(3, 15, dtype=torch.double)
    for row, values in enumerate([torch.ones_like(right), right, sureness.double()]):
        table[row].index_add_(0, bins, values)
    return nll.double(), brier.double(), table


@torch.inference_mode()
def torch_round(model, pictures, labels, batch):
    begin = time.perf_counter()
    nll, brier, table = 0.0, 0.0, torch.zeros(3, 15, dtype=torch.double)
    for start in range(0, len(labels), batch):
        images = pictures[start:start + batch].float().div_(127.5).sub_(1.0)
        images = images.unsqueeze(-1).expand(-1, -1, -1, 3).contiguous()
        part = scores(model(images)[0], labels[start:start + batch])
        nll, brier, table = nll + part[0], brier + part[1], table + part[2]
    return len(labels) / (time.perf_counter() - begin)


def our_round(program, run, split):
    command = [program, "eval", run, "--split", split, "--no-temperature", "--json", "--out", run]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result = json.loads(output)
    return result["images_per_second"], result["peak_rss_bytes"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    config = read_recipe(arguments.program, "fashion-vmoe")["model"]
    torch.manual_seed(0)
    torch.set_num_threads(2)
    depth = config["depth"]
    model = Model(config, [b for b in range(depth) if b % 2 == 1][-2:]).eval()
    pictures = read(IMAGES, 16).view(-1, 28, 28)
    labels = read(LABELS, 8).long()
    ours, theirs, small, large = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        run = f"{folder}/run"
        command = [arguments.program, "train", "fashion-vmoe", "--run", run]
        for setting in ["train.steps=20", "train.epochs=0", "train.linear_baseline=false"]:
            command += ["--set", setting]
        subprocess.run(command, check=True, capture_output=True)
        for _ in range(arguments.rounds):
            speed, memory = our_round(arguments.program, run, "test")
            ours.append(speed)
            small.append(memory)
            theirs.append(max(torch_round(model, pictures, labels, b) for b in [64, 256, 1000]))
        for _ in range(3):
            large.append(our_round(arguments.program, run, "train")[1])
    small, large = statistics.median(small), statistics.median(large)
    result = side_by_side(ours, theirs) | {"peak_bytes": {"10000": small, "60000": large}}
    job = "Evaluating the model of `fashion-vmoe` on 10,000 images"
    memory = (
        f". Peak memory of `omma eval`: {small / 2**20:.1f} MiB for 10,000 images, "
        f"{large / 2**20:.1f} MiB for 60,000 ({100 * (large / small - 1):+.1f} %)."
    )
    write(arguments.output, result, job, arguments.rounds, memory)


if __name__ == "__main__":
    main()
