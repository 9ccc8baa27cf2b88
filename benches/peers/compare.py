"""Times this project and its peers in turn, on the same shapes, and writes a table.

Every round has all contenders in turn, so that a noisy moment hits all of them; the figures are
medians. Before each there is a pause: threads of OpenMP and ONNX Runtime spin for a while after their
work in wait of more, on the cores of whoever comes next. A pause leaves cold caches and sleeping
threads, so one run behind it is not counted, and then as many are as take a quarter of a second:
speeds are those of a model at work. Run it through `benches/peers/run`.
"""

import argparse
import json
import platform
import statistics
import subprocess
import time

THREADS = 2
TOKENS, WIDTH, HIDDEN = 2048, 384, 1536
IMAGES, PER_IMAGE, HEADS, BLOCKS = 32, 64, 6, 4
OURS = "ommatidia"
PAUSE = 0.3
ENOUGH = 0.25


class Ours:
    """This project's program, which answers every job with the seconds of one run."""

    def __init__(self, program):
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        print(self.process.stdout.readline().strip())

    def ask(self, question):
        self.process.stdin.write(f"{question}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def check_parameters(self, name, module):
        """Both sides have as many parameters, or they would not compute the same."""
        ours, theirs = int(self.ask(name)), sum(p.numel() for p in module.parameters())
        if ours != theirs:
            raise SystemExit(f"{name} has {ours} parameters here and {theirs} in PyTorch")

    def job(self, name):
        def run(repeats=1):
            return float(self.ask(f"{repeats} {name}"))
        return run


def timed(function):
    """The mean seconds of some runs behind one that is not counted."""
    def run(repeats=1):
        function()
        start = time.perf_counter()
        for _ in range(repeats):
            function()
        return (time.perf_counter() - start) / repeats
    return run


def torch_job(module, x, backward, compiled=False):
    import torch
    run = torch.compile(module) if compiled else module
    parameters = [p for p in module.parameters() if p.requires_grad]

    def output():
        y = run(x)
        return y[0] if isinstance(y, tuple) else y

    def forward():
        with torch.inference_mode():
            output()

    def forward_backward():
        torch.autograd.grad(output().sum(), [x, *parameters], allow_unused=True)

    x.requires_grad_(backward)
    return timed(forward_backward if backward else forward)


def sorted_loop(experts, k):
    """A sparse MoE as a PyTorch expert writes it: sort by expert, one pair of products each."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class SortedLoop(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(WIDTH, experts, bias=False)
            self.up = nn.Parameter(torch.randn(experts, WIDTH, HIDDEN) * 0.05)
            self.up_bias = nn.Parameter(torch.zeros(experts, HIDDEN))
            self.down = nn.Parameter(torch.randn(experts, HIDDEN, WIDTH) * 0.05)
            self.down_bias = nn.Parameter(torch.zeros(experts, WIDTH))

        def forward(self, x):
            weights, chosen = self.gate(x).softmax(-1).topk(k)
            chosen = chosen.flatten()
            order = chosen.argsort()
            counts = torch.bincount(chosen, minlength=experts).tolist()
            tokens = order // k
            # Unbound once: indexing a stack per expert would make its gradient E times as large.
            parameters = zip(self.up_bias.unbind(), self.up.unbind(),
                             self.down_bias.unbind(), self.down.unbind())
            outputs = []
            for rows, (up_bias, up, down_bias, down) in zip(x[tokens].split(counts), parameters):
                hidden = F.gelu(torch.addmm(up_bias, rows, up), approximate="tanh")
                outputs.append(torch.addmm(down_bias, hidden, down))
            weighted = torch.cat(outputs) * weights.flatten()[order, None]
            return torch.zeros_like(x).index_add(0, tokens, weighted)

    return SortedLoop()


def st_moe(experts, k):
    """Its capacity counts tokens, not choices, so 1.25 · k leaves room for all choices."""
    from st_moe_pytorch import MoE
    return MoE(dim=WIDTH, num_experts=experts, gating_top_n=k, threshold_train=0.0,
               threshold_eval=0.0, capacity_factor_train=1.25 * k, capacity_factor_eval=1.25 * k)


def mixture_of_experts(experts):
    """Top-2 routing; its capacity counts tokens too."""
    from mixture_of_experts import MoE
    return MoE(dim=WIDTH, num_experts=experts, hidden_dim=HIDDEN, second_policy_train="all",
               second_policy_eval="all", capacity_factor_train=2.5, capacity_factor_eval=2.5)


def jax_einsum(experts, k, backward):
    """The dense dispatch of the TPU lineage: one-hot tensors [T, E, C] and einsums, jitted."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    capacity = int(TOKENS * k / experts * 1.25)
    rng = np.random.default_rng(0)

    def array(*shape, scale=0.05):
        return jnp.asarray(rng.normal(size=shape) * scale, jnp.float32)

    parameters = (array(WIDTH, experts), array(experts, WIDTH, HIDDEN), array(experts, 1, HIDDEN),
                  array(experts, HIDDEN, WIDTH), array(experts, 1, WIDTH))
    x = array(TOKENS, WIDTH, scale=1.0)

    def layer(parameters, x):
        gate, up, up_bias, down, down_bias = parameters
        gates = jax.nn.softmax(x @ gate)
        weights, chosen = jax.lax.top_k(gates, k)
        one_hot = jax.nn.one_hot(chosen.T.reshape(-1), experts, dtype=jnp.int32)
        place = (jnp.cumsum(one_hot, axis=0) - 1).reshape(k, TOKENS, experts)
        one_hot = one_hot.reshape(k, TOKENS, experts)
        slots = jax.nn.one_hot(jnp.where(one_hot > 0, place, capacity), capacity)
        dispatch = (slots * one_hot[..., None]).sum(0)
        combine = (slots * (one_hot * weights.T[..., None])[..., None]).sum(0)
        rows = jnp.einsum("tec,td->ecd", dispatch, x)
        hidden = jax.nn.gelu(jnp.einsum("ecd,edh->ech", rows, up) + up_bias)
        outputs = jnp.einsum("ech,ehd->ecd", hidden, down) + down_bias
        return jnp.einsum("tec,ecd->td", combine, outputs)

    if backward:
        step = jax.jit(jax.grad(lambda p, x: layer(p, x).sum(), argnums=(0, 1)))
    else:
        step = jax.jit(layer)
    return timed(lambda: jax.block_until_ready(step(parameters, x)))


def timm_blocks():
    from timm.models.vision_transformer import Block
    from torch import nn
    return nn.Sequential(*[Block(WIDTH, HEADS, mlp_ratio=4.0, qkv_bias=True) for _ in range(BLOCKS)])


def soft_moe():
    from soft_moe_pytorch import SoftMoE
    return SoftMoE(dim=WIDTH, num_experts=8, num_slots=8, geglu=False)


def onnx_vit(batch):
    """ViT-S/16 exported by PyTorch, in ONNX Runtime."""
    import io
    import onnxruntime
    import timm
    import torch
    model = timm.create_model("vit_small_patch16_224").eval()
    images = torch.randn(batch, 3, 224, 224)
    file = io.BytesIO()
    torch.onnx.export(model, (images,), file, dynamo=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(file.getvalue(), options, ["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: images.numpy()}
    return timed(lambda: session.run(None, feed))


def torch_vmoe():
    """V-MoE-S/16 with eight experts in every other block, K = 1, as in the training comparison."""
    from train import Model
    sizes = {"width": WIDTH, "heads": HEADS, "mlp": HIDDEN, "depth": 12, "patch": 16, "resolution": 224}
    experts = {"hidden": HIDDEN, "experts": 8, "k": 1}
    return Model({**sizes, "moe": experts}, [1, 3, 5, 7, 9, 11]).eval()


def products(ours):
    """The products of an expert."""
    import torch
    for rows, inputs, outputs in [(512, WIDTH, HIDDEN), (512, HIDDEN, WIDTH)]:
        name = f"{rows}x{inputs}x{outputs}"
        x, weight = torch.randn(rows, inputs), torch.randn(inputs, outputs)
        yield f"product {name}", "fwd", {
            OURS: ours.job(f"product {name}"),
            "PyTorch mm": timed(lambda x=x, weight=weight: torch.mm(x, weight)),
        }


def models(ours):
    """Whole models that predict."""
    import timm
    import torch
    for batch in [1, 8]:
        vit = timm.create_model("vit_small_patch16_224").eval()
        ours.check_parameters("vit-dinos16", vit)
        yield f"ViT-S/16, 224 px, batch {batch}", "fwd", {
            OURS: ours.job(f"vit-dinos16 B={batch}"),
            "ONNX Runtime": onnx_vit(batch),
            "PyTorch eager (timm)": torch_job(vit, torch.randn(batch, 3, 224, 224), False),
        }
    for batch in [1, 8]:
        vmoe = torch_vmoe()
        ours.check_parameters("vmoe-dinos16", vmoe)
        yield f"V-MoE-S/16, 224 px, E=8, K=1, batch {batch}", "fwd", {
            OURS: ours.job(f"vmoe-dinos16 B={batch}"),
            "PyTorch sorted loop": torch_job(vmoe, torch.randn(batch, 224, 224, 3), False),
        }


def contenders(ours, backward, compiled):
    """With `compiled`, PyTorch's layers also run through `torch.compile`."""
    import torch
    tag = "fwd+bwd" if backward else "fwd"
    flat = lambda: torch.randn(TOKENS, WIDTH)
    batch = lambda: torch.randn(IMAGES, PER_IMAGE, WIDTH)
    for experts, k in [(8, 2), (32, 2), (8, 1)]:
        name = f"MoE layer, {TOKENS} tokens, D={WIDTH}, H={HIDDEN}, E={experts}, K={k}"
        jobs = {
            OURS: ours.job(f"moe E={experts} K={k} {tag}"),
            "PyTorch sorted loop": torch_job(sorted_loop(experts, k), flat(), backward),
            "JAX einsum dispatch, jit": jax_einsum(experts, k, backward),
        }
        if compiled:
            jobs["PyTorch sorted loop, compiled"] = torch_job(sorted_loop(experts, k), flat(), backward, True)
        if k == 2:
            jobs["st-moe-pytorch"] = torch_job(st_moe(experts, k), batch(), backward)
            jobs["mixture-of-experts"] = torch_job(mixture_of_experts(experts), batch(), backward)
        yield name, tag, jobs
    jobs = {
        OURS: ours.job(f"vit {tag}"),
        "PyTorch eager (timm blocks)": torch_job(timm_blocks(), batch(), backward),
    }
    if compiled:
        jobs["PyTorch compiled (timm blocks)"] = torch_job(timm_blocks(), batch(), backward, True)
    yield f"{BLOCKS} ViT blocks, B={IMAGES}, T={PER_IMAGE}, D={WIDTH}, {HEADS} heads", tag, jobs
    jobs = {
        OURS: ours.job(f"soft {tag}"),
        "soft-moe-pytorch": torch_job(soft_moe(), batch(), backward),
    }
    if compiled:
        jobs["soft-moe-pytorch, compiled"] = torch_job(soft_moe(), batch(), backward, True)
    yield f"Soft MoE layer, B={IMAGES}, T={PER_IMAGE}, D={WIDTH}, E=8, 8 slots", tag, jobs


def all_jobs(ours, compiled):
    yield from contenders(ours, True, compiled)
    yield from contenders(ours, False, compiled)
    yield from products(ours)
    yield from models(ours)


def quartiles(ours, theirs):
    """The first and third quartile of the ratio over the rounds."""
    ratios = sorted(b / a for a, b in zip(ours, theirs))
    return ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]


def processor():
    with open("/proc/cpuinfo") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--program", required=True)
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--output", required=True)
    arguments.add_argument("--compile", action="store_true", help="torch.compile too")
    arguments.add_argument("--only", default="", help="jobs whose name has this in it")
    arguments = arguments.parse_args()
    import importlib.metadata as metadata
    import torch
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    ours = Ours(arguments.program)
    rows = []
    for name, tag, jobs in all_jobs(ours, arguments.compile):
        if arguments.only not in name:
            continue
        repeats = {contender: max(1, round(ENOUGH / job())) for contender, job in jobs.items()}
        times = {contender: [] for contender in jobs}
        for _ in range(arguments.rounds):
            for contender, job in jobs.items():
                time.sleep(PAUSE)
                times[contender].append(job(repeats[contender]))
        medians = {contender: statistics.median(t) for contender, t in times.items()}
        ratios = {contender: quartiles(times[OURS], t) for contender, t in times.items()}
        rows.append({"job": name, "pass": tag, "seconds": medians, "quartiles": ratios})
        print(name, tag, {c: f"{t * 1e3:.1f} ms" for c, t in medians.items()}, flush=True)
    packages = {p: metadata.version(p) for p in
                ["torch", "jax", "timm", "st-moe-pytorch", "mixture-of-experts", "soft-moe-pytorch"]}
    machine = f"{processor()}, {THREADS} threads, f32"
    with open(arguments.output + ".json", "w") as file:
        json.dump({"machine": machine, "packages": packages, "rounds": arguments.rounds,
                   "rows": rows}, file, indent=1)
    lines = [f"Measured on {machine}; medians of {arguments.rounds} rounds, all contenders in turn; "
             + ", ".join(f"{p} {v}" for p, v in packages.items()) + ".", "",
             "| job | pass | contender | time | ommatidia is |", "|---|---|---|---|---|"]
    for row in rows:
        mine = row["seconds"][OURS]
        for contender, seconds in row["seconds"].items():
            low, high = row["quartiles"][contender]
            ratio = "" if contender == OURS else f"{seconds / mine:.2f}× ({low:.2f}–{high:.2f}) as fast"
            lines.append(f"| {row['job']} | {row['pass']} | {contender} | {seconds * 1e3:.1f} ms | {ratio} |")
    with open(arguments.output + ".md", "w") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
