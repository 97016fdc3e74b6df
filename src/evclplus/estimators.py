"""scikit-learn's way to call a learner: `fit`, and `partial_fit` once for every task.

    model = ContinualClassifier()
    for x, y in batches:                      # data that arrives and may not be kept
        model.partial_fit(x, y, classes=classes)
    model.predict(x)

Without `task`, all calls share one head over all `classes`. With `task="monday"`, each name has a
head of its own with the classes it brings. To predict, name it again; unnamed, a head is chosen for
each row, see `recognise`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
from torch import Tensor, nn

from evclplus import networks
from evclplus.core.examples import Examples
from evclplus.core.heads import MultiHead
from evclplus.core.noise import identities
from evclplus.files import temporary_folder
from evclplus.learner import Learner
from evclplus.methods.base import Method
from evclplus.recognition import Recognise
from evclplus.streams.task import Task

Array = npt.NDArray[Any]


class _Continual(BaseEstimator):
    """What both estimators share.

    network         widths of the hidden layers of an MLP, or a function of the number of inputs
                    that gives the body of a network: any nn.Module that makes features of rows
    method          a method or its name
    recognise       how a head is chosen for rows whose task nobody names: "entropy", the surest
                    one (of classes only), or "features", by statistics that are kept of each
                    task's rows
    scale           shift and scale every input as the rows of the first call need it
    epochs, batch_size, learning_rate, samples    as in `Learner`
    random_state    a number, or numpy's generator
    """

    criterion: str

    def __init__(
        self,
        network: Sequence[int] | Callable[[int], nn.Module] = (100, 100),
        method: Method | str = "evcl+",
        *,
        recognise: Recognise = "entropy",
        scale: bool = True,
        epochs: int | None = None,
        batch_size: int = 256,
        learning_rate: float | None = None,
        samples: int = 10,
        random_state: Any = 0,
    ) -> None:
        self.network = network
        self.method = method
        self.recognise = recognise
        self.scale = scale
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.samples = samples
        self.random_state = random_state

    def _begin(self, x: Array) -> None:
        """A new learner, before its first task."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.learner_ = Learner(
            self._new_network(x.shape[1], seed),
            self.method,
            seed=seed,
            samples=self.samples,
            criterion=self.criterion,  # type: ignore[arg-type]
            recognise=self.recognise,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
        )
        self.heads_: dict[Any, int] = {}
        self.shift_, self.scale_ = _moments(x if self.scale else np.zeros((1, x.shape[1])))

    def _new_network(self, inputs: int, seed: int = 0) -> MultiHead:
        if not callable(self.network):
            return MultiHead(networks.mlp(inputs, self.network, seed=seed).body)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return MultiHead(self.network(inputs))

    def _rows(self, x: Array) -> Tensor:
        return torch.from_numpy(((x - self.shift_) / self.scale_).astype(np.float32))

    def _learn(
        self, x: Array, labels: Tensor, outputs: int, task: Any, classes: tuple[int, ...] = ()
    ) -> None:
        head = self.heads_.setdefault(task, len(self.heads_))
        examples = Examples(self._rows(x), labels, outputs, head)
        nothing = examples.take(torch.arange(0))
        index = len(self.learner_.learned)
        self.learner_.learn(Task(f"call {index + 1}", index, examples, nothing, nothing, classes))

    def _answers(
        self, x: Any, task: Any, ask: Callable[[Learner, Tensor, int | None], Tensor]
    ) -> Array:
        """What the learner answers to each row. Rows are asked in an order of their own: the
        last digit of a product depends on where in it a row stands."""
        rows, at = self._asked(x, task)
        order = identities(rows).argsort(stable=True)
        found: Array = ask(self.learner_, rows[order], at)[order.argsort()].numpy()
        return found

    def _asked(self, x: Any, task: Any) -> tuple[Tensor, int | None]:
        """The rows, and a call that learned the head to ask; None: one has to be chosen."""
        check_is_fitted(self, "learner_")
        x = validate_data(self, x, reset=False)
        if self._has_to_choose(task):
            return self._rows(x), None
        if task not in self.heads_:
            known = ", ".join(map(repr, self.heads_))
            raise ValueError(f"task = {task!r} was not learned; expected one of: {known}")
        head = self.heads_[task]
        learned = self.learner_.learned
        return self._rows(x), next(at for at, one in enumerate(learned) if one.head == head)

    def _has_to_choose(self, task: Any) -> bool:
        """Whether nobody names a task, every head has a name, and there is a way to choose."""
        can = self.criterion == "classification" or self.recognise == "features"
        return can and task is None and None not in self.heads_

    # A learner has its own form on disk, and a body may be made by a function that has none.

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "learner_" in state:
            learner = state.pop("learner_")
            with temporary_folder() as folder:
                path = learner.save(folder / "learner")
                state["saved_learner"] = {
                    file.name: file.read_bytes() for file in path.iterdir() if file.is_file()
                }
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        saved = state.pop("saved_learner", None)
        super().__setstate__(state)
        if saved is not None:
            method = self.method if isinstance(self.method, Method) else None
            network = self._new_network(self.n_features_in_)
            with temporary_folder() as folder:
                for name, content in saved.items():
                    (folder / name).write_bytes(content)
                self.learner_ = Learner.load(folder, network=network, method=method)


