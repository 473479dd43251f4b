"""Callers of `fit`: refuses cross-validation, searches and ensembles of scikit-learn.

Much of scikit-learn fits more often, or on other records, than it seems.

Privacy: cross-validation scores private records without noise. Ensembles draw records with repetition, so one record
counts several times in a fit whose claim bounds it once. A transformer of a pipeline learnt from the records without noise.
The first two are refused; the third voids the claim.
"""

from __future__ import annotations

import sys
from typing import Any

from sordino.refusal import Refusal

_HARMLESS = ("sklearn.pipeline", "sklearn.base", "sklearn.utils")
"""Parts of scikit-learn that call `fit` once, on the records they were given."""


def inspect_callers_of_fit() -> str | None:
    """Returns why the callers of `fit` in scikit-learn leave a fit without a guarantee, or None; refuses a fit that
    should not be made at all.
    """
    frame, void = sys._getframe(1), None
    # Every caller up the stack counts, because a pipeline may stand between a search and this fit.
    while frame is not None:
        module, name = str(frame.f_globals.get("__name__", "")), frame.f_code.co_name
        # Searches come first, because their own message names the cure for them.
        if module.startswith("sklearn.model_selection"):
            raise Refusal(
                "cross-validation and searches fit many times and score private records without noise.\n"
                "The claim of one fit would not cover the others.\n"
                "Hold records out yourself and score those, or choose parameters on public data."
            )
        # Whatever else calls `fit` is refused unless it is known to fit once, so that new ensembles are caught too.
        if module.startswith("sklearn.") and not module.startswith(_HARMLESS):
            raise Refusal(
                f"fit was called by {'.'.join(module.split('.')[:2])}, which fits several times, or on resampled or "
                "changed records.\n"
                "No claim of one fit is true of that.\n"
                "Call fit yourself, on each record once."
            )
        # A pipeline fits once, but what its earlier steps learnt from the records was not paid for.
        if module == "sklearn.pipeline" and name == "fit":
            void = _explain_learning_steps(frame.f_locals.get("self")) or void
        frame = frame.f_back  # type: ignore[assignment]
    return void


def _explain_learning_steps(pipeline: Any) -> str | None:
    """Returns why the steps before the last of a scikit-learn pipeline that called `fit` leave no guarantee, or None if
    they learn nothing.
    """
    for _, step in getattr(pipeline, "steps", ())[:-1]:
        if _is_learning_step(step):
            return (
                f"{type(step).__name__} in the pipeline was fitted on the records without noise; give low= and "
                "high= in its place, or fit it on public data and put sklearn.frozen.FrozenEstimator around it"
            )
    return None


def _is_learning_step(step: Any) -> bool:
    """Returns whether a step of a scikit-learn pipeline that called `fit` learns from the records."""
    from sklearn.utils import get_tags

    # What does nothing, or was fitted before and is kept from being fitted again, reads no record here.
    if step is None or isinstance(step, str) or type(step).__name__ == "FrozenEstimator":
        return False
    if not get_tags(step).requires_fit:
        return False
    # What only joins other transformers learns what they learn.
    if type(step).__module__.startswith("sklearn."):
        kind = type(step).__name__
        if kind in ("ColumnTransformer", "FeatureUnion", "Pipeline"):
            inner = getattr(step, "steps", None) or getattr(step, "transformers", None) or step.transformer_list
            return any(_is_learning_step(each[1]) for each in inner) or _is_learning_step(
                getattr(step, "remainder", None)
            )
        return not _learns_the_number_of_columns_alone(step, kind)
    return True


def _learns_the_number_of_columns_alone(step: Any, kind: str) -> bool:
    """Returns whether a transformer of scikit-learn learns nothing from the records but how many columns they have,
    because all that it computes with was declared.
    """
    if kind == "PolynomialFeatures":
        return True
    if kind == "SimpleImputer":
        # Without keep_empty_features, a column is dropped if no record has a value in it.
        return bool(step.strategy == "constant" and step.keep_empty_features and not step.add_indicator)
    if kind in ("OneHotEncoder", "OrdinalEncoder"):
        declared = not isinstance(step.categories, str)
        grouped = step.min_frequency is not None or step.max_categories is not None
        return declared and not grouped and step.handle_unknown != "infrequent_if_exist"
    return False
