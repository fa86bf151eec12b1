#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files of trainer in TensorFlow and Keras, and theirs in trainer: values compared, not only calls that return.

usage: check.py TRAINER
"""
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import ctypes
import glob
import gzip
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import tensorflow as tf
import tf_keras as K
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TRAINER = os.path.abspath(sys.argv[1])
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHARED = os.environ.get("TRAINER_SHARED", os.path.join(ROOT, "..", "shared"))
GOLDEN = os.path.join(SHARED, "golden/keras/interop")
L, SPARSE = K.layers, K.losses.SparseCategoricalCrossentropy
tf.get_logger().setLevel("ERROR")
failed = []


def check(name, good, detail=""):
    print(("  ok      " if good else "  FAILED  ") + name + (f": {detail}" if detail else ""), flush=True)
    if not good:
        failed.append(name)


def run(*flags):
    p = subprocess.run([TRAINER, *flags], capture_output=True, text=True)
    if p.returncode:
        raise SystemExit(f"$ trainer {' '.join(flags)}\n{p.stdout}{p.stderr}")
    return p.stdout


def digits(name, header):
    return np.frombuffer(gzip.open(f"{ROOT}/data/digits/{name}").read()[header:], np.uint8)


def mnist_cnn(filters=32, units=64):
    return K.Sequential([L.Conv2D(filters, 3, activation="relu", input_shape=(28, 28, 1)), L.MaxPooling2D(), L.Flatten(),
                         L.Dense(units, activation="relu"), L.Dense(10)])


def evaluation(text):
    return tuple(float(x) for x in re.search(r"^loss: (\S+) - accuracy: (\S+)", text, re.M).groups())


def largest(a, b):
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


x = digits("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28, 1).astype("float32") / 255
y = digits("t10k-labels-idx1-ubyte.gz", 8).astype("int32")
tmp = tempfile.mkdtemp(prefix="trainer_interop_")
base = ["--model_type=mnist_cnn", "--dataset=mnist"]

print("weights and optimizer of trainer in Keras")
for layout, new in (("keras", True), ("keras_legacy", False)):
    d = f"{tmp}/{layout}"
    run("--mode=train_and_eval", *base, f"--model_dir={d}", f"--params_override=train.epochs=1,train.callbacks.checkpoint_layout={layout},export.destination={d}/sm")
    loss, accuracy = evaluation(run("--mode=eval", *base, f"--model_dir={d}"))
    run("--mode=predict", *base, f"--model_dir={d}", f"--predict_output={d}/p.npy")
    p = np.load(f"{d}/p.npy")
    prefix = tf.train.latest_checkpoint(d)
    optimizers = {"uncompiled": None, "Adam": K.optimizers.Adam(), "legacy Adam": K.optimizers.legacy.Adam()}
    if not new:
        del optimizers["Adam"]  # today's Adam refuses a legacy layout, weights and all: Keras' own rule
    for name, optimizer in optimizers.items():
        m = mnist_cnn()
        if optimizer:
            m.compile(optimizer, SPARSE(from_logits=True), metrics=["accuracy"])
            if new and name == "Adam":
                optimizer.build(m.trainable_variables)  # its slots exist: they must be found too
        status = m.load_weights(prefix)
        if optimizer is None or (new == (name == "Adam")):
            status.assert_existing_objects_matched()
        if optimizer is None:
            m.compile(K.optimizers.legacy.SGD(), SPARSE(from_logits=True), metrics=["accuracy"])
        l, a = m.evaluate(x, y, verbose=0)
        check(f"{layout}: load_weights, {name}", abs(l - loss) < 1e-5 and a == np.float32(accuracy), f"loss {l:.9g} and {loss:.9g}, accuracy {a:.6g}")
        check(f"{layout}: probabilities, {name}", largest(tf.nn.softmax(m(x)), p) < 1e-5, f"{largest(tf.nn.softmax(m(x)), p):.1e}")
        if optimizer is not None and new == (name == "Adam"):
            check(f"{layout}: optimizer state, {name}", int(m.optimizer.iterations) == 79)
    m = mnist_cnn()
    tf.train.Checkpoint(m).read(prefix).assert_existing_objects_matched()
    m = mnist_cnn()
    tf.train.Checkpoint(m).restore(prefix).assert_existing_objects_matched()
    check(f"{layout}: Checkpoint(m).restore", largest(tf.nn.softmax(m(x)), p) < 1e-5)
    m, step = mnist_cnn(), tf.Variable(0, dtype=tf.int64)
    o = K.optimizers.Adam() if new else K.optimizers.legacy.Adam()
    if new:
        o.build(m.trainable_variables)
    tf.train.Checkpoint(model=m, optimizer=o, step=step).restore(prefix).assert_existing_objects_matched()
    check(f"{layout}: Checkpoint(model=, optimizer=, step=).restore", int(step) == 79 and largest(tf.nn.softmax(m(x)), p) < 1e-5)

print("one step further: Keras and trainer go on to the same weights")
d = f"{tmp}/keras"
m = mnist_cnn()
m.compile(K.optimizers.Adam(1e-3), SPARSE(from_logits=True))
m.optimizer.build(m.trainable_variables)
m.load_weights(tf.train.latest_checkpoint(d)).assert_existing_objects_matched()
xt = digits("train-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28, 1).astype("float32") / 255
yt = digits("train-labels-idx1-ubyte.gz", 8).astype("int32")
shutil.copytree(d, f"{tmp}/on")
# epoch 2 without shuffling is not what was trained in epoch 1, but a resumed run takes the option of now
run("--mode=train", *base, f"--model_dir={tmp}/on", "--params_override=train.epochs=2,train_dataset.shuffle=false", "--log_steps=10")
for i in range(0, 5000, 64):
    m.train_on_batch(xt[i:i + 64], yt[i:i + 64])
# Adam moves a weight by about the learning rate, 1e-3, a step: a tenth of one step is far below any difference of rules
n = mnist_cnn()
n.load_weights(tf.train.latest_checkpoint(f"{tmp}/on"))
difference = max(largest(a, b) for a, b in zip(m.get_weights(), n.get_weights()))
check("79 steps of Adam from the same checkpoint", difference < 1e-4, f"largest difference of a weight {difference:.1e}")
check("the same predictions", np.mean(np.argmax(m(x), 1) == np.argmax(n(x), 1)) > 0.98)

print("SavedModel")
sm, p = f"{d}/sm", np.load(f"{d}/p.npy")
f = tf.saved_model.load(sm).signatures["serving_default"]
check("tf.saved_model.load", largest(f(image=tf.constant(x))["probabilities"], p) < 1e-5, f"{largest(f(image=tf.constant(x))['probabilities'], p):.1e}")
km = K.models.load_model(sm, compile=False)
check("tf_keras load_model gives a Sequential", isinstance(km, K.Sequential))
check("its predictions", largest(tf.nn.softmax(km.predict(x, verbose=0)), p) < 1e-5)
km.compile("adam", SPARSE(from_logits=True), metrics=["accuracy"])
before = km.evaluate(x, y, verbose=0)
km.fit(xt[:640], yt[:640], verbose=0)
check("it trains on", km.evaluate(x, y, verbose=0) != before)
with tf.compat.v1.Session(graph=tf.Graph()) as session:
    tf.compat.v1.saved_model.load(session, ["serve"], sm)
    check("tf.compat.v1 load", largest(session.run("probabilities:0", {"serving_default_image:0": x}), p) < 1e-5)


def c_api(directory):
    """TensorFlow Serving's loader, through the C API."""
    library = glob.glob(os.path.join(os.path.dirname(tf.__file__), "libtensorflow_cc.so*")) + glob.glob(os.path.join(os.path.dirname(tf.__file__), "libtensorflow_framework.so*"))
    for path in library:
        c = ctypes.CDLL(path)
        if hasattr(c, "TF_LoadSessionFromSavedModel"):
            break
    else:
        return None
    for name in ("TF_NewStatus", "TF_NewGraph", "TF_NewSessionOptions", "TF_LoadSessionFromSavedModel", "TF_GraphOperationByName", "TF_AllocateTensor", "TF_TensorData"):
        getattr(c, name).restype = ctypes.c_void_p
    c.TF_Message.restype = ctypes.c_char_p
    P = ctypes.c_void_p

    class Output(ctypes.Structure):
        _fields_ = [("operation", P), ("index", ctypes.c_int)]
    status, graph = P(c.TF_NewStatus()), P(c.TF_NewGraph())
    tags = (ctypes.c_char_p * 1)(b"serve")
    session = c.TF_LoadSessionFromSavedModel(P(c.TF_NewSessionOptions()), None, directory.encode(), tags, 1, graph, None, status)
    if c.TF_GetCode(status):
        raise RuntimeError(c.TF_Message(status).decode())
    dims = (ctypes.c_int64 * 4)(*x.shape)
    c.TF_AllocateTensor.argtypes = [ctypes.c_int, P, ctypes.c_int, ctypes.c_size_t]
    tensor = P(c.TF_AllocateTensor(1, dims, 4, x.nbytes))
    ctypes.memmove(c.TF_TensorData(tensor), np.ascontiguousarray(x).ctypes.data, x.nbytes)
    feed = (Output * 1)(Output(c.TF_GraphOperationByName(graph, b"serving_default_image"), 0))
    fetch = (Output * 1)(Output(c.TF_GraphOperationByName(graph, b"probabilities"), 0))
    values, results = (P * 1)(tensor), (P * 1)()
    c.TF_SessionRun(P(session), None, feed, values, 1, fetch, results, 1, None, 0, None, status)
    if c.TF_GetCode(status):
        raise RuntimeError(c.TF_Message(status).decode())
    out = np.empty((len(x), 10), "float32")
    ctypes.memmove(out.ctypes.data, c.TF_TensorData(P(results[0])), out.nbytes)
    return out


