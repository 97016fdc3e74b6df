"""KFAC Laplace: online Laplace approximations with Kronecker factors (Ritter, Botev and Barber,
NeurIPS 2018), with point weights.

    minimise  -log p(y|x, theta), mean over N examples
              + (lambda / N) (1/2) sum_l tr(dW_l A_l dW_l^T G_l)      dW_l = W_l - W_l_prev
              + (tau / N) (1/2) |theta - theta_prev|^2

A_l (x) G_l is the Fisher of layer l, summed over the examples of all tasks so far, and tau the
precision of the first prior N(0, 1/tau). Both are on the scale of sums, so lambda = 1 is Bayes'
rule and nothing has to be tuned: weights of a layer that only matter together are held together,
which a diagonal cannot say. Weights outside linear layers and convolutions have a diagonal Fisher.

The sum over tasks of A (x) G is no such product. `tasks` says what is kept of it:

    "nearest"    the one product nearest to it
    "scaled"     (A + A'/pi) (x) (G + pi G'), the sum of NCL's authors: every A also meets every
                 G of another task, so t equal tasks count t^2 and not t times
    "separate"   the sum itself, a product for each task: exact, and it grows

It keeps the last weights, and in^2 + out^2 numbers for a layer of in x out weights; a head's come
with its task. Departures: the paper takes the expectation over labels with a sample, we exactly.
"""

from typing import ClassVar

from evclplus.methods.laplace import Laplace


class KroneckerLaplace(Laplace):
    """Point weights held by a Laplace approximation with Kronecker factors."""

    name: ClassVar[str] = "kfac"
    colour: ClassVar[str] = "#0F52BA"
    marker: ClassVar[str] = "|"
