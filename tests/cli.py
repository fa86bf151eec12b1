#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program as a person uses it: commands in, exit codes, messages and files out.

usage: cli.py TRAINER [FILTER]     prints a line a test in cmocka's form; exit 1 if one failed
"""
import base64
import filecmp
import glob
import gzip
import html.parser
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

TRAINER = os.path.abspath(sys.argv[1])
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TESTS = []


class Skip(Exception):
    pass


def test(function):
    TESTS.append(function)
    return function


def run(*flags, code=0, env=None, cwd=None, timeout=120):
    """Runs the program; checks the exit code; returns stdout, stderr."""
    p = subprocess.run([TRAINER, *flags], capture_output=True, text=True, cwd=cwd, timeout=timeout, env={**os.environ, **(env or {})})
    if p.returncode != code:
        raise AssertionError(f"exit {p.returncode}, expected {code}\n$ trainer {' '.join(flags)}\n{p.stdout}\n{p.stderr}")
    return p.stdout, p.stderr


def says(text, *parts):
    for part in parts:
        if part not in text:
            raise AssertionError(f"expected to read {part!r} in:\n{text}")


def mnist(model_dir=None, mode="train_and_eval", override="", *more):
    flags = [f"--mode={mode}", "--model_type=mnist_cnn", "--dataset=mnist"]
    if model_dir:
        flags.append(f"--model_dir={model_dir}")
    small = "train_dataset.num_examples=640,validation_dataset.num_examples=200,train.epochs=2"
    flags.append("--params_override=" + small)
    if override:
        flags.append("--params_override=" + override)
    return flags + list(more)


def newest(model_dir):
    with open(os.path.join(model_dir, "checkpoint")) as f:
        return os.path.join(model_dir, re.search(r'model_checkpoint_path: "(.*)"', f.read()).group(1))


def same_checkpoint(a, b):
    for ending in (".index", ".data-00000-of-00001"):
        if not filecmp.cmp(newest(a) + ending, newest(b) + ending, shallow=False):
            raise AssertionError(f"{newest(a)}{ending} and {newest(b)}{ending} differ")


def events(model_dir, event):
    with open(os.path.join(model_dir, "metrics.jsonl")) as f:
        return [row for row in map(json.loads, f) if row["event"] == event]


def write_idx(folder, images=64, labels=None, rows=28, magic=2051, label=lambda i: i % 10, name_suffix=""):
    os.makedirs(folder, exist_ok=True)
    for split in ("train", "t10k"):
        n = images if labels is None else labels
        with open(f"{folder}/{split}-images-idx3-ubyte{name_suffix}", "wb") as f:
            f.write(struct.pack(">IIII", magic, images, rows, rows) + bytes((i * 7 + k) % 251 for i in range(images) for k in range(rows * rows)))
        with open(f"{folder}/{split}-labels-idx1-ubyte{name_suffix}", "wb") as f:
            f.write(struct.pack(">II", 2049, n) + bytes(label(i) for i in range(n)))
    return folder


# ---- Command line and configuration ------------------------------------------------------------------

@test
def help_and_version(tmp):
    out, _ = run("--help")
    says(out, "usage: trainer", "mnist_cnn", "train_and_eval", "--params_override")
    out, _ = run("--help", "--model_type=mnist_main")
    says(out, "model.model_params.dropout_rate", "runtime.seed")
    out, _ = run("--version")
    says(out, "trainer ", "backend ref")


@test
def usage_errors(tmp):
    for flags, parts in [
        ([], ("--model_type is missing", "mnist_cnn")),
        (["--model_typ=mnist_cnn"], ("unknown flag", "did you mean --model_type?")),
        (["--model_type=mnist_cn"], ("unknown model", "did you mean 'mnist_cnn'", "fashion_cnn")),
        (["--model_type=mnist_cnn"], ("--mode is missing", "train_and_eval")),
        (["--model_type=mnist_cnn", "--mode=trian"], ("unknown mode", "did you mean 'train'")),
        (["--model_type=mnist_cnn", "--mode=plan", "--dataset=mnits"], ("--dataset: train_dataset.name is 'mnits'", "did you mean 'mnist'")),
        (["classifier_trainr"], ("unknown program", "did you mean 'classifier_trainer'")),
        (["--model_type"], ("needs a value",)),
        (["--quiet=maybe"], ("expected true or false",)),
        (["--model_type=mnist_cnn", "stray"], ("expected a flag",)),
        (["--model_type=mnist_cnn", "--mode=plan", "--train_epochs=3"], ("--train_epochs", "of the program mnist_main, not of classifier_trainer")),
        (["--model_type=mnist_cnn", "--mode=plan", "--tpu=node-1"], ("--tpu: runtime.tpu is 'node-1'", "one host")),
        (["--model_type=mnist_cnn", "--mode=plan", "--worker_hosts=a:1,b:1"], ("--worker_hosts", "'a:1,b:1'", "one host")),
        (["--model_type=mnist_cnn", "--mode=plan", "--task_index=1"], ("--task_index", "is 1", "one host")),
        (["--flagfile=/nonexistent/flags"], ("--flagfile", "/nonexistent/flags")),
    ]:
        _, err = run(*flags, code=2)
        says(err, "error: ", *parts)


@test
def flags_as_absl_reads_them(tmp):
    # The last of a repeated flag counts; a flag file may name the model, and so the program.
    with open(f"{tmp}/flags", "w") as f:
        f.write("# a comment\n--model_type=mnist_main\n--train_epochs=7\n--mode=plan\n")
    out, _ = run(f"--flagfile={tmp}/flags", "-bs", "600", "--batch_size=500")
    says(out, "name: mnist_main", "500 examples a step", "7 epochs")
    out, _ = run(f"--flagfile={tmp}/flags", "--train_epochs=2")
    says(out, "2 epochs")
    _, err = run(f"--flagfile={tmp}/flags", env={"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'})
    says(err, "TF_CONFIG", "without effect")
    # A pipe that nobody writes to is no reason to wait.
    os.mkfifo(f"{tmp}/pipe")
    _, err = run("--model_type=mnist_cnn", "--mode=plan", f"--config_file={tmp}/pipe", code=2, timeout=20)
    says(err, f"{tmp}/pipe", "not a regular file")


@test
def dataset_of_the_configuration(tmp):
    """--dataset, files, overrides and the model's default: one order of precedence for all."""
    data = write_idx(f"{tmp}/data")
    check = ["--model_type=mnist_cnn", "--mode=check_data", f"--data_dir={data}"]
    fashion = "{train_dataset: {name: fashion_mnist}, validation_dataset: {name: fashion_mnist}}"
    for flags, name in ([], "mnist, 64"), ([f"--params_override={fashion}"], "fashion_mnist, 64"), \
            ([f"--params_override={fashion}", "--dataset=mnist"], "mnist, 64"), (["--dataset=fashion_mnist"], "fashion_mnist, 64"):
        out, _ = run(*check, *flags)
        says(out, f"train: {name}", f"validation: {name}")
    out, _ = run("--model_type=fashion_cnn", *check[1:])
    says(out, "train: fashion_mnist")


