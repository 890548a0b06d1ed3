# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402, F401, F811
"""Code that comes before the blocks of code in the documents: `setup=NAME` in a block's comment.

Each part begins with `# ---- NAME`, or `# ---- NAME: OTHER` if the code of OTHER comes before it.
"""

# ---- elastic
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import default_collate as pad

import ddl_torch.elastic as elastic

torch.manual_seed(0)
loss_fn = cross_entropy
train_set = TensorDataset(torch.randn(1024, 8), torch.randint(3, (1024,)))
held_out = TensorDataset(torch.randn(128, 8), torch.randint(3, (128,)))
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 3])


def count_right(batch):
    return (model(batch[0]).argmax(1) == batch[1]).sum()


# ---- elastic_weights: elastic
PAD = 0
texts = TensorDataset(torch.randint(5, (64, 7)), torch.randint(5, (64, 7)))
model = torch.nn.Embedding(5, 5)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
job = elastic.Job(model, optimizer, batch=16, logical=4)
step = next(iter(job.steps(texts, passes=1)))

# ---- elastic_evaluation: elastic
job = elastic.Job(model, optimizer, batch=256, logical=16)
for step in job.steps(train_set, passes=1):
    for x, y in step:
        step.backward(loss_fn(model(x), y))
    optimizer.step()


def measure(model, batch):
    return count_right(batch).item(), 1


# ---- elastic_checkpoint: elastic
from ddl_elastic import Job

network = {"model": lambda: model, "data": train_set, "loss": loss_fn, "batch": 64, "logical": 16}
network["optimizer"] = lambda parameters: torch.optim.SGD(parameters, 0.1)
settings = {"batch": 64, "logical": 16}

# ---- elastic_stream: elastic
text, labels = torch.randn(5000), torch.randint(3, (5000,))
job = elastic.Job(model, optimizer, batch=16, logical=4)

# ---- elastic_without_loop
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset as Digits

torch.set_num_threads(1)
images, labels = torch.randn(256, 8), torch.randint(3, (256,))


def make_network():
    return torch.nn.Linear(8, 3)


def make_optimizer(parameters):
    return torch.optim.SGD(parameters, 0.1)


def make_schedule(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 10)


# ---- elastic_data
import numpy as np

noise = np.random.default_rng(0)
data = [(x[:8], x[8:]) for x in noise.normal(size=(1024, 9)).astype(np.float32)]
held_out = data[:256]

# ---- elastic_jax: elastic_data
import jax


def make_state():
    return {"weights": np.zeros((8, 1), np.float32)}


def loss(weights, batch, key):
    x, y = batch
    return ((x @ weights - y) ** 2).mean()


# ---- elastic_keras: elastic_data
import keras
from keras.callbacks import CSVLogger

import ddl_keras.elastic as elastic

elastic.pin(threads=1)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
x, y = (np.stack(each) for each in zip(*data, strict=True))
x_test, y_test = x[:256], y[:256]

# ---- elastic_tensorflow: elastic_data
import keras
import tensorflow as tf

import ddl_tensorflow.elastic as elastic

elastic.pin(threads=1)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
optimizer, loss_of = keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError()

# ---- keras_fit
import keras
import numpy as np

x, y = np.random.default_rng(0).normal(size=(64, 8)), np.arange(64) % 3
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
loss = "sparse_categorical_crossentropy"

# ---- tensorflow_loop
import keras
import numpy as np
import tensorflow as tf

x, y = np.random.default_rng(0).normal(size=(64, 8)), np.arange(64) % 3
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
loss_of = keras.losses.SparseCategoricalCrossentropy()
optimizer = keras.optimizers.Adam()
optimizer.build(model.trainable_variables)

# ---- torch_loop
import torch
from torch.nn.functional import cross_entropy

model = torch.nn.Linear(8, 3)
loader = [(torch.randn(4, 8), torch.randint(3, (4,)))] * 3
accuracy = 0.5

# ---- grow_and_shrink
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from ddl_core import Config, Endpoint

endpoint, background, plans = Endpoint(), ThreadPoolExecutor(1), []
comm = endpoint.connect([endpoint.address], 0, Config(epoch=1))
left = iter(range(50))


def training():
    return next(left, None) is not None


def step(comm):
    comm.barrier()


def next_plan():
    if not plans:
        plans.append(SimpleNamespace(addresses=[endpoint.address], epoch=2))
        return plans[0]
    return None


# ---- expel
import contextlib
import os
import time

import ddl_core

comm = ddl_core.init()
with contextlib.suppress(ddl_core.DdlError):  # rank 0 may expel rank 2 before rank 1 has left it
    comm.barrier()
if comm.rank:
    time.sleep(1)
    os._exit(0)
