"""Data of your own: arrays, a torch Dataset, a folder of pictures, and data that just arrives."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

import evclplus as ec

digits = load_digits()
x, y = digits.images.astype(np.float32)[:, None] / 16, digits.target

# Arrays: any numpy array or tensor, cut into tasks of two classes.
print(len(ec.split_tasks(x, y, classes_per_task=2)), "tasks from arrays")

# A torch Dataset: anything with a length and (input, label) items.
brought = ec.from_dataset(TensorDataset(torch.tensor(x), torch.tensor(y)))
print(len(ec.permuted_tasks(brought.x, brought.y, tasks=3)), "permuted tasks from a Dataset")

# A folder with a subfolder of pictures for each class.
with tempfile.TemporaryDirectory() as folder:
    for index in range(200):
        picture = Image.fromarray((digits.images[index] * 15).astype(np.uint8))
        (Path(folder) / str(y[index])).mkdir(exist_ok=True)
        picture.save(Path(folder) / str(y[index]) / f"{index}.png")
    pictures = ec.from_folder(folder, size=(8, 8))
    stream = ec.split_tasks(pictures.x, pictures.y, class_names=pictures.class_names)
    print("tasks from a folder:", [task.name for task in stream])

# Data that arrives when it arrives: the same ten classes every day, nothing kept.
learner = ec.Learner(ec.networks.mlp(64, [50]), "evcl+", epochs=3, batch_size=32)
for day, rows in enumerate(np.array_split(np.arange(len(x)), 3)):
    learner.learn(ec.task(x[rows], y[rows], name=f"day {day}", outputs=10))
print("predicted:", learner.predict(x[:10]).tolist())