@test
def config_errors(tmp):
    plan = ["--model_type=mnist_cnn", "--mode=plan"]
    path = f"{tmp}/c.yaml"
    for text, parts in [
        ("runtime:\n  num_gpu: 1\n", ("c.yaml:2:3", "unknown key", "runtime.num_gpus")),
        ("train:\n  epochs: many\n", ("c.yaml:2:11", "train.epochs", "integer")),
        ("train:\n  epochs: 0\n", ("c.yaml:2:11", "train.epochs")),
        ("train:\n  epochs: 1\n  epochs: 2\n", ("c.yaml:3:3", "epochs")),
        ("train: 5\n", ("c.yaml:1:8", "train")),
        ("model:\n  optimizer:\n    name: adma\n", ("c.yaml:3:11", "adma", "adam")),
        ("runtime:\n  distribution_strategy: tpu\n", ("tpu", "not in this version")),
        ("runtime:\n  distribution_strategy: multi_worker_mirrored\n", ("multi_worker_mirrored", "not in this version")),
        ("runtime: {num_gpus: $NUM_GPUS}\n", ("$NUM_GPUS",)),
        ("a: [\n", ("c.yaml",)),
    ]:
        with open(path, "w") as f:
            f.write(text)
        _, err = run(*plan, f"--config_file={path}", code=2)
        says(err, *parts)
    _, err = run(*plan, "--params_override=runtime.num_gpus=$N", code=2)
    says(err, "$N", "quotes")
    _, err = run(*plan, "--config_file=/nonexistent.yaml", code=2)
    says(err, "/nonexistent.yaml")


