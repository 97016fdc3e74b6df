"""What LwF and progress and compress share: old answers taught again, softened (Hinton et al.)."""

from torch import Tensor


def distillation(
    now: Tensor, before: Tensor, temperature: float | Tensor, weight: float | Tensor = 1.0
) -> Tensor:
    """mean over x of sum_h w_h KL(softmax(z_h before / T) || softmax(z_h now / T)), from logits
    (examples, heads, outputs). It is the paper's cross-entropy less a constant."""
    log_old, log_new = ((z / temperature).log_softmax(2) for z in (before, now))
    divergence = (log_old.exp() * (log_old - log_new)).sum(2)
    return (weight * divergence).sum(1).mean()
