"""An example for each public name; run when the site is built. Shapes are in the answers."""

SETUP = """\
import numpy as np
import torch
from sklearn.datasets import load_digits

import evclplus as ec

x, y = load_digits(return_X_y=True)
x, y = x.astype("float32")[:400] / 16, y[:400]
stream = ec.split_tasks(x, y, classes_per_task=2)
learner = ec.Learner(ec.networks.mlp(64, [20]), epochs=20)
for task in stream:
    learner.learn(task)
rows = stream[0].test.inputs()
"""

EXAMPLES = {
    "METHODS": "len(ec.METHODS), list(ec.METHODS)[:5]",
    "Checkpoints": """
import tempfile
from pathlib import Path
place = ec.Checkpoints(Path(tempfile.mkdtemp()), every="epoch")
ec.Learner(ec.networks.mlp(64, [20]), epochs=2).learn(stream[0], checkpoint=place)
""",
    "Conformal": """
sets = learner.conformal(stream[0], coverage=0.8)
sets.sets(rows).shape, sets.labels(rows)[:3]
""",
    "ContinualClassifier": """
model = ec.ContinualClassifier((20,), epochs=2)
model.partial_fit(x[:200], y[:200], classes=np.arange(10)).partial_fit(x[200:], y[200:])
model.predict(x[:5]), model.predict_proba(x[:5]).shape
""",
    "ContinualRegressor": """
model = ec.ContinualRegressor((20,), epochs=2)
model.partial_fit(x[:200], y[:200].astype(float)).predict(x[:5]).shape
""",
    "Evaluation": "found = learner.evaluate(stream)\nfound.tasks, found.average_accuracy",
    "EvclplusError": """
try:
    ec.method("evcll")
except ec.EvclplusError as error:
    print(error)
""",
    "Examples": """
one = stream[0].train
len(one), one.inputs().shape, one.labels.shape, one.outputs
""",
    "Experiment": 'ec.Experiment(method="ewc", benchmark="split-digits", seed=1).fingerprint()',
    "Learner": """
probabilities = learner.predict_proba(rows, task=0)  # (rows, classes of the task)
rows.shape, probabilities.shape, learner.predict(rows, task=0).shape
""",
    "MeanField": "learner.q.mean.shape, learner.q.variance.shape",
    "MultiHead": """
body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 20), torch.nn.ReLU())
ec.Learner(ec.MultiHead(body), epochs=2).learn(stream[0]).predict_proba(rows, task=0).shape
""",
    "Regression": "ec.Learner(ec.networks.mlp(64, [20]), criterion=ec.Regression(std=0.1))",
    "RegressionEvaluation": """
numbers = y.astype("float32")
t = ec.regression_task(x[:50], numbers[:50], name="monday", test=(x[50:], numbers[50:]))
model = ec.Learner(ec.networks.mlp(64, [20]), criterion="regression", epochs=2).learn(t)
model.evaluate_regression(t)
""",
    "RegressionScores": """
ec.RegressionScores(root_mean_squared_error=0.5, negative_log_likelihood=1.0)
""",
    "Scores": "learner.evaluate(stream[0]).scores[0]",
    "Stream": "len(stream), [task.name for task in stream], stream.scenario",
    "Task": """
task = stream[1]
task.name, task.index, task.classes, len(task.train), len(task.test)
""",
    "Training": 'ec.Training(epochs=5, schedule="constant")',
    "Uncertainty": """
found = learner.uncertainty(rows, task=0)
found.total.shape, found.weights.mean()
""",
    "benchmark": 'ec.benchmark("split-digits", seed=0, tasks=2)[0].train.inputs().shape',
    "contact_sheet": """
import tempfile
from pathlib import Path
pictures = ec.split_tasks(x.reshape(-1, 1, 8, 8), y)
ec.contact_sheet(pictures, Path(tempfile.mkdtemp()) / "sheet.png").name
""",
    "from_dataset": """
data = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
ec.from_dataset(data).x.shape
""",
    "from_folder": """
import tempfile
from pathlib import Path
from PIL import Image
folder = Path(tempfile.mkdtemp())
for name in ("cat", "dog"):
    (folder / name).mkdir()
    Image.new("RGB", (8, 8)).save(folder / name / "1.png")
found = ec.from_folder(folder)
found.x.shape, found.class_names
""",
    "from_huggingface": """
# from datasets import load_dataset
# data = ec.from_huggingface(load_dataset("mnist", split="train"))
# stream = ec.split_tasks(data.x, data.y)
""",
    "method": 'ec.method("ewc", lam=1.0)',
    "networks": "ec.networks.mlp(64, [50, 50]), ec.networks.convnet((1, 8, 8), [8])",
    "permuted_tasks": "ec.permuted_tasks(x, y, tasks=3)[2].train.inputs().shape",
    "regression_task": """
t = ec.regression_task(x[:50], y[:50].astype("float32"), name="monday")
model = ec.Learner(ec.networks.mlp(64, [20]), criterion="regression", epochs=2).learn(t)
model.predict(x[:5]).shape
""",
    "rotated_tasks": "ec.rotated_tasks(x.reshape(-1, 1, 8, 8), y, tasks=3)[2].name",
    "split_tasks": "[task.classes for task in ec.split_tasks(x, y, classes_per_task=5)]",
    "task": 'ec.task(x[:50], y[:50], name="monday", outputs=10).train.inputs().shape',
    "tasks": "[t.name for t in ec.tasks([(x[:90], y[:90]), (x[90:], y[90:])])]",
}