@test
def devices(tmp):
    _, err = run(*mnist(None, "train", "runtime.num_gpus=2,runtime.distribution_strategy=mirrored"), code=2)
    says(err, "runtime.num_gpus is 2", "no GPU", "cpu_fallback=true")
    out, err = run(*mnist(None, "train", "runtime.num_gpus=2,runtime.distribution_strategy=mirrored,runtime.cpu_fallback=true,train.epochs=1"))
    says(err, "no GPU", "2 replicas on the CPU")
    says(out, "mirrored, 2 replicas")
    _, err = run(*mnist(None, "train", "runtime.num_replicas=2"), code=2)
    says(err, "one_device runs one replica", "mirrored")
    _, err = run(*mnist(None, "train", "runtime.mixed_precision_dtype=float16"), code=2)
    says(err, "float32 only")


@test
def params_yaml_reads_back(tmp):
    run(*mnist(f"{tmp}/a", "train", "train.epochs=1,runtime.seed=9007199254740993"))
    run("--mode=train", "--model_type=mnist_cnn", f"--config_file={tmp}/a/params.yaml", f"--model_dir={tmp}/b")
    a, b = open(f"{tmp}/a/params.yaml").read(), open(f"{tmp}/b/params.yaml").read()
    assert a.replace(f"{tmp}/a", f"{tmp}/b") == b
    says(a, "seed: 9007199254740993")
    same_checkpoint(f"{tmp}/a", f"{tmp}/b")


# ---- A run and its files -----------------------------------------------------------------------------

@test
def train_and_eval_writes_everything(tmp):
    out, err = run(*mnist(f"{tmp}/m", "train_and_eval", f"export.destination={tmp}/sm,train.time_history.log_steps=5"))
    assert re.search(r"^Epoch 1/2$", out, re.M)
    assert re.search(r"^10/10 - \d+s - loss: [\d.]+ - accuracy: [\d.]+ - val_loss: [\d.]+ - val_accuracy: [\d.]+ - lr: 0\.0010$", out, re.M), out
    assert re.search(r"^TimeHistory: \d+\.\d\d seconds, \d+\.\d\d examples/second between steps 0 and 5$", out, re.M), out
    stats = json.loads(re.search(r"^Run stats:\n(.*)$", out, re.M).group(1))
    assert {"accuracy_top_1", "eval_loss", "loss", "training_accuracy_top_1", "avg_exp_per_second", "train_finish_time", "step_timestamp_log"} <= set(stats)
    for name in ("params.yaml", "checkpoint", "model.ckpt-0001.index", "model.ckpt-0002.data-00000-of-00001", "metrics.jsonl", "report.html", "train", "validation"):
        assert os.path.exists(f"{tmp}/m/{name}"), name
    for name in ("saved_model.pb", "keras_metadata.pb", "variables/variables.index"):
        assert os.path.exists(f"{tmp}/sm/{name}"), name
    assert not glob.glob(f"{tmp}/m/*.tmp-*") and not os.path.exists(f"{tmp}/m/.lock")
    assert out.count("\r") == 0, "control characters in a pipe"
    kinds = {row["event"] for row in (json.loads(line) for line in open(f"{tmp}/m/metrics.jsonl"))}
    assert kinds == {"start", "step", "epoch", "eval", "checkpoint", "end"}, kinds
    # eval, predict and export of the same weights agree with the run
    text, _ = run(*mnist(f"{tmp}/m", "eval"))
    says(text, "evaluated 200 of 200 examples")
    assert f"accuracy: {stats['accuracy_top_1']:.9g}" in text, text
    run(*mnist(f"{tmp}/m", "predict", "", f"--predict_output={tmp}/p.tsv"))
    rows = [line.split("\t") for line in open(f"{tmp}/p.tsv").read().splitlines()[1:]]
    assert len(rows) == 200
    run(*mnist(f"{tmp}/m", "predict", "", f"--predict_output={tmp}/p.jsonl"))
    assert [json.loads(line)["class"] for line in open(f"{tmp}/p.jsonl")] == [int(r[1]) for r in rows]
    run(*mnist(f"{tmp}/m", "export_only", f"export.destination={tmp}/sm2"))
    assert filecmp.cmp(f"{tmp}/sm/saved_model.pb", f"{tmp}/sm2/saved_model.pb", shallow=False)


