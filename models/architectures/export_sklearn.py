"""Writes small scikit-learn pipelines by skl2onnx: scalers, linear models, trees, kernels, neighbours, networks."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from skl2onnx import to_onnx
from sklearn import (
  cluster,
  compose,
  decomposition,
  ensemble,
  feature_selection,
  gaussian_process,
  impute,
  linear_model,
  mixture,
  naive_bayes,
  neighbors,
  neural_network,
  preprocessing,
  svm,
  tree,
)
from sklearn.pipeline import make_pipeline, make_union

from models.architectures import archive

FEATURES, ROWS = 5, 60

# Name: what makes the estimator; a name that ends in "_map" keeps ONNX's maps of labels to probabilities.
BUILDERS: dict[str, Callable[[], Any]] = {
  "logistic_map": lambda: make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression()),
  "ridge_polynomial": lambda: make_pipeline(preprocessing.PolynomialFeatures(2), linear_model.Ridge()),
  "random_forest": lambda: ensemble.RandomForestClassifier(4, max_depth=3, random_state=0),
  "gradient_boosting": lambda: make_pipeline(
    preprocessing.MinMaxScaler(), ensemble.GradientBoostingRegressor(n_estimators=4, max_depth=2, random_state=0)
  ),
  "decision_tree": lambda: make_pipeline(
    impute.SimpleImputer(), preprocessing.RobustScaler(), tree.DecisionTreeRegressor(max_depth=4, random_state=0)
  ),
  "support_vectors": lambda: make_pipeline(preprocessing.StandardScaler(), svm.SVC(kernel="rbf", max_iter=200)),
  "support_regression": lambda: make_pipeline(preprocessing.MaxAbsScaler(), svm.SVR(kernel="poly", degree=2)),
  "perceptron": lambda: make_pipeline(
    preprocessing.StandardScaler(),
    neural_network.MLPClassifier((8, 6), activation="tanh", max_iter=50, random_state=0),
  ),
  "neighbours": lambda: make_pipeline(decomposition.PCA(3), neighbors.KNeighborsRegressor(3)),
  "clusters": lambda: make_pipeline(preprocessing.Normalizer(), cluster.KMeans(3, n_init=1, random_state=0)),
  "mixture": lambda: mixture.GaussianMixture(2, random_state=0),
  "naive_bayes": lambda: make_pipeline(preprocessing.PowerTransformer(), naive_bayes.GaussianNB()),
  "gaussian_process": lambda: gaussian_process.GaussianProcessRegressor(
    gaussian_process.kernels.RBF(2.0), alpha=0.1, optimizer=None
  ),
  "columns": lambda: make_pipeline(
    compose.ColumnTransformer(
      [
        ("bins", preprocessing.KBinsDiscretizer(3, encode="onehot-dense"), [0, 1]),
        ("scaled", make_union(preprocessing.StandardScaler(), preprocessing.Binarizer()), [2, 3, 4]),
      ]
    ),
    feature_selection.SelectKBest(feature_selection.f_classif, k=6),
    linear_model.SGDClassifier(loss="log_loss", random_state=0),
  ),
}


def make(name):
  """The fitted pipeline, of which the number of rows is open, and what is said of it."""
  rng = np.random.default_rng(archive.SEED)
  values = rng.standard_normal((ROWS, FEATURES)).astype(np.float32)
  mixed = values @ rng.standard_normal(FEATURES)
  estimator = BUILDERS[name]()
  classes = hasattr(estimator, "predict_proba") or hasattr(estimator, "decision_function")
  estimator.fit(values, np.digitize(mixed, np.quantile(mixed, (0.3, 0.7))) if classes else mixed.astype(np.float32))
  last = estimator[-1] if hasattr(estimator, "steps") else estimator
  options = {} if name.endswith("_map") or not hasattr(last, "classes_") else {id(last): {"zipmap": False}}
  proto = to_onnx(estimator, values[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3})
  feeds = [{"X": rng.standard_normal((rows, FEATURES)).astype(np.float32)} for rows in (4, 7)]
  archive.check_first(archive.finished(proto), [(feed, np.asarray(estimator.predict(feed["X"]))) for feed in feeds])
  said = archive.entry(f"sklearn_{name}", "skl2onnx", proto, feeds, ("scikit-learn", "skl2onnx"))
  return proto, said | {"dynamic": True, "chooses": True}


def main():
  """Writes them all."""
  made = {f"sklearn_{name}": make(name) for name in BUILDERS}
  archive.write(made, set(made), {"skl2onnx"})
  return 0


if __name__ == "__main__":
  sys.exit(main())
