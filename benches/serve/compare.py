"""`omma serve` beside LitServe: the same models with the same weights, the same client, the same bytes.

A V-MoE-S/16 with eight experts in PyTorch, and a dense ViT-S/16 in ONNX Runtime, both behind LitServe with its own batching. Its
settings are chosen first: the fastest of some batch sizes, workers and threads with 32 clients. Then both servers are asked in
turn, round by round, by as many clients; figures are medians. Run it through `benches/serve/compare`.
"""

import argparse
import base64
import csv
import io
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
import zlib

import numpy
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))
from compare import processor  # noqa: E402

SIDE, CLASSES = 224, 1000
CLIENTS = [1, 8, 32]
EXPERTS = ["moe.experts=8", "moe.k=1", "moe.capacity_ratio=none"]
# Batch, workers, threads of each: two CPUs in every case.
SETTINGS = [(8, 1, 2), (32, 1, 2), (8, 2, 1), (32, 2, 1)]


def checkpoint(program, folder, preset, settings):
    """A model with random parameters, the head too, so that answers differ and can be compared."""
    command = [program, "--quiet", "init", preset, str(folder), "--force", "--set", f"classes={CLASSES}", "--set", f"resolution={SIDE}"]
    for setting in settings:
        command += ["--set", setting]
    subprocess.run(command, check=True)
    file = folder / "model.safetensors"
    with safe_open(file, "np") as source:
        metadata = source.metadata()
        tensors = {name: source.get_tensor(name) for name in source.keys()}
    name = "head.weight"
    drawn = numpy.random.default_rng(0).normal(0, 0.1, tensors[name].shape).astype("<f4")
    tensors[name] = drawn
    sizes = b"".join(size.to_bytes(8, "little") for size in drawn.shape)
    checksum = zlib.crc32(name.encode() + sizes + drawn.tobytes())
    before = json.loads(metadata["omma"])["checksums"][name]
    metadata["omma"] = metadata["omma"].replace(f'"{name}":"{before}"', f'"{name}":"{checksum:08x}"')
    save_file(tensors, file, metadata)


def photo(folder):
    """Smooth colours with noise as JPEG, in base64 in JSON, which both servers read; and as PNG, which everybody decodes alike."""
    drawn = numpy.random.default_rng(0)
    coarse = Image.fromarray(drawn.integers(0, 256, (14, 14, 3), dtype=numpy.uint8))
    smooth = numpy.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC), float)
    pixels = (smooth + drawn.normal(0, 6, smooth.shape)).clip(0, 255).astype(numpy.uint8)
    bodies = []
    for kind in ("JPEG", "PNG"):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind, quality=90)
        bodies.append(folder / f"{kind}.json")
        bodies[-1].write_text(json.dumps({"image": base64.b64encode(file.getvalue()).decode()}))
    return bodies