@test
def plan_and_check_data(tmp):
    out, _ = run(*mnist(f"{tmp}/m", "plan"))
    says(out, "347146", "conv2d", "(1, 26, 26, 32)", "10 steps an epoch", "params.yaml")
    assert not os.path.exists(f"{tmp}/m")
    out, _ = run(*mnist(None, "check_data"))
    says(out, "640 examples read", "0 bad")


@test
def evaluation_does_not_depend_on_batches(tmp):
    run(*mnist(f"{tmp}/m", "train", "train.epochs=1"))
    results = set()
    for override in ("validation_dataset.batch_size=1", "validation_dataset.batch_size=7", "validation_dataset.batch_size=200", "validation_dataset.batch_size=64",
                     "runtime.distribution_strategy=mirrored,runtime.num_replicas=2,validation_dataset.batch_size=33",
                     "runtime.distribution_strategy=mirrored,runtime.num_replicas=3,validation_dataset.batch_size=5", "runtime.threads=1"):
        out, _ = run(*mnist(f"{tmp}/m", "eval", override))
        results.add(re.search(r"^loss: .*$", out, re.M).group(0))
    assert len(results) == 1, results


@test
def same_run_same_bits(tmp):
    for name in "ab":
        run(*mnist(f"{tmp}/{name}", "train_and_eval", "runtime.seed=5"))
    same_checkpoint(f"{tmp}/a", f"{tmp}/b")


@test
def replicas_agree(tmp):
    """The same global batch on 1, 2, 3 and 4 replicas: the losses of 50 steps within 1e-6."""
    curves = []
    for n in (1, 2, 3, 4):
        strategy = f"runtime.distribution_strategy=mirrored,runtime.num_replicas={n}"
        run(*mnist(f"{tmp}/{n}", "train", strategy + ",train_dataset.use_per_replica_batch_size=false,train_dataset.batch_size=48,train.epochs=1,train.steps=50,train.time_history.log_steps=1"))
        curves.append([row["loss"] for row in events(f"{tmp}/{n}", "step")])
    assert all(len(c) == 50 for c in curves)
    worst = max(abs(a - b) / abs(a) for c in curves[1:] for a, b in zip(curves[0], c))
    # float32 sums in another order: 50 steps of rounding of 2^-24 each, well under 1e-5
    assert worst < 1e-5, worst
    print(f"largest relative difference {worst:.2e}")


@test
def gradient_accumulation(tmp):
    curves = []
    for parts in (1, 4):
        run(*mnist(f"{tmp}/{parts}", "train", f"train.gradient_accumulation_steps={parts},train.epochs=1,train.time_history.log_steps=1"))
        curves.append([row["loss"] for row in events(f"{tmp}/{parts}", "step")])
    assert max(abs(a - b) / abs(a) for a, b in zip(*curves)) < 1e-5, curves


# ---- Resume ------------------------------------------------------------------------------------------

BUSY = "train_dataset.num_examples=3840,validation_dataset.num_examples=200,train.epochs=3,train.time_history.log_steps=10"


