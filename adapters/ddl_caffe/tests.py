# SPDX-License-Identifier: Apache-2.0
"""The parts of the adapters' tests that are specific to Caffe."""

# The tests run BEFORE, then the example in docs/heritage.md, then AFTER.
BEFORE = """\
from pathlib import Path
Path("net").write_text('''
layer { name: "x" type: "DummyData" top: "x" dummy_data_param {
  shape { dim: 8 dim: 4 } data_filler { type: "gaussian" } } }
layer { name: "y" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {
  num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1
  reduction_param { operation: SUMSQ } }
''')
Path("solver.prototxt").write_text(
    'net: "net" base_lr: 0.001 lr_policy: "fixed" snapshot_prefix: "it" type: "SGD"'
)
"""
AFTER = """\
assert solver.iter == 1000
assert Path("it_iter_1000.caffemodel").exists()
weights = [blob.data for layer in solver.net.params.values() for blob in layer]
"""
