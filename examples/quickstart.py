"""Ten lines: learn five tasks one after another and forget none."""

import evclplus as ec

stream = ec.benchmark("split-digits")
network = ec.networks.mlp(64, [100, 100], heads=stream.heads)
method = ec.EVCLPlus(lam=1e3, beta=0.01, initial_variance=1e-4, fisher_tasks="accumulated")
learner = ec.Learner(network, method, epochs=20, batch_size=32, learning_rate=3e-3)
for task in stream:
    learner.learn(task)
    print(learner.evaluate(stream.seen(task)))
