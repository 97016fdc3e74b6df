"""A Hugging Face dataset as a stream. Needs the extra: pip install 'evclplus[huggingface]'."""

import numpy as np
from datasets import Dataset
from sklearn.datasets import load_digits

import evclplus as ec

digits = load_digits()
table = Dataset.from_dict(
    {"image": (digits.images * 15).astype(np.uint8).tolist(), "label": digits.target.tolist()}
)
brought = ec.from_huggingface(table, image="image", label="label")
stream = ec.split_tasks(brought.x, brought.y)
print([task.name for task in stream], stream.input_shape)
