"""Pictures in folders, a folder for each class, learned two classes at a time by a convnet."""

from pathlib import Path

import numpy as np
from PIL.Image import fromarray
from sklearn.datasets import load_digits

import evclplus as ec

# Your own folders in its place: pictures/CLASS/anything.png, of any size.
folder = Path("pictures")
for index, (image, label) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
    if label < 6 and index < 600:
        place = folder / str(label)
        place.mkdir(parents=True, exist_ok=True)
        fromarray((image.reshape(8, 8) * 15).astype(np.uint8)).save(place / f"{index}.png")

pictures = ec.from_folder(folder, size=(8, 8), colour="grey")
stream = ec.split_tasks(pictures.x, pictures.y, class_names=pictures.class_names)
network = ec.networks.convnet(stream.input_shape, [8, 16])
learner = ec.Learner(network, epochs=10, batch_size=32)
for task in stream:
    learner.learn(task)
print(learner.evaluate(stream))
