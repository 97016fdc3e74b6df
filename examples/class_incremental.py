"""Ten classes arrive two at a time, one growing head answers, and no task label is given."""

import evclplus as ec

stream = ec.benchmark("split-digits", scenario="class")
network = ec.networks.mlp(64, [100, 100], heads=stream.heads)
# Replaying a few stored examples is what makes this hardest scenario work.
method = ec.Coreset(method=ec.VCL(beta=0.01, initial_variance=1e-4), coreset_size=20)
learner = ec.Learner(network, method, epochs=20, batch_size=32, learning_rate=3e-3)
for task in stream:
    learner.learn(task)
print(learner.evaluate(stream))
print("classes of the first test images:", learner.predict(stream[3].test.inputs()[:10]).tolist())
