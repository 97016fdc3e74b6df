"""scikit-learn's conventions over a learner."""

import pickle
from typing import Any

import numpy as np
import pytest
import sklearn
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.datasets import load_digits, make_regression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import evclplus as ec
from evclplus.estimators import Array, ContinualClassifier, ContinualRegressor

QUICK: dict[str, Any] = {"network": (20,), "epochs": 30, "learning_rate": 1e-2}


def body(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 12), nn.Tanh())


def digits(classes: tuple[int, ...]) -> tuple[Array, Array]:
    x, y = load_digits(return_X_y=True)
    chosen = np.isin(y, classes)
    return x[chosen], y[chosen]


@pytest.mark.slow
@parametrize_with_checks([ContinualClassifier(), ContinualRegressor()])  # type: ignore[untyped-decorator]
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    """As they come, with EVCL+."""
    check(estimator)


@parametrize_with_checks([ContinualClassifier(method="ewc", **QUICK)])  # type: ignore[untyped-decorator]
def test_scikit_learns_own_checks_of_point_weights(estimator: Any, check: Any) -> None:
    check(estimator)


def test_one_call_a_task_with_a_head_for_each() -> None:
    model = ContinualClassifier(**QUICK)
    pairs = {"even": (2, 4), "odd": (7, 9)}
    for name, classes in pairs.items():
        model.partial_fit(*digits(classes), task=name)
    assert list(model.classes_) == [2, 4, 7, 9]
    for name, classes in pairs.items():
        x, y = digits(classes)
        assert (model.predict(x, task=name) == y).mean() > 0.95
        probabilities = model.predict_proba(x, task=name)
        np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)
        others = ~np.isin(model.classes_, classes)
        assert probabilities[:, others].max() == 0
    with pytest.raises(ValueError, match="task = 'never' was not learned; expected one of: 'even'"):
        model.predict(x, task="never")


def test_one_head_over_all_classes() -> None:
    model = ContinualClassifier(method="joint", **QUICK)
    for classes in ((0, 1), (2, 3)):
        model.partial_fit(*digits(classes), classes=range(4))
    x, y = digits((0, 1, 2, 3))
    assert model.score(x, y) > 0.95
    with pytest.raises(ValueError, match=r"y has the class np.int64\(8\), which the first call"):
        model.partial_fit(*digits((8, 9)))
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        ContinualClassifier().partial_fit(x, y)


def test_text_labels_and_a_body_of_ones_own() -> None:
    x, y = digits((3, 5))
    names = np.where(y == 3, "three", "five")
    model = ContinualClassifier(body, epochs=30).fit(x, names)
    assert model.score(x, names) > 0.95
    assert set(model.predict(x[:9])) <= {"three", "five"}


@pytest.mark.parametrize("network", [(20,), body])
def test_a_copy_by_pickle_goes_on_as_the_original(network: Any) -> None:
    model = ContinualClassifier(network, epochs=5).partial_fit(*digits((0, 1)), task=0)
    copy = pickle.loads(pickle.dumps(model))
    for one in (model, copy):
        one.partial_fit(*digits((2, 3)), task=1)
    x, _ = digits((0, 1, 2, 3))
    for task in (0, 1):
        np.testing.assert_array_equal(
            model.predict_proba(x, task=task), copy.predict_proba(x, task=task)
        )


def test_it_works_in_a_pipeline_and_in_a_cross_validation() -> None:
    x, y = digits((0, 1, 2))
    model = make_pipeline(StandardScaler(), ContinualClassifier(method=ec.EWC(lam=1.0), **QUICK))
    assert cross_val_score(clone(model), x, y, cv=2).min() > 0.9


def two_tasks(**settings: Any) -> ContinualClassifier:
    """Two pairs of digits, one of them in both."""
    model = ContinualClassifier(**QUICK | settings)
    for name, classes in (("even", (2, 4)), ("odd", (7, 2))):
        model.partial_fit(*digits(classes), task=name)
    return model


@pytest.mark.parametrize("recognise", ["entropy", "features"])
def test_a_head_is_chosen_for_rows_whose_task_nobody_names(recognise: str) -> None:
    model = two_tasks(recognise=recognise)
    x, y = digits((2, 4, 7))
    found = model.predict_proba(x)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
    # As if the head that the learner chose had been named.
    chosen = model.learner_.which_task(model._rows(x)).numpy()
    for position, task in enumerate(("even", "odd")):
        rows = chosen == position
        assert rows.any()
        told = model.predict_proba(x[rows], task=task)
        np.testing.assert_allclose(found[rows], told, atol=1e-5)
    assert model.score(x, y) == (model.predict(x) == y).mean() > 0.8
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict_proba(x), found)


