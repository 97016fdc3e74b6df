"""Ten classes arrive two at a time, one growing head answers, and no task label is given."""

import evclplus as ec

stream = ec.benchmark("split-digits", scenario="class")
# Replaying a few stored examples is what makes this hardest scenario work: in every step, or just
# before a test.
for method in (
    ec.ExperienceReplay(buffer_size=200),
    ec.Coreset(method=ec.VCL(beta=0.01, initial_variance=1e-4), coreset_size=20),
):
    network = ec.networks.mlp(64, [100, 100])
    learner = ec.Learner(network, method, epochs=20, batch_size=32, learning_rate=3e-3)
    for task in stream:
        learner.learn(task)
    print(method.name, learner.evaluate(stream))
    x = stream[3].test.inputs()[:10]
    print("classes of the first test images of task 4:", learner.predict(x).tolist())
