"""A Hugging Face dataset as a stream. Needs the extra: pip install 'evclplus[huggingface]'."""

import numpy as np
from datasets import Dataset, Features, Image, Value
from PIL.Image import fromarray
from sklearn.datasets import load_digits

import evclplus as ec

# Any dataset with a column of pictures and one of labels; here one made on the spot.
digits = load_digits()
pictures = [fromarray((image * 15).astype(np.uint8)) for image in digits.images]
dataset = Dataset.from_dict(
    {"image": pictures, "label": digits.target.tolist()},
    features=Features({"image": Image(), "label": Value("int64")}),
)

brought = ec.from_huggingface(dataset)
stream = ec.split_tasks(brought.x, brought.y)
print([task.name for task in stream], stream.input_shape)