def interrupt(flags, model_dir, how, after_step):
    p = subprocess.Popen([TRAINER, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.time() + 60
    while time.time() < deadline and p.poll() is None:
        try:
            if any(row["step"] >= after_step for row in events(model_dir, "step")):
                break
        except (OSError, ValueError):
            pass
        time.sleep(0.002)
    p.send_signal(how)
    _, err = p.communicate(timeout=60)
    return p.returncode, err


@test
def resume_is_exact(tmp):
    for kind, extra in [("plain", ""), ("replicas", "runtime.distribution_strategy=mirrored,runtime.num_replicas=2,train_dataset.batch_size=32"),
                        ("dropout", None)]:
        model = ["--model_type=mnist_cnn"] if extra is not None else ["mnist_main"]
        override = [f"--params_override={BUSY}"] + ([f"--params_override={extra}"] if extra else []) + ["--params_override=train_dataset.batch_size=64"] * (extra != "" and kind != "replicas")
        flags = lambda d: model + ["--mode=train_and_eval", f"--model_dir={d}"] + override
        whole = f"{tmp}/{kind}"
        run(*flags(whole))
        for how in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            d = f"{tmp}/{kind}-{how.name}"
            code, err = interrupt(flags(d), d, how, 80)
            assert code == (3 if how != signal.SIGKILL else -9), (code, err)
            if how != signal.SIGKILL:
                says(err, "stopped by a signal after step", "The same command goes on")
            run(*flags(d))
            same_checkpoint(whole, d)
            last = lambda x: [{k: v for k, v in row.items() if k in ("epoch", "step", "loss", "accuracy", "examples")} for row in events(x, "eval")][-1]
            assert last(whole) == last(d), (last(whole), last(d))


@test
def nothing_left_to_do(tmp):
    run(*mnist(f"{tmp}/m"))
    out, _ = run(*mnist(f"{tmp}/m"))
    stats = json.loads(re.search(r"^Run stats:\n(.*)$", out, re.M).group(1))
    assert "loss" not in stats and stats["step_timestamp_log"] == [] and stats["accuracy_top_1"] > 0


@test
def killed_while_saving(tmp):
    """SIGKILL at random moments of a run that saves all the time: it always goes on."""
    flags = mnist(f"{tmp}/m", "train", "train.callbacks.checkpoint_every_steps=1,train.epochs=1,train_dataset.batch_size=8,train.callbacks.keep_checkpoints=2")
    for i in range(8):
        p = subprocess.Popen([TRAINER, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(0.15 + 0.037 * i)
        p.kill()
        _, err = p.communicate()
        assert p.returncode in (-9, 0), err
    run(*flags)
    run(*mnist(f"{tmp}/whole", "train", "train.epochs=1,train_dataset.batch_size=8"))
    same_checkpoint(f"{tmp}/m", f"{tmp}/whole")


@test
def other_model_in_model_dir(tmp):
    run(*mnist(f"{tmp}/m", "train", "train.epochs=1"))
    before = {n: open(f"{tmp}/m/{n}", "rb").read() for n in ("checkpoint", "model.ckpt-0001.index")}
    _, err = run("mnist_main", f"--model_dir={tmp}/m", "--params_override=train_dataset.num_examples=64,train_dataset.batch_size=64", code=1)
    says(err, "conv2d/kernel", "(5, 5, 1, 32)", "(3, 3, 1, 32)")
    _, err = run(*mnist(f"{tmp}/m", "train", "train.epochs=3,train_dataset.batch_size=32"), code=1)
    says(err, "global batch", "64", "32", "model_dir")
    for name, data in before.items():
        assert open(f"{tmp}/m/{name}", "rb").read() == data


@test
def damaged_checkpoints(tmp):
    run(*mnist(f"{tmp}/m", "train"))
    data = open(f"{tmp}/m/model.ckpt-0002.data-00000-of-00001", "rb").read()
    for damage in (data[:1000], b"", data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]):
        shutil.rmtree(f"{tmp}/n", ignore_errors=True)
        shutil.copytree(f"{tmp}/m", f"{tmp}/n")
        with open(f"{tmp}/n/model.ckpt-0002.data-00000-of-00001", "wb") as f:
            f.write(damage)
        _, err = run(*mnist(f"{tmp}/n", "train"))
        says(err, "model.ckpt-0002", "going back to the checkpoint before it")
        same_checkpoint(f"{tmp}/m", f"{tmp}/n")
    for epoch in (1, 2):
        with open(f"{tmp}/n/model.ckpt-000{epoch}.index", "wb") as f:
            f.write(b"garbage")
    _, err = run(*mnist(f"{tmp}/n", "train"), code=1)
    says(err, "model.ckpt-0001")
    _, err = run(*mnist(f"{tmp}/empty", "eval"), code=1)
    says(err, "no checkpoint")


@test
def two_runs_in_one_folder(tmp):
    flags = ["--mode=train", "--model_type=mnist_cnn", f"--model_dir={tmp}/m", "--params_override=train.epochs=50"]
    p = subprocess.Popen([TRAINER, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not os.path.exists(f"{tmp}/m/metrics.jsonl"):
            time.sleep(0.01)
        _, err = run(*flags, code=2)
        says(err, f"process {p.pid}", "model_dir")
    finally:
        p.kill()
        p.wait()
    run(*mnist(f"{tmp}/m2", "train", "train.epochs=1"))  # a stale lock of a killed run does not stop the next
    run(*flags[:-1], "--params_override=train.epochs=1")


# ---- Bad data, bad disks, bad numbers ----------------------------------------------------------------

@test
def bad_data(tmp):
    def check(folder, *parts, code=1, override="train.epochs=1"):
        _, err = run("--mode=train_and_eval", "--model_type=mnist_cnn", f"--data_dir={folder}", f"--model_dir={tmp}/out", "--params_override=" + override, code=code)
        says(err, *parts)
    check(f"{tmp}/none", f"{tmp}/none")
    os.makedirs(f"{tmp}/empty")
    check(f"{tmp}/empty", "train-images-idx3-ubyte", f"{tmp}/empty")
    check(write_idx(f"{tmp}/magic", magic=2052), "train-images-idx3-ubyte", "magic")
    check(write_idx(f"{tmp}/counts", images=64, labels=63), "64", "63")
    check(write_idx(f"{tmp}/label", label=lambda i: 11 if i == 40 else 3), "train-labels-idx1-ubyte", "11", "40")
    check(write_idx(f"{tmp}/zero", images=0), "no examples", code=1)
    cut = write_idx(f"{tmp}/cut")
    with open(f"{cut}/train-images-idx3-ubyte", "r+b") as f:
        f.truncate(20000)
    check(cut, "train-images-idx3-ubyte", "20000", str(16 + 64 * 784))
    gz = write_idx(f"{tmp}/gz")
    for path in glob.glob(f"{gz}/*"):
        data = gzip.compress(open(path, "rb").read())
        with open(path + ".gz", "wb") as f:
            f.write(data[:len(data) // 2] if "train-images" in path else data)
        os.remove(path)
    check(gz, "train-images-idx3-ubyte.gz")
    check(write_idx(f"{tmp}/few", images=10), "64", "10", code=2, override="train.epochs=1,train_dataset.drop_remainder=true")
    check(write_idx(f"{tmp}/good"), code=0)


@test
def bad_model_dir(tmp):
    with open(f"{tmp}/file", "w") as f:
        f.write("in the way")
    _, err = run(*mnist(f"{tmp}/file", "train"), code=1)
    says(err, f"{tmp}/file", "is a file, expected a directory")
    assert open(f"{tmp}/file").read() == "in the way"
    _, err = run(*mnist("/proc/nowhere", "train"), code=1)
    says(err, "/proc/nowhere")


@test
def full_disk(tmp):
    """On a file system of 3 MB the second checkpoint does not fit: a sentence, and the first is whole."""
    os.makedirs(f"{tmp}/small")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=7m", "tmpfs", f"{tmp}/small"], capture_output=True).returncode:
        raise Skip("mounting a small tmpfs needs root")
    try:
        _, err = run(*mnist(f"{tmp}/small/m", "train", "train.epochs=3"), code=1)
        says(err, "No space left", f"{tmp}/small/m")
        assert not glob.glob(f"{tmp}/small/m/*.tmp-*")
        assert os.path.basename(newest(f"{tmp}/small/m")) == "model.ckpt-0001"
        run(*mnist(f"{tmp}/small/m", "eval"))
    finally:
        subprocess.run(["umount", "-l", f"{tmp}/small"])


@test
def numbers_that_are_not(tmp):
    bad = "model.learning_rate.name=constant,model.learning_rate.initial_lr=1e6,model.optimizer.name=sgd"
    _, err = run(*mnist(f"{tmp}/m", "train", bad), code=1)
    says(err, "the loss is not finite", "first seen in", "step ")
    assert not glob.glob(f"{tmp}/m/model.ckpt-*")
    _, err = run(*mnist(None, "train", bad + ",train.nan_guard=skip_step,train.epochs=1"))
    says(err, "the step is left out")
    _, err = run(*mnist(None, "train", "model.learning_rate.initial_lr=.nan"), code=2)
    says(err, "initial_lr")


@test
def closed_output(tmp):
    with open("/dev/full", "w") as full:
        p = subprocess.run([TRAINER, *mnist(None, "train", "train.epochs=1")], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert p.returncode == 1, p
    says(p.stderr, "standard output")


@test
def custom_layers(tmp):
    out, _ = run("--mode=train_and_eval", "--model_type=custom_cnn", f"--config_file={ROOT}/configs/custom_cnn.yaml",
                 "--params_override=train_dataset.num_examples=1280,train.epochs=1,train.time_history.log_steps=5")
    says(out, "batch_norm" if False else "custom_cnn")
    base = ["--mode=plan", "--model_type=custom_cnn"]
    for layers, parts in [
        ("[flatten, {dense: {unit: 10}}]", ("no option 'unit'", "did you mean 'units'")),
        ("[{conv2d: {filters: 8, kernel: 40}}, flatten, {dense: {units: 10}}]", ("conv2d", "(64, 28, 28, 1)")),
        ("[{dense: {units: 10}}]", ("flatten",)),
        ("[flaten]", ("unknown layer 'flaten'", "flatten")),
        ("[flatten, {dense: {units: 5}}]", ("10 classes",)),
        ("[flatten, {dropout: {rate: 1.5}}, {dense: {units: 10}}]", ("dropout rate is 1.5",)),
    ]:
        _, err = run(*base, "--params_override={model: {model_params: {layers: " + layers + "}}}", code=2)
        says(err, *parts)


@test
def frozen_layers(tmp):
    out, _ = run(*mnist(f"{tmp}/m", "train", "train.trainable=[dense*],train.epochs=1"))
    says(out, "347146 parameters, 346826 trained")
    _, err = run(*mnist(None, "train", "train.trainable=[dens]"), code=2)
    says(err, "no layer matches 'dens'", "conv2d")


# ---- The report --------------------------------------------------------------------------------------

class Report(html.parser.HTMLParser):
    """What is in a report.html; a tag that is not closed in order, or a resource from outside, fails."""
    OPEN = {"meta", "img", "link", "br", "line", "circle", "path", "td", "th", "tr"}  # need no end

    def __init__(self, path):
        super().__init__()
        self.stack, self.charts, self.images, self.matrix, self.scripts, self.text = [], {}, [], {}, 0, ""
        with open(path, encoding="utf-8") as f:
            self.source = f.read()
        self.feed(self.source)
        assert not self.stack, f"{path}: not closed: {self.stack}"

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        for name in ("src", "href", "srcset", "action"):
            assert (attrs.get(name) or "data:").startswith(("data:", "#")), f"<{tag} {name}={attrs[name]}> is outside the file"
        if tag == "script":
            self.scripts += 1
        if tag == "svg":
            self.chart = attrs["aria-label"]
        if tag == "img":
            self.images.append(base64.b64decode(attrs["src"].split("base64,")[1]))
        cell = re.match(r"(\w+) (?:taken for (\w+)|recognised): (\d+) times", attrs.get("title") or "")
        if cell:
            self.matrix[cell[1], cell[2] or cell[1]] = int(cell[3])
        if tag not in self.OPEN:
            self.stack.append((tag, attrs.get("type")))

    def handle_endtag(self, tag):
        if tag not in self.OPEN:
            assert self.stack and self.stack[-1][0] == tag, f"</{tag}> closes {self.stack[-1:]}"
            self.stack.pop()

    def handle_data(self, data):
        if self.stack and self.stack[-1] == ("script", "application/json"):
            self.charts[self.chart] = json.loads(data)
        elif not self.stack or self.stack[-1][0] not in ("script", "style"):
            self.text += data


@test
def report_shows_the_run(tmp):
    run(*mnist(f"{tmp}/m"))
    report, epochs, evals = Report(f"{tmp}/m/report.html"), events(f"{tmp}/m", "epoch"), events(f"{tmp}/m", "eval")
    for name, key in (("Loss", "loss"), ("Accuracy", "accuracy")):
        chart = report.charts[name]
        assert [x[0] for x in chart["x"]] == [1, 2], chart
        for series, rows in zip(chart["series"], (epochs, evals)):
            assert all(abs(y - row[key]) <= 5e-7 for y, row in zip(series["y"], rows)), (name, series, rows)  # rounded to six digits
    assert sum(report.matrix.values()) == 200 and len(report.matrix) == 100
    right = sum(n for (a, b), n in report.matrix.items() if a == b)
    assert abs(right / 200 - evals[-1]["accuracy"]) < 1e-12
    assert len(report.images) == min(24, 200 - right) and all(i.startswith(b"\x89PNG") for i in report.images)
    says(report.source, "prefers-color-scheme:dark", "@media print", "@media(max-width", 'name="viewport"')
    assert "http:" not in report.source and "https:" not in report.source.replace("https://www.w3.org", "")
    says(report.text, "mnist_cnn", "done", "640 train examples", "conv2d", "346176")


@test
def report_of_unusual_runs(tmp):
    # text from outside stays text
    name = tmp + "/<script>alert(1)</script>\"'&amp;"
    run(*mnist(name, override="train.epochs=1"))
    report = Report(f"{name}/report.html")
    says(report.text, name)
    # one epoch without an evaluation; numbers that went bad; stopped before the first epoch ended
    run(*mnist(f"{tmp}/train", "train", "train.epochs=1"))
    plain = Report(f"{tmp}/train/report.html")
    assert plain.scripts == report.scripts and not plain.matrix and not plain.images
    run(*mnist(f"{tmp}/nan", "train", "model.optimizer.name=sgd,model.learning_rate.name=constant,model.learning_rate.initial_lr=1e6"), code=1)
    Report(f"{tmp}/nan/report.html")


# ---- The floors --------------------------------------------------------------------------------------

@test
def a_breach_of_the_floors_is_found(tmp):
    for folder in ("src", "include", "scripts"):
        shutil.copytree(f"{ROOT}/{folder}", f"{tmp}/{folder}")
    check = [sys.executable, f"{tmp}/scripts/check_layers.py"]
    assert subprocess.run(check, capture_output=True).returncode == 0
    seeded = [("src/ops/op_shape.c", "trainer/train.h", "floor 3 (ops) includes trainer/train.h of floor 7 (train)"),
              ("src/strategy/strategy_mirrored.c", "trainer/model.h", "floor 6 (strategy) includes trainer/model.h of floor 6 (models)"),
              ("src/base/text.c", "zlib.h", "zlib.h may be used in io, train only")]
    for path, header, sentence in seeded:
        with open(f"{tmp}/{path}") as f:
            before = f.read()
        with open(f"{tmp}/{path}", "w") as f:
            f.write(f"#include <{header}>\n" + before)
        found = subprocess.run(check, capture_output=True, text=True)
        assert found.returncode == 1
        says(found.stdout, f"{path}:1: {sentence}", "1 breaches")
        with open(f"{tmp}/{path}", "w") as f:
            f.write(before)


def main():
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    failed = 0
    for function in TESTS:
        if wanted not in function.__name__:
            continue
        name = function.__name__
        print(f"[ RUN      ] {name}", flush=True)
        tmp = tempfile.mkdtemp(prefix="trainer_cli_")
        try:
            function(tmp)
            print(f"[       OK ] {name}", flush=True)
        except Skip as reason:
            print(f"SKIP {name}: {reason}\n[  SKIPPED ] {name}", flush=True)
        except Exception as error:  # a failing test must not stop the others
            failed += 1
            print(f"{type(error).__name__}: {error}\n[  FAILED  ] {name}", flush=True)
        shutil.rmtree(tmp, ignore_errors=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
