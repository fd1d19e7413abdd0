import json

from tests.processes import python

HEAVY = ("prefect", "dask", "distributed", "sqlalchemy", "jax", "great_expectations", "matplotlib")
PROGRAM = """
import json, sys, time
started = time.process_time()
import clustmix
seconds = time.process_time() - started
after_import = sorted(sys.modules)
import pandas as pd
from clustmix import NaiveBayes, Schema
schema = Schema(items=("tea",), label={"name": "y", "levels": {"no": (), "yes": ()}})
frame = pd.DataFrame({"tea": [0, 1] * 50, "y": ["no", "yes"] * 50})
NaiveBayes(schema, epsilon=1.0, delta=1e-6).fit(frame).sample(3)
print(json.dumps([seconds, after_import, sorted(sys.modules)]))
"""


def test_import_takes_less_than_a_second_and_a_measurement_loads_no_orchestrator():
    seconds, *loaded = json.loads(python("-c", PROGRAM, check=True).stdout)
    # Time of the processor, as a machine that is busy is not ours to blame.
    assert seconds < 1.0
    after_import, after_fit = ({name.partition(".")[0] for name in names} for names in loaded)
    assert not after_import & {*HEAVY, "flows", "pandas", "scipy"}
    assert not after_fit & {*HEAVY, "flows"}
