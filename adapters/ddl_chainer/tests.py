# SPDX-License-Identifier: Apache-2.0
"""The parts of the adapters' tests that are specific to Chainer."""

# The tests run BEFORE, then the example in docs/heritage.md, then AFTER.
BEFORE = """\
import chainer
import numpy as np
model = chainer.links.Classifier(chainer.links.Linear(4, 3))
images = np.random.rand(64, 4).astype("f")
train = chainer.datasets.TupleDataset(images, (images.sum(1) > 2).astype("i"))
iterator = chainer.iterators.SerialIterator(train, 8, repeat=False, shuffle=False)
evaluator = chainer.training.extensions.Evaluator(iterator, model)
"""
AFTER = """\
iterator = chainer.iterators.SerialIterator(train, 8)
updater = chainer.training.StandardUpdater(iterator, optimizer)
for _ in range(3):
    updater.update()
assert 0 <= evaluator()["main/accuracy"] <= 1
weights = [each.array for each in model.params()]
"""
