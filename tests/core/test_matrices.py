import pytest
import torch
from torch import nn

from evclplus.core.heads import MultiHead
from evclplus.core.matrices import matrix_at, places_of, put_at
from evclplus.core.network import BayesianNetwork


@pytest.mark.parametrize("path", ["body.0", "body.2", "heads.0"])
def test_a_layers_matrix_is_its_weight_and_its_bias(path: str) -> None:
    body = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Conv1d(2, 4, 2, bias=False))
    layout = BayesianNetwork(MultiHead(body, [nn.Linear(4, 2)])).layout
    vector = torch.randn(layout.total)
    named, places = layout.named(vector), places_of(layout, path)
    weight = named[f"{path}.weight"].flatten(1)
    bias = [named[f"{path}.bias"][:, None]] if path != "body.2" else []
    expected = torch.cat([weight, *bias], dim=1)
    found = matrix_at(vector, places, *expected.shape)
    assert torch.equal(found, expected)
    other = torch.randn(layout.total)
    changed = put_at(other, places, found)
    assert torch.equal(matrix_at(changed, places, *expected.shape), expected)
    same = torch.ones(layout.total, dtype=torch.bool)
    for name, part in layout.named(same).items():
        part.fill_(not name.startswith(path))
    assert torch.equal(changed[same], other[same])
