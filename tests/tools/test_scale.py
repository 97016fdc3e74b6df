"""Small versions of what tools/scale measures."""

from pathlib import Path

import pytest

from tools.scale import disk, large, many

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="memory is read from /proc"
)


def test_a_stream_on_disk_is_learned_in_little_memory(tmp_path: Path) -> None:
    found = disk.measure(tmp_path, gigabytes=0.02)
    assert [row["task"] for row in found["rows"]] == [1, 2]
    assert not list(tmp_path.iterdir())


def test_a_network_learns_two_tasks_in_the_memory_of_some_vectors() -> None:
    found = large.measure(weights=10**5)
    assert all(row["finite"] and len(row["steps"]) == large.STEPS for row in found["rows"])


def test_heads_come_with_tasks_and_the_file_grows_by_a_head_each() -> None:
    found = many.measure(count=12, epochs=1, marks=3)
    sizes = [row["file_kilobytes"] for row in found["rows"]]
    assert [row["tasks"] for row in found["rows"]] == [4, 8, 12]
    assert sizes[2] - sizes[1] == pytest.approx(sizes[1] - sizes[0], rel=0.1)


def test_a_pass_loads_the_layers_of_its_own_head_only() -> None:
    import evclplus as ec
    from evclplus.core.network import BayesianNetwork

    network = BayesianNetwork(ec.networks.mlp(4, [8], heads=(2, 2, 2)))
    assert network.layers_for(1) == ["body.1", "heads.1"]
    assert network.layers_for((0, 2)) == ["body.1", "heads.0", "heads.2"]
    assert network.layers_for(()) == ["body.1"]
