"""Batches arrive without a word on which task they belong to, and tasks come back.

The learner recognises a task by its inputs, or finds that it is new and gives it a head. That works
as long as tasks look different: tasks with the same inputs and other labels cannot be told apart.
The batches come in the order in which the digits were written, so a task comes back in other
people's handwriting. That alone surprises by up to 1.2 standard deviations, a new task by 2.7 or
more.
"""

import torch

import evclplus as ec

SURPRISE = 2.0  # more than the default of 0.5, which is for batches that are drawn at random

# Three tasks of two digits each, in batches of 80; the label says whether the digit is odd.
stream = ec.benchmark("split-digits", tasks=3)
batches: list[tuple[int, torch.Tensor, torch.Tensor]] = []
for position in (0, 1, 0, 2, 1, 2):
    examples = stream[position].train
    visit = sum(where == position for where, _, _ in batches)  # old rows never come again
    rows = torch.arange(80 * visit, 80 * (visit + 1))
    batches.append((position, examples.inputs(rows), examples.labels[rows]))

learner = ec.Learner(ec.networks.mlp(64, [50]), recognise="features", epochs=30, batch_size=16)
for day, (position, x, y) in enumerate(batches):
    known = learner.known_task(x, SURPRISE)  # the position of a learned task, or None
    head = len(learner.outputs_seen) if known is None else learner.learned[known].head
    learner.learn(ec.task(x, y, name=f"day {day}", outputs=2, head=head))
    found = "new" if known is None else f"that of {learner.learned[known].name}"
    print(f"day {day}: the task seems {found}, head {head} learns (truly task {position})")

for task in stream:
    x, y = task.test.inputs(), task.test.labels
    known = learner.known_task(x, SURPRISE)
    assert known is not None
    right = (learner.predict_proba(x, task=known).argmax(1) == y).double().mean()
    print(f"{task.name}: recognised as {learner.learned[known].name}, accuracy {right:.1%}")
print(len(learner.outputs_seen), "heads")