result = c_api(sm)
if result is None:
    print("  skipped  C API: this wheel does not export it")
else:
    check("C API", largest(result, p) < 1e-5, f"{largest(result, p):.1e}")

print("TensorBoard")
for folder, tags in (("train", {"epoch_loss", "epoch_accuracy", "epoch_learning_rate"}), ("validation", {"epoch_loss", "epoch_accuracy"})):
    events = EventAccumulator(f"{d}/{folder}")
    events.Reload()
    check(f"scalars of {folder}", tags <= set(events.Tags()["scalars"]), ", ".join(sorted(events.Tags()["scalars"])))
events = EventAccumulator(f"{tmp}/on")
events.Reload()
check("speed", {"examples_per_second", "steps_per_second"} <= set(events.Tags()["scalars"]))

print("checkpoints of Keras in trainer")
if not os.path.isdir(GOLDEN):
    print("  skipped: the reference checkpoints are not beside the checkout")
else:
    narrow = ("[{conv2d: {filters: 8, kernel: 3, activation: relu}}, {max_pool2d: {window: 2}}, flatten, {dense: {units: 16, activation: relu}}, {dense: {units: 10}}]")
    steps = 10
    for name, filters, optimizer, recipe, prefix in (
            ("legacy Adam", 8, K.optimizers.legacy.Adam(1e-3), "adam", "legacy_adam/training_checkpoints/ckpt_2"),
            ("Adam", 8, K.optimizers.Adam(1e-3), "adam", "new_adam/training_checkpoints/ckpt_2"),
            ("train.Checkpoint, legacy momentum", 8, K.optimizers.legacy.SGD(1e-3, momentum=0.9), "momentum", "train_checkpoint/tf_ckpts/ckpt-3"),
            ("full width", 32, K.optimizers.legacy.Adam(1e-3), "adam", "full_width/training_checkpoints/ckpt_1")):
        layers = "layers: " + (narrow if filters == 8 else narrow.replace("filters: 8", "filters: 32").replace("units: 16", "units: 64"))
        m = mnist_cnn(filters, 64 if filters == 32 else 16)
        m.compile(optimizer, SPARSE(from_logits=True), metrics=["accuracy"])
        if "legacy" not in type(optimizer).__module__:
            optimizer.build(m.trainable_variables)
        if prefix.startswith("train_checkpoint"):
            tf.train.Checkpoint(model=m, optimizer=optimizer).restore(f"{GOLDEN}/{prefix}").expect_partial()
        else:
            m.load_weights(f"{GOLDEN}/{prefix}").expect_partial()
        # The recipe is the checkpoint's: Keras restores the learning rate and the momentum with it.
        rate, momentum = float(optimizer.learning_rate), float(getattr(optimizer, "momentum", 0.9))
        config = ("model: {model_params: {%s}, optimizer: {name: %s, momentum: %.9g}, learning_rate: {name: constant, initial_lr: %.9g}}"
                  % (layers, recipe, momentum, rate))
        model = ["--model_type=custom_cnn", f"--params_override={{{config}}}"]
        l, a = m.evaluate(x, y, verbose=0)
        loss, accuracy = evaluation(run("--mode=eval", *model, f"--checkpoint={GOLDEN}/{prefix}"))
        check(f"{name}: evaluates alike", abs(l - loss) < 1e-5 and a == np.float32(accuracy), f"loss {l:.9g} and {loss:.9g}")
        target = f"{tmp}/{prefix}".split("/training_checkpoints")[0].split("/tf_ckpts")[0]
        shutil.copytree(os.path.dirname(f"{GOLDEN}/{prefix}"), target)
        # All four stand at a multiple of ten steps; the pipeline goes on from there through the data in order.
        for i in range(steps):
            at = int(m.optimizer.iterations) % (len(xt) // 64) * 64
            m.train_on_batch(xt[at:at + 64], yt[at:at + 64])
        last = int(m.optimizer.iterations)
        go_on = config + ", train_dataset: {shuffle: false}, train: {steps: %d, epochs: %d}" % (steps, last // steps)
        run("--mode=train", "--model_type=custom_cnn", f"--model_dir={target}", f"--params_override={{{go_on}}}")
        n = mnist_cnn(filters, 64 if filters == 32 else 16)
        n.load_weights(tf.train.latest_checkpoint(target)).expect_partial()
        difference = max(largest(a, b) for a, b in zip(m.get_weights(), n.get_weights()))
        check(f"{name}: {steps} steps further, to step {last}", difference < 1e-5, f"largest difference of a weight {difference:.1e}")

shutil.rmtree(tmp)
print(f"interop: {len(failed)} failed")
sys.exit(bool(failed))
