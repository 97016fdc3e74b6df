"""Ten lines: learn five tasks one after another and forget none."""

import evclplus as ec

stream = ec.benchmark("split-digits")
network = ec.networks.mlp(64, [50, 50])  # every task gets a head when it arrives
method = ec.EVCLPlus(lam=1e5, beta=0.01, initial_variance=1e-4, fisher_tasks="accumulated")
learner = ec.Learner(network, method, epochs=30, batch_size=32, learning_rate=1e-2)
for task in stream:
    learner.learn(task)
    print(learner.evaluate(stream.seen(task)))
