"""A table that gets new rows every day: learn the day's rows, then let them go.

All days share one head over all classes. Needs pandas.
"""

import numpy as np
import pandas as pd
from sklearn.datasets import load_wine

import evclplus as ec

# Stands for a table in a database; the wines of every day are a little different.
wine = load_wine(as_frame=True)
table = wine.frame.sample(frac=1, random_state=0, ignore_index=True)
table["day"] = pd.date_range("2026-01-01", periods=4).repeat(45)[: len(table)]
inputs = wine.feature_names
shift, scale = table[inputs].mean(), table[inputs].std()  # or what the first day shows

learner = ec.Learner(ec.networks.mlp(len(inputs), [50]), epochs=30, batch_size=16)
seen: list[ec.Task] = []
for day, rows in table.groupby("day"):
    x = ((rows[inputs] - shift) / scale).to_numpy(np.float32)
    y = rows["target"].to_numpy()
    fifth = len(rows) // 5  # kept back to see how it goes
    task = ec.task(
        x[fifth:], y[fifth:], name=f"{day:%Y-%m-%d}", outputs=3, test=(x[:fifth], y[:fifth])
    )
    seen.append(task)
    learner.learn(task)
    print(task.name, learner.evaluate(seen))
    learner.save("wine", overwrite=True)  # tomorrow: ec.Learner.load("wine")
