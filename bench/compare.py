#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""trainer against TensorFlow and PyTorch, interleaved in one run, with the machine's ceiling beside.

usage: compare.py TRAINER PEERS_VENVS PEER_SCRIPTS DATA [--rounds 3] [--threads 2] [--end-to-end]
  PEERS_VENVS   folder with tf/ and pt/ (virtual environments); one that is missing is left out
  PEER_SCRIPTS  folder with peer_tf.py, peer_torch.py, ceiling.c
  DATA          folder with mnist/ and fashion-mnist/
The peers get a tuned allocator (their best case); trainer gets nothing. A round is: each peer, then trainer; the best peer's median counts.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

p = argparse.ArgumentParser()
p.add_argument("trainer"), p.add_argument("venvs"), p.add_argument("peers"), p.add_argument("data")
p.add_argument("--rounds", type=int, default=3)
p.add_argument("--threads", type=int, default=2)
p.add_argument("--seconds", type=float, default=2.0)
p.add_argument("--end-to-end", action="store_true")
a = p.parse_args()

TUNED = {**os.environ, "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "1000000000000", "MALLOC_TOP_PAD_": "67108864", "TF_CPP_MIN_LOG_LEVEL": "3"}
TUNED.pop("OPENBLAS_CORETYPE", None)
WORKLOADS = {"mnist_cnn": ("mnist", "mnist", 64), "fashion_cnn": ("fashion_mnist", "fashion-mnist", 512)}


def output(command, env=None):
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout


def ceiling():
    program = tempfile.mkdtemp() + "/ceiling"
    subprocess.run(["gcc", "-O2", "-march=native", "-fopenmp", f"{a.peers}/ceiling.c", "-o", program, "-lm"], check=True)
    return output([program]).strip()


def peer(name, workload):
    python, script = {"tensorflow": ("tf", "peer_tf.py"), "torch": ("pt", "peer_torch.py")}[name]
    python = f"{a.venvs}/{python}/bin/python"
    if not os.path.exists(python):
        return None
    try:
        line = output([python, f"{a.peers}/{script}", workload, "--threads", str(a.threads), "--seconds", str(a.seconds), "--windows", "5"], TUNED)
    except subprocess.CalledProcessError:
        return None
    return json.loads(line.strip().splitlines()[-1])["examples_per_second"]


def ours(workload, extra=()):
    dataset, folder, batch = WORKLOADS[workload]
    steps = max(30, int(8000 / batch))
    text = output([a.trainer, "--mode=train", f"--model_type={workload}", f"--dataset={dataset}", f"--data_dir={a.data}/{folder}", f"--log_steps={steps}",
                   f"--params_override=train.epochs=1,train.steps={steps * 8},runtime.threads={a.threads}", *extra])
    return [float(x) for x in re.findall(r"TimeHistory: \S+ seconds, (\S+) examples", text)][1:]


print(time.strftime("%Y-%m-%d %H:%M"), "load", os.getloadavg()[0])
print(ceiling(), flush=True)
for workload in WORKLOADS:
    rates = {}
    for _ in range(a.rounds):
        for name in ("tensorflow", "torch"):
            windows = peer(name, workload)
            if windows:
                rates.setdefault(name, []).extend(windows)
            rates.setdefault("trainer", []).extend(ours(workload))
    median = {k: statistics.median(v) for k, v in rates.items()}
    best = max((v for k, v in median.items() if k != "trainer"), default=float("nan"))
    print(f"{workload}: " + ", ".join(f"{k} {v:.0f} ({min(rates[k]):.0f} to {max(rates[k]):.0f})" for k, v in median.items()) + f"; ratio to the better peer {median['trainer'] / best:.2f}", flush=True)

one, two = [], []
for _ in range(a.rounds):  # the same global batch of 512 on one device with all threads, and on two replicas
    one += ours("fashion_cnn")
    two += ours("fashion_cnn", ["--params_override=runtime.distribution_strategy=mirrored,runtime.num_replicas=2,train_dataset.batch_size=256"])
print(f"fashion_cnn, 2 replicas of one thread against one device with {a.threads}: {statistics.median(two):.0f} and {statistics.median(one):.0f}, ratio {statistics.median(two) / statistics.median(one):.2f}")

start = []
for _ in range(7):
    t = time.perf_counter()
    subprocess.run([a.trainer, "--mode=train", "--model_type=mnist_cnn", "--params_override=train.epochs=1,train.steps=1", "--quiet"], check=True, capture_output=True)
    start.append(time.perf_counter() - t)
print(f"command start to the end of a run of one step: {statistics.median(start):.3f} s")

def whole(command, env=None):
    """Runs a command; returns its seconds and peak memory in MB."""
    t = time.perf_counter()
    p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    _, code, usage = os.wait4(p.pid, 0)
    if code:
        sys.exit(f"failed: {' '.join(command)}")
    return time.perf_counter() - t, usage.ru_maxrss / 1024


if a.end_to_end:
    runs = {"trainer": [], "Keras": []}
    python = f"{a.venvs}/tf/bin/python"
    for _ in range(2):
        with tempfile.TemporaryDirectory() as d:
            runs["trainer"].append(whole([a.trainer, "--mode=train_and_eval", "--model_type=mnist_cnn", f"--data_dir={a.data}/mnist", f"--model_dir={d}",
                                          f"--params_override=runtime.threads={a.threads}"]))
        if os.path.exists(python):
            with tempfile.TemporaryDirectory() as d:
                runs["Keras"].append(whole([python, os.path.join(os.path.dirname(os.path.abspath(__file__)), "keras_mnist.py"), f"{a.data}/mnist", d, str(a.threads)], TUNED))
    best = {name: min(r) for name, r in runs.items() if r}
    print("end to end, full MNIST, 12 epochs with evaluation, checkpoints, events, from command to exit: " +
          ", ".join(f"{name} {s:.1f} s, {mb:.0f} MB at the peak" for name, (s, mb) in best.items()) +
          (f"; {best['Keras'][0] / best['trainer'][0]:.2f} times as fast, {best['Keras'][1] / best['trainer'][1]:.1f} times less memory" if "Keras" in best else ""))
