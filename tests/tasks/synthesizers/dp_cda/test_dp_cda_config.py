import pytest
from pydantic import ValidationError

from tasks.synthesizers.dp_cda.config import DpCdaConfig


def test_equal_sizes_come_from_the_declared_patients():
    assert DpCdaConfig(declared_patients=600, order_of_mixture=4).sizes(3) == (200.0, 200.0, 200.0)


def test_declared_sizes_are_taken_as_they_are():
    assert DpCdaConfig(class_sizes=(500, 80), order_of_mixture=80).sizes(2) == (500.0, 80.0)


def test_an_order_above_a_declared_class_is_refused_at_load():
    with pytest.raises(ValidationError, match="as many patients as order_of_mixture") as refused:
        DpCdaConfig(class_sizes=(500, 79), order_of_mixture=80)
    assert "lower order_of_mixture, or join or leave out rare classes" in str(refused.value)


def test_no_class_sizes_at_all_are_refused():
    with pytest.raises(ValidationError, match="as many patients as order_of_mixture"):
        DpCdaConfig(class_sizes=())