class ContinualClassifier(ClassifierMixin, _Continual):
    """A classifier that learns from one call of `partial_fit` after another and forgets little.

    After a call: `classes_` all classes so far, `learner_` the `Learner` behind it.
    """

    criterion = "classification"

    def fit(self, X: Any, y: Any) -> "ContinualClassifier":  # noqa: N803 (its name there)
        """Forget everything and learn one task."""
        return self._fit(X, y, None, None, first=True)

    def partial_fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        classes: Any = None,
        task: Any = None,
    ) -> "ContinualClassifier":
        """Learn one task more. Without `task`, the first call says all `classes` there will be."""
        first = not hasattr(self, "learner_")
        if first and classes is None and task is None:
            raise ValueError("classes must be passed on the first call to partial_fit")
        return self._fit(X, y, classes, task, first)

    def _fit(self, x: Any, y: Any, classes: Any, task: Any, first: bool) -> "ContinualClassifier":
        x, y = validate_data(self, x, y, reset=first)
        check_classification_targets(y)
        if first:
            self._begin(x)
            self.classes_ = np.unique(y if classes is None else classes)
            self.classes_of_: dict[Any, Array] = {}
            self.numbers_: dict[Any, int] = {}
        own = np.unique(y) if classes is None or task is not None else np.unique(classes)
        own = self.classes_of_.get(task, own)
        unknown = np.setdiff1d(y, own)
        if len(unknown):
            raise ValueError(
                f"y has the class {unknown[0]!r}, which the first call did not name; expected "
                f"classes: {list(own)}; pass all of them as classes=, or a new task="
            )
        labels = torch.from_numpy(np.searchsorted(own, y))
        # The learner knows classes by numbers, the same in every head.
        numbers = tuple(self.numbers_.setdefault(one, len(self.numbers_)) for one in own.tolist())
        self._learn(x, labels, len(own), task, numbers)
        self.classes_of_[task] = own
        self.classes_ = np.unique(np.concatenate([self.classes_, own]))
        return self

    def predict_proba(self, X: Any, task: Any = None) -> Array:  # noqa: N803
        """A probability for each of `classes_`; those that the task does not have get zero."""
        own = self._answers(X, task, Learner.predict_proba)
        found = np.zeros((len(own), len(self.classes_)), np.float32)
        found[:, np.searchsorted(self.classes_, self._columns(task))] = own
        return found

    def _columns(self, task: Any) -> Array:
        """The class of each column that the learner answers with."""
        if not self._has_to_choose(task):
            columns: Array = self.classes_of_[task]
            return columns
        names = list(self.numbers_)
        return np.asarray([names[number] for number in self.learner_.classes()])

    def predict(self, X: Any, task: Any = None) -> Array:  # noqa: N803
        """The most probable class of each row."""
        probabilities = self.predict_proba(X, task)
        chosen: Array = self.classes_[probabilities.argmax(1)]
        return chosen

    def score(self, X: Any, y: Any, sample_weight: Any = None, task: Any = None) -> float:  # noqa: N803
        """Accuracy."""
        return float(accuracy_score(y, self.predict(X, task), sample_weight=sample_weight))


class ContinualRegressor(RegressorMixin, _Continual):
    """A regressor that learns from one call of `partial_fit` after another and forgets little.

    Targets are shifted and scaled as those of the first call need it, and predictions back.
    """

    criterion = "regression"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> "ContinualRegressor":  # noqa: N803
        """Forget everything and learn one task."""
        return self._fit(X, y, None, first=True)

    def partial_fit(self, X: Any, y: Any, task: Any = None) -> "ContinualRegressor":  # noqa: N803
        """Learn one task more."""
        return self._fit(X, y, task, first=not hasattr(self, "learner_"))

    def _fit(self, x: Any, y: Any, task: Any, first: bool) -> "ContinualRegressor":
        x, y = validate_data(self, x, y, reset=first, y_numeric=True, multi_output=True)
        targets = y.reshape(len(y), -1).astype(np.float64)
        if first:
            self._begin(x)
            self.target_shape_ = y.shape[1:]
            self.target_shift_, self.target_scale_ = _moments(targets)
        if y.shape[1:] != self.target_shape_:
            raise ValueError(
                f"y has the shape {y.shape}; expected (rows, *{self.target_shape_}) as before"
            )
        scaled = ((targets - self.target_shift_) / self.target_scale_).astype(np.float32)
        self._learn(x, torch.from_numpy(scaled), targets.shape[1], task)
        return self

    def predict(self, X: Any, task: Any = None) -> Array:  # noqa: N803
        """The mean of each row's target."""
        found = self._answers(X, task, Learner.predict).astype(np.float64)
        back: Array = found * self.target_scale_ + self.target_shift_
        return back.reshape(len(found), *self.target_shape_)

    def score(self, X: Any, y: Any, sample_weight: Any = None, task: Any = None) -> float:  # noqa: N803
        """R squared."""
        return float(r2_score(y, self.predict(X, task), sample_weight=sample_weight))


def _moments(x: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of every column; one where a column is constant."""
    std = x.std(0)
    return x.mean(0), np.where(std > 0, std, 1.0)
