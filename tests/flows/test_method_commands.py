import json

from flows.cli import main
from flows.stages import MEASURE, place_of, text_of
from tasks.methods.registry import METHODS


def test_json_names_every_method_with_its_facts(capsys):
    assert main(["methods", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [method["kind"] for method in listed] == [entry.kind for entry in METHODS]
    for method, entry in zip(listed, METHODS, strict=True):
        assert method["source"]
        assert method["data_kinds"]
        for name, setting in method["settings"].items():
            assert name in entry.config.model_fields
            assert setting.get("description") or name == "shares", name


def test_stages_in_words_and_progress_that_grows_with_their_parts():
    assert text_of("train-01-of-20") == "train a network of each cluster (noise), 1 of 20"
    assert text_of("unknown") == text_of("unknown-1-of-2") == ""
    places = [place_of(f"train-{n:02d}-of-20", MEASURE) for n in range(1, 21)]
    assert places == sorted(places)
    assert places[-1] == place_of("train", MEASURE) < place_of("seal", MEASURE)
    assert places[0] > place_of("mix", MEASURE)
    assert place_of("clean-up", MEASURE) == 1 / len(MEASURE)
    assert place_of("purge", MEASURE) == 1.0
    assert place_of("unknown", MEASURE) == place_of("unknown-1-of-2", MEASURE) == 0.0
