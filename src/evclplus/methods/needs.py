"""What a method needs of a stream or of the settings, said in one line where it is not there."""

from evclplus.core.likelihoods import Classification
from evclplus.errors import SettingsError
from evclplus.methods.base import Lesson


def needs_classes(name: str, lesson: Lesson) -> None:
    """For methods whose equation speaks of class probabilities."""
    if not isinstance(lesson.likelihood, Classification):
        raise SettingsError(
            f"method {name} is for classes, and this learner was given another criterion; use "
            'criterion="classification", or a method without class probabilities, such as ewc'
        )