class Server:
    """A process that answers on a port of its own."""

    def __init__(self, command, port, log):
        self.address = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def wait(self, body):
        until = time.monotonic() + 120
        while time.monotonic() < until:
            try:
                return self.ask(body)
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.2)
        raise SystemExit(f"{self.address} does not answer")

    def ask(self, body):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.address + "/predict", data=body.read_bytes(), headers=headers)
        reply = json.load(urllib.request.urlopen(request, timeout=60))
        best = reply["predictions"][0]["top"] if "predictions" in reply else reply["top"]
        return {one["class"]: one["probability"] for one in best}

    def load(self, body, clients, seconds):
        command = ["hey", "-z", f"{seconds}s", "-c", str(clients), "-t", "60", "-m", "POST", "-T", "application/json",
                   "-D", str(body), "-o", "csv", self.address + "/predict"]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows = list(csv.DictReader(io.StringIO(output)))
        wrong = sum(row["status-code"] != "200" for row in rows)
        took = sorted(1000 * float(row["response-time"]) for row in rows if row["status-code"] == "200")
        if not took:
            raise SystemExit(f"{self.address} answers nobody: {output[:300]}")
        # hey lets everything end that was begun: the last answer says how long it took.
        end = max(float(row["offset"]) + float(row["response-time"]) for row in rows)
        at = lambda share: took[min(len(took) - 1, int(share * len(took)))]
        return {"per_second": len(took) / end, "p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "wrong": wrong}

    def close(self):
        """LitServe's workers are children of its own, in the session that was made for it."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            pass
        subprocess.run(["kill", "-KILL", "--", f"-{self.process.pid}"], capture_output=True)
        self.process.wait()


def start_ours(options, folder, log, port):
    return Server([options.program, "--quiet", "serve", str(folder), "--port", str(port)], port, log)


def start_theirs(folder, engine, setting, log, port):
    batch, workers, threads = setting
    command = [sys.executable, str(HERE / "peer.py"), str(folder), engine, "--port", str(port), "--batch", str(batch),
               "--workers", str(workers), "--threads", str(threads)]
    return Server(command, port, log)


def tuned(options, folder, engine, body, log):
    """The settings with which LitServe answers most, and what each gave."""
    tried = {}
    for number, setting in enumerate(SETTINGS):
        server = start_theirs(folder, engine, setting, log, options.port + 10 + number)
        try:
            server.wait(body)
            # Every worker once, and its threads.
            server.load(body, 32, 2)
            tried[setting] = server.load(body, 32, options.tune)
            print(engine, setting, tried[setting], flush=True)
        finally:
            server.close()
    return max(tried, key=lambda setting: tried[setting]["per_second"]), tried


def compare(options, name, folder, engine, body, plain, log):
    best, tried = tuned(options, folder, engine, body, log)
    measured = {}
    for number in range(options.rounds):
        for side in ("omma", "LitServe"):
            port = options.port + 30 + 2 * number + (side == "omma")
            server = (start_ours(options, folder, log, port) if side == "omma"
                      else start_theirs(folder, engine, best, log, port))
            try:
                server.wait(body)
                measured[side, "answer"] = server.ask(plain)
                server.load(body, 32, 2)
                for clients in CLIENTS:
                    found = server.load(body, clients, options.seconds)
                    measured.setdefault((side, clients), []).append(found)
                    print(name, side, clients, found, flush=True)
            finally:
                server.close()
    ours, theirs = (measured[side, "answer"] for side in ("omma", "LitServe"))
    if ours.keys() != theirs.keys() or any(abs(ours[one] - theirs[one]) > 1e-3 * ours[one] for one in ours):
        raise SystemExit(f"the models say different things: {ours} and {theirs}")
    middle = lambda rows: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    rows = {f"{side}, {clients}": middle(measured[side, clients])
            for side in ("omma", "LitServe") for clients in CLIENTS}
    return {
        "model": name, "engine": engine, "best": dict(zip(("batch", "workers", "threads"), best)),
        "tried": {" ".join(map(str, setting)): found for setting, found in tried.items()}, "rows": rows,
        "answers": {"omma": ours, "LitServe": theirs},
        "ratios": {clients: [a["per_second"] / b["per_second"] for a, b in
                             zip(measured["omma", clients], measured["LitServe", clients])] for clients in CLIENTS},
    }


def table(result):
    best = result["best"]
    engine = {"torch": "PyTorch", "onnx": "ONNX Runtime"}[result["engine"]]
    lines = [f"**{result['model']}** beside {engine} behind LitServe (batches of {best['batch']}, {best['workers']} worker(s) of "
             f"{best['threads']} thread(s), the best of {len(result['tried'])} settings):", "",
             "| clients | server | answers/s | p50 ms | p95 ms | p99 ms | omma is |", "|---:|---|---:|---:|---:|---:|---|"]
    for clients in CLIENTS:
        ratios = sorted(result["ratios"][clients])
        for side in ("omma", "LitServe"):
            row = result["rows"][f"{side}, {clients}"]
            ratio = "" if side == "omma" else f"{statistics.median(ratios):.2f}× ({ratios[0]:.2f}–{ratios[-1]:.2f})"
            lines.append(f"| {clients} | {side} | {row['per_second']:.1f} | {row['p50']:.0f} | {row['p95']:.0f} | "
                         f"{row['p99']:.0f} | {ratio} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="a folder for models")
    parser.add_argument("--output", required=True)
    parser.add_argument("--only", choices=["torch", "onnx"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--tune", type=int, default=6)
    parser.add_argument("--port", type=int, default=18400)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    body, plain = photo(options.work)
    size = len(base64.b64decode(json.loads(body.read_text())["image"]))
    output = pathlib.Path(options.output + ".json")
    before = json.loads(output.read_text())["results"] if options.only and output.exists() else []
    results = [one for one in before if one["engine"] != options.only]
    with open(options.work / "log", "w") as log:
        for name, preset, settings, engine in [("V-MoE-S/16, E = 8, K = 1, 224 px", "vmoe-s16", EXPERTS, "torch"),
                                               ("ViT-S/16, 224 px", "vit-s16", [], "onnx")]:
            if options.only in (None, engine):
                checkpoint(options.program, options.work / preset, preset, settings)
                results.append(compare(options, name, options.work / preset, engine, body, plain, log))
    results.sort(key=lambda one: one["engine"], reverse=True)
    import importlib.metadata as metadata
    packages = {name: metadata.version(name) for name in ["litserve", "torch", "onnxruntime", "pillow"]}
    machine = f"{processor()}, 2 CPUs for server and client together"
    found = {"machine": machine, "packages": packages, "rounds": options.rounds, "seconds": options.seconds,
             "jpeg_bytes": size, "results": results}
    output.write_text(json.dumps(found, indent=1) + "\n")
    lines = [f"Measured on {machine}; medians of {options.rounds} rounds of {options.seconds} s, in turn; a JPEG of {size} bytes in "
             "base64; " + ", ".join(f"{name} {version}" for name, version in packages.items()) + "."]
    for result in results:
        lines += ["", *table(result)]
    pathlib.Path(options.output + ".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