def test_a_pipeline_hands_the_task_on() -> None:
    x, y = digits((2, 7))
    with sklearn.config_context(enable_metadata_routing=True):
        model = two_tasks()
        model.set_predict_request(task=True).set_predict_proba_request(task=True)
        model.set_score_request(task=True)
        nothing = StandardScaler(with_mean=False, with_std=False).fit(x)
        line = Pipeline([("nothing", nothing), ("model", model)])
        for task in ("even", "odd"):
            np.testing.assert_array_equal(line.predict(x, task=task), model.predict(x, task))
            shown = line.predict_proba(x, task=task)
            np.testing.assert_array_equal(shown, model.predict_proba(x, task))
            assert line.score(x, y, task=task) == (model.predict(x, task) == y).mean()
        assert not np.array_equal(line.predict(x, task="even"), line.predict(x, task="odd"))


def test_joblib_carries_it_to_other_processes() -> None:
    x, y = digits((0, 1, 2))
    model = ContinualClassifier(method="ewc", **QUICK)
    alone = cross_val_score(model, x, y, cv=2)
    np.testing.assert_array_equal(cross_val_score(model, x, y, cv=2, n_jobs=2), alone)
    fitted = two_tasks()
    tasks = ("even", "odd")
    found = Parallel(2)(delayed(fitted.predict_proba)(x, task) for task in tasks)
    for one, task in zip(found, tasks, strict=True):
        np.testing.assert_array_equal(one, fitted.predict_proba(x, task))


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")  # river gives no names
def test_rivers_converter() -> None:
    compat = pytest.importorskip("river.compat", reason="needs river")
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    x, y = digits((3, 5, 8))
    table, labels = pandas.DataFrame(x).rename(columns=str), pandas.Series(y)
    ours = ContinualClassifier(method="ewc", **QUICK)
    model = compat.convert_sklearn_to_river(ours, classes=[3, 5, 8])
    direct = clone(ours)
    for rows in np.array_split(np.arange(len(x)), 2):
        model.learn_many(table.iloc[rows], labels.iloc[rows])
        direct.partial_fit(x[rows], y[rows], classes=[3, 5, 8])
    assert model.predict_many(table).tolist() == direct.predict(x).tolist()
    model.learn_one(table.iloc[0].to_dict(), 3)
    direct.partial_fit(x[:1], y[:1])
    shown = model.predict_proba_one(table.iloc[9].to_dict())
    np.testing.assert_allclose([shown[c] for c in (3, 5, 8)], direct.predict_proba(x[9:10])[0])
    number = compat.convert_sklearn_to_river(ContinualRegressor(method="ewc", **QUICK))
    number.learn_many(table, labels)
    again = ContinualRegressor(method="ewc", **QUICK).partial_fit(x, y)
    assert number.predict_one(table.iloc[0].to_dict()) == pytest.approx(again.predict(x[:1])[0])


def test_regression_gives_targets_back_as_they_came() -> None:
    x, y = make_regression(200, 5, noise=0.1, random_state=0)
    y = 1000 + 50 * y
    model = ContinualRegressor(network=(50,), method="ewc", epochs=200, learning_rate=1e-2)
    assert model.fit(x, y).score(x, y) > 0.97
    assert model.predict(x).shape == y.shape
    model.partial_fit(x + 3, y)
    assert len(model.learner_.learned) == 2
    both = np.stack([y, -y], 1)
    assert model.fit(x, both).predict(x).shape == both.shape
    with pytest.raises(ValueError, match="y has the shape"):
        model.partial_fit(x, y)


def test_regression_with_a_head_for_each_task() -> None:
    x, y = make_regression(100, 3, random_state=0)
    model = ContinualRegressor((50,), method="ewc", epochs=100, learning_rate=1e-2)
    model.partial_fit(x, y, task="up").partial_fit(x, -y, task="down")
    assert model.score(x, -y, task="down") > 0.9 > model.score(x, y, task="down")
    with pytest.raises(ValueError, match="expected one of: 'up', 'down'"):
        model.predict(x)
