#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Keras tutorial as a program: MNIST from its four files, 12 epochs of fit with an evaluation, a checkpoint and TensorBoard's events each.

usage: keras_mnist.py DATA OUT THREADS
"""
import gzip
import os
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf
import tf_keras as K

data, out, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
tf.config.threading.set_intra_op_parallelism_threads(threads)


def idx(name, header):
    path = f"{data}/{name}"
    with gzip.open(path + ".gz") if os.path.exists(path + ".gz") else open(path, "rb") as f:
        return np.frombuffer(f.read()[header:], np.uint8)


def pairs(split):
    images = idx(f"{split}-images-idx3-ubyte", 16).reshape(-1, 28, 28, 1)
    return tf.data.Dataset.from_tensor_slices((images, idx(f"{split}-labels-idx1-ubyte", 8))).map(lambda x, y: (tf.cast(x, tf.float32) / 255, y))


L = K.layers
m = K.Sequential([L.Conv2D(32, 3, activation="relu", input_shape=(28, 28, 1)), L.MaxPooling2D(), L.Flatten(), L.Dense(64, activation="relu"), L.Dense(10)])
m.compile(K.optimizers.Adam(), K.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
m.fit(pairs("train").cache().shuffle(10000).batch(64).prefetch(2), epochs=12, verbose=0, validation_data=pairs("t10k").cache().batch(64),
      callbacks=[K.callbacks.LearningRateScheduler(lambda e: 1e-3 if e < 3 else 1e-4 if e < 7 else 1e-5),
                 K.callbacks.ModelCheckpoint(f"{out}/ckpt_{{epoch}}", save_weights_only=True), K.callbacks.TensorBoard(f"{out}/logs")])
print(m.evaluate(pairs("t10k").batch(64), verbose=0))
